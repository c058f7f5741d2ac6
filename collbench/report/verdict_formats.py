"""The verdict in OpenMetrics' form: the result, every group, and what is slower, each with what may be by chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from collbench.gate.allocation import COLUMNS
from collbench.gate.verdict import (
    ACCEPTED,
    CLEARED,
    CONFIRMED,
    EXIT_CODES,
    PASSED,
    SUSPECTED,
    UNDECIDED,
    FloorState,
    GroupState,
    Suspicion,
    Verdict,
)
from collbench.report.gauges import Sample, exposed
from collbench.report.headlines import short

_LONGEST = 200
_SLOWER = "time over what the baseline says, by strike: 1 is the first of the allocations that were judged"
_ABOUT = {
    "gate_result": ("", "1 for what the gate said: passed, regression, no_verdict or wrong_data; 0 for the others"),
    "gate_judged_timestamp": ("seconds", "the day on which it was said, in seconds since 1970"),
    "gate_baseline_allocations": ("", "allocations of the baseline"),
    "gate_candidate_allocations": ("", "allocations that were judged"),
    "gate_cells": ("", "cells with a history to be judged by"),
    "gate_suspicions": ("", "cells, groups and shares of a ceiling that are confirmed, suspected, accepted or cleared"),
    "gate_unannounced_changes": ("", "unexpected changes since the last good allocation"),
    "gate_group_state": ("", "1 for the state of a group: passed, confirmed, suspected or no_verdict; 0 for the others"),
    "gate_group_time": ("ratio", f"of a group the median {_SLOWER}"),
    "gate_group_limit": ("ratio", "what that may be by chance; no sample where a group is too small to be judged as one"),
    "gate_group_missing_cells": ("", "cells of a group that the candidate lacks"),
    "gate_suspicion_time": ("ratio", f"of what exceeded its limit at first the {_SLOWER}"),
    "gate_suspicion_limit": ("ratio", "what that may be by chance"),
    "gate_of_ceiling": ("ratio", "share of the ceiling of a cell of which one was asked for, by strike"),
    "gate_of_ceiling_wanted": ("ratio", "the share that was asked for"),
}
_Labels = Mapping[str, str]


def openmetrics(verdict: Verdict) -> str:
    """The whole file. Raises UsageError without the extra `report`."""
    return exposed(_ABOUT, _samples(verdict))


def _samples(verdict: Verdict) -> Iterator[Sample]:
    yield from _one_hot("gate_result", {}, "result", EXIT_CODES, verdict.result)
    yield Sample("gate_judged_timestamp", {}, _seconds(verdict.judged_on))
    yield Sample("gate_baseline_allocations", {}, verdict.allocations)
    yield Sample("gate_candidate_allocations", {}, len(verdict.candidates))
    yield Sample("gate_cells", {}, verdict.cells)
    for state in (CONFIRMED, SUSPECTED, ACCEPTED, CLEARED):
        yield Sample("gate_suspicions", {"state": state}, verdict.count(state))
    yield Sample("gate_unannounced_changes", {}, sum(each.announced is None for each in verdict.changes))
    for group in verdict.groups:
        yield from _of_group(group)
    for each in verdict.suspicions:
        yield from _of_suspicion(each)
    for floor in verdict.floors:
        yield from _of_floor(floor)


def _of_group(each: GroupState) -> Iterator[Sample]:
    labels = {name: short(str(getattr(each, name)), _LONGEST) for name in ("backend", "operation", "size_class")}
    yield from _one_hot("gate_group_state", labels, "state", (PASSED, CONFIRMED, SUSPECTED, UNDECIDED), each.state)
    yield from _by_strike("gate_group_time", labels, each.factors)
    yield Sample("gate_group_limit", labels, each.limit)
    yield Sample("gate_group_missing_cells", labels, each.missing)


def _of_suspicion(each: Suspicion) -> Iterator[Sample]:
    labels = {"kind": each.kind, "name": short(each.name, _LONGEST), "state": each.state, **_cell(each)}
    yield from _by_strike("gate_suspicion_time", labels, each.factors)
    yield Sample("gate_suspicion_limit", labels, each.limit)


def _of_floor(each: FloorState) -> Iterator[Sample]:
    told = {"model": each.model, "limited_by": each.limited_by}
    known = {name: short(text, _LONGEST) for name, text in told.items() if text is not None}
    labels = {"name": short(each.name, _LONGEST), "asked": short(each.asked, _LONGEST), "state": each.state, **known, **_cell(each)}
    yield from _by_strike("gate_of_ceiling", labels, [None if percent is None else percent / 100 for percent in each.percents])
    yield Sample("gate_of_ceiling_wanted", labels, each.wanted / 100)


def _cell(each: Suspicion | FloorState) -> dict[str, str]:
    """Its columns, as the metrics of a report have them, and no other label that a stranger's file names; what does not apply has none."""
    known = {name: value for name in COLUMNS if (value := each.cell.get(name)) is not None}
    placing = {True: "in place", False: "out of place"}.get(known.pop("in_place", None))
    told = {**known, **({"placing": placing} if placing else {})}
    return {name: short(str(value), _LONGEST) for name, value in told.items()}


def _by_strike(name: str, labels: _Labels, values: Sequence[float | None]) -> Iterator[Sample]:
    for strike, value in enumerate(values, 1):
        yield Sample(name, {**labels, "strike": str(strike)}, value)


def _one_hot(name: str, labels: _Labels, label: str, states: Sequence[str] | Mapping[str, int], state: str) -> Iterator[Sample]:
    for each in states:
        yield Sample(name, {**labels, label: each.replace(" ", "_")}, each == state)


def _seconds(day: str) -> float | None:
    try:
        return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
