"""A barrier has neither size nor buffers: all that lays out memory copes with nothing."""

import pytest

from collbench.backends.backend import Group
from collbench.backends.host import Buffers
from collbench.operations.builtin.barrier import BARRIER
from collbench.operations.cell import Cell
from collbench.operations.data import bytes_needed, slots_checked, slots_for
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Place
from collbench.operations.sweep import Sweep
from collbench.operations.unsupported import NoInPlaceForm


@pytest.fixture(params=["fixed", "rotating"])
def cell(request) -> Cell:
    """The only one of any sweep."""
    sweep = Sweep((BARRIER,), (8, 1024), (DTYPES["float64"], DTYPES["int8"]), redops=("sum", "max"), roots=(0, 1), buffers=request.param)
    (only,) = sweep.cells("mpi", 3)
    return only


def test_one_cell_of_no_bytes(cell):
    assert (cell.size_bytes, cell.dtype.name, cell.redop, cell.root, cell.traffic, cell.flags) == (0, "uint8", None, None, None, ())
    assert (BARRIER.count(cell, 3), BARRIER.bus_factor(3)) == (0, 0)
    assert BARRIER.needs(3, cell) is None
    assert BARRIER.needs(3, cell.placed(True)) == NoInPlaceForm("barrier")


def test_buffers_of_nothing(cell):
    assert (slots_for(cell), slots_checked(cell)) == (1, [0])
    assert bytes_needed(BARRIER, cell, 3) <= 4096
    buffers = Buffers(BARRIER, cell, Group((0, 1, 2), (1,)), slots_for(cell))
    assert buffers.places == [Place(1, 3, 0, cell)]
    assert (buffers.send(0, 0).size, buffers.recv(0, 0).size) == (0, 0)
    for for_check in (False, True):
        buffers.fill(0, for_check)
    assert buffers.check(0) == [None]
