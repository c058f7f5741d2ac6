"""A library that leaves a rank out, flips a bit, swaps two ranks or moves nothing is caught, on the timed buffers and program."""

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends import simulated
from collbench.backends.backend import Group
from collbench.launch.info import LaunchInfo
from collbench.measuring.prepared_case import group_seed
from collbench.operations.case import Case
from collbench.operations.data import expected_blocks_of
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Place
from collbench.operations.traffic import EVEN, Traffic, skewed
from collbench.operations.unsupported import OperationUnsupported, decode_reason
from collbench.results.reader import read_run
from tests.conftest import INTEL_MPI, ROOT, needs_plugin, needs_ucc, sample
from tests.contract.launch import launch
from tests.contract.made_up import BAD_ELEMENT, OWN_STEPS, SPOILT, TOP_BIT, dropped_rank, spoilt_rank
from tests.contract.rank import take_part

FAULTS = ("dropped", "swapped", "flipped")
PYTHONS = {"openmpi": ROOT / ".venv-openmpi/bin/python", "impi": INTEL_MPI}
OF_MPI_ALONE = ("alltoall", "sendrecv")  # in place
SUMS_OF_MPI = ("scan", "exscan", "reducescatterv")  # in any placing
FROM_FILE = Traffic("matrix", matrix=((0, 3), (1, 2)))
BY_RANK = Traffic("matrix", matrix=((3, 5),))


@dataclass(frozen=True)
class Spoilt:
    """An operation to be spoilt, and how it is asked for: its root, placing and traffic."""

    name: str
    root: int = 0
    in_place: bool | None = None
    traffic: Traffic | None = None

    def __str__(self):
        words = [
            self.name, "in place" if self.in_place else "", f"root {self.root}" if self.root else "", self.traffic and self.traffic.name,
        ]  # fmt: skip
        return ", ".join(word for word in words if word)

    @property
    def operation(self):
        return SPOILT[self.name]

    def asked(self, *names):
        traffic = {} if self.traffic is None else {"matrix": self.traffic.matrix} if self.traffic.matrix else {"skew": self.traffic.skew}
        sweep = {"operations": names, "sizes": [240], "dtypes": ["float32"], "roots": [self.root], "buffers": "fixed", **traffic}
        return sweep if self.in_place is None else {**sweep, "in_place": self.in_place}

    def is_of(self, row):
        placed = self.in_place is None or row.in_place == self.in_place
        return placed and row.root in (None, self.root) and row.traffic in (None, str((self.traffic or EVEN).name))


def plain(name):
    return Spoilt(name)


OTHERS = [*(plain(name) for name in SPOILT if name not in ("allreduce", "allgather"))]
MORE = [
    *(Spoilt(name, root=1) for name in ("gather", "scatter", "reduce", "broadcast")),
    *(Spoilt(name, in_place=True) for name in ("allgather", "reducescatter", *OF_MPI_ALONE)),
    *(Spoilt(name, root=1, in_place=True) for name in ("gather", "scatter")),
    Spoilt("alltoallv", traffic=skewed(1.5)), Spoilt("alltoallv", traffic=FROM_FILE),
    *(Spoilt(name, traffic=BY_RANK) for name in ("allgatherv", "gatherv", "scatterv", "reducescatterv")),
]  # fmt: skip
SPOILT_HERE = [plain("allreduce"), plain("allgather"), *sample(OTHERS, 3), *sample(MORE, 3)]
ASKED = [
    *(one.asked(one.name, *(f"{fault}_{one.name}" for fault in FAULTS)) for one in SPOILT_HERE),
    plain("allreduce").asked("silent"),
]
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(not find_spec(module), reason=f"{module} is not installed"))
    for name, module in (("mpi", "mpi4py"), ("gloo", "torch"))
] + [
    "nccl",
    pytest.param("openmpi", marks=[
        pytest.mark.openmpi, pytest.mark.long,
        pytest.mark.skipif(not PYTHONS["openmpi"].exists(), reason="no Open MPI here: make openmpi-environment"),
    ]),
    pytest.param("impi", marks=[
        pytest.mark.impi, pytest.mark.long,
        pytest.mark.skipif(not INTEL_MPI.exists(), reason="no Intel MPI here: make impi-environment"),
    ]),
    pytest.param("ucc", marks=[pytest.mark.long, needs_ucc, needs_plugin("libraries")]),
]  # fmt: skip


@cache
def outcome(backend, check):
    python = str(PYTHONS.get(backend, sys.executable))
    with TemporaryDirectory() as folder:
        return launch(Path(folder), "mpi" if backend in PYTHONS else backend, 2, ASKED, check=check, python=python)


