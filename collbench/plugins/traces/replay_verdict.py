"""Evaluation of a replayed step: its costliest operations, what each would gain at its expected rate, and the recorded times."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.plugins.training.records import PartRow, StepRow, comparison

COSTLIEST = 5


@dataclass(frozen=True)
class Cost:
    """The cost of one part of a replayed step. Times in seconds, of all its exchanges in a step.

    part         as in `StepRow.parts`
    time_s       measured alone
    share        of the sum of all parts, 0 to 1; None: not every part was measured alone
    gain_s       what the part would take less at its expected rate; None where no rate is expected. The step gains at most this, since
                 exchanges may overlap
    recorded_s   recorded time; None: not recorded
    """

    part: PartRow
    time_s: float
    share: float | None
    gain_s: float | None
    recorded_s: float | None


def costliest(row: StepRow, most: int = COSTLIEST) -> list[Cost]:
    """Return the parts of a replayed step that take most time when measured alone, the longest first."""
    recorded = row.replay.parts_time_s if row.replay else ()
    found = []
    for number, part in enumerate(row.parts):
        if not part.time_s or not part.time_s.p50:
            continue
        time_s = part.times * part.time_s.p50
        before = recorded[number] if number < len(recorded) else None
        found.append((part, time_s, None if before is None else part.times * before))
    whole = sum(time_s for _, time_s, _ in found) if "parts_left_out" not in row.flags else None
    costs = [Cost(part, time_s, time_s / whole if whole else None, _gain(part, time_s), before) for part, time_s, before in found]
    return sorted(costs, key=lambda cost: -cost.time_s)[:most]


def _gain(part: PartRow, time_s: float) -> float | None:
    compared = comparison(part)
    if compared is None or part.moved_bytes is None:
        return None
    return max(0.0, time_s - part.moved_bytes / compared.expected)
