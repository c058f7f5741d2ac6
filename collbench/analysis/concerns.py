"""Concerns about runs: findings, flags and missing parts, as one list for every output, worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from collbench.analysis.launches import Launches, forced, grouped
from collbench.results.flags import WITHIN_A_LAUNCH
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import first_of, format_size
from collbench.untrusted import dict_of, list_of

if TYPE_CHECKING:
    from collbench.analysis.ceilings import CeilingDrops
    from collbench.analysis.stragglers import Compared

WRONG = "wrong data"
BROKEN = "broken off"
FINDING = "finding"
DOUBTFUL = "doubtful"
MISSING = "missing"
NOTE = "note"
SEVERITIES = (WRONG, BROKEN, FINDING, DOUBTFUL, MISSING, NOTE)  # worst first
# Flags, the one that reduces the value of a figure most first: figures of another machine or path, then times that are not one number,
# or not the library's, then wide intervals.
DOUBTS = (
    "wrong_data", "simulated", "slowed", "not_run_on_hardware", "shared_gpu", "oversubscribed", "reference_disturbed", "above_bound",
    "ranks_doubtful",
    "other_path", "model_differs", "path_unproven", "clock_stepped",
    "link_flapped", "port_errors", "lossy_path",
    "state_flip", "two_modes", "drift", "python_messages", "python_loop", "launch_bound", "straggler",
    "cpu_shared", "threads_share_cores", "skew_limited", "constant",
    "warmup_unsettled", "budget_exceeded", "missing_launches", "no_interval", "few_samples", "target_missed",
)  # fmt: skip
# These are notes: the figure is valid.
REMARKS = (
    "unverified", "their_tool", "imported", "remeasured", "retransmits", "size_rounded", "pairs_at_once", "no_overlap", "asynchronous",
    "too_many_updates", "parts_left_out", "dip",
)  # fmt: skip
_BREAKS = ("hang", "abort")  # kinds of events after which a run records no end
_MOST = 20  # of a severity
_MOST_GROUPS = 4
_MOST_SIZES = 3


class Concern(msgspec.Struct, frozen=True):
    """A reason to doubt or qualify a figure.

    severity  one of SEVERITIES
    what      a sentence, or the name of the flag in `flag`
    where     the cases or the run concerned, in words; "" if `what` has them
    flag      the flag with a meaning that explains it; None if `what` does
    """

    severity: str
    what: str
    where: str = ""
    flag: str | None = None

    def sentence(self) -> str:
        """Return the whole concern in one line."""
        return f"{self.what} ({self.where})" if self.where else self.what


def concerns(
    runs: Sequence[Run],
    tables: Sequence[Launches],
    compared: Sequence[Sequence[Compared]],
    findings: Iterable[Concern],
    warnings: Iterable[str] = (),
    *,
    fallen: Iterable[tuple[str, CeilingDrops]] = (),
) -> list[Concern]:
    """Return all concerns about these runs, worst first; at most 20 per severity, the rest is counted.

    tables    the runs, combined by allocation
    compared  by table, the cases with comparable ranks
    findings  of runs of other kinds than rows
    warnings  what could not be read or combined
    fallen    (candidate's name, what is lower than in the baseline)
    """
    run_names = {run.path: "" if len(runs) == 1 else run.path.resolve().name for run in runs}
    unsorted = [
        # ceilings of other hosts are only a note
        *(Concern(FINDING if lost.same_hosts else NOTE, sentence, name) for name, lost in fallen for sentence in lost.sentences()),
        *findings,
        *(concern for run in runs for concern in _of_run(run, run_names[run.path])),
        *(concern for run in runs for concern in _of_import(run, run_names[run.path])),
        *(concern for table, cases in zip(tables, compared, strict=True) for concern in _slow_ranks(table, cases)),
        *_of_rows([(table.name if len(tables) > 1 else "", row) for table in tables for row in table.rows]),
        *(Concern(MISSING, warning) for warning in warnings),
    ]
    sorted_concerns = []
    for severity in SEVERITIES:
        places: dict[Concern, list[str]] = {}  # each concern once, with the names of all runs that have it
        for concern in unsorted:
            if concern.severity == severity:
                places.setdefault(replace(concern, where=""), []).append(concern.where)
        shown_places = {concern: first_of(filter(None, dict.fromkeys(where)), _MOST_GROUPS) for concern, where in places.items()}
        of_severity = [replace(concern, where=where) for concern, where in shown_places.items()]
        sorted_concerns += of_severity[:_MOST]
        if len(of_severity) > _MOST:
            sorted_concerns.append(Concern(severity, f"and {len(of_severity) - _MOST} more of this kind"))
    return sorted_concerns


def _of_run(run: Run, where: str) -> Iterator[Concern]:
    """Yield the concerns from its events, without findings of pairs, which come from the matrix."""
    broke = [event for event in run.events if event.get("kind") in _BREAKS]
    if broke:
        yield from (Concern(BROKEN, f"{event['kind']}: {_text(event)}", where) for event in broke)
    elif not run.finished:
        yield Concern(BROKEN, f"the run did not come to its end; cases finished: {len(run.rows)}", where)
    of_pairs = "pairs" in run.info
    yield from (Concern(FINDING, _text(event), where) for event in run.events if event.get("kind") == "finding" and not of_pairs)
    yield from (Concern(NOTE, _text(event), where) for event in run.events if event.get("kind") == "note")


def _of_import(run: Run, where: str) -> Iterator[Concern]:
    """Yield what an external tool's output lacks, and what is inconsistent in it."""
    facts = dict_of(run.info.get("imported"))
    yield from (Concern(DOUBTFUL, doubt, where) for doubt in list_of(facts.get("doubts"), str) if doubt)
    missing = "; ".join(word for word in list_of(facts.get("missing"), str) if word)
    if missing:
        yield Concern(NOTE, f"imported, and not in it: {missing}", where)


def _text(event: dict[str, object]) -> str:
    text = event.get("text")
    return text if isinstance(text, str) and text else "without a word"


def _slow_ranks(table: Launches, cases: Sequence[Compared]) -> Iterator[Concern]:
    """Yield slower links before the ranks that wait for them. Of two ranks, none is called slow."""
    if not cases:
        return
    from collbench.analysis.stragglers import Role, hosts_of, slow_links, stragglers_in

    run = table.runs[0]
    links = slow_links(run)
    yield from (Concern(FINDING, link.sentence(), table.name) for link in links)
    for straggler in stragglers_in(cases, hosts_of(run), links):
        is_explained = straggler.role is Role.WAITS or straggler.other
        yield Concern(NOTE if is_explained else FINDING, straggler.sentence(), table.name)


def _of_rows(rows: Sequence[tuple[str, Row]]) -> Iterator[Concern]:
    """Yield the concerns from the rows: wrong elements, flags, reasons why nothing was measured."""
    wrong = [pair for pair in rows if pair[1].wrong]
    if wrong:
        detail = next((f": {row.wrong_detail}" for _, row in wrong if row.wrong_detail), "")
        yield Concern(WRONG, f"{sum(row.wrong or 0 for _, row in wrong)} elements are wrong{detail}", _where(wrong, rows))
    yield from _flagged(rows)
    reasons = grouped((pair for pair in rows if pair[1].na is not None), lambda pair: pair[1].na)
    yield from (Concern(MISSING, f"not measured: {reason}", _where(members, rows)) for reason, members in reasons.items())


def _flagged(rows: Sequence[tuple[str, Row]]) -> Iterator[Concern]:
    flagged = [(flag, pair) for pair in rows for flag in dict.fromkeys(pair[1].flags)]
    by_flag = {flag: [pair for _, pair in members] for flag, members in grouped(flagged, lambda pair: pair[0]).items()}
    covered = {"wrong_data"} if any(row.wrong for _, row in rows) else set()
    for flag in (*DOUBTS, *REMARKS):
        if flag in by_flag and flag not in covered:
            settled = flag in WITHIN_A_LAUNCH and all(row.launches > 1 for _, row in by_flag[flag])
            severity = NOTE if flag in REMARKS or settled else DOUBTFUL
            if flag == "wrong_data":
                severity = WRONG
            yield Concern(severity, flag, _where(by_flag[flag], rows), flag)
    for flag, rows_with_it in by_flag.items():
        if flag not in (*DOUBTS, *REMARKS):
            yield Concern(DOUBTFUL, f"{flag}, a flag that this version does not know", _where(rows_with_it, rows))


def _where(those: Sequence[tuple[str, Row]], rows: Sequence[tuple[str, Row]]) -> str:
    """Return "10 of 22 cases: allreduce gloo at 8 sizes, 64 B to 1 MiB; allreduce mpi at 16 KiB"."""
    if len(those) == len(rows):
        return "the only case" if len(rows) == 1 else f"all {len(rows)} cases"
    groups: dict[str, set[int]] = {}
    for name, row in those:
        words = (f"{name}:" if name else "", row.operation, row.backend, forced(row))
        groups.setdefault(" ".join(word for word in words if word), set()).add(row.size_bytes)
    groups_shown = [f"{name}{_sizes(sizes)}" for name, sizes in list(groups.items())[:_MOST_GROUPS]]
    more = [f"and {len(groups) - _MOST_GROUPS} more series"] if len(groups) > _MOST_GROUPS else []
    return f"{len(those)} of {len(rows)} cases: {'; '.join([*groups_shown, *more])}"


def _sizes(sizes: Iterable[int]) -> str:
    positive = sorted(size for size in sizes if size > 0)
    if not positive:
        return ""
    if len(positive) <= _MOST_SIZES:
        return f" at {', '.join(map(format_size, positive))}"
    return f" at {len(positive)} sizes, {format_size(positive[0])} to {format_size(positive[-1])}"
