"""Every operation on every backend, every type, reduction, root and placing: right to the last element, or n/a with the reason."""

import functools
import re
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from collbench.operations.dtypes import BITWISE, DTYPES, REDOPS, redop_misfit
from tests.conftest import sample
from tests.contract.launch import launch
from tests.contract.rank import sweep_of
from tests.helpers import FITTING

NOT_IN_TORCH = ("uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
needs = {"gloo": "torch", "mpi": "mpi4py"}
LAUNCHES = [
    ("simulated", 1),
    ("simulated", 2),
    ("simulated", 3),
    ("simulated", 4),
    ("gloo", 2),
    ("mpi", 2),
    ("nccl", 2),  # the double of tests/fake_gpu: results are right, times mean nothing
    *sample([("gloo", 3), ("gloo", 4), ("mpi", 3), ("nccl", 3), ("nccl", 4)], 1),  # slow: more ranks than cores
]


def all_reductions(backend, few):
    """All-reduce of types and reductions: of libraries a sample of the types, where ranks outnumber cores a sample of both."""
    if not few:
        dtypes = list(DTYPES) if backend == "simulated" else sample(list(DTYPES), 6)
        whole = {"operations": ["allreduce"], "sizes": [1003], "dtypes": dtypes, "redops": list(REDOPS)}
        return [
            whole,
            {**whole, "in_place": True, "dtypes": ["float32", *sample([dtype for dtype in dtypes if dtype != "float32"], 3)]},
            {**whole, "in_place": False, "dtypes": ["float32"], "redops": ["sum", "max"]},
        ]
    return [{"operations": ["allreduce"], "sizes": [1003], "dtypes": [dtype], "redops": [redop]} for dtype, redop in sample(FITTING, 6)]


def asked_for(backend, n):
    """The sweeps of one launch."""
    few = n > 2 and backend != "simulated"
    types = ["float32"] if few else ["float32", "bfloat16", "int8"]
    rotating = {"operations": ["allreduce"], "sizes": [300_001], "dtypes": ["int8"], "mode": "pipelined", "buffers": "rotating"}
    return [
        *all_reductions(backend, few),
        {"operations": ["broadcast"], "sizes": [1, 1003], "dtypes": types if few else list(DTYPES), "roots": sorted({0, n - 1})},
        {"operations": ["broadcast", "p2p_latency"], "sizes": [64], "dtypes": ["float32"], "in_place": True},
        {"operations": ["broadcast"], "sizes": [64], "dtypes": ["float32"], "in_place": False},
        {"operations": ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"], "sizes": [1, 300_001], "dtypes": types, "window": 3},
        *([rotating] if n == 2 else []),
        {"operations": ["allreduce"], "sizes": [1, 300_001], "dtypes": ["float32", "int8"]},
        {"operations": ["test_allgather", "test_reducescatter"], "sizes": [3001], "dtypes": ["float32", "uint8"]},
        {"operations": ["test_allgather"], "sizes": [3001], "dtypes": ["float64"], "in_place": True},
    ]


@functools.cache
def launched(backend, n, python=sys.executable):
    """(sweeps, outcome), launched once."""
    if backend in needs and python == sys.executable and not find_spec(needs[backend]):
        pytest.skip(f"{needs[backend]} is not installed")
    folder = Path(tempfile.mkdtemp())
    try:
        asked = asked_for(backend, n)
        if backend == "nccl":  # whose habit is 1,024 slots of so small buffers
            asked = [{"buffers": "fixed", **part} for part in asked]
        return asked, launch(folder, backend, n, asked, python=python)
    finally:
        shutil.rmtree(folder)


def reason(cell, backend, n):
    """What must be said of a cell that cannot be, or None."""
    operation, pair, reduces = cell.operation, cell.operation.startswith("p2p"), cell.redop is not None
    in_place_only = {"gloo": ("allreduce", "broadcast"), "mpi": ("broadcast",)}.get(backend, ())
    reasons = {
        "gloo has no test_reducescatter": operation == "test_reducescatter" and backend == "gloo",
        f"{backend} has {operation} in place only": operation in in_place_only and cell.in_place is False,
        f"{operation} needs 2 ranks": pair and n < 2,
        f"{operation} has no in-place form": pair and cell.in_place,
        (reduces and redop_misfit(cell.redop, cell.dtype)) or "": reduces and redop_misfit(cell.redop, cell.dtype),
        "MPI has no avg": backend == "mpi" and cell.redop == "avg",
        f"NCCL has no {cell.redop}": backend == "nccl" and cell.redop in BITWISE,
        f"gloo reduces no {cell.dtype.name} tensors.*": backend == "gloo" and reduces and cell.dtype.name in NOT_IN_TORCH,
        f"MPI has no type for {cell.dtype.name}.*": backend == "mpi" and reduces and cell.dtype.name.startswith("float8"),
        ".*MPI.* cannot reduce bfloat16": backend == "mpi" and reduces and cell.dtype.name == "bfloat16",
    }
    return next((why for why, holds in reasons.items() if holds), None)


def assert_as_promised(row, cell, backend, n):
    wanted = reason(cell, backend, n)
    if wanted and not (row.na is None and "bfloat16" in wanted):  # a library that can reduce bfloat16 may
        assert row.na
        assert re.fullmatch(wanted, row.na), row
        assert (row.checked, row.wrong, row.time_s, row.busbw_bytes_per_s) == (0, None, None, None)
        return
    assert (row.na, row.checked, row.wrong, row.wrong_detail) == (None, 1, 0, None), row
    assert row.time_s.p50 > 0
    assert (row.busbw_bytes_per_s or 0) > 0 or n == 1
    assert (row.dtype, row.redop, row.root, row.size_bytes) == (cell.dtype.name, cell.redop, cell.root, cell.size_bytes)


@pytest.mark.parametrize(("backend", "n"), LAUNCHES)
def test_right_or_not_applicable(backend, n):
    asked, outcome = launched(backend, n)
    cells = [cell for part in asked for cell in sweep_of(with_our_operations(part)).cells(backend, n)]
    assert outcome.code == 0, outcome.stderr
    assert len(outcome.rows) == len(cells)
    for row, cell in zip(outcome.rows, cells, strict=True):
        assert_as_promised(row, cell, backend, n)


def with_our_operations(part):
    """The plug-in is installed for the ranks only."""
    from collbench.operations.registry import operations
    from tests.contract import made_up

    for operation in (made_up.ALLGATHER, made_up.REDUCESCATTER):
        operations().setdefault(operation.name, operation)
    return part


@pytest.fixture(autouse=True)
def forget_our_operations():
    yield
    from collbench.operations.registry import operations

    operations.cache_clear()


def placings(backend, operation, n=2):
    """Per placing asked for: whether it ran, and the placing on the row."""
    asked, outcome = launched(backend, n)
    cells = [cell for part in asked for cell in sweep_of(with_our_operations(part)).cells(backend, n)]
    pairs = zip(cells, outcome.rows, strict=True)
    return {
        (c.in_place, r.in_place, r.na is None) for c, r in pairs if c.operation == operation and c.buffers == "fixed" and not no_such(c)
    }


def no_such(cell):
    return cell.redop not in (None, "sum") or (cell.redop and cell.dtype.name in ("bfloat16", *NOT_IN_TORCH))


def test_mpi_has_allreduce_in_both_placings_and_takes_out_of_place():
    assert placings("mpi", "allreduce") == {(None, False, True), (True, True, True), (False, False, True)}


def test_torch_has_allreduce_in_place_only_and_the_row_says_so():
    assert placings("gloo", "allreduce") == {(None, True, True), (True, True, True), (False, False, False)}


@pytest.mark.parametrize("operation", ["allreduce", "broadcast"])
def test_nccl_has_both_placings_and_takes_out_of_place(operation):
    assert placings("nccl", operation) == {(None, False, True), (True, True, True), (False, False, True)}


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_broadcast_is_in_place_only(backend):
    assert placings(backend, "broadcast") == {(None, True, True), (True, True, True), (False, False, False)}


def test_simulated_rows_say_so_and_others_do_not():
    assert all("simulated" in row.flags for row in launched("simulated", 2)[1].rows if row.na is None)
    assert not any("simulated" in row.flags for row in launched("mpi", 2)[1].rows)


def test_mpi_is_timed_by_the_native_loop_and_torch_by_python():
    loops = {backend: {row.evidence["loop"] for row in launched(backend, 2)[1].rows if row.na is None} for backend in ("mpi", "gloo")}
    assert loops == {"mpi": {"native"}, "gloo": {"python"}}
    assert not any("python_loop" in row.flags for backend in loops for row in launched(backend, 2)[1].rows)


@pytest.mark.in_turn
@pytest.mark.openmpi
@pytest.mark.parametrize("n", [2])
def test_open_mpi(openmpi_python, n):
    asked, outcome = launched("mpi", n, openmpi_python)
    assert outcome.code == 0, outcome.stderr
    cells = [cell for part in asked for cell in sweep_of(with_our_operations(part)).cells("mpi", n)]
    for row, cell in zip(outcome.rows, cells, strict=True):
        assert_as_promised(row, cell, "mpi", n)
