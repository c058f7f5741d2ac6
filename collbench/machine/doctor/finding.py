"""A finding, and the order in which findings are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["severe", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("severe", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a machine.

    code        "CB2101"; `pages` has a page for each
    severity    "severe": bytes are lost or the job fails; "warning": slower than it could be; "note": look at it
    hostname    None when the machine's name is unknown, or it is a matter between machines
    what        one sentence; evidence: what was read and where; remedy: what to do
    """

    code: str
    severity: Severity
    hostname: str | None
    what: str
    evidence: str
    remedy: str


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Severe ones first, then by code and host."""
    return sorted(findings, key=lambda each: (SEVERITIES.index(each.severity), each.code, each.hostname or "", each.what))


def listed(names: Sequence[str], most: int = 8) -> str:
    """ "a, b and c", or "a, b, … and 12 more" of many."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1] if names else "") if part)


def plural(count: int, noun: str) -> str:
    """ "1 GPU", "2 GPUs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
