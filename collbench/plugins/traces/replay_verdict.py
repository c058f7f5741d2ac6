"""Evaluation of a replayed step: its costliest operations, what each would gain at its expected rate, and the recorded times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collbench.plugins.training.records import StepRow

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

    part: Mapping[str, Any]
    time_s: float
    share: float | None
    gain_s: float | None
    recorded_s: float | None


def costliest(row: StepRow, most: int = COSTLIEST) -> list[Cost]:
    """Return the parts of a replayed step that take most time when measured alone, the longest first."""
    recorded = row.replay.parts_time_s if row.replay else ()
    found = []
    for number, part in enumerate(row.parts):
        each_s = (part["time_s"] or {}).get("p50")
        if not each_s:
            continue
        time_s = part["times"] * each_s
        before = recorded[number] if number < len(recorded) else None
        found.append((part, time_s, None if before is None else part["times"] * before))
    whole = sum(time_s for _, time_s, _ in found) if "parts_left_out" not in row.flags else None
    costs = [Cost(part, time_s, time_s / whole if whole else None, _gain(part, time_s), before) for part, time_s, before in found]
    return sorted(costs, key=lambda cost: -cost.time_s)[:most]


def _gain(part: Mapping[str, Any], time_s: float) -> float | None:
    rate = (part["ceiling"] or {}).get("bytes_per_s")
    if not rate or part["percent_of_ceiling"] is None or part["moved_bytes"] is None:
        return None
    return max(0.0, time_s - float(part["moved_bytes"] / rate))


def exposed_s(row: StepRow) -> float | None:
    """Return the exposed communication of a replayed step in seconds: its time without that of computing. None without a measurement."""
    if row.time_s is None or row.replay is None:
        return None
    return max(0.0, row.time_s.p50 - row.replay.compute_s)
