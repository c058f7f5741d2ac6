"""Pairs of nodes, their findings and the tools between them."""

from __future__ import annotations

from collbench.plugins.hunt.places import IdleRanks, PairsSampled
from collbench.plugins.hunt.tasks import NoRecommendation, SuspectsAgain, ToolFailed, ToolsCutShort, ToolsRun
from tests.messages import Message

MESSAGES: dict[str, Message] = {
    "idle ranks": IdleRanks(2, 1),
    "no recommendation": NoRecommendation(),
    "suspects again": SuspectsAgain(),
    "sampled by --sample": PairsSampled(8, 28, 600.0, sample=2),
    "sampled by --budget": PairsSampled(6, 15, 6.5, needed_s=15.0),
    "sampled, time used up": PairsSampled(4, 28, 120.0),
    "tools": ToolsRun(("iperf3 3.16", "ucx_perftest 1.15")),
    "tools cut short": ToolsCutShort(3, 28),
    "tool failed": ToolFailed("iperf3", "node0", "node1", "iperf3 did not end within 10 s"),
}
