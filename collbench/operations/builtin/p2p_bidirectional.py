"""Windowed bandwidth between the two ranks of a pair, both ways at once; see p2p_bandwidth."""

from __future__ import annotations

from collbench.operations.builtin.p2p_bandwidth import directed, window
from collbench.operations.operation import Block, Operation

P2P_BIDIRECTIONAL = Operation(
    name="p2p_bidirectional",
    command="p2p",
    summary="a window of messages both ways at once; busbw is per direction",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    windowed=True,
    both_ways=True,
    moves=window,
    arrives=lambda x: [Block([1 - x.rank], at=0, count=x.count)],
    by_messages=directed(sends=lambda rank: True, receives=lambda rank: True),
)
