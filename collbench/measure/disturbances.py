"""What disturbed the network of each host while a case was measured: segments sent again, links that went down, errors and drops.

Counters belong to the host: what else it sends is counted as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Whether other work disturbed a round: how long its ranks waited for a CPU, and whether the machine changed its state.


_FEWEST, _LEAST_SHARE = 3, 0.001  # fewer segments sent again are ordinary, as where a switch is full for a moment
_ERRORS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_MOST_STALLS = 8
_STALL_S, _MEDIANS = 0.2, 20.0  # TCP waits 0.2 s at least before it sends a segment again
RETRANSMITS, LINK_FLAPPED = "retransmits", "link_flapped"


@dataclass(frozen=True)
class HostNetwork:
    """Changes on one host.

    retransmitted, sent  TCP segments
    carrier_changes      by interface how often its link went down or up
    errors               by interface the counts of errors and drops that grew; None: unknown
    """

    host: str
    retransmitted: int = 0
    sent: int = 0
    carrier_changes: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)

    @property
    def retransmits(self) -> bool:
        """Whether more segments were sent again than is ordinary."""
        return self.retransmitted >= max(_FEWEST, _LEAST_SHARE * self.sent)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        counts = {"tcp_retransmitted": self.retransmitted, "tcp_sent": self.sent}
        return counts | {name: dict(found) for name, found in (("carrier_changes", self.carrier_changes), ("errors", self.errors)) if found}

    def causes(self) -> list[str]:
        """Return one phrase for each disturbance."""
        flaps = [f"the link of {name} changed its state {_times(count)}" for name, count in self.carrier_changes.items()]
        again = [f"TCP sent {self.retransmitted} of {self.sent} segments again"] if self.retransmits else []
        return [f"{what} on {self.host}" for what in (*flaps, *again)]


@dataclass(frozen=True)
class Stall:
    """One sample that took far longer than the median."""

    phase: str
    seconds: float
    median_s: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"phase": self.phase, "seconds": round(self.seconds, 6), "median_s": self.median_s}


def of_host(host: str, moved: Mapping[str, Any]) -> HostNetwork:
    """Return what disturbed a host, from its counters' changes (`counters.moved`)."""
    interfaces = {name: moved["interfaces"].get(name, {}) for name in moved["leaving"]}
    flaps = {name: counts["carrier_changes"] for name, counts in interfaces.items() if counts.get("carrier_changes")}
    errors = {name: {what: counts[what] for what in _ERRORS if what in counts} for name, counts in interfaces.items()}
    tcp = moved.get("tcp", {})
    return HostNetwork(
        host, tcp.get("retransmitted") or 0, tcp.get("sent") or 0, flaps, {name: found for name, found in errors.items() if found}
    )  # fmt: skip


def flags(hosts: Iterable[HostNetwork]) -> list[str]:
    """Return the row's flags."""
    found = list(hosts)
    again, flapped = any(one.retransmits for one in found), any(one.carrier_changes for one in found)
    return [word for word, true in ((RETRANSMITS, again), (LINK_FLAPPED, flapped)) if true]


def stalls(samples: Sequence[tuple[str, float]], median_s: float) -> list[Stall]:
    """Return the stalls among samples, each (phase, seconds), the longest first, eight at most."""
    least = max(_STALL_S, _MEDIANS * median_s)
    found = sorted((Stall(phase, seconds, median_s) for phase, seconds in samples if seconds > least), key=lambda one: -one.seconds)
    return found[:_MOST_STALLS]


def sentence(what: str, found: Sequence[Stall], hosts: Iterable[HostNetwork], paused_s: Mapping[str, float]) -> str | None:
    """Return what the user must know of a case `what`; None where nothing disturbed it. `paused_s`: seconds by the host that was held."""
    causes = [cause for one in hosts for cause in one.causes()]
    causes += [f"a process on {host} was not allowed to run for {seconds:.1f} s" for host, seconds in paused_s.items()]
    if not found:
        flapped = [cause for cause in causes if cause.startswith("the link")]
        return f"{what}: {'; '.join(flapped)}" if flapped else None
    first, more = found[0], f" and {len(found) - 1} more took long" if len(found) > 1 else ""
    why = "; ".join(causes) or "no host's counters show why"
    return f"{what}: one sample ({first.phase}) took {first.seconds:.2f} s, the median is {first.median_s:.3g} s{more}: {why}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