def lacks(backend):
    """The faults that a library's calls cannot make."""
    return ("flipped",) if backend == "nccl" else ()


def row_of(backend, spoilt, fault=""):
    """The row of an operation, spoilt by a fault; skipped where the library has it not in this placing."""
    name = f"{fault}_{spoilt.name}" if fault else spoilt.name
    row = next(row for row in outcome(backend, 1).rows if row.operation == name and spoilt.is_of(row))
    if backend == "ucc" and spoilt.name in SPOILT and spoilt.name not in OWN_STEPS["ucc"]:
        assert decode_reason(row.na_fact) == OperationUnsupported(backend, name)
        pytest.skip(row.na)
    if spoilt.in_place and spoilt.name in OF_MPI_ALONE and backend in ("gloo", "nccl", "ucc") and fault not in lacks(backend):
        assert decode_reason(row.na_fact) == OperationUnsupported(backend, name, "out of place")
        pytest.skip(row.na)
    if spoilt.name in SUMS_OF_MPI and backend in ("gloo", "nccl"):
        assert decode_reason(row.na_fact) == OperationUnsupported(backend, name)
        pytest.skip(row.na)
    return row


def places_of(row, spoilt):
    """Both ranks' views of the case of a row."""
    case = Case(
        spoilt.name, row.backend, DTYPES[row.dtype], row.size_bytes, redop=row.redop, root=row.root, in_place=row.in_place,
        traffic=spoilt.traffic or EVEN,
    )  # fmt: skip
    return [Place(rank, 2, spoilt.operation.count(case, 2), case) for rank in (0, 1)]


def lacking(row, spoilt):
    """How many elements must be wrong, at both ranks together, where one rank's data came as zeros: no digit is one."""
    blocks = [block for place in places_of(row, spoilt) for block in spoilt.operation.expected_blocks(place)]
    return sum(block.count for block in blocks if dropped_rank(spoilt.operation, spoilt.root) in block.sources)


def right_of(spoilt, place):
    return np.concatenate([wanted.elements(0, wanted.block.count) for wanted in expected_blocks_of(spoilt.operation, place)])


