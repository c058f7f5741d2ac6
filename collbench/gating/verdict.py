"""The gate's verdict: result, reasons and suspects. `records.document` makes verdict.json of it; all outputs are made from the verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from collbench.analysis.ceilings import CeilingChange
from collbench.analysis.differences import Difference, Item
from collbench.analysis.outcome import MARGIN, Outcome
from collbench.columns import PERCENT, RATIO, column, figure
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT, UsageError
from collbench.gating.reasons import CAUSES, NOTES, PLAUSIBLE, REASONS, WAITING, LikelyCause, Plausible, StoredCause, rendered
from collbench.reason import Fact, Text, decode
from collbench.records import stored
from collbench.results.store import read_object

SCHEMA = 1
PASSED, REGRESSION, UNDECIDED, WRONG_DATA = "passed", "regression", "no verdict", "wrong data"
EXIT_CODES = {PASSED: FINE, REGRESSION: NEGATIVE, UNDECIDED: NO_VERDICT, WRONG_DATA: FAILED}
CONFIRMED, SUSPECTED, CLEARED, ACCEPTED = "confirmed", "suspected", "cleared", "accepted"


Factors = tuple[float | None, ...]  # by allocation of the candidate; None: not measured, or unknown


class _VerdictPart(msgspec.Struct, frozen=True, rename={"case": "cell", "cases": "cells"}):
    """A part of verdict.json, which calls a case a cell, as its schema has since version 1."""


class Announcement(_VerdictPart, frozen=True):
    """The announcement of a change or slowdown."""

    reason: Annotated[str, column("The reason.")]
    reviewer: Annotated[str, column("The reviewer.")]
    expires: Annotated[str, column("The day on which it expires (ISO 8601).")]


class Suspicion(_VerdictPart, frozen=True):
    """A case, a group or the whole that exceeded its limit in the candidate's first allocation."""

    kind: Annotated[str, column('"cell", "group" or "whole".')]
    name: Annotated[str, column('In words: "allreduce 64 MiB mpi", "allreduce on mpi, large messages", "all cases".')]
    case: Annotated[dict[str, Any], column("The case's columns by name; empty for groups and the whole.")]
    factors: Annotated[Factors, column("Of a suspicion: time relative to the baseline.", unit=RATIO)]
    limit: Annotated[float, column("Factor that chance explains.", unit=RATIO)]
    state: Annotated[
        str,
        column(
            '"confirmed" (exceeded in three allocations), "suspected" (not measured often enough), "cleared", or "accepted": it would be '
            "confirmed or suspected, but a slowdown of that much was announced."
        ),
    ]
    announced: Annotated[Announcement | None, column("The announcement that allows it; None: there is none.")] = None


class GroupState(_VerdictPart, frozen=True):
    """The state of a group of cases, passed or not: one line of every output. Backend, operation and size class define it.

    limit is None if the group is too small to be judged as one, and its cases are; `missing` counts the candidate's first allocation.
    """

    backend: Annotated[str, column("The backend of its cases.")]
    operation: Annotated[str, column("Their operation.")]
    size_class: Annotated[str, column('Their sizes: "small", "medium" or "large".')]
    name: Annotated[str, column('In words: "allreduce on mpi, large messages".')]
    cases: Annotated[int, column("The number of its cases with a history that is long enough.")]
    missing: Annotated[int, column("Cases of a group that the candidate lacks.")]
    factors: Annotated[Factors, column("Median over the cases of a group: time relative to the baseline.", unit=RATIO)]
    limit: Annotated[float | None, column("Factor that chance explains.", unit=RATIO)]
    worst: Annotated[str | None, column("The case that exceeds its limit most, or comes nearest to it; None if none was measured.")]
    worst_factor: Annotated[float | None, column("Of that case in the first allocation.")]
    worst_limit: Annotated[float | None, column("Of that case.")]
    state: Annotated[
        str, column('"passed", "confirmed", "suspected" (itself or any case) or "no verdict" (a part is missing, or not judged).')
    ]
    outcome: Annotated[
        str, column('"slower", "faster", "no change" (what chance may explain is inside ±margin) or "inconclusive"; "" in an older file.')
    ] = ""
    outcomes: Annotated[dict[str, int], column("How many of its cases have each outcome; empty in an older file.")] = {}


