"""Disturbances of each host's network while a case was measured: retransmitted segments, links that went down, errors
and drops.

Counters belong to the host and include the traffic of other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.reason import Fact
from collbench.units import plural

# Whether other work disturbed a case: time in which its ranks waited for a CPU, and changes of the machine state.


_FEWEST, _LEAST_SHARE = 3, 0.001  # fewer retransmissions are normal, for example when a switch is full for a moment
_ERRORS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_MOST_STALLS = 8
_STALL_S, _MEDIANS = 0.2, 20.0  # TCP waits at least 0.2 s before it retransmits
RETRANSMITS, LINK_FLAPPED = "retransmits", "link_flapped"


@dataclass(frozen=True)
class HostNetwork:
    """Network disturbances on one host, as changes of its counters.

    retransmitted, sent  TCP segments
    carrier_changes      by interface how often its link went down or up
    errors               by interface the error and drop counters that grew; None: unknown
    """

    host: str
    retransmitted: int = 0
    sent: int = 0
    carrier_changes: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)

    @property
    def retransmits(self) -> bool:
        """Return whether more segments were retransmitted than is usual."""
        return self.retransmitted >= max(_FEWEST, _LEAST_SHARE * self.sent)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        counts = {"tcp_retransmitted": self.retransmitted, "tcp_sent": self.sent}
        return counts | {name: dict(found) for name, found in (("carrier_changes", self.carrier_changes), ("errors", self.errors)) if found}

    def causes(self) -> list[DisturbanceCause]:
        """Return one fact for each disturbance."""
        flaps = [LinkFlapped(self.host, name, count) for name, count in self.carrier_changes.items()]
        return [*flaps, *([SegmentsRetransmitted(self.host, self.retransmitted, self.sent)] if self.retransmits else [])]


@dataclass(frozen=True)
class Stall:
    """One sample that took far longer than the median."""

    phase: str
    seconds: float
    median_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return {"phase": self.phase, "seconds": round(self.seconds, 6), "median_s": self.median_s}


def of_host(host: str, moved: Mapping[str, Any]) -> HostNetwork:
    """Return the network disturbances of a host, from the changes of its counters (`instruments.moved`)."""
    interfaces = {name: moved["interfaces"].get(name, {}) for name in moved["leaving"]}
    flaps = {name: counts["carrier_changes"] for name, counts in interfaces.items() if counts.get("carrier_changes")}
    errors = {name: {what: counts[what] for what in _ERRORS if what in counts} for name, counts in interfaces.items()}
    tcp = moved.get("tcp", {})
    return HostNetwork(
        host, tcp.get("retransmitted") or 0, tcp.get("sent") or 0, flaps, {name: found for name, found in errors.items() if found}
    )  # fmt: skip


def flags(hosts: Iterable[HostNetwork]) -> list[str]:
    """Return the quality flags that these disturbances set on a row."""
    found = list(hosts)
    again, flapped = any(one.retransmits for one in found), any(one.carrier_changes for one in found)
    return [word for word, true in ((RETRANSMITS, again), (LINK_FLAPPED, flapped)) if true]


def stalls(samples: Sequence[tuple[str, float]], median_s: float) -> list[Stall]:
    """Return the stalls among samples, each (phase, seconds), the longest first, eight at most."""
    least = max(_STALL_S, _MEDIANS * median_s)
    found = sorted((Stall(phase, seconds, median_s) for phase, seconds in samples if seconds > least), key=lambda one: -one.seconds)
    return found[:_MOST_STALLS]


class LinkFlapped(Fact, frozen=True):
    """The link of a network interface went down or up while a case was measured."""

    host: str
    interface: str
    changes: int

    def render(self) -> str:
        """Return the clause for a sentence that names the case."""
        times = "once" if self.changes == 1 else f"{self.changes} times"
        return f"the link of {self.interface} on {self.host} changed its state {times}"


class SegmentsRetransmitted(Fact, frozen=True):
    """TCP retransmitted more segments than is usual while a case was measured."""

    host: str
    retransmitted: int
    sent: int

    def render(self) -> str:
        """Return the clause for a sentence that names the case."""
        return f"TCP retransmitted {self.retransmitted} of {self.sent} segments on {self.host}"


class ProcessPaused(Fact, frozen=True):
    """A process was not running for a while: it was stopped or swapped out, or its machine was asleep."""

    host: str
    seconds: float

    def render(self) -> str:
        """Return the clause for a sentence that names the case."""
        return f"a process on {self.host} was paused for {self.seconds:.1f} s"


DisturbanceCause = LinkFlapped | SegmentsRetransmitted | ProcessPaused


class CaseDisturbed(Fact, frozen=True):
    """Samples of a case took far longer than its median, or a link went down or up meanwhile.

    stalls  how many samples; phase, seconds: of the longest one
    """

    case: str
    causes: tuple[DisturbanceCause, ...]
    stalls: int = 0
    phase: str = ""
    seconds: float = 0.0
    median_s: float = 0.0

    def render(self) -> str:
        """Return the sentence that users see."""
        why = "; ".join(cause.render() for cause in self.causes)
        if not self.stalls:
            return f"{self.case}: {why}"
        more = f"; {plural(self.stalls - 1, 'more long sample')}" if self.stalls > 1 else ""
        slow = f"a {self.phase} sample took {self.seconds:.2f} s (median {self.median_s:.3g} s{more})"
        return f"{self.case}: {slow}: {why or 'cause unknown: the counters of the hosts show nothing'}"


def case_disturbed(case: str, found: Sequence[Stall], hosts: Iterable[HostNetwork], paused_s: Mapping[str, float]) -> CaseDisturbed | None:
    """Return the disturbances of a case as one fact; None without any. `paused_s`: seconds by the host of a paused process."""
    causes = [cause for one in hosts for cause in one.causes()]
    causes += [ProcessPaused(host, seconds) for host, seconds in paused_s.items()]
    if not found:
        flaps = tuple(cause for cause in causes if isinstance(cause, LinkFlapped))
        return CaseDisturbed(case, flaps) if flaps else None
    return CaseDisturbed(case, tuple(causes), len(found), found[0].phase, found[0].seconds, found[0].median_s)
