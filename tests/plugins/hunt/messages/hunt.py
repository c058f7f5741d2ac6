"""The hunt: evidence, slow parts and notes, and the verdict on the terminal."""

from __future__ import annotations

from io import StringIO
from typing import Any

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.text import write_hunt
from collbench.reason import Fact
from tests.messages import Message

SUSPECT: dict[str, Any] = {
    "kind": "node", "places": [1], "state": "confirmed", "ratio": 0.51, "low": 0.5, "high": 0.52, "partners": [0, 2],
    "evidence": [facts.SlowInSweep("sends and receives", 0.5, 7, 7).render(), facts.RetestCounts(5, 5, 0, 15).render()],
    "part": facts.SlowInterfaces(("eth1",)).render(),
}  # fmt: skip
VERDICT: dict[str, Any] = {
    "result": "confirmed", "suspects": [SUSPECT], "rounds": {"sweep": 8}, "notes": [facts.PairsNotCovered(20, 28).render()],
    "no_verdict": None, "middle": 9.87e9,
}  # fmt: skip
ABOUT: dict[str, Any] = {
    "by": "rank", "places": ["node01", "node02", "node03", "node04"], "backend": "mpi", "size_bytes": 1 << 20, "rounds": 13, "promised": 29,
    "max_time_s": 0.5, "ceiling": {"bytes_per_s": 10e9, "limited_by": "NIC 1×100 Gb/s"}, "verdict": VERDICT,
}  # fmt: skip


def shown(**changes: Any) -> Message:
    def text() -> str:
        out = StringIO()
        write_hunt(
            {**ABOUT, "verdict": {**VERDICT, **changes} if changes.get("verdict", 0) is not None else None}, "table", out, color=False
        )
        return out.getvalue().rstrip("\n")

    return text


EXAMPLES: tuple[Fact, ...] = (
    facts.SlowInSweep("sends and receives", 0.5, 7, 7),
    facts.SlowInSweep("small messages", 0.25, 6, 8, "to other hosts"),
    facts.PairSlowInSweep("sends", 0.5),
    facts.PairSlowInSweep("small messages", 0.5),
    facts.SlowWithOnePartner("node01", "node02", ("node03", "node04")),
    facts.SlowGroups(5, 6, 0.6),
    facts.GroupsNotMeasured(5, "node09: gone"),
    facts.Retest("node02", True, 3, 5e9, 4.9e9, 12e-6, 9.9e9, 9.8e9, 2e-6),
    facts.Retest("node02", False, 0, 5e9, usual_sent=9.9e9),
    facts.Retest("node02", True, latency_s=2e-6, endpoint="node01"),
    facts.Retest("node02", True, na="timeout"),
    facts.RetestCounts(5, 6, 1, 18),
    facts.RetestCounts(3, 8, 0, 24, 5, 1),
    facts.NotProven("cpu", 5, 8),
    facts.NotProven("state", 3, 3),
    facts.NotProven("rounds", 4, 6),
    facts.NotProven("controls", 2, 18),
    facts.NotProven("scatter", 2, 2),
    facts.BelowThreshold(),
    facts.FastWithPeers(("node03", "node04")),
    facts.DividedNetwork(),
    facts.ControlsAsSlow(),
    facts.TooFewPartners(),
    facts.MixedPartners(),
    facts.SlowOnce(),
    facts.NotRetested(),
    facts.EndNotCleared("node01"),
    facts.OthersAsSlow(0.4),
    facts.ManyPaths(4),
    facts.Deferred(),
    facts.NoFigures(3, 5, "timeout"),
    facts.FewPartnersMeasured(2, 3),
    facts.SpeedUnknown(),
    facts.WrongElements("node02", 12, 12),
    facts.AloneOnSwitch("leaf3"),
    facts.SlowAtScale(3, 16, 0.6),
    facts.FastWithout(8),
    facts.FastWithout(),
    facts.InsideRatio(0.55, 3),
    facts.InterfaceRatio("eth1", "sends", 0.5, 3),
    facts.PartNotMeasured("eth1", "only 2 healthy endpoints"),
    facts.InsideNotMeasured(),
    facts.InsideHost(),
    facts.SlowInterfaces(("eth0", "eth1")),
    facts.WayToNetwork(),
    facts.WayToNetwork(("eth0",)),
    facts.PairFigures("node01", "node02", 5e9, 4.9e9, 2e-6),
    facts.PairNotMeasured("node01", "node02", "timeout"),
    facts.MorePairsNotMeasured(12),
    facts.RoundFlag("cpu_clock_low", 2, 13),
    facts.PairsNotCovered(20, 28),
    facts.DividedPairs(0.79),
    facts.AllAlike(9.87e9),
    facts.GroupSweep(),
    facts.PairsInstead(8),
    facts.RoundsUsedUp(9),
    facts.PathsNotRetested(3),
    facts.StageSkipped("growing", 12, 4),
    facts.StageSkipped("isolation", 3, 1),
    facts.TooManySuspects(6, 16),
    facts.TooFewMeasured(2, 8),
    facts.OneEndpoint(),
    facts.TooFewEndpoints(2),
    facts.TooFewEndpoints(3),
    facts.GrowingNeedsMore(7, 4),
    facts.GroupNotMeasured(8, "timeout"),
    facts.GroupNotMeasured(8, "timeout", part=True),
    facts.GroupNotMeasured(0, "timeout"),
    facts.WholeSlow(32, 0.6),
    facts.SizeSlow(16, 0.6),
    facts.TooManySlowGroups(2, 3, 4),
    facts.PartsNotDivided(2, 8, "rounds"),
    facts.PartsNotDivided(1, 8, "endpoints"),
    facts.NoSlowPiece(8, 2),
    facts.NotConfirmedAtScale(2, 8),
    facts.ClearedAtScale(8),
    facts.ClearedAtScale(8, "timeout"),
)
INCONCLUSIVE = {**SUSPECT, "state": "inconclusive", "evidence": [facts.NotProven("scatter", 2, 2).render()], "part": ""}
CLEARED = {**SUSPECT, "state": "cleared", "evidence": [], "part": ""}
MESSAGES: dict[str, Message] = {
    **{f"{fact.code} {[each.code for each in EXAMPLES[:place]].count(fact.code) + 1}": fact for place, fact in enumerate(EXAMPLES)},
    "terminal, confirmed": shown(),
    "terminal, inconclusive": shown(result="no verdict", suspects=[INCONCLUSIVE, CLEARED]),
    "terminal, none slow": shown(result="nobody", suspects=[], notes=[]),
    "terminal, all slow": shown(result="nobody", suspects=[], notes=[], middle=2e9),
    "terminal, broken off": shown(verdict=None),
}
