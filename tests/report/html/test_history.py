"""The page of a history."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.gating.history import history
from collbench.report.html import history as made
from collbench.report.html.first_screen import BAD, DOUBT, GOOD, of_history
from collbench.report.html.history import write_history
from tests.gate.histories import nights, upgraded


def test_changes_then_groups_then_cases_that_changed_then_allocations(tmp_path: Path) -> None:
    write_history(history("base", upgraded(12, 6), ["left out: <b>night</b>"]), "allreduce*MiB mpi", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<details class="folded" id="(\w+)"', text) == ["changes", "groups", "cells", "allocations"]
    assert text.count("<figure") == 1 + 1 + 4
    assert "software mpi version: 4.3 → 5.0" in text
    assert "left out: &lt;b&gt;night&lt;/b&gt;" in text and "<b>night" not in text
    assert re.search(r"Slower × 1\.0\d\d \(.*\) since night-7, 2026-11-07; with it: software mpi version: 4\.3 → 5\.0\.", text)
    assert "<th>allreduce on mpi, large messages" in text
    assert "night-3, 2026-11-03: × 1.0" in text or "night-3, 2026-11-03: × 0.9" in text


def test_where_nothing_changed_it_reports_it_and_a_pattern_that_fits_nothing_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--only 'x'"):
        write_history(history("base", nights(1)), "x", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    write_history(history("base", nights(6)), "allreduce 8 B*", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<details class="folded" id="(\w+)"', text) == ["changes", "groups", "allocations"]
    assert "changed: nothing." in text and "It did not change." in text


def test_of_many_the_first_are_drawn_which_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_MOST_CASES", "_MOST_GROUPS", "_MOST_LISTED"):
        monkeypatch.setattr(made, limit, 1)
    write_history(history("base", upgraded(6, 3, by=1.3)), "*", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("<figure") == 1 + 2
    assert "Drawn are 1 of 5 groups, those that changed most." in text
    assert "Drawn are 1 of 4 cases that changed, those that changed most." in text
    assert "what else changed then (1 of " in text


def test_the_first_screen_has_the_largest_slowdown_its_date_and_what_changed_then() -> None:
    found = history("base", upgraded(12, 6))
    screen = of_history(found, found.series)
    assert screen.badge == (BAD, "SLOWER")
    assert re.fullmatch(
        r".+ slower \(\+\d+\.\d % time\) since 2026-11-07 \(night-7\); with it: software mpi version: 4\.3 → 5\.0", screen.title
    )
    assert screen.figures[0].value.startswith("+") and screen.figures[1].value == "12"
    faster = history("base", upgraded(12, 6, by=0.8))
    assert of_history(faster, faster.series).badge == (GOOD, "FASTER")


@pytest.mark.parametrize(("count", "badge", "title"), [
    (6, (GOOD, "NO CHANGE"), "no change: 6 allocations from 2026-11-01 to 2026-11-06, 14 cases"),
    (3, (DOUBT, "TOO FEW"), "too few allocations to find a change: 3 allocations from 2026-11-01 to 2026-11-03, 14 cases"),
])  # fmt: skip
def test_without_a_change_the_title_is_the_verdict(count: int, badge: tuple[str, str], title: str) -> None:
    found = history("base", nights(count))
    screen = of_history(found, found.series)
    assert (screen.badge, screen.title, screen.figures[0].value) == (badge, title, str(count))


def test_allocations_of_one_day_have_the_time() -> None:
    found = history("base", [replace(each, began_utc=f"2026-11-21T0{n}:30:00+00:00") for n, each in enumerate(nights(3))])
    assert made._moments(found) == ["00:30", "01:30", "02:30"]
    assert made._moments(history("base", nights(2))) == ["2026-11-01", "2026-11-02"]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    allocations = [
        replace(each, facts={**each.facts, "software": {"mpi": f"<script>{number > 2}</script>\u202e"}})
        for number, each in enumerate(nights(6, lambda number, backend, size: 1.5 if number > 2 else 1.0))
    ]
    write_history(history("<script>", allocations), "allreduce 8 B mpi", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;True" in text and "<script>True" not in text and "\u202e" not in text
