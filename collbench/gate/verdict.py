"""The gate's verdict: result, reasons and suspects. `as_json` is verdict.json; all other outputs are made from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.analysis.ceilings import CeilingChange
from collbench.analysis.differences import Item
from collbench.analysis.outcome import MARGIN, Outcome
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT, UsageError
from collbench.gate.plausible import PLAUSIBLE, Plausible
from collbench.gate.reasons import NOTES, REASONS, WAITING, rendered
from collbench.reason import Fact, Text, as_json, decode
from collbench.results.store import read_object

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SCHEMA = 1
PASSED, REGRESSION, UNDECIDED, WRONG_DATA = "passed", "regression", "no verdict", "wrong data"
EXIT_CODES = {PASSED: FINE, REGRESSION: NEGATIVE, UNDECIDED: NO_VERDICT, WRONG_DATA: FAILED}
CONFIRMED, SUSPECTED, CLEARED, ACCEPTED = "confirmed", "suspected", "cleared", "accepted"


@dataclass(frozen=True)
class Announcement:
    """Why a change or a slowdown is expected, the reviewer who says so, and the day on which that expires (ISO 8601)."""

    reason: str
    reviewer: str
    expires: str


@dataclass(frozen=True)
class Suspicion:
    """A cell, a group or the whole that exceeded its limit in the first of the candidate's allocations.

    kind     "cell", "group" or "whole"
    name     in words: "allreduce 64 MiB mpi", "allreduce on mpi, large messages", "all cells"
    cell     what names the cell: its columns by name; empty for the others
    factors  by allocation of the candidate, the time over what the baseline says; None where it was not measured
    limit    the factor that may be by chance
    state    "confirmed" (exceeded in three allocations), "suspected" (not measured often enough), "cleared", or "accepted": it would be
             confirmed or suspected, but a slowdown of that much was announced
    announced who announced it; None: nobody
    """

    kind: str
    name: str
    cell: dict[str, Any]
    factors: tuple[float | None, ...]
    limit: float
    state: str
    announced: Announcement | None = None


@dataclass(frozen=True)
class GroupState:
    """A group of cells as judged: one line of every output, be it good or bad.

    backend, operation, size_class  what forms it; name: the same in words, "allreduce on mpi, large messages"
    cells    with a history long enough; missing: how many of them the candidate's first allocation lacks
    factors  by allocation of the candidate, the median over its cells of the time over what the baseline says; None: not known
    limit    the factor that may be by chance; None where a group is too small to be judged as one (its cells are)
    worst    the name of the cell that exceeds its limit most, or comes nearest to it; None where none was measured
    worst_factor, worst_limit  of that cell in the first allocation
    state    "passed", "confirmed", "suspected" (its own, or any cell's of it) or "no verdict" (something of it is missing, or not judged)
    outcome  "slower", "faster", "no change" (what chance may explain is inside ±margin) or "inconclusive"; "" in an older file
    outcomes how many of its cells have each outcome; empty in an older file
    """

    backend: str
    operation: str
    size_class: str
    name: str
    cells: int
    missing: int
    factors: tuple[float | None, ...]
    limit: float | None
    worst: str | None
    worst_factor: float | None
    worst_limit: float | None
    state: str
    outcome: str = ""
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FloorState:
    """A cell below a share of its ceiling that somebody asked for (`--min-percent`), or of which that share is not known.

    name, cell  as in `Suspicion`
    asked    as it was asked for: "ring:80@64M-"; wanted: in percent
    percents by allocation of the candidate, of the ceiling of that model; None where it is not known
    limited_by, model  the ceiling's link and kind; None where no allocation has such a ceiling
    state    "confirmed" (below in three allocations), "suspected" (below in all, but fewer), "cleared" or "no verdict" (not known)
    """

    name: str
    cell: dict[str, Any]
    asked: str
    wanted: float
    percents: tuple[float | None, ...]
    limited_by: str | None
    model: str | None
    state: str


@dataclass(frozen=True)
class Change:
    """Something that is `after` in the candidate and was `before` in the last good allocation; the most plausible cause first.

    item        what changed: "software", ("mpi", "version"); times: in so many places, "*" in its path
    plausible   why it is, or is not, a plausible cause of the slowdown; None where nothing is slower
    announced   the announcement that covers it; None: there is none
    """

    item: Item
    before: str
    after: str
    plausible: Plausible | Text | None = None
    announced: Announcement | None = None
    times: int = 1
    explains: bool = False

    @property
    def kind(self) -> str:
        """ "software"."""
        return self.item.kind

    @property
    def what(self) -> str:
        """ "mpi version"; of several places "interfaces * mtu (3 times)"."""
        return f"{self.item.what} ({self.times} times)" if self.times > 1 else self.item.what

    def sentence(self) -> str:
        """ "software mpi: MPICH 4.3 → MPICH 5.0"."""
        return f"{self.kind} {self.what}: {self.before} → {self.after}"


@dataclass(frozen=True)
class LikelyCause:
    """What the pattern of slower cells points at.

    kind      "link", "memory", "latency", "host", "backend", "operation", "cells", or "unclear" where these cannot be told apart
    sentence  what points at it: "the link: large messages are 1.11 times slower on mpi and gloo, small ones are not"
    """

    kind: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """result      "passed", "regression", "no verdict" or "wrong data"
    mode        "baseline", or "paired" (old and new stack side by side)
    reasons     why there is no verdict, or why it is not a pass: facts of `gate.reasons`, or `Text` from an older file
    notes       launches left out, cells without a history, slowed on purpose …
    suspicions  the surest and worst first
    groups      every group with a history, in the order of the baseline's cells
    floors      cells below the share of a ceiling that was asked for
    cause       what became slower points at; None where nothing is confirmed or suspected, or nothing is to be said
    changes     what changed since the last good allocation, announced or not, the most plausible first
    baseline    its folder (of paired stacks: the old one's folders); allocations: how many it has; thin: fewer than six
    candidates  the names of the allocations that were judged, in the order in which they began
    cells       how many cells have a history to be judged by
    judged_on   the day, ISO 8601, by which announcements expire; collbench: the version that judged
    asked       the shares of a ceiling that were asked for, as they were typed; one that no cell of `floors` has is reached everywhere
    margin      largest difference that counts as no change: 0.05 is ±5 %
    ceilings    ceilings that fell since the last good allocation: percentages of them would hide the loss
    """

    result: str
    mode: str
    reasons: tuple[Fact, ...]
    notes: tuple[Fact, ...]
    suspicions: tuple[Suspicion, ...]
    groups: tuple[GroupState, ...]
    floors: tuple[FloorState, ...]
    cause: LikelyCause | None
    changes: tuple[Change, ...]
    baseline: str
    allocations: int
    thin: bool
    candidates: tuple[str, ...]
    cells: int
    judged_on: str
    collbench: str
    asked: tuple[str, ...] = ()
    margin: float = MARGIN
    ceilings: tuple[CeilingChange, ...] = ()

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """How many cells have each outcome; empty for a verdict that an older version wrote."""
        if not any(each.outcomes for each in self.groups):
            return {}
        return {outcome: sum(each.outcomes.get(outcome, 0) for each in self.groups) for outcome in Outcome}

    @property
    def exit_code(self) -> int:
        """What the process returns."""
        return EXIT_CODES[self.result]

    @property
    def waits(self) -> bool:
        """Whether it lacks nothing but another measurement of the suspects."""
        return self.result == UNDECIDED and bool(self.reasons) and all(isinstance(each, WAITING) for each in self.reasons)

    @property
    def unexpected_cause(self) -> Change | None:
        """The most plausible unexpected change that explains a regression; None: there is none."""
        if self.result != REGRESSION:
            return None
        return next((each for each in self.changes if each.announced is None and each.explains), None)

    def count(self, state: str) -> int:
        """How many suspicions and floors are in this state."""
        return [each.state for each in self.suspicions].count(state) + [each.state for each in self.floors].count(state)

    @property
    def reached(self) -> list[str]:
        """The shares that were asked for and are reached by every cell, or were in any of its allocations."""
        return [asked for asked in self.asked if all(each.state == CLEARED for each in self.floors if each.asked == asked)]

    def as_json(self) -> dict[str, Any]:
        """Return verdict.json; verdict.schema.json describes it."""
        shown = replace(self, reasons=(), notes=(), changes=())
        return {
            "schema": SCHEMA,
            "exit_code": self.exit_code,
            **asdict(shown),
            "reasons": rendered(self.reasons),
            "reason_facts": as_json(self.reasons),
            "notes": rendered(self.notes),
            "note_facts": as_json(self.notes),
            "changes": [_change_json(each) for each in self.changes],
            "outcomes": {each.value: number for each, number in self.outcomes.items()},
        }


def _change_json(each: Change) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "what": each.what,
        "path": list(each.item.path),
        "times": each.times,
        "before": each.before,
        "after": each.after,
        "plausible": "" if each.plausible is None else each.plausible.render(),
        "plausible_fact": None if each.plausible is None else as_json(each.plausible),
        "announced": None if each.announced is None else asdict(each.announced),
        "explains": each.explains,
    }


def from_json(told: Mapping[str, Any]) -> Verdict:
    """Return the verdict that `as_json` wrote, from an object that fits the schema. Older files have no facts: `Text` stands for them."""
    return Verdict(
        **{
            **{name: value for name, value in told.items() if name not in _DERIVED},
            "reasons": _facts(told["reasons"], told.get("reason_facts"), REASONS),
            "notes": _facts(told["notes"], told.get("note_facts"), NOTES),
            "candidates": tuple(told["candidates"]),
            "asked": tuple(told["asked"]),
            "suspicions": tuple(_suspicion(each) for each in told["suspicions"]),
            "groups": tuple(GroupState(**{**each, "factors": tuple(each["factors"])}) for each in told["groups"]),
            "floors": tuple(FloorState(**{**each, "percents": tuple(each["percents"])}) for each in told["floors"]),
            "cause": LikelyCause(**told["cause"]) if told["cause"] else None,
            "ceilings": tuple(CeilingChange(**each) for each in told.get("ceilings", ())),
            "changes": tuple(map(_change, told["changes"])),
        }
    )


_DERIVED = ("schema", "exit_code", "outcomes", "reason_facts", "note_facts")


def _facts(texts: Sequence[str], facts: Sequence[Any] | None, kinds: Any) -> tuple[Fact, ...]:
    """Return a fact for each text: the stored one, or the text where that one is missing, or of a later version."""
    stored = facts if facts is not None and len(facts) == len(texts) else [None] * len(texts)
    return tuple(_fact(text, fact, kinds) for text, fact in zip(texts, stored, strict=True))


def _fact(text: str, fact: Any, kinds: Any) -> Any:
    try:
        return decode(fact, kinds)
    except msgspec.ValidationError:
        return Text(text)


def _change(told: Mapping[str, Any]) -> Change:
    item = Item(told["kind"], tuple(told["path"])) if told.get("path") else Item.of(told["kind"], told["what"])
    plausible = _fact(told["plausible"], told.get("plausible_fact"), PLAUSIBLE) if told["plausible"] else None
    announced = _announced(told)
    return Change(item, told["before"], told["after"], plausible, announced, told.get("times", 1), told.get("explains", False))


def _suspicion(told: Mapping[str, Any]) -> Suspicion:
    return Suspicion(**{**told, "factors": tuple(told["factors"]), "announced": _announced(told)})


def _announced(told: Mapping[str, Any]) -> Announcement | None:
    return Announcement(**told["announced"]) if told["announced"] else None


# What the process returns for a verdict, or where it failed, in the style of whoever asks.

OWN, NAGIOS, PROLOG = STYLES = ("collbench", "nagios", "prolog")
OK, WARNING, CRITICAL, UNKNOWN = range(4)  # monitoring-plugins.org, Development Guidelines, "Plugin Return Codes"


def exit_code(verdict: Verdict, style: str) -> int:
    """collbench's own; nagios: 0 ok, 1 warning, 2 critical, 3 unknown; prolog: 1 for what is confirmed or wrong, else 0."""
    if style == NAGIOS:
        return nagios_state(verdict)
    if style == PROLOG:
        return int(verdict.result in (REGRESSION, WRONG_DATA))
    return verdict.exit_code


def nagios_state(verdict: Verdict) -> int:
    """CRITICAL: confirmed or wrong; WARNING: nothing but suspects or accepted slowdowns; UNKNOWN: no verdict for any other reason."""
    if verdict.result in (REGRESSION, WRONG_DATA):
        return CRITICAL
    if verdict.result == PASSED:
        return WARNING if verdict.count(ACCEPTED) else OK
    return WARNING if verdict.waits else UNKNOWN


def code_of_failure(own: int, style: str) -> int:
    """The exit code where there is no verdict at all, but bad input, a defect or a signal, for which `own` is collbench's.

    A tool's failure drains no node: a prolog returns 0, and a monitor hears that nothing is known.
    """
    if own == FINE or style == OWN:
        return own
    return UNKNOWN if style == NAGIOS else FINE


# Reads a verdict.json once more. It may be a stranger's: it has to fit verdict.schema.json to the letter.

SCHEMA_FILE = Path(__file__).parent / "verdict.schema.json"
_LONGEST = 80  # letters of a value that a sentence shows
_REMEDY = "name what `collbench gate --out` wrote"


def read_verdict(path: Path) -> Verdict:
    """The verdict in a file. Raises UsageError where it cannot be read, does not fit the schema, or contradicts itself."""
    try:
        told = read_object(path)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"--verdict {path} cannot be read ({why}): {_REMEDY}") from error
    version = told.get("schema")
    if isinstance(version, int) and version > SCHEMA:
        raise UsageError(f"--verdict {path} has schema {version}, but this collbench supports up to {SCHEMA}: update collbench")
    misfit = _misfit(told)
    if misfit is not None:
        raise UsageError(f"--verdict {path} does not fit verdict.schema.json: {misfit}; {_REMEDY}")
    verdict = from_json(told)
    if verdict.result == PASSED and (verdict.reasons or verdict.count(CONFIRMED) or verdict.count(SUSPECTED) or verdict.count(UNDECIDED)):
        raise UsageError(f"--verdict {path} has result passed, but also reasons or suspects: {_REMEDY}")
    return verdict


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a verdict, as shipped."""
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return found


def _misfit(told: dict[str, Any]) -> str | None:
    """The first thing that does not fit, with its place; None: all does."""
    from jsonschema import Draft202012Validator

    checks = Draft202012Validator(schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    error = next(iter(checks.iter_errors(told)), None)
    return None if error is None else _sentence(_innermost(error))


def _innermost(error: ValidationError) -> ValidationError:
    """Of a value that fits none of several forms what it lacks of the first, the last of which is null."""
    return next((inner for inner in error.context or () if list(inner.schema_path)[:1] == [0]), error)


def _sentence(error: ValidationError) -> str:
    """ "groups[3].limit is -1, where exclusiveMinimum 0 is wanted"."""
    place = _place(error.absolute_path)
    if error.validator == "required":
        lacking = next(name for name in error.validator_value if name not in error.instance)  # type: ignore[union-attr,operator]
        return f"{place} lacks {lacking}"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})  # type: ignore[union-attr]
        return f"{place} has {_shown(next(name for name in error.instance if name not in known))}, which is unknown"
    return f"{place} is {_shown(error.instance)}, where {error.validator} {_shown(error.validator_value)} is wanted"


def _place(path: Iterable[Any]) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return _shown(place.removeprefix("."))[1:-1] or "it"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
