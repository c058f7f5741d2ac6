"""Ping-pong between the two ranks of a pair: half the round trip at the initiator is the latency."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.operations.operation import Binding, Block, Operation
from collbench.operations.program import Call


def _ping_pong(x: Binding) -> Iterator[Call]:
    other = 1 - x.rank
    send, receive = x.send_to(other, x.send, x.count), x.receive_from(other, x.recv, x.count)
    yield from (send, receive) if x.rank == 0 else (receive, send)


P2P_LATENCY = Operation(
    name="p2p_latency",
    command="p2p",
    summary="ping-pong between pairs of ranks: half the round trip",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    paces_itself=True,
    moves=lambda cell: 2,  # one there, one back
    arrives=lambda x: [Block([1 - x.rank], at=0, count=x.count)],
    by_messages=_ping_pong,
)
