"""Starts that fail: an MPI library that does not start, lo that is down, missing ranks. Each ends with its reason."""

import json
import os
import re
import shutil
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from collbench.launch.mpi import BackendStartFailed
from collbench.operations.unsupported import decode_reason
from collbench.results.reader import read_run
from tests.cli.command import BIN, PROGRAM, one_sentence, run, running, start, until
from tests.conftest import cannot

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

needs_mpich = pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
REPORTED = {"UCX_TLS": "bad"}  # MPI_Init returns an error
CRASHING = {"MPIR_CVAR_CH4_NETMOD": "bad"}  # MPICH 5 ends with SIGSEGV
SHORT = ("allreduce", "--sizes", "8", "--ranks", "2", "--out", "run")
ABSENT = "eth77"


@needs_mpich
@pytest.mark.parametrize(("setting", "options"), [(REPORTED, ()), (CRASHING, ("--backend", "mpi"))], ids=["reported", "crashing"])
def test_an_mpi_that_does_not_start_is_broken(setting, options, tmp_path):
    done = run(tmp_path, "check", "--total-time", "1", "--out", "run", "--format", "json", *options, env=setting)
    found = json.loads(done.stdout.splitlines()[-1])  # libraries and launchers print before it
    causes = [cause for cause in found["causes"] if cause["kind"] == "backend_start_failed"]
    assert (done.returncode, found["verdict"], found["backends"]["mpi"], len(causes)) == (4, "BROKEN", "BROKEN", 1)
    assert causes[0]["backend"] == "mpi" and "=".join(*setting.items()) in causes[0]["detail"]
    assert "Traceback" not in done.stderr


@needs_mpich
def test_without_a_backend_that_crashes_the_others_are_measured(tmp_path):
    pytest.importorskip("torch")
    done = run(tmp_path, *SHORT, "--backend", "mpi", env=CRASHING)
    assert done.returncode == 4 and done.stderr.count("collbench: ") == 1
    assert "SIGSEGV" in done.stderr and not (tmp_path / "run").exists()
    done = run(tmp_path, *SHORT, env=CRASHING)
    rows = {row.backend: row for row in read_run(tmp_path / "run").rows}
    reason = decode_reason(rows["mpi"].na_fact)
    assert done.returncode == 0 and rows["gloo"].wrong == 0
    assert isinstance(reason, BackendStartFailed) and "SIGSEGV" in reason.detail


# A network namespace of its own, in which lo is down.


@pytest.fixture
def isolated():
    """Return the command in front of collbench."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        cannot("a network namespace needs root and unshare")
    return ("unshare", "--net", *PROGRAM)


def test_gloo_reports_that_lo_is_down(isolated, tmp_path):
    pytest.importorskip("torch")
    said = one_sentence(run(tmp_path, *SHORT, "--backend", "gloo", program=isolated))
    assert f"lo is down on {socket.gethostname()}" in said and "ip link set lo up" in said


@needs_mpich
def test_mpi_is_measured_though_lo_is_down(isolated, tmp_path):
    pytest.importorskip("torch")
    done = run(tmp_path, *SHORT, program=isolated)
    rows = {row.backend: row for row in read_run(tmp_path / "run").rows}
    assert done.returncode == 0 and rows["mpi"].wrong == 0
    assert "lo is down" in str(rows["gloo"].na)


def test_the_doctor_finds_lo_down_and_a_missing_interface(isolated, tmp_path):
    setting = {"GLOO_SOCKET_IFNAME": ABSENT}
    done = run(tmp_path, "doctor", "--format", "json", program=isolated, env=setting)
    found = {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert (found["CB2813"]["severity"], found["CB2814"]["severity"]) == ("warning", "severe")
    assert ABSENT in found["CB2813"]["what"] and found["CB2814"]["remedy"] == "ip link set lo up"

    done = run(tmp_path, "doctor", "--launch", "--format", "json", program=isolated, env=setting)
    problems = {problem["severity"]: problem["what"] for problem in json.loads(done.stdout)["problems"]}
    assert done.returncode == 1 and f"GLOO_SOCKET_IFNAME={ABSENT}" in problems["warning"] and "lo is down" in problems["severe"]


def test_a_host_with_lo_and_the_interface_has_neither_finding(tmp_path):
    done = run(tmp_path, "doctor", "--format", "json", env={"GLOO_SOCKET_IFNAME": "lo"})
    assert not {"CB2813", "CB2814"} & {finding["code"] for finding in json.loads(done.stdout)["findings"]}


# Ranks that wait for others.


@pytest.fixture
def place():
    """Yield where ranks of the environment meet; no other process listens there."""
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    yield {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_waits_reports_it_and_can_be_interrupted(rank, number, code, place, tmp_path):
    process = start(tmp_path, "allreduce", "--sizes", "8", "--out", "run", env={**place, "RANK": str(rank)})
    errors = tmp_path / "stderr"
    try:
        until(lambda: "waiting for" in errors.read_text(), "the note", 30)
        (note,) = errors.read_text().splitlines()
        assert f"waiting for rank {1 - rank} of 2" in note and f"RANK={rank}" in note and "env -u WORLD_SIZE -u RANK" in note
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), number)
        assert process.wait(10) == code
    finally:
        for pid in running(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    last = errors.read_text().splitlines()[-1]
    assert re.search(rf"interrupted by {number.name}( before rank 1 of 2 had joined)?$", last)
    assert "Traceback" not in errors.read_text() and not (tmp_path / "run").exists()
