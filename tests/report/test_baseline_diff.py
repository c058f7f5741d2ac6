"""What `collbench baseline diff` prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from collbench.gating.baseline import Baseline
from collbench.gating.history import between_allocations, between_baselines
from collbench.report.baseline import diff_lines
from tests.gate.histories import case, nights, upgraded

BASE = Baseline(Path("base"), upgraded(12, 6, by=1.1))


def test_what_moved_and_what_else_changed() -> None:
    actual = [line.text for line in diff_lines(between_allocations(BASE, "night-6", "night-7"), "table")]
    assert actual[:3] == [
        "night-6: 2026-11-06 on node1, node2", "night-7: 2026-11-07 on node1, node2",
        "14 cases: 4 slower, 0 faster, 10 no change (limit inside ±5 %), 0 inconclusive",
    ]  # fmt: skip
    moved = [re.fullmatch(r"  slower: (.*): \+\d+\.\d % time; noise limit \+\d\.\d %", line) for line in actual[3:8]]
    assert {each[1] for each in moved if each} == {
        "allreduce on mpi, large messages",
        *(f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256)),
    }
    assert actual[8:] == [
        "a comparison, not a gate: about one in 500 unchanged cases is beyond its limit by chance",
        "what changed besides:", "  software mpi version: 4.3 → 5.0",
    ]  # fmt: skip


def test_faster_has_a_limit_below_one() -> None:
    actual = [line.text for line in diff_lines(between_allocations(BASE, "night-7", "night-6"), "table")]
    assert re.fullmatch(r"  faster: .*: -\d+\.\d % time; noise limit -\d\.\d %", actual[3])


def test_nothing_known_and_cases_of_one_side() -> None:
    first, second = nights(2)
    del second.cases[case(8)]
    moves = between_baselines(Baseline(Path("a"), [first]), Baseline(Path("b"), [second]))
    actual = [line.text for line in diff_lines(moves, "table")]
    assert actual[2:] == [
        "13 cases: 0 slower, 0 faster, 0 no change (limit inside ±5 %), 13 inconclusive",
        "of 13 cases the noise is unknown: too few allocations measured them",
        "only in a: allreduce 8 B mpi", "no other recorded change",
    ]  # fmt: skip


def test_json_is_one_object() -> None:
    (line,) = diff_lines(between_baselines(Baseline(Path("a"), BASE.allocations[:6]), Baseline(Path("b"), BASE.allocations[6:])), "json")
    actual = json.loads(line.text)
    assert (actual["old"], actual["new"], actual["allocations"][0][-1]) == ("a", "b", "night-6")
    slow = next(each for each in actual["moved"] if each["name"] == "allreduce 64 MiB mpi")
    assert actual["summary"] == {"slower": 4, "inconclusive": 0, "no_change": 10, "faster": 0} and slow["outcome"] == "slower"
    assert slow["beyond"] and round(slow["factor"], 1) == 1.1 and slow["cell"]["size_bytes"] == 64 << 20
    assert actual["changes"] == [{"kind": "software", "what": "mpi version", "a": "4.3", "b": "5.0"}]