class FloorState(_VerdictPart, frozen=True):
    """A case below a floor (`--min-percent`), or with an unknown share of the floor's ceiling; its name and columns as in `Suspicion`."""

    name: Annotated[str, column("The case in words.")]
    case: Annotated[dict[str, Any], column("The case's columns by name.")]
    asked: Annotated[str, column('The floor as typed: "ring:80@64M-".')]
    wanted: Annotated[float, column("Share that --min-percent requires.", unit=PERCENT)]
    percents: Annotated[Factors, column("Share of the expected bandwidth of a case with --min-percent.", unit=PERCENT)]
    limited_by: Annotated[str | None, column("The ceiling's link; None if no allocation has such a ceiling.")]
    model: Annotated[str | None, column("The ceiling's kind, likewise.")]
    state: Annotated[
        str, column('"confirmed" (below in three allocations), "suspected" (below in all, but fewer), "cleared" or "no verdict" (unknown).')
    ]


class Change(_VerdictPart, frozen=True):
    """A difference between the last good allocation (`before`) and the candidate (`after`)."""

    item: Annotated[Item, column("The words of what changed.", key="path", value=lambda change: change.item.path)]
    before: Annotated[str, column("Its value in the last good allocation.")]
    after: Annotated[str, column("Its value in the candidate.")]
    plausible: Annotated[
        Plausible | Text | None,
        column("Why it is, or is not, a plausible cause; empty if nothing is slower.", value=lambda change: str(change.plausible or "")),
        column("The same as a fact.", key="plausible_fact"),
    ] = None
    announced: Annotated[Announcement | None, column("The announcement that covers it; None: there is none.")] = None
    times: Annotated[int, column('In how many places, with "*" in the item\'s path.', after="item")] = 1
    explains: Annotated[bool, column("Whether it may be the cause of what is slower.")] = False

    @property
    @figure('The kind: "software".')
    def kind(self) -> str:
        """Return the kind: "software"."""
        return self.item.kind

    @property
    @figure('What changed: "mpi version".')
    def what(self) -> str:
        """Return what changed: "mpi version"; for several places "interfaces * mtu (3 times)"."""
        return f"{self.item.what} ({self.times} times)" if self.times > 1 else self.item.what

    def sentence(self) -> str:
        """Return "software mpi: MPICH 4.3 → MPICH 5.0"."""
        return Difference(self.item, self.before, self.after, self.times).sentence()


_CAUSE = {
    "kind": column("Its name.", value=lambda verdict: verdict.cause.cause),
    "sentence": column("Its sentence.", value=lambda verdict: verdict.cause.render()),
    "fact": column("The cause as a fact; missing in older files.", optional=True,
                   value=lambda verdict: None if isinstance(verdict.cause, StoredCause) else verdict.cause),
}  # fmt: skip


