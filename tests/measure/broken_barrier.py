"""An operation of tests: a barrier in which each rank waits for the one before it alone. With three ranks one leaves early."""

from collections.abc import Iterator

from collbench.operations.builtin.barrier import BARRIER
from collbench.operations.operation import Binding, Operation
from collbench.operations.program import Call


def _ring(x: Binding) -> Iterator[Call]:
    yield x.signal_to((x.rank + 1) % x.n)
    yield x.signal_from((x.rank - 1) % x.n)


LEAKY = Operation("leaky", BARRIER.bus_factor, BARRIER.expected_blocks, by_messages=_ring, is_barrier=True)
