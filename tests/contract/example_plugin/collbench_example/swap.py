"""An operation: ranks 0 and 1, 2 and 3 … exchange their buffers."""

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation, out_of_place_only
from collbench.operations.program import Call


def _by_messages(x: Binding) -> Iterator[Call]:
    other = x.rank ^ 1
    yield from x.together()
    yield x.post_receive(other, x.recv, x.count)
    yield x.post_send(other, x.send, x.count)
    yield x.waitall()


SWAP = Operation(
    name="swap",
    summary="ranks 0 and 1, 2 and 3 … exchange their buffers",
    bus_factor=lambda n: 1.0,
    needs=lambda n, case: f"swap needs an even number of ranks, not {n}" if n % 2 else None,
    expected_blocks=lambda x: [Block([x.rank ^ 1], at=0, count=x.count)],  # what is verified
    by_messages=out_of_place_only(_by_messages),
)
