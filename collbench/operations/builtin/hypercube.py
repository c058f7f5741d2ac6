"""Hypercube: an all-gather by messages in log2(n) steps, in each of which partners exchange all data that they have.

It exists in place only, as in nccl-tests after the first copy: every step sends what the earlier steps received.
"""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.case import Case
from collbench.operations.operation import Binding, Block, Operation, Reason, in_place_only
from collbench.operations.program import Call


def _doubling(x: Binding) -> Iterator[Call]:
    parts = 1
    while parts < x.n:
        first_part = x.rank // parts * parts
        yield from x.together()
        yield x.post_receive(x.rank ^ parts, x.recv[(first_part ^ parts) * x.count :], parts * x.count)
        yield x.post_send(x.rank ^ parts, x.recv[first_part * x.count :], parts * x.count)
        yield x.waitall()
        parts *= 2


def _power_of_two(n: int, case: Case) -> Reason | None:
    from collbench.operations.unsupported import NotPowerOfTwo  # here: `--help` loads the operations, but needs no reason

    return None if n > 1 and n & (n - 1) == 0 else NotPowerOfTwo("hypercube", n)


HYPERCUBE = Operation(
    name="hypercube",
    summary="an all-gather of 2, 4, 8 … ranks by messages that double",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,  # nccl-tests src/hypercube.cu: the size counts only data of other ranks
    parts=lambda n: max(1, n - 1),
    needs=_power_of_two,
    expected_blocks=lambda x: [Block([rank], at=0, count=x.count) for rank in x.ranks],
    by_messages=in_place_only(_doubling),
)
