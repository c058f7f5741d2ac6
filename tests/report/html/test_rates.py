"""Bandwidth over size: the drawing, the texts and the table, for all kinds of rows."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from collbench.report.html.sweep import limits, not_drawn, series_of, sheets
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.peak.ceiling import Ceiling
from collbench.report.html import against, sweep
from collbench.results.row import Row, Times
from tests.report.html.stored import material, run_of
from tests.results.rows import COPY, NIC, make_row, not_measured

BOUND = Ceiling("network", 100e9, "NIC 8×100 Gb/s", "bound", "sysfs")


def curve(backend: str, gigabytes: float = 40, **changes: Any) -> list[Row]:
    """Seven sizes up to 1 MiB; the bandwidth doubles until it is `gigabytes`."""
    rows = []
    for power in range(8, 21, 2):
        rate, size = gigabytes * 1e9 / 2 ** (20 - power), 1 << power
        time_s = 1.5 * size / rate
        times = Times(time_s, time_s * 0.9, time_s * 1.1, time_s, time_s, time_s, time_s)
        figures = {"algbw_bytes_per_s": rate / 1.5, "busbw_bytes_per_s": rate, "percent_of_ceiling": 100 * rate / 50e9}
        rows.append(make_row(size, **{"backend": backend, "time_s": times, **figures, **changes}))
    return rows


def page_of(*rows: Row, **info: Any) -> Any:
    return material(run_of([(row, {}) for row in rows], **info))


def test_of_very_many_runs_the_first_ones_have_charts_and_the_rest_is_reported() -> None:
    found = material(*(run_of([(make_row(1 << 20), {})], name=f"night-{number}") for number in range(30)))
    assert {sheet.title for sheet in sheets(found)} == {f"allreduce (night-{number})" for number in range(24)}
    assert not_drawn(found) == ["Charts show the first 24 of 30 runs; `collbench report --csv FILE` has all."]


def texts(drawing: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


class TestRates:
    def test_reference_and_bound_are_drawn_and_named(self) -> None:
        section = sweep.section_rates(page_of(*curve("nccl", hard_bound=BOUND)))
        assert section
        (chart,) = section.charts
        assert {"ring reference 50.0 GB/s: NIC 4×100 Gb/s", "hard limit 100 GB/s: NIC 8×100 Gb/s"} <= set(texts(chart.drawing))
        assert "var(--limit)" in chart.drawing
        assert "var(--bound)" in chart.drawing
        assert "0" in texts(chart.drawing)
        assert chart.caption.startswith("nccl reaches 40.0 of 50.0 GB/s (80 %, hard limit 40 %) at 1 MiB.")

    def test_hover_and_table_have_the_exact_values(self) -> None:
        section = sweep.section_rates(page_of(*curve("nccl"), *curve("mpi", 20)))
        assert section
        (chart,) = section.charts
        assert "nccl 1 MiB: 40.0 of 50.0 GB/s (80 %) [36.4, 44.4]" in [spot.text for spot in chart.spots]
        assert chart.table.head == ["size", "backend", "time µs", "95 % interval", "algbw GB/s", "busbw GB/s", "of expected", "flags"]
        assert list(chart.table.rows[6])[:3] == ["1 MiB", "mpi", "78.64"]
        assert len(chart.table.rows) == 14
        assert "cuda · isolated · out of place · fixed buffers · 4 ranks · 1 node" in chart.method

    def test_bars_are_the_interval(self) -> None:
        section = sweep.section_rates(page_of(*curve("nccl")))
        assert section
        (chart,) = section.charts
        bars = re.search(r'd="([^"]*)"[^>]*stroke-opacity', chart.drawing)
        assert bars
        low, high = (float(height) for height in re.findall(r" ([\d.]+)", bars[1])[-2:])
        assert low > chart.spots[6].y > high

    def test_what_is_doubtful_na_or_wrong_is_shown_as_such(self) -> None:
        rows = [*curve("nccl"), *(not_measured("no <GPU> here", size_bytes=row.size_bytes, backend="gloo") for row in curve("x"))]
        rows[3] = replace(rows[3], flags=("drift",))
        rows[4] = replace(rows[4], wrong=7)
        section = sweep.section_rates(page_of(*rows))
        assert section
        (chart,) = section.charts
        assert {"doubtful (see flags)", "n/a", "wrong data"} <= set(texts(chart.drawing))
        assert set(chart.table.marks.values()) == {"doubtful", "na", "wrong"}
        assert "gloo: n/a (no <GPU> here)" in chart.caption
        said = [spot.text for spot in chart.spots]
        assert "gloo 1 MiB: n/a (no <GPU> here)" in said
        assert any(text.endswith("; ? drift") for text in said)
        assert any(text.endswith("; WRONG 7") for text in said)
        assert "1 MiB" in chart.caption

    def test_a_percentage_that_is_withheld_has_its_reason(self) -> None:
        above = [replace(row, percent_of_ceiling=None, flags=("above_bound",)) for row in curve("mpi", 60)]
        without = [
            replace(row, percent_of_ceiling=None, ceiling=Ceiling("none", None, "virtual: no speed of its own")) for row in curve("tcp")
        ]
        section = sweep.section_rates(page_of(*above, *without))
        assert section
        said = [spot.text for spot in section.charts[0].spots]
        assert "mpi 1 MiB: 60.0 GB/s (no percentage: above hard limit) [54.5, 66.7]" in said
        assert "tcp 1 MiB: 40.0 GB/s (no percentage: virtual: no speed of its own) [36.4, 44.4]" in said

    def test_what_is_above_its_bound_is_no_peak(self) -> None:
        rows = curve("mpi")
        rows[2] = replace(rows[2], busbw_bytes_per_s=90e9, percent_of_ceiling=None, flags=("above_bound",))
        section = sweep.section_rates(page_of(*rows))
        assert section
        assert section.charts[0].caption.startswith("mpi reaches 40.0 of 50.0 GB/s (80 %) at 1 MiB.")

    def test_more_than_eight_series_are_several_charts(self) -> None:
        section = sweep.section_rates(page_of(*(row for number in range(10) for row in curve(f"backend{number:02}")[:2])))
        assert section
        assert [chart.title for chart in section.charts] == [f"allreduce, part {part} of 2: bus bandwidth" for part in (1, 2)]
        many = sweep.section_rates(page_of(*(row for number in range(50) for row in curve(f"backend{number:02}")[:2])))
        assert many
        assert len(many.charts) == 6
        assert many.texts[-1] == "allreduce of run has 50 series, of which 48 are drawn; `collbench report --csv FILE` has all."

    def test_one_rank_has_no_bus_and_no_chart(self) -> None:
        assert sweep.section_rates(page_of(*curve("mpi", ranks=1))) is None
        assert sweep.section_rates(page_of()) is None

    def test_a_backend_looks_alike_in_all_operations(self) -> None:
        rows = [row for operation in ("allgather", "allreduce") for row in [*curve("mpi", operation=operation)]]
        alone = series_of([row for row in rows if row.operation == "allgather"], ["gloo", "mpi"])
        assert [each.number for each in alone] == [1]


class TestLimits:
    def test_one_rate_for_all_is_one_line(self) -> None:
        (found,) = limits([*curve("nccl"), *curve("mpi")])
        assert (found.label, found.backends) == ("ring reference 50.0 GB/s: NIC 4×100 Gb/s", ["nccl", "mpi"])

    def test_reference_that_is_the_bound_too_is_both(self) -> None:
        (found,) = limits(curve("nccl", hard_bound=replace(NIC, model="bound")))
        assert found.label == "ring reference and hard limit 50.0 GB/s: NIC 4×100 Gb/s"

    def test_a_reference_of_each_size_is_a_curve(self) -> None:
        rows = [replace(row, ceiling=replace(COPY, bytes_per_s=row.size_bytes * 1e5)) for row in curve("mpi")]
        (found,) = limits(rows)
        assert found.label == "measured reference 0.0256–105 GB/s: memory copy and sum"
        assert len(found.points) == 7

    def test_what_a_row_is_not_set_against_is_not_drawn(self) -> None:
        assert limits(replace(row, percent_of_ceiling=None) for row in curve("mpi")) == []
        assert limits(curve("mpi", ceiling=replace(NIC, bytes_per_s=math.inf))) == []


WORDS = st.sampled_from(["<script>alert(1)</script>", "$x^2$", "\u202eabc\x1b[31m", "=cmd|' /C calc'!A0", "a" * 5000, "", "网络\ud800"])
NUMBERS = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -1.0, 1e-320, 1e308, math.inf, math.nan, 1e-6]))


@st.composite
def hostile_rows(draw: st.DrawFn) -> Row:
    times = Times(*(draw(NUMBERS) for _ in range(7)))  # type: ignore[arg-type]
    ceiling = Ceiling(draw(WORDS), draw(NUMBERS), draw(WORDS), draw(WORDS), draw(WORDS))
    return make_row(
        draw(st.sampled_from([0, 1, 8, 1024, 1 << 61, -5])), backend=draw(WORDS), operation=draw(st.sampled_from(["allreduce", "</svg>"])),
        time_s=draw(st.sampled_from([times, None])), busbw_bytes_per_s=draw(NUMBERS), algbw_bytes_per_s=draw(NUMBERS), ceiling=ceiling,
        hard_bound=ceiling, percent_of_ceiling=draw(NUMBERS), flags=(draw(WORDS), "drift"), na=draw(st.sampled_from([None, "<b>"])),
        ranks=draw(st.sampled_from([0, 1, 2])), launches=draw(st.sampled_from([1, 3])), evidence={"launch_medians_s": [draw(NUMBERS), "x"]},
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(hostile_rows(), max_size=6))
def test_any_text_of_rows_is_inert(rows: list[Row]) -> None:
    page = page_of(*rows)
    for make in (sweep.section_rates, sweep.section_latencies, against.section_ratios):
        section = make(page)
        for chart in section.charts if section else ():
            assert not re.search(r"<script|\x1b|\u202e|nan|inf\b", chart.drawing)
            assert re.fullmatch(r"[\w-]+", chart.key)
            assert len(chart.drawing) + len(chart.caption) + len(chart.method) < 40_000


@pytest.mark.parametrize("launches", [1, 3])
def test_how_numbers_were_made_names_the_factor_and_the_interval(launches: int) -> None:
    runs = [run_of([(row, {}) for row in curve("nccl")], name=f"run-{number}", allocation_id="1") for number in range(launches)]
    section = sweep.section_rates(material(*runs))
    assert section
    made = section.charts[0].method
    assert "× 1.5 (the bus factor of allreduce over 4 ranks)" in made
    assert ("within one launch" if launches == 1 else "the median over 3 launches") in made