class Verdict(_VerdictPart, frozen=True, kw_only=True):
    """The result of the gate, with everything that its outputs show."""

    schema: Annotated[int, column("The version of verdict.schema.json.")] = SCHEMA
    result: Annotated[str, column('"passed", "regression", "no verdict" or "wrong data".')]
    mode: Annotated[str, column('"baseline", or "paired" (old and new stack in one allocation).')]
    reasons: Annotated[
        tuple[Fact, ...],
        column("Why it is not a pass.", value=lambda verdict: rendered(verdict.reasons)),
        column("The reasons as facts of `gating.reasons`, or `Text` from an older file.", key="reason_facts", after="ceilings"),
    ]
    notes: Annotated[
        tuple[Fact, ...],
        column("Launches left out, cases without a history, slowed on purpose …", value=lambda verdict: rendered(verdict.notes)),
        column("The notes as facts.", key="note_facts", after="reason_facts"),
    ]
    suspicions: Annotated[tuple[Suspicion, ...], column("The surest and worst first.")]
    groups: Annotated[tuple[GroupState, ...], column("Every group with a history, in the order of the baseline's cases.")]
    floors: Annotated[tuple[FloorState, ...], column("Cases below a floor.")]
    cause: Annotated[
        LikelyCause | None,
        column("The likely cause of the slowdown; None if nothing is confirmed or suspected, or no cause fits.", parts=_CAUSE),
    ]
    changes: Annotated[tuple[Change, ...], column("Since the last good allocation, announced or not, the most plausible cause first.")]
    baseline: Annotated[str, column("Its folder (of paired stacks: the old one's folders).")]
    allocations: Annotated[int, column("Allocations of the baseline.")]
    thin: Annotated[bool, column("Fewer than six.")]
    candidates: Annotated[tuple[str, ...], column("The names of the judged allocations, in the order in which they began.")]
    cases: Annotated[int, column("Cases with enough allocations in the baseline.")]
    judged_on: Annotated[str, column("The day (ISO 8601) that decides whether announcements are expired.")]
    collbench: Annotated[str, column("The version that judged.")]
    asked: Annotated[tuple[str, ...], column("The floors as typed; one without a case in `floors` is reached everywhere.")] = ()
    margin: Annotated[float, column("The largest difference that counts as no change: 0.05 is ±5 %.")] = MARGIN
    ceilings: Annotated[
        tuple[CeilingChange, ...],
        column("Ceilings that fell, so that percentages of them would hide the loss.", value=lambda verdict: stored(verdict.ceilings)),
    ] = ()

    @property
    @figure("How many cases have each outcome; empty for the verdict of an older version.", after="note_facts")
    def outcomes(self) -> dict[Outcome, int]:
        """Return how many cases have each outcome; empty for the verdict of an older version."""
        if not any(each.outcomes for each in self.groups):
            return {}
        return {outcome: sum(each.outcomes.get(outcome, 0) for each in self.groups) for outcome in Outcome}

    @property
    @figure("The exit code of `collbench gate`.", after="schema")
    def exit_code(self) -> int:
        """Return the exit code in collbench's own style."""
        return EXIT_CODES[self.result]

    @property
    def waits(self) -> bool:
        """Return whether only another measurement of the suspects is missing."""
        return self.result == UNDECIDED and bool(self.reasons) and all(isinstance(each, WAITING) for each in self.reasons)

    @property
    def unexpected_cause(self) -> Change | None:
        """Return the most plausible unexpected change that explains a regression; None without one."""
        if self.result != REGRESSION:
            return None
        return next((each for each in self.changes if each.announced is None and each.explains), None)

    def count(self, state: str) -> int:
        """Return the number of suspicions and floors in this state."""
        return [each.state for each in self.suspicions].count(state) + [each.state for each in self.floors].count(state)

    @property
    def reached(self) -> list[str]:
        """Return the floors that every case reaches in at least one of its allocations."""
        return [text for text in self.asked if all(each.state == CLEARED for each in self.floors if each.asked == text)]


def from_json(document: Mapping[str, Any]) -> Verdict:
    """Return the verdict of verdict.json, from an object that fits the schema. Older files have no facts: `Text` replaces them.

    Raises msgspec.ValidationError for an object of another shape.
    """
    others, cause = {**document, "reasons": (), "notes": (), "cause": None, "changes": ()}, document["cause"]
    plain = msgspec.convert(others, Verdict, strict=False)  # 6.0 is an integer of the schema, too
    return replace(
        plain,
        reasons=_facts(document["reasons"], document.get("reason_facts"), REASONS),
        notes=_facts(document["notes"], document.get("note_facts"), NOTES),
        cause=_fact(cause.get("fact"), CAUSES, StoredCause(cause["kind"], cause["sentence"])) if cause else None,
        changes=tuple(map(_change, document["changes"])),
    )


def _facts(texts: Sequence[str], facts: Sequence[Any] | None, kinds: Any) -> tuple[Fact, ...]:
    """Return a fact for each text: the stored one, or a `Text` if it is missing or from a later version."""
    stored = facts if facts is not None and len(facts) == len(texts) else [None] * len(texts)
    return tuple(_fact(fact, kinds, Text(text)) for text, fact in zip(texts, stored, strict=True))


def _fact(fact: Any, kinds: Any, otherwise: Fact) -> Any:
    try:
        return decode(fact, kinds)
    except msgspec.ValidationError:
        return otherwise


