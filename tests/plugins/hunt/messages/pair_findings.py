"""Findings of pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from collbench.plugins.hunt.pairs import PairFinding
from tests.messages import Message

NAMES = ["node1", "node2", "node3"]


def pair(kind: str, quantity: str, places: tuple[int, ...], **more: object) -> Callable[[], str]:
    finding = PairFinding(kind, quantity, places, 0.51, 2, 4)
    return lambda: replace(finding, **more).sentence(NAMES)  # type: ignore[arg-type]


MESSAGES: dict[str, Message] = {
    "slow node": pair("node", "bandwidth", (1,)),
    "slow node, all of its places": pair("node", "bandwidth", (0, 1)),
    "slow sender": pair("sender", "bandwidth", (1,), where="to other hosts"),
    "slow receiver": pair("receiver", "bandwidth", (1,), where="inside its host", latency=0.5),
    "node with slow small messages": pair("node", "latency", (2,)),
    "slow pair": pair("pair", "bandwidth", (0, 2), latency=0.5),
    "slow pair, both ways": pair("pair", "bandwidth", (0, 2), both_ways=True),
    "slow pair or end": pair("pair", "bandwidth", (0, 2), unknown=(2,)),
    "pair with slow small messages": pair("pair", "latency", (0, 2)),
}
