"""Output of `collbench replay` besides that of a training step: its costliest operations, what each would gain at its expected rate, the
recorded times, and what the trace lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from collbench.plugins.traces.recording import TraceFact
from collbench.plugins.training.records import PartRow, ReplayedTrace, StepRow
from collbench.plugins.training.text import limiting, milliseconds, of_expected, span
from collbench.reason import decode_or_text
from collbench.report.cases import NOTHING
from collbench.report.frame import Column, Frame, without_empty
from collbench.units import format_bytes, format_percent, plural

_COSTLIEST = 5


class Cost(msgspec.Struct, frozen=True):
    """The cost of one part of a replayed step. Times in seconds, of all its exchanges in a step.

    backend      its name, "" but for the costliest part
    part         as in `StepRow.parts`
    time_s       measured alone
    share        of the sum of all parts, 0 to 1; None: not every part was measured alone
    gain_s       what the part would take less at its expected rate; None where no rate is expected. The step gains at most this, since
                 exchanges may overlap
    recorded_s   recorded time; None: not recorded
    """

    backend: str
    part: PartRow
    time_s: float
    share: float | None
    gain_s: float | None
    recorded_s: float | None


def _ms(seconds: float | None) -> str:
    return NOTHING if seconds is None else milliseconds(seconds)


_COLUMNS: tuple[Column[Cost], ...] = (
    Column("", "backend", lambda cost: cost.backend),
    Column("", "costliest operations", lambda cost: span(*cost.part.names), cut=True),
    Column("", "operation", lambda cost: cost.part.operation, drop=3),
    Column("", "groups", lambda cost: f"{cost.part.groups} of {plural(cost.part.group_ranks, 'rank')}", drop=6),
    Column("", "size", lambda cost: format_bytes(cost.part.size_bytes), right=True, drop=4),
    Column("", "times", lambda cost: str(cost.part.times), right=True),
    Column("", "all ms", lambda cost: _ms(cost.time_s), right=True),
    Column("", "share", lambda cost: NOTHING if cost.share is None else format_percent(100 * cost.share), right=True, drop=5),
    Column("", "recorded ms", lambda cost: _ms(cost.recorded_s), right=True, drop=2),
    Column("", "of expected", lambda cost: of_expected(cost.part), drop=1),
    Column("", "gain ms", lambda cost: _ms(cost.gain_s), right=True),
    Column("", "limited by", lambda cost: limiting(cost.part), drop=7),
)


def costliest_frame(rows: Sequence[StepRow]) -> Frame[Cost]:
    """Return the table of the costliest operations of replayed steps, by backend; empty for other rows."""
    costs = [cost for row in rows if row.replay for cost in _costliest(row)]
    return Frame(without_empty(_COLUMNS, costs), costs, names_hidden=True)


def _costliest(row: StepRow) -> list[Cost]:
    """Return the parts of a replayed step that take most time when measured alone, the longest first."""
    recorded = row.replay.parts_time_s if row.replay else ()
    costs = []
    for number, part in enumerate(row.parts):
        if not part.time_s or not part.time_s.p50:
            continue
        time_s = part.times * part.time_s.p50
        before = recorded[number] if number < len(recorded) else None
        compared = part.comparison
        gain_s = None
        if compared is not None and part.moved_bytes is not None:
            gain_s = max(0.0, time_s - part.moved_bytes / compared.expected_bytes_per_s)
        costs.append(Cost("", part, time_s, None, gain_s, None if before is None else part.times * before))
    whole = sum(cost.time_s for cost in costs)
    if whole and "parts_left_out" not in row.flags:
        costs = [replace(cost, share=cost.time_s / whole) for cost in costs]
    costliest = sorted(costs, key=lambda cost: -cost.time_s)[:_COSTLIEST]
    return [replace(cost, backend=row.backend) for cost in costliest[:1]] + costliest[1:]


def replay_sentences(row: StepRow) -> Iterator[str]:
    """Yield the exposed communication, and the recorded time of the step beside the measured one."""
    if row.replay is None or row.time_s is None:
        return
    step_s, exposed = row.time_s.p50, row.exposed_s or 0.0
    if row.replay.compute is None:
        yield "the replay does not compute: the time of the step is that of its communication"
    else:
        share = format_percent(100 * exposed / step_s) if step_s else NOTHING
        yield f"exposed communication: {milliseconds(exposed)} of {milliseconds(step_s)} ms ({share}); computing: " + (
            f"{milliseconds(row.replay.compute_s)} ms"
        )
    recorded = row.replay.step_time_s
    if recorded is None:
        fewer = row.replay.ranks != row.ranks
        yield "recorded time of the step: " + (f"of {row.replay.ranks} ranks, not comparable" if fewer else "not recorded")
    else:
        here = " with its computing" if row.replay.compute is None else f", {100 * (step_s / recorded - 1):+.3g} % here"
        yield f"recorded time of the step: {milliseconds(recorded)} ms{here}"


def trace_sentences(trace: ReplayedTrace) -> Iterator[str]:
    """Yield what was assumed, left out and chosen of a trace, and what it does not contain."""
    for note in trace.notes:
        yield str(decode_or_text(note, TraceFact))
    if trace.missing:
        yield f"the trace ({trace.form}) does not contain: {', '.join(trace.missing)}"
