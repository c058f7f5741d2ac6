"""Detect the launcher: environments of real launchers, which one takes precedence, and errors."""

import json
import os
import re
import string
import subprocess
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.launch import detect as mpi
from collbench.launch import slurm
from collbench.launch.detect import LocalRequest, detect, to_variable
from collbench.launch.info import LaunchInfo
from tests.launch import captured


@pytest.fixture(autouse=True)
def names_resolve(monkeypatch):
    known = {"n1": ("10.0.0.1",), "n2": ("10.0.0.2",), "10.0.0.2": ("10.0.0.2",)}
    monkeypatch.setattr(slurm, "resolve", lambda host: known.get(host, ()))
    monkeypatch.setattr(slurm, "ancestors", lambda: ())


@pytest.fixture
def no_node_addresses(monkeypatch):
    monkeypatch.setattr(subprocess, "run", captured.scontrol({}))


def test_without_a_launcher_there_is_no_launch():
    assert detect({}) is None
    assert detect({"RANK": "0", "MASTER_ADDR": "h"}) is None


WITH_MASTER = {"MASTER_ADDR": "fe80::7", "MASTER_PORT": "29500"}
LOCAL = {"COLLBENCH_LOCAL": "/tmp/c", "COLLBENCH_RANKS": "3"}
ELSEWHERE = {**captured.PRTE, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
OUTER_PMI = {**captured.SRUN_NONE, "PMI_RANK": "0", "PMI_SIZE": "1", "PMI_JOBID": "7.0", "PMI_FD": "11"}


# Ranks: rank, number of ranks, local rank, number of local ranks. Place: meeting point and port.
@pytest.mark.parametrize(("env", "launcher", "ranks", "place", "mpi"), [
    (captured.SRUN_NONE, "srun", (2, 3, 0, 1), ("tcp://n1", None), None),
    (captured.SRUN_PMI2, "srun", (2, 3, 0, 1), ("tcp://n1", None), "pmi"),
    (captured.SRUN_PMIX, "srun", (2, 3, 0, 1), ("tcp://n1", None), "pmix"),
    (OUTER_PMI, "srun", (2, 3, 0, 1), ("tcp://n1", None), None),
    ({**captured.SRUN_NONE, "SLURM_DISTRIBUTION": "arbitrary", "MASTER_ADDR": "h"}, "srun", (2, 3, 0, 1), ("tcp://h", None), None),
    ({**captured.SRUN_NONE, **WITH_MASTER}, "srun", (2, 3, 0, 1), ("tcp://[fe80::7]", 29500), None),
    (captured.HYDRA, "mpirun", (2, 3, 2, 3), ("tcp://127.0.0.1", None), "pmi"),
    (captured.INTEL_HYDRA, "mpirun", (2, 3, 2, 3), ("tcp://127.0.0.1", None), "pmi"),
    (captured.PRTE, "mpirun", (2, 3, 1, 3), ("tcp://127.0.0.1", None), "pmix"),
    (ELSEWHERE, "mpirun", (2, 3, 1, 2), ("mpi", None), "pmix"),
    ({**ELSEWHERE, "MASTER_ADDR": "h1"}, "mpirun", (2, 3, 1, 2), ("tcp://h1", None), "pmix"),
    (captured.TORCHRUN, "torchrun", (1, 2, 1, 2), ("tcp://localhost", None), None),  # the agent's store owns the master port
    ({**captured.SRUN_PMI2, **captured.TORCHRUN}, "torchrun", (1, 2, 1, 2), ("tcp://localhost", None), None),
    ({**captured.PRTE, **captured.TORCHRUN}, "torchrun", (1, 2, 1, 2), ("tcp://localhost", None), None),
    (captured.KUBERNETES, "torchrun", (3, 4, 0, 1), ("tcp://job-0.svc", 23456), None),  # without torchrun the port is free
    ({**captured.SBATCH, **LOCAL, "COLLBENCH_RANK": "1"}, "local", (1, 3, 1, 3), ("ipc:///tmp/c/control", None), None),
    (captured.HYDRA_IN_SLURM, "mpirun", (1, 2, 0, 1), ("mpi", None), "pmi"),  # variables of Slurm's step are those of its daemons
    ({**captured.HYDRA, **LOCAL}, "local", (2, 3, 2, 3), ("ipc:///tmp/c/control", None), "pmi"),
    ({**captured.PRTE, **LOCAL}, "local", (2, 3, 2, 3), ("ipc:///tmp/c/control", None), "pmix"),
])  # fmt: skip
def test_the_launch_of_each_launcher(env, launcher, ranks, place, mpi):
    info = detect(env)
    assert (info.launcher, (info.rank, info.ranks, info.local_rank, info.local_ranks)) == (launcher, ranks)
    assert ((info.meeting, info.port), info.mpi) == (place, mpi)


class TestSrun:
    def test_a_step_names_its_hosts_and_its_token_and_scontrols_address_is_the_second_choice(self, monkeypatch):
        info = detect(captured.SRUN_NONE)
        assert (info.hosts, info.token) == (("n1", "n2"), "slurm:testbed:8.0")
        monkeypatch.setattr(subprocess, "run", captured.scontrol({"m1": "10.0.0.2"}))
        assert detect({**captured.SRUN_NONE, "SLURM_STEP_NODELIST": "m[1-2]"}).meeting == "tcp://10.0.0.2"

    def test_a_loopback_name_of_another_node_is_replaced_by_its_node_address(self, monkeypatch):
        """The name of this host often resolves to loopback: rank 0 then listens at every address."""
        on_n2 = {**captured.SRUN_NONE, "SLURMD_NODENAME": "n2"}
        monkeypatch.setattr(slurm.socket, "gethostname", lambda: "n2.cluster")
        monkeypatch.setattr(slurm, "resolve", {"n1": ("127.0.1.1",), "10.0.0.1": ("10.0.0.1",)}.get)
        monkeypatch.setattr(subprocess, "run", captured.scontrol({"n1": "10.0.0.1"}))
        assert detect(on_n2).meeting == "tcp://10.0.0.1"
        monkeypatch.setattr(subprocess, "run", captured.scontrol({"n1": "n1"}))
        with pytest.raises(UsageError, match=r"'n1' resolves to 127\.0\.1\.1 on n2"):
            detect(on_n2)
        monkeypatch.setattr(slurm.socket, "gethostname", lambda: "n1")
        assert detect({**on_n2, "SLURMD_NODENAME": "n1"}).meeting == "tcp://n1"

    @pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
    def test_a_loopback_master_addr_is_rejected_with_ranks_on_other_hosts(self, address, monkeypatch):
        monkeypatch.setattr(slurm.socket, "gethostname", lambda: "n2")
        monkeypatch.setattr(slurm, "resolve", lambda host: ("127.0.0.1",) if host == "localhost" else (host,))
        env = {**captured.SRUN_NONE, "SLURMD_NODENAME": "n2", "MASTER_ADDR": address}
        with pytest.raises(UsageError, match=rf"MASTER_ADDR={address} .* n1"):
            detect(env)
        assert detect({**env, "SLURMD_NODENAME": "m2"}).meeting  # nodes that share this host

    def test_the_advice_of_a_step_and_a_shell_in_one_of_one_task_may_start_ranks_itself(self):
        assert detect(captured.SRUN_NONE).advice == (slurm.RANKS_NOT_ENDED,)
        assert detect({**captured.SRUN_NONE, "SLURM_KILL_BAD_EXIT": "1"}).advice == ()
        assert (detect(captured.SRUN_ONE).ranks, detect(captured.SRUN_ONE).advice) == (1, (slurm.SINGLE_TASK,))
        assert detect(captured.SRUN_ONE, LocalRequest(ranks=4)) is None


class TestAllocationWithoutStep:
    @pytest.mark.parametrize("env", captured.NO_STEP.values(), ids=captured.NO_STEP)
    def test_the_error_has_the_command_with_srun(self, env):
        with pytest.raises(UsageError, match=r"`srun collbench allreduce --sizes '8,1 K'`.*--ranks"):
            detect(env, LocalRequest(command=("collbench", "allreduce", "--sizes", "8,1 K")))
        assert detect(env, LocalRequest(ranks=2)) is None

    def test_a_batch_script_with_inherited_variables_of_a_step_is_not_a_step(self, monkeypatch):
        files = {"/proc/7/cmdline": b"slurmstepd: [9.batch]\0"}
        monkeypatch.setattr(slurm, "ancestors", lambda: [(9, "bash", ""), (7, "slurmstepd", "")])
        monkeypatch.setattr(slurm.Path, "read_bytes", lambda path: files[str(path)])
        with pytest.raises(UsageError, match="`srun "):
            detect(captured.SRUN_PMI2)
        files["/proc/7/cmdline"] = b"slurmstepd: [9.0]\0"
        assert detect(captured.SRUN_PMI2).launcher == "srun"


def test_as_many_ranks_as_the_launcher_started_are_accepted():
    assert detect(captured.HYDRA, LocalRequest(ranks=3)).ranks == 3


def test_concurrent_jobs_of_mpirun_have_tokens_of_their_own():
    assert detect(captured.PRTE).token != detect({**captured.PRTE, "PMIX_NAMESPACE": "prterun-h-5924@1"}).token
    assert detect(captured.HYDRA).token == detect({**captured.HYDRA, "PMI_RANK": "0", "MPI_LOCALRANKID": "0"}).token
    env = {**ELSEWHERE, "MASTER_ADDR": "h1"}
    assert detect(env).token == detect({**env, "OMPI_COMM_WORLD_RANK": "0"}).token


class TestTorchrun:
    def test_a_restart_is_a_fact_of_the_launch_and_not_in_the_token(self):
        first, again = (detect({**captured.TORCHRUN, "TORCHELASTIC_RESTART_COUNT": count}) for count in "02")
        assert first.token == again.token != detect({**captured.TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}).token
        assert (first.facts, again.facts) == ({"variables": "torchrun"}, {"variables": "torchrun", "restarts": "2"})

    def test_variables_set_by_hand_under_srun_keep_its_process_manager(self):
        by_hand = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
        info = detect({**captured.SRUN_PMI2, **by_hand})
        assert (info.launcher, info.mpi, info.hosts) == ("torchrun", "pmi", ("n1", "n2"))
        assert detect({**captured.SRUN_PMI2, **by_hand, "RANK": "1"}).mpi is None

    @pytest.mark.parametrize(("env", "launcher"), [(captured.HYDRA, "mpirun"), (captured.SRUN_NONE, "srun")])
    def test_a_container_with_variables_of_one_rank_does_not_make_every_rank_a_rank_0(self, env, launcher):
        of_container = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
        with pytest.raises(UsageError, match=f"WORLD_SIZE=1, but {launcher} started 3 ranks: unset RANK and WORLD_SIZE"):
            detect({**env, **of_container})


class TestEndOfJob:
    """MPICH's mpiexec with -disable-auto-cleanup waits for a stopped rank, unless it gets an abort message."""

    def test_mpiexec_gets_an_abort_message_with_the_exit_code_and_other_launchers_none(self):
        ours, theirs = os.pipe()
        env = {**captured.HYDRA, "PMI_FD": str(theirs)}
        mpi.end_of_job(detect(env), env)()
        assert os.read(ours, 100) == b"cmd=abort exitcode=4\n"
        os.close(ours)
        with suppress(BrokenPipeError):
            mpi.end_of_job(detect(env), env)()
        os.close(theirs)
        assert mpi.end_of_job(detect(captured.SRUN_PMI2), captured.SRUN_PMI2) is None
        assert mpi.end_of_job(detect(captured.HYDRA), {**captured.HYDRA, "PMI_FD": ""}) is None


class TestEndOfStep:
    """Without --kill-on-bad-exit Slurm leaves the other ranks waiting, so rank 0 ends with a scancel of its step."""

    @pytest.mark.contract
    def test_the_step_is_killed_if_there_is_a_scancel(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        end = slurm.end_of_step(detect(captured.SRUN_NONE), captured.SRUN_NONE)
        assert end() is None and list(tmp_path.iterdir()) == []
        (tmp_path / "scancel").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
        (tmp_path / "scancel").chmod(0o755)
        end()
        assert (tmp_path / "said").read_text() == "--signal=KILL 8.0\n"

    def test_no_scancel_if_slurm_ends_the_step_or_did_not_start_the_ranks(self):
        env = {**captured.SRUN_NONE, "SLURM_KILL_BAD_EXIT": "1"}
        assert slurm.end_of_step(detect(env), env) is None
        assert slurm.end_of_step(detect(captured.HYDRA_IN_SLURM), captured.HYDRA_IN_SLURM) is None


WORKER = to_variable(LaunchInfo("srun", 0, 1, 0, 1, "tcp://n1", "t", advice=(slurm.RANKS_NOT_ENDED,)))
WRONG_ADVICE = [WORKER.replace(json.dumps([slurm.RANKS_NOT_ENDED]), each) for each in ('"x"', "[1]", '[{"kind": "of_a_later_version"}]')]
assert WORKER not in WRONG_ADVICE
WRONG_WORKERS = ["", "{}", "[]", "null", '{"launcher": 1}', "[" * 100_000, *WRONG_ADVICE]
# What is wrong in an environment: its error has the name and the value. The sentences of others are in test_launch_sentences.
INVALID = [
    (captured.TORCHRUN, "WORLD_SIZE", "-1"), (captured.TORCHRUN, "MASTER_PORT", "70000"), (captured.HYDRA, "PMI_SIZE", "two"),
    (captured.PRTE, "OMPI_COMM_WORLD_RANK", "3"), (captured.SRUN_NONE, "SLURM_PROCID", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("env", "match"), [
    *(({**env, name: value}, f"(?s)(?=.*{name})(?=.*{re.escape(value)})") for env, name, value in INVALID),
    ({**captured.SRUN_NONE, "SLURM_STEP_NODELIST": "m[1-2]"}, r"'m1' .*MASTER_ADDR"),
    *(({"COLLBENCH_WORKER": text}, "COLLBENCH_WORKER") for text in WRONG_WORKERS),
])  # fmt: skip
@pytest.mark.usefixtures("no_node_addresses")
def test_a_launch_that_cannot_be_is_refused(env, match):
    with pytest.raises(UsageError, match=match):
        detect(env)


NAMES = sorted({name for env in captured.ALL.values() for name in env} | {"COLLBENCH_WORKER", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"})
TEXTS = st.one_of(
    st.sampled_from(["0", "1", "2", "4294967290", "n[1-2]", "1(x2)"]), st.text(string.printable, max_size=12), st.text(max_size=4)
)


@pytest.mark.usefixtures("no_node_addresses")
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.sampled_from(sorted(captured.ALL)), changes=st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=4))
def test_any_environment_gives_a_launch_or_a_usage_error(base, changes):
    try:
        info = detect({**captured.ALL[base], **changes})
    except UsageError as error:
        assert str(error)
    else:
        assert info is None or (0 <= info.rank < info.ranks and 0 <= info.local_rank < info.local_ranks and info.token)
