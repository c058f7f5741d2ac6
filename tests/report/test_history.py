"""What `collbench history` prints: courses, changes in words, and JSON."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from collbench.errors import UsageError
from collbench.gating.history import CASE, CaseHistory, SeriesSubject, history
from collbench.report.baseline import BARS, FIGURES, chosen, course, history_lines, letters_for
from tests.gate.histories import case, nights, upgraded

FOUND = history("base", upgraded())


def text(pattern: str = "*") -> list[str]:
    return [line.text for line in history_lines(FOUND, "table", pattern)]


def test_a_line_for_each_series_groups_first_and_its_changes_below_it() -> None:
    shown = text()
    assert shown[0] == "base: 20 allocations from 2026-11-01 to 2026-11-20, 14 cases; changed: 1 group, 4 cases"
    assert shown[3].startswith("all cases  ")
    group = next(number for number, line in enumerate(shown) if line.startswith("allreduce on mpi, large messages"))
    assert re.fullmatch(r"allreduce on mpi, large messages +20 of 20 +– +× 1\.0[45]\d +[0-2]{10}[7-9]{10}", shown[group])
    assert re.fullmatch(
        r"    slower × 1\.0[45]\d \(1\.04\d to 1\.05\d; limit × 1\.01\d\) since night-11, 2026-11-11; "
        r"with it: software mpi version: 4\.3 → 5\.0", shown[group + 1],
    )  # fmt: skip
    assert group == 4, "changed groups come first"
    cases = [line.split("  ")[0] for line in shown[group + 2 :] if line.startswith("allreduce ") and " on " not in line]
    assert set(cases[:4]) == {f"allreduce {size} MiB mpi" for size in (2, 16, 64, 256)}
    assert len(cases) == 14


def test_notes_gaps_and_a_change_without_a_recorded_cause_are_reported() -> None:
    found = history("base", nights(12, lambda number, backend, size: 0.9 if number >= 6 else 1.0))
    actual = [line.text for line in history_lines(found, "table")]
    assert any(re.search(r"faster × 0\.90\d .* since night-7, 2026-11-07; with it: no recorded change$", line) for line in actual)
    found = history("base", nights(8, lambda number, backend, size: None if size == 8 and number < 4 else 1.0), ["left out: x\x1b[2J"])
    actual = [line.text for line in history_lines(found, "table")]
    assert actual[1] == "left out: x?[2J"
    assert any(re.match(r"allreduce 8 B mpi +4 of 8 .* \.{4}\d{4}$", line) for line in actual)
    assert "    measured since night-5" in actual


def test_only_some_cases_and_their_groups() -> None:
    names = [each.about.name for each in chosen(FOUND, "*64 MiB*")]
    assert names == [
        "allreduce on gloo, large messages", "allreduce on mpi, large messages", "allreduce 64 MiB gloo", "allreduce 64 MiB mpi",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"--only 'alltoall' .* allreduce 8 B gloo, "):
        chosen(FOUND, "alltoall")


def test_a_course_has_a_sign_for_each_allocation_and_noise_stays_flat() -> None:
    def of(*values: float) -> CaseHistory:
        return CaseHistory(SeriesSubject(CASE, "x"), np.array(values), (), 0.02)

    assert course(of(0.0, 0.1, float("nan"), 0.05), BARS) == "▁█·▅" or course(of(0.0, 0.1, float("nan"), 0.05), BARS) == "▁█·▄"
    assert course(of(0.0, 0.1, float("nan")), FIGURES) == "09."
    assert set(course(of(0.0, 0.002, 0.001), FIGURES)) <= {"4", "5"}
    assert len(course(of(*[0.0] * 99), FIGURES)) == 60
    assert course(of(float("nan")), FIGURES) == "."


@pytest.mark.parametrize(
    ("encoding", "painted", "letters"),
    [("utf-8", True, BARS), ("utf-8", False, FIGURES), ("ascii", True, FIGURES), ("nonsense", True, FIGURES), (None, True, FIGURES)],
)
def test_bars_are_for_terminals_that_can_show_them(encoding: str | None, painted: bool, letters: str) -> None:
    assert letters_for(encoding, painted) == letters


def test_of_many_cases_the_first_are_shown_and_those_of_one_allocation_are_counted() -> None:
    many = history("base", nights(2, sizes=range(8, 8 + 100)))
    actual = [line.text for line in history_lines(many, "table")]
    assert actual[-1] == "and 140 more cases: ask for some with --only PATTERN, or for all with --format json"
    lines = [line.text for line in history_lines(history("base", nights(1, sizes=(8, 16))), "table")]
    assert lines[1:] == ["not shown, since measured in one allocation only: 4 cases (--format json has them)"]


def test_json_has_an_object_for_each_series() -> None:
    actual = [json.loads(line.text) for line in history_lines(FOUND, "json")]
    assert [each["kind"] for each in actual] == ["whole"] + ["group"] * 4 + ["cell"] * 14
    one = next(each for each in actual if each["name"] == "allreduce 64 MiB mpi")
    assert one["cell"]["size_bytes"] == case(64 << 20).size_bytes
    assert (len(one["time_s"]), len(one["allocations"]), one["missing"]) == (20, 20, "")
    (step,) = one["steps"]
    assert (step["since"], step["last_before"], step["changes"]) == ("night-11", "night-10", ["software mpi version: 4.3 → 5.0"])
    assert step["low"] < step["factor"] < step["high"] and step["factor"] == pytest.approx(1.05, abs=0.01)
    assert "factor" in actual[0] and "time_s" not in actual[0]
