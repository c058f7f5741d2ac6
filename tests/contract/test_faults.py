"""A library that leaves a rank out, flips a bit, swaps two ranks or moves nothing is caught, on the timed buffers and program."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from collbench.backends import simulated
from collbench.launch.info import LaunchInfo
from collbench.operations.registry import operations
from collbench.results.reader import read_run
from tests.contract import made_up
from tests.contract.launch import launch
from tests.contract.made_up import BAD_ELEMENT, TOP_BIT
from tests.contract.rank import take_part

FAULTY = {
    "operations": ["allreduce", "dropped", "flipped", "silent"],
    "sizes": [400],
    "dtypes": ["float32"],
    "redops": ["sum"],
    "buffers": "fixed",
}
SWAPPED = {"operations": ["test_allgather", "swapped"], "sizes": [400], "dtypes": ["float32"], "buffers": "fixed"}
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(not find_spec(module), reason=f"{module} is not installed"))
    for name, module in (("mpi", "mpi4py"), ("gloo", "torch"))
] + ["nccl"]


@cache
def outcome(backend, check):
    with TemporaryDirectory() as folder:
        return launch(Path(folder), backend, 2, [FAULTY, SWAPPED], check=check)


def row_of(backend, operation, check=1):
    return next(row for row in outcome(backend, check).rows if row.operation == operation)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_data_ends_with_4_and_the_right_rows_stay_right(backend):
    assert outcome(backend, 1).code == 4, outcome(backend, 1).stderr
    assert [row_of(backend, name).wrong for name in ("allreduce", "test_allgather")] == [0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_left_out_is_named(backend):
    row = row_of(backend, "dropped")
    assert (row.checked, row.wrong) == (1, 200)
    assert row.wrong_detail.startswith("rank 0: 100 wrong elements, first at 0: wanted ")
    assert row.wrong_detail.count("(rank 1's share is missing)") == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_flipped_bit_is_found_at_its_element(backend):
    if backend == "nccl":
        pytest.skip("a call of NCCL flips no single bit; its own check is proved on one when it is opened")
    row = row_of(backend, "flipped")
    assert row.wrong == 1
    assert row.wrong_detail.startswith(f"rank 0: 1 wrong element, first at {BAD_ELEMENT}: wanted ")


@pytest.mark.parametrize("backend", BACKENDS)
def test_swapped_ranks_are_named(backend):
    row = row_of(backend, "swapped")
    assert row.wrong == 200  # both blocks of 50 elements at both ranks
    assert row.wrong_detail.startswith("rank 0: 100 wrong elements, first at 0: ")
    assert row.wrong_detail.count("(that is what rank 1 sends)") == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_never_arrived_is_found(backend):
    row = row_of(backend, "silent")
    assert row.wrong == 200
    # in place, as torch has it, a rank's own digits are still there: the other's share is missing
    hints = ("rank 1's share is missing", "rank 0's share is missing") if backend == "gloo" else ("nothing arrived there",) * 2
    assert all(f"({hint})" in row.wrong_detail for hint in hints)


@pytest.mark.in_turn  # a launch of its own
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_check_nothing_claims_to_be_checked(backend):
    assert outcome(backend, 0).code == 0
    assert {(row.checked, row.wrong, row.wrong_detail) for row in outcome(backend, 0).rows} == {(0, None, None)}
    assert len(outcome(backend, 0).rows) == 6


def drop(operation, buffers, slot, move):
    buffers.send(1, slot)[:] = 0
    move(operation, buffers, slot)


def flip(operation, buffers, slot, move):
    move(operation, buffers, slot)
    buffers.recv(0, slot).view(np.uint8)[4 * BAD_ELEMENT] ^= TOP_BIT


def swap(operation, buffers, slot, move):
    move(operation, buffers, slot)
    received = buffers.recv(0, slot)
    received[:] = np.roll(received, len(received) // 2)


def nothing(operation, buffers, slot, move):
    pass


@pytest.mark.parametrize(
    ("fault", "operation", "found"),
    [
        (drop, "allreduce", (200, "rank 0: 100 wrong elements, first at 0: .*rank 1's share is missing")),
        (flip, "allreduce", (1, "rank 0: 1 wrong element, first at 3: ")),
        (swap, "test_allgather", (100, "rank 0: 100 wrong elements, first at 0: .*that is what rank 1 sends")),
        (nothing, "allreduce", (200, "rank 0: 100 wrong elements, first at 0: .*nothing arrived there.*; rank 1: ")),
    ],
)
@pytest.mark.parametrize("check", [1, 0])
def test_on_virtual_ranks(tmp_path, monkeypatch, *, fault, operation, found, check):
    operations().setdefault("test_allgather", made_up.ALLGATHER)
    real = simulated.move
    monkeypatch.setattr(simulated, "move", lambda operation, buffers, slot: fault(operation, buffers, slot, real))
    sweep = {"operations": [operation], "sizes": [400], "dtypes": ["float32"]}
    asked = {"backend": "simulated", "ranks": 2, "out": str(tmp_path / "run"), "sweeps": [sweep], "check": check}
    code = take_part(asked, LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"))
    operations.cache_clear()
    (row,) = read_run(tmp_path / "run").rows
    wrong, detail = found
    assert (code, row.checked, row.wrong) == ((4, 1, wrong) if check else (0, 0, None))
    assert re.match(detail if check else "None", str(row.wrong_detail))