def _change(stored: Mapping[str, Any]) -> Change:
    item = Item(stored["kind"], tuple(stored["path"])) if stored.get("path") else Item.of(stored["kind"], stored["what"])
    why = stored["plausible"]
    plausible = _fact(stored.get("plausible_fact"), PLAUSIBLE, Text(why)) if why else None
    return replace(msgspec.convert({**stored, "item": item, "plausible": None}, Change, strict=False), plausible=plausible)


# The exit code for a verdict or a failure, in the caller's style.

OWN, NAGIOS, PROLOG = STYLES = ("collbench", "nagios", "prolog")
OK, WARNING, CRITICAL, UNKNOWN = range(4)  # monitoring-plugins.org, Development Guidelines, "Plugin Return Codes"


def exit_code(verdict: Verdict, style: str) -> int:
    """Return the exit code in a style.

    collbench: its own codes; nagios: 0 ok, 1 warning, 2 critical, 3 unknown; prolog: 1 for confirmed or wrong, else 0.
    """
    if style == PROLOG:
        return int(verdict.result in (REGRESSION, WRONG_DATA))
    return nagios_state(verdict) if style == NAGIOS else verdict.exit_code


def nagios_state(verdict: Verdict) -> int:
    """Return the Nagios state.

    CRITICAL: confirmed or wrong; WARNING: only suspects or accepted slowdowns; UNKNOWN: no verdict for any other reason.
    """
    if verdict.result in (REGRESSION, WRONG_DATA):
        return CRITICAL
    if verdict.result == PASSED:
        return WARNING if verdict.count(ACCEPTED) else OK
    return WARNING if verdict.waits else UNKNOWN


def code_of_failure(own: int, style: str) -> int:
    """Return the exit code after bad input, a defect or a signal, without any verdict; `own` is collbench's code for it.

    A tool's failure must not drain a node: a prolog returns 0, and Nagios gets UNKNOWN.
    """
    if own == FINE or style == OWN:
        return own
    return UNKNOWN if style == NAGIOS else FINE


# Reading verdict.json, which may come from an unknown source. It must fit verdict.schema.json exactly.

SCHEMA_FILE = Path(__file__).parent / "verdict.schema.json"
_LONGEST = 80  # characters of a value in an error
_REMEDY = "name what `collbench gate --out` wrote"


def read_verdict(path: Path, option: str = "") -> Verdict:
    """Return the verdict in a file. Raises UsageError if it cannot be read, does not fit the schema, or contradicts itself.

    option: that names the file, for the error
    """
    place = f"{option} {path}".lstrip()
    try:
        value = read_object(path)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{place} cannot be read ({why}): {_REMEDY}") from error
    version = value.get("schema")
    if isinstance(version, int) and version > SCHEMA:
        raise UsageError(f"{place} has schema {version}, but this collbench supports up to {SCHEMA}: update collbench")
    misfit = _misfit(value)
    if misfit is not None:
        raise UsageError(f"{place} does not fit verdict.schema.json: {misfit}; {_REMEDY}")
    try:
        verdict = from_json(value)
    except msgspec.ValidationError as error:
        raise UsageError(f"{place} does not fit verdict.schema.json: {error}; {_REMEDY}") from error
    if verdict.result == PASSED and (verdict.reasons or any(map(verdict.count, (CONFIRMED, SUSPECTED, UNDECIDED)))):
        raise UsageError(f"{place} has result passed, but also reasons or suspects: {_REMEDY}")
    return verdict


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a verdict, as installed."""
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return found


def _misfit(value: dict[str, Any]) -> str | None:
    """Return the first invalid value with its place: "groups[3].limit is -1, where exclusiveMinimum 0 is wanted"; None if all are valid."""
    from jsonschema import Draft202012Validator

    checks = Draft202012Validator(schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    error: Any = next(iter(checks.iter_errors(value)), None)
    if error is None:
        return None
    # of a value that fits none of several forms, the last of which is null, the error of the first form
    error = next((inner for inner in error.context or () if list(inner.schema_path)[:1] == [0]), error)
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    place = _shown(place.removeprefix("."))[1:-1] or "it"
    if error.validator == "required":
        return f"{place} lacks {next(name for name in error.validator_value if name not in error.instance)}"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})
        return f"{place} has {_shown(next(name for name in error.instance if name not in known))}, which is unknown"
    return f"{place} is {_shown(error.instance)}, where {error.validator} {_shown(error.validator_value)} is wanted"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
