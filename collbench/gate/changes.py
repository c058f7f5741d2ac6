"""What changed between the last good allocation and a candidate, and which changes somebody announced."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from collbench.analysis.differences import Difference, differing
from collbench.errors import UsageError
from collbench.gate.allocation import Allocation

# An allocation is fresh: its hosts, its launcher's numbers and its list of cells are others each time, and paths say nothing.
COMPARED = ("software", "environment", "topology", "ranks", "machine")
_FIELDS = ("kind", "what", "reason", "reviewer")


@dataclass(frozen=True)
class Expected:
    """A change that somebody announced.

    kind, what  patterns (`*` is anything) of a difference: "software", "mpi *"
    reason, reviewer  why it is right, and who says so
    expires     the last day on which it counts
    """

    kind: str
    what: str
    reason: str
    reviewer: str
    expires: date

    def covers(self, difference: Difference, today: date) -> bool:
        """Whether it announces this difference, today."""
        return today <= self.expires and fnmatchcase(difference.kind, self.kind) and fnmatchcase(difference.what, self.what)


def changes(before: Allocation, after: Allocation) -> list[Difference]:
    """What differs in software, settings, topology, machines or the number of ranks, the most important first."""
    facts = [{(kind, what): text for kind in COMPARED for what, text in each.facts.get(kind, {}).items()} for each in (before, after)]
    return [each for each in differing(*facts) if each.kind in COMPARED]


def unannounced(found: Sequence[Difference], expected: Sequence[Expected], today: date) -> list[Difference]:
    """Those that nobody announced, or no longer."""
    return [each for each in found if not any(one.covers(each, today) for one in expected)]


def read_expected(path: Path) -> list[Expected]:
    """The changes in a TOML file: a table [[change]] each. Raises UsageError naming what does not fit."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--expect {path} cannot be read ({getattr(error, 'strerror', None) or error}): name a TOML file") from error
    listed = told.get("change")
    if set(told) != {"change"} or not isinstance(listed, list):
        raise UsageError(f"--expect {path}: it has to hold tables [[change]] and nothing else")
    return [_expected(one, f"--expect {path}, change {number}") for number, one in enumerate(listed, 1)]


def _expected(told: Any, where: str) -> Expected:
    wanted = (*_FIELDS, "expires")
    if not isinstance(told, dict) or set(told) != set(wanted):
        raise UsageError(f"{where}: it has to say {', '.join(wanted)}, and nothing else")
    for name in _FIELDS:
        if not isinstance(told[name], str) or not told[name].strip():
            raise UsageError(f"{where}: '{name}' is {told[name]!r}, where words are wanted")
    if type(told["expires"]) is not date:
        raise UsageError(f"{where}: 'expires' is {told['expires']}, where a day such as 2027-01-31 (without quotes) is wanted")
    if "*" not in told["kind"] and told["kind"] not in COMPARED:
        raise UsageError(f"{where}: no change is of kind '{told['kind']}': choose from {', '.join(COMPARED)}")
    return Expected(**told)
