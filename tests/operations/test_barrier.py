"""A barrier has neither size nor buffers: all that lays out memory copes with nothing."""

import pytest

from collbench.backends.backend import Group
from collbench.backends.host import Buffers
from collbench.operations.builtin.barrier import BARRIER
from collbench.operations.case import Case
from collbench.operations.data import bytes_needed, slots_checked, slots_for
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Place
from collbench.operations.sweep import Sweep
from collbench.operations.unsupported import NoInPlaceForm


@pytest.fixture(params=["fixed", "rotating"])
def case(request) -> Case:
    """The only one of any sweep."""
    sweep = Sweep((BARRIER,), (8, 1024), (DTYPES["float64"], DTYPES["int8"]), redops=("sum", "max"), roots=(0, 1), buffers=request.param)
    (only,) = sweep.cases("mpi", 3)
    return only


def test_one_case_of_no_bytes(case):
    assert (case.size_bytes, case.dtype.name, case.redop, case.root, case.traffic, case.flags) == (0, "uint8", None, None, None, ())
    assert (BARRIER.count(case, 3), BARRIER.bus_factor(3)) == (0, 0)
    assert BARRIER.needs(3, case) is None
    assert BARRIER.needs(3, case.placed(True)) == NoInPlaceForm("barrier")


def test_buffers_of_nothing(case):
    assert (slots_for(case), slots_checked(case)) == (1, [0])
    assert bytes_needed(BARRIER, case, 3) <= 4096
    buffers = Buffers(BARRIER, case, Group((0, 1, 2), (1,)), slots_for(case))
    assert buffers.places == [Place(1, 3, 0, case)]
    assert (buffers.send(0, 0).size, buffers.recv(0, 0).size) == (0, 0)
    for for_check in (False, True):
        buffers.fill(0, for_check)
    assert buffers.check(0) == [None]
