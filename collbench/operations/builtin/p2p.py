"""Point-to-point between the two ranks of a pair: bandwidth of a window of messages, one way or both, ping-pong latency, and one message;
and the bandwidth and message rate of several pairs together (multipair).

A window is W messages in flight, acknowledged. All messages of a window use the same buffers, as OSU's benchmark does: a window of 64 MiB
messages would not fit otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from collbench.operations.case import Case
from collbench.operations.operation import Binding, Block, Operation, Steps
from collbench.operations.program import Call


def window(case: Case) -> int:
    """Return the number of messages in flight."""
    return case.window or 1


def directed(sends: Callable[[int], bool], receives: Callable[[int], bool]) -> Steps:
    """Return steps in which a rank of the pair sends and receives a window. `sends`, `receives`: whether this rank does."""

    def windowed(x: Binding) -> Iterator[Call]:
        """Yield the calls of a window, and of a byte that confirms its arrival."""
        partner = 1 - x.rank
        yield from x.together()
        for _ in range(window(x.case)):
            if receives(x.rank):
                yield x.post_receive(partner, x.recv, x.count)
            if sends(x.rank):
                yield x.post_send(partner, x.send, x.count)
        yield x.waitall()
        yield x.signal_from(partner) if x.rank == 0 else x.signal_to(partner)

    return windowed


def _ping_pong(x: Binding) -> Iterator[Call]:
    partner = 1 - x.rank
    send = x.send_to(partner, x.send, x.count)
    receive = x.receive_from(partner, x.recv, x.count)
    yield from (send, receive) if x.rank == 0 else (receive, send)


def _one_message(x: Binding) -> Iterator[Call]:
    partner = 1 - x.rank
    yield x.send_to(partner, x.send, x.count) if x.rank == 0 else x.receive_from(partner, x.recv, x.count)


P2P_BANDWIDTH = Operation(
    name="p2p_bandwidth",
    command="p2p",
    summary="a window of messages one way between pairs of ranks",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    windowed=True,
    moves=window,
    sends=lambda x: x.count if x.rank == 0 else 0,
    expected_blocks=lambda x: [Block([0], at=0, count=x.count)] if x.rank == 1 else [],
    by_messages=directed(sends=lambda rank: rank == 0, receives=lambda rank: rank == 1),
)
P2P_BIDIRECTIONAL = Operation(
    name="p2p_bidirectional",
    command="p2p",
    summary="a window of messages both ways at once; busbw is per direction",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    windowed=True,
    bidirectional=True,
    moves=window,
    expected_blocks=lambda x: [Block([1 - x.rank], at=0, count=x.count)],
    by_messages=directed(sends=lambda rank: True, receives=lambda rank: True),
)
P2P_LATENCY = Operation(
    name="p2p_latency",
    command="p2p",
    summary="ping-pong between pairs of ranks: half the round trip",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    self_synchronizing=True,
    moves=lambda case: 2,  # one in each direction
    expected_blocks=lambda x: [Block([1 - x.rank], at=0, count=x.count)],
    by_messages=_ping_pong,
)
P2P_MESSAGE = Operation(
    name="p2p_message",
    command="p2p",
    internal=True,  # the sender's time ends when its buffer can be reused, which is not the time of the message
    summary="one message one way between pairs of ranks, without a confirmation",
    bus_factor=lambda n: 1.0 if n > 1 else 0.0,
    pair=True,
    sends=lambda x: x.count if x.rank == 0 else 0,
    expected_blocks=lambda x: [Block([0], at=0, count=x.count)] if x.rank == 1 else [],
    by_messages=_one_message,
)
# As osu_mbw_mr (one way) and IMB's Uniband and Biband: the figures are those of all pairs together, until the last one has ended.
MULTIPAIR_BANDWIDTH = replace(
    P2P_BANDWIDTH,
    name="multipair_bandwidth",
    command="multipair",
    summary="bandwidth and message rate of several pairs at once, one way (osu_mbw_mr, IMB Uniband)",
    aggregate=True,
)
MULTIPAIR_BIDIRECTIONAL = replace(
    P2P_BIDIRECTIONAL,
    name="multipair_bidirectional",
    command="multipair",
    summary="the same both ways at once (IMB Biband); busbw is per direction, the message rate of both",
    aggregate=True,
)