def exchanged(row, spoilt):
    """How many elements must be wrong where the halves of what one rank received have changed places."""
    right = right_of(spoilt, places_of(row, spoilt)[spoilt_rank(spoilt.operation, spoilt.root)])
    return int(np.sum(right != np.roll(right, len(right) // 2)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_data_ends_with_4_and_the_right_rows_stay_right(backend):
    assert outcome(backend, 1).code == 4, outcome(backend, 1).stderr
    assert {row.wrong for row in outcome(backend, 1).rows if row.operation in SPOILT and row.na is None} == {0}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spoilt", SPOILT_HERE, ids=str)
def test_a_rank_left_out_is_found(backend, spoilt):
    row = row_of(backend, spoilt, "dropped")
    assert (row.checked, row.wrong) == (1, lacking(row, spoilt))
    assert row.wrong > 0
    if row.redop:
        assert f"(rank {dropped_rank(spoilt.operation, spoilt.root)}'s share is missing)" in row.wrong_detail


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spoilt", SPOILT_HERE, ids=str)
def test_a_swapped_block_is_found(backend, spoilt):
    row = row_of(backend, spoilt, "swapped")
    assert (row.checked, row.wrong) == (1, exchanged(row, spoilt))
    assert re.match(rf"rank {spoilt_rank(spoilt.operation, spoilt.root)}: {row.wrong} wrong elements, ", row.wrong_detail)
    if spoilt.name in ("allgather", "alltoall", "gather", "hypercube"):  # where the halves are rank 0's block and rank 1's
        assert "rank 1 sends" in row.wrong_detail


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spoilt", SPOILT_HERE, ids=str)
def test_a_flipped_bit_is_found_at_its_element(backend, spoilt):
    row = row_of(backend, spoilt, "flipped")
    if "flipped" in lacks(backend):
        assert decode_reason(row.na_fact) == OperationUnsupported("nccl", row.operation)  # its check has its own proof
        return
    assert row.wrong == 1
    where = f"rank {spoilt_rank(spoilt.operation, spoilt.root)}: 1 wrong element, first at {BAD_ELEMENT}: wanted "
    assert row.wrong_detail.startswith(where)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_never_arrived_is_found(backend):
    row = row_of(backend, plain("silent"))
    assert row.wrong == 120
    assert row.wrong_detail.count("(nothing arrived there)") == 2


@pytest.mark.long  # a launch of its own
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_check_nothing_claims_to_be_checked(backend):
    assert outcome(backend, 0).code == 0
    assert {(row.checked, row.wrong, row.wrong_detail) for row in outcome(backend, 0).rows} == {(0, None, None)}
    assert len(outcome(backend, 0).rows) == sum(len(part["operations"]) for part in ASKED)


def drop(operation, buffers, slot, move):
    place = buffers.places[0]
    buffers.send(dropped_rank(SPOILT[operation.name], place.root), slot)[:] = 0
    move(operation, buffers, slot)


def flip(operation, buffers, slot, move):
    move(operation, buffers, slot)
    received = buffers.recv(spoilt_rank(SPOILT[operation.name], buffers.places[0].root), slot)
    received.view(np.uint8)[4 * BAD_ELEMENT] ^= TOP_BIT


def swap(operation, buffers, slot, move):
    move(operation, buffers, slot)
    received = buffers.recv(spoilt_rank(SPOILT[operation.name], buffers.places[0].root), slot)
    received[:] = np.roll(received, len(received) // 2)


def nothing(operation, buffers, slot, move):
    pass


def everything(row, spoilt):
    return sum(spoilt.operation.receives(place) for place in places_of(row, spoilt))


def on_virtual_ranks(folder, sweeps, ranks, check=1):
    """(exit code, rows) of a run on virtual ranks in this process."""
    asked = {"backend": "simulated", "ranks": ranks, "out": str(folder / "run"), "sweeps": sweeps, "check": check}
    code = take_part(asked, LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"))
    return code, read_run(folder / "run").rows


@pytest.mark.parametrize(("fault", "wrong", "found"), [
    (drop, lacking, r"rank \d: "),
    (flip, lambda row, spoilt: 1, r"rank \d: 1 wrong element, first at 3: "),
    (swap, exchanged, r"rank \d: \d+ wrong elements, first at \d+: "),
    (nothing, everything, r"rank \d: \d+ wrong elements, first at 0: .*nothing arrived there"),
])  # fmt: skip
@pytest.mark.parametrize("check", [1, 0])
def test_on_virtual_ranks(tmp_path, monkeypatch, *, fault, wrong, found, check):
    real = simulated.move
    monkeypatch.setattr(simulated, "move", lambda operation, buffers, slot: fault(operation, buffers, slot, real))
    cases = [*map(plain, SPOILT), *(one for one in MORE if not one.in_place)]
    code, rows = on_virtual_ranks(tmp_path, [one.asked(one.name) for one in cases], 2, check)
    assert len(rows) == len(cases)
    for one in cases:
        row = next(row for row in rows if row.operation == one.name and one.is_of(row))
        assert (code, row.checked, row.wrong) == ((4, 1, wrong(row, one)) if check else (0, 0, None)), str(one)
        assert re.match(found if check else "None", str(row.wrong_detail)), str(one)


def differing(row, spoilt):
    """How many elements differ between what the groups (0, 2) and (1, 3) receive at the spoilt rank, counted at both."""
    place = places_of(row, spoilt)[spoilt_rank(spoilt.operation, spoilt.root)]
    cases = [replace(place.case, seed=group_seed(place.case, Group(ranks, (0,)))) for ranks in ((0, 2), (1, 3))]
    one, other = (right_of(spoilt, replace(place, case=case)) for case in cases)
    return 2 * int(np.sum(one != other))


def test_one_groups_data_in_another_one_is_found(tmp_path, monkeypatch):
    real, moved = simulated.move, []

    def across(operation, buffers, slot):
        """The groups move one after the other; after the second one, what a rank of each has received changes places."""
        real(operation, buffers, slot)
        moved.append(buffers)
        if len(moved) % 2 == 0:
            victim = spoilt_rank(SPOILT[operation.name], buffers.places[0].root)
            here, there = (each.recv(victim, slot) for each in moved[-2:])
            here[:], there[:] = there.copy(), here.copy()

    monkeypatch.setattr(simulated, "move", across)
    cases = [*map(plain, SPOILT), *(one for one in MORE if one.root and not one.in_place)]
    code, rows = on_virtual_ranks(tmp_path, [{**one.asked(one.name), "split": "MOD 2"} for one in cases], 4)
    assert (code, len(rows)) == (4, len(cases))
    for one in cases:
        row = next(row for row in rows if row.operation == one.name and one.is_of(row))
        assert (row.group, row.checked, row.wrong) == ("MOD 2", 1, differing(row, one)), str(one)
        assert row.wrong > row.count // (2 if one.operation.by_rank else 1), str(one)
