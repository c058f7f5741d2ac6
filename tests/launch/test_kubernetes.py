"""Pods: the rank and number of ranks from a Job's variables, and errors that prevent that each pod measures alone."""

from __future__ import annotations

import socket
import threading

import pytest

from collbench.control import addresses
from collbench.control.world import World
from collbench.errors import UsageError, WaitExpired
from collbench.launch.detect import LocalRequest, detect, to_variable
from collbench.launch.info import LaunchInfo
from collbench.launch.spawn import node_workers
from tests.launch import captured

SECRET = "6f1d2a34-5b6c-4d7e-8f90-123456789abc"
POD = {"JOB_COMPLETION_INDEX": "1", "COLLBENCH_PODS": "3", "MASTER_ADDR": "bench-0.bench", "COLLBENCH_SECRET": SECRET}
TRAIN = {
    "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "t-node-0-0.t", "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "1", "COLLBENCH_SECRET": SECRET,
}  # fmt: skip


def found(env: dict[str, str], ranks: int | None = None) -> LaunchInfo:
    info = detect(env, LocalRequest(ranks))
    assert info
    return info


class TestPod:
    def test_of_an_indexed_job_is_a_task_alone_on_its_node(self) -> None:
        info = found(POD)
        assert (info.launcher, info.rank, info.ranks, info.local_rank, info.local_ranks) == ("kubernetes", 1, 3, 0, 1)
        assert (info.meeting, info.port, info.node, info.mpi) == ("tcp://bench-0.bench", None, "1", None)
        assert info.facts == {"kubernetes": "indexed Job"}
        assert info.token == found({**POD, "JOB_COMPLETION_INDEX": "0"}).token

    def test_of_a_trainjob_without_torchrun_is_one_too(self) -> None:
        info = found(TRAIN)
        assert (info.launcher, info.rank, info.ranks, info.local_ranks) == ("kubernetes", 1, 2, 1)
        assert (info.meeting, info.port, info.facts) == ("tcp://t-node-0-0.t", 29500, {"kubernetes": "TrainJob"})

    def test_under_torchrun_in_it_is_torchruns(self) -> None:
        inside = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
        info = found({**TRAIN, **inside, "TORCHELASTIC_RUN_ID": "none"})
        assert (info.launcher, info.rank, info.ranks) == ("torchrun", 3, 4)

    def test_of_an_mpijob_is_mpiruns(self) -> None:
        assert found({**POD, **captured.PRTE}).launcher == "mpirun"

    def test_alone_needs_no_address_and_may_start_ranks_itself(self) -> None:
        alone = {"JOB_COMPLETION_INDEX": "0", "COLLBENCH_PODS": "1"}
        assert (found(alone).ranks, found(alone).meeting) == (1, "tcp://127.0.0.1")
        assert detect(alone, LocalRequest(ranks=4)) is None

    def test_becomes_the_ranks_of_its_node(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[LaunchInfo] = []

        class Recorder:
            def __init__(self, children: list[object], **_: object) -> None:
                started.extend(found(child.env) for child in children)  # type: ignore[attr-defined]

            def run(self) -> int:
                return 0

        monkeypatch.setattr("collbench.launch.spawn.Supervisor", Recorder)
        assert node_workers(found(POD), 2, ["allreduce"], POD) == 0
        assert [(one.rank, one.ranks, one.local_rank, one.local_ranks, one.node) for one in started] == [
            (2, 6, 0, 2, "1"),
            (3, 6, 1, 2, "1"),
        ]
        assert {one.launcher for one in started} == {"kubernetes"}


class TestRefused:
    @pytest.mark.parametrize("missing", ["COLLBENCH_PODS", "MASTER_ADDR", "COLLBENCH_SECRET", "JOB_COMPLETION_INDEX"])
    def test_a_pod_that_would_measure_alone(self, missing: str) -> None:
        env = {name: value for name, value in POD.items() if name != missing}
        with pytest.raises(UsageError, match=f"{missing} is not"):
            detect(env)

    def test_the_error_has_all_missing_variables_and_the_remedy(self) -> None:
        with pytest.raises(UsageError) as said:
            detect({"JOB_COMPLETION_INDEX": "0"})
        assert all(word in str(said.value) for word in ("COLLBENCH_PODS", "MASTER_ADDR", "`collbench emit kubernetes`", "--ranks"))
        assert detect({"JOB_COMPLETION_INDEX": "0"}, LocalRequest(ranks=2)) is None

    @pytest.mark.parametrize(
        ("env", "value"),
        [
            ({**POD, "JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX=3 "), ({**POD, "COLLBENCH_PODS": "many"}, "COLLBENCH_PODS='many'"),
            ({**TRAIN, "PET_NNODES": "1:4"}, "PET_NNODES='1:4'"), ({**TRAIN, "PET_MASTER_PORT": "70000"}, "PET_MASTER_PORT=70000"),
        ],
    )  # fmt: skip
    def test_invalid_variables(self, env: dict[str, str], value: str) -> None:
        with pytest.raises(UsageError, match=value):
            detect(env)

    def test_ranks_of_its_own_beside_other_pods(self) -> None:
        with pytest.raises(UsageError, match=r"--ranks 4 .*kubernetes started 3"):
            detect(POD, LocalRequest(ranks=4))

    def test_a_pod_without_a_job_starts_ranks_itself(self) -> None:
        assert detect({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) is None


class TestName:
    """The name of rank 0's pod, which other pods can resolve some seconds after their start."""

    def test_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([(), (), ("10.0.0.5",)])
        monkeypatch.setattr(addresses, "resolve", lambda host: next(answers))
        monkeypatch.setattr(addresses, "_RETRY_S", 0.0)
        assert addresses.await_name("tcp://bench-0.bench", 30.0)

    def test_is_not_waited_for_without_end(self) -> None:
        assert not addresses.await_name("tcp://no.such.host.invalid", 0.0)

    def test_that_never_resolves_ends_the_rank_with_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLLBENCH_SECRET", SECRET)
        info = found({**POD, "MASTER_ADDR": "no.such.host.invalid"})
        with pytest.raises(WaitExpired, match=r"no\.such\.host\.invalid.* 0\.1 s"):
            World(info, 0.1)

    @pytest.mark.contract
    def test_that_resolves_late_lets_the_ranks_join(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLLBENCH_SECRET", SECRET)
        known, ask = threading.Event(), socket.getaddrinfo

        def late(host: str, *rest: object, **more: object) -> object:
            if host == "bench-0.bench":
                if not known.is_set():
                    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
                host = "127.0.0.1"
            return ask(host, *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(socket, "getaddrinfo", late)
        worlds: list[World] = []
        ranks = [threading.Thread(target=lambda i=i: worlds.append(World(self.pod(i), 20.0))) for i in range(2)]
        for rank in ranks:
            rank.start()
        ranks[1].join(0.5)
        assert not worlds  # no rank has ended, and none has joined
        known.set()
        for rank in ranks:
            rank.join(20)
        try:
            assert sorted(world.rank for world in worlds) == [0, 1]
            assert {len(world.members) for world in worlds} == {2}
        finally:
            for world in sorted(worlds, key=lambda world: -world.rank):
                world.close()

    def pod(self, index: int) -> LaunchInfo:
        return found({**POD, "COLLBENCH_PODS": "2", "JOB_COMPLETION_INDEX": str(index)})


def test_workers_of_a_pod_get_its_launch() -> None:
    assert found({"COLLBENCH_WORKER": to_variable(found(POD))}) == found(POD)
