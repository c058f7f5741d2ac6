"""A verdict's parts in words, the same in every output. All of them are made printable and cut: a verdict may be a stranger's file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.analysis.ceilings import ceiling_sentences
from collbench.analysis.outcome import Outcome, count
from collbench.gate.verdict import (
    ACCEPTED,
    CLEARED,
    CONFIRMED,
    PASSED,
    SUSPECTED,
    Announcement,
    Change,
    FloorState,
    GroupState,
    Suspicion,
    Verdict,
)
from collbench.report.columns import NOTHING
from collbench.report.headlines import short
from collbench.report.outcome_text import count_text, format_margin

LONGEST_NAME, _LONGEST = 120, 400
_MOST_CANDIDATES, _MOST_FACTORS, _HUGE = 6, 8, 3.0


def headline(verdict: Verdict) -> str:
    """ "regression: 1 confirmed, 2 suspected; most plausible cause: topology nic rate: 400 → 200 (unexpected change)"."""
    told = ", ".join(f"{number} {state}" for state in (CONFIRMED, SUSPECTED, ACCEPTED) if (number := verdict.count(state)))
    change = verdict.unexpected_cause
    cause = "" if change is None else f"; most plausible cause: {short(change.sentence(), _LONGEST)} (unexpected change)"
    return (f"{verdict.result}: {told}" if told else verdict.result) + cause


def slower(factor: float | None) -> str:
    """How much longer it takes: "+12.0 %", from threefold on "×4.2"; a dash where that is not known."""
    if factor is None:
        return NOTHING
    return f"×{factor:.3g}" if factor >= _HUGE else f"{100 * (factor - 1):+.1f} %"


def slower_in_each(factors: Sequence[float | None]) -> str:
    """ "+12.0 %, +11.0 %, –", by allocation."""
    more = f" and {len(factors) - _MOST_FACTORS} more" if len(factors) > _MOST_FACTORS else ""
    return ", ".join(map(slower, factors[:_MOST_FACTORS])) + more


def name_of(part: Suspicion | FloorState | GroupState) -> str:
    """What it is called."""
    return short(part.name, LONGEST_NAME)


def of_suspicion(each: Suspicion) -> str:
    """ "+12.0 %, +11.0 %, +13.0 %, by chance up to +2.0 %", and who announced it."""
    return f"{slower_in_each(each.factors)}, by chance up to {slower(each.limit)}{_by(each.announced)}"


def of_group(each: GroupState) -> str:
    """ "+3.0 %, by chance up to +1.0 %; worst: allreduce 64 MiB mpi +12.0 % (up to +2.0 %); 3 of 10 cells are missing"."""
    judged = f"{slower_in_each(each.factors)}, by chance up to {slower(each.limit)}" if each.limit is not None else "not judged as one"
    worst = "" if each.worst is None else f"worst: {short(each.worst, LONGEST_NAME)} {slower(each.worst_factor)}"
    limit = "" if each.worst is None or each.worst_limit is None else f" (up to {slower(each.worst_limit)})"
    missing = f"{each.missing} of {each.cells} cells are missing" if each.missing else ""
    return "; ".join(text for text in (judged, f"{worst}{limit}", missing) if text)


def of_floor(each: FloorState) -> str:
    """ "71.0 %, 70.5 % of ring (NIC 4×100 Gb/s), 80 % asked for (ring:80@64M-)"."""
    known = [f"{percent:.1f} %" if percent is not None else NOTHING for percent in each.percents[:_MOST_FACTORS]]
    of = short(each.model, 40) if each.model is not None else "a ceiling that is not known"
    limit = f" ({short(each.limited_by, 80)})" if each.limited_by is not None else ""
    return f"{', '.join(known)} of {of}{limit}, {each.wanted:g} % asked for ({short(each.asked, 60)})"


def of_change(each: Change) -> str:
    """ "software mpi: MPICH 4.3 → MPICH 5.0: it carries every slower cell; announced by …"."""
    why = f": {short(each.plausible, _LONGEST)}" if each.plausible else ""
    return f"{short(each.sentence(), _LONGEST)}{why}{_by(each.announced)}"


def describe_outcomes(verdict: Verdict) -> str:
    """Return "cells: 2 slower, 0 faster, 10 no change (limit inside ±5 %), 3 inconclusive; groups: …"; "" for an older verdict."""
    if not verdict.outcomes:
        return ""
    notes = {Outcome.NO_CHANGE: f" (limit inside {format_margin(verdict.margin)})"}
    groups = count(Outcome(each.outcome) for each in verdict.groups if each.outcome)
    return f"cells: {count_text(verdict.outcomes, notes)}; groups: {count_text(groups, {})}"


def fallen(verdict: Verdict) -> list[str]:
    """Return a sentence for each ceiling that fell, as `compare` prints it."""
    return [short(text, _LONGEST) for text in ceiling_sentences(verdict.ceilings)]


def judged(verdict: Verdict) -> str:
    """ "judged: night-9; baseline good: 6 allocations, 336 cells with a history"; of paired stacks what they were set against."""
    names = [short(name, 80) for name in verdict.candidates[:_MOST_CANDIDATES]]
    more = f" and {len(verdict.candidates) - _MOST_CANDIDATES} more" if len(verdict.candidates) > _MOST_CANDIDATES else ""
    thin = " (a thin baseline: fewer than 6)" if verdict.thin else ""
    if verdict.mode == "paired":
        old = f"the old stack side by side, in {short(verdict.baseline, 200)}: {verdict.cells} cells of both"
        return f"judged: {', '.join(names)}{more}; {old}"
    of = f"{verdict.allocations} allocations{thin}, {verdict.cells} cells with a history"
    return f"judged: {', '.join(names)}{more}; baseline {short(verdict.baseline, 200)}: {of}"


def sentences(texts: Sequence[str], most: int) -> list[str]:
    """The first of them, made fit to be shown; what is left out is counted."""
    shown = [short(text, _LONGEST) for text in texts[:most]]
    return [*shown, f"and {len(texts) - most} more: see --out FILE"] if len(texts) > most else shown


def open_ones(verdict: Verdict) -> Iterator[Suspicion | FloorState]:
    """What is confirmed, suspected or accepted, in this order; all cells together before a part of them."""
    suspicions = sorted(verdict.suspicions, key=lambda each: each.kind != "whole")
    told: list[Suspicion | FloorState] = [*suspicions, *verdict.floors]
    for state in (CONFIRMED, SUSPECTED, ACCEPTED):
        yield from (each for each in told if each.state == state)


def worst_groups(groups: Sequence[GroupState]) -> list[GroupState]:
    """What is confirmed first, then what is not known or suspected, then what passed; of a state what exceeds its limit most first."""
    return sorted(groups, key=lambda each: (each.state == PASSED, each.state != CONFIRMED, -_beyond(each)))


def _beyond(each: GroupState) -> float:
    """By what factor its median, or where it is not judged as one its worst cell, exceeds its limit; 0 where nothing is known."""
    factor, limit = (each.factors[0] if each.factors else None, each.limit) if each.limit else (each.worst_factor, each.worst_limit)
    return factor / limit if factor and limit else 0.0


def cleared(verdict: Verdict) -> list[Suspicion]:
    """What exceeded its limit at first, and did not again."""
    return [each for each in verdict.suspicions if each.state == CLEARED]


def of(each: Suspicion | FloorState) -> str:
    """The figures of either."""
    return of_floor(each) if isinstance(each, FloorState) else of_suspicion(each)


def announced(by: Announcement | None) -> str:
    """ "by A. Reviewer until 2027-01-31: fewer CTAs leave room for kernels"; "" where nobody did."""
    return "" if by is None else f"by {short(by.reviewer, 60)} until {short(by.expires, 10)}: {short(by.reason, 200)}"


def _by(announcement: Announcement | None) -> str:
    return "" if announcement is None else f"; announced {announced(announcement)}"
