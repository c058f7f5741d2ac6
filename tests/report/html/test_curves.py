"""The main charts: series, values, states and limits over the message size, in the data of the script and in the picture."""

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.analysis.ceilings import CeilingChange, with_ceilings_before
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.charts import MOST_LINES, SizeChart, Value, size_charts
from collbench.report.html.curves import data_of, section, to_chart
from collbench.report.material import Material
from collbench.results.reader import Run
from collbench.results.row import Row, Times
from tests.report.html.stored import material, run_of
from tests.report.html.svg import marks, outside, texts
from tests.results.rows import COPY, NIC, make_row, make_times, not_measured

BOUND = Ceiling("network", 100e9, "NIC 8×100 Gb/s", "bound", "sysfs")
SIZES = [1 << power for power in range(8, 21, 2)]


def curve(backend: str, gigabytes: float = 40, **changes: Any) -> list[Row]:
    """Seven sizes up to 1 MiB; the bandwidth doubles until it is `gigabytes`, and its interval is ±10 % of the time."""
    rows = []
    for size in SIZES:
        rate = gigabytes * 1e9 * size / SIZES[-1]
        time_s = 1.5 * size / rate
        times = Times(time_s, time_s * 0.9, time_s * 1.1, time_s, time_s, time_s, time_s)
        figures = {"algbw_bytes_per_s": rate / 1.5, "busbw_bytes_per_s": rate, "percent_of_ceiling": 100 * rate / 50e9}
        rows.append(make_row(size, **{"backend": backend, "time_s": times, **figures, **changes}))
    return rows


def page_of(*rows: Row, **info: Any) -> Material:
    return material(run_of([(row, {}) for row in rows], **info))


def chart_of(*rows: Row) -> SizeChart:
    (found,) = size_charts(page_of(*rows))
    return found


class TestSeries:
    def test_a_chart_per_operation_has_a_line_per_backend_by_size(self) -> None:
        rows = [*curve("nccl"), *curve("mpi"), *curve("mpi", operation="broadcast")]
        reduced, broadcast = size_charts(page_of(*rows))
        assert (reduced.operation, [line.name for line in reduced.lines]) == ("allreduce", ["mpi", "nccl"])
        assert (broadcast.operation, [line.name for line in broadcast.lines]) == ("broadcast", ["mpi"])
        assert [line.color for line in (*reduced.lines, *broadcast.lines)] == [0, 1, 0]  # a backend looks alike in all charts
        assert reduced.key != broadcast.key
        assert [point.size_bytes for point in chart_of(*reversed(curve("mpi"))).lines[0].points] == SIZES

    def test_runs_share_the_axes_and_have_styles_of_their_own(self) -> None:
        runs = [run_of([(row, {}) for backend in ("gloo", "mpi") for row in curve(backend)], name=name) for name in ("before", "after")]
        (found,) = size_charts(material(*runs))
        names = ["gloo (before)", "mpi (before)", "gloo (after)", "mpi (after)"]
        assert [(line.name, line.color, line.dash) for line in found.lines] == [
            (names[0], 0, 0), (names[1], 1, 0), (names[2], 0, 1), (names[3], 1, 1),
        ]  # fmt: skip
        # styles differ where only one run has two lines of a backend
        first = [*curve("nccl"), *curve("nccl", algorithm="tree"), *curve("nccl", algorithm="ring")]
        (found,) = size_charts(material(run_of([(row, {}) for row in first], "one"), run_of([(row, {}) for row in curve("nccl")], "two")))
        assert [line.name for line in found.lines] == ["nccl auto (one)", "nccl ring (one)", "nccl tree (one)", "nccl auto (two)"]
        assert [line.dash for line in found.lines] == [0, 1, 2, 3]

    def test_runs_of_one_name_stay_apart(self) -> None:
        rows = curve("mpi")
        (found,) = size_charts(material(Run(Path("one/p2p"), {}, rows), Run(Path("two/p2p"), {}, rows)))
        assert [line.name for line in found.lines] == ["mpi (one/p2p)", "mpi (two/p2p)"]
        long = f"{'a' * 30}/p2p"
        for one, other in (("p2p", "p2p"), (long, long), (f"{'b' * 30}-1", f"{'b' * 30}-2")):
            (found,) = size_charts(material(Run(Path(one), {}, rows), Run(Path(other), {}, rows)))
            assert len({line.name for line in found.lines}) == 2

    def test_of_many_series_the_first_are_drawn_and_the_rest_is_counted(self) -> None:
        page = page_of(*(row for number in range(MOST_LINES + 4) for row in curve(f"backend{number:02}")[:2]))
        (found,) = size_charts(page)
        assert (len(found.lines), found.left_out) == (MOST_LINES, 4)
        made = section(page)
        assert made.texts == ["allreduce: 4 more series are in `collbench report --csv FILE`."]


class TestValues:
    def test_data_has_a_value_per_size_and_none_where_a_series_has_no_row(self) -> None:
        data = data_of(chart_of(*curve("nccl"), *curve("mpi", 20)[2:]))
        assert data["sizes"] == SIZES
        assert data["labels"][-1] == "1 MiB"
        mpi, nccl = data["series"]
        assert nccl["rate"][-2:] == [10.0, 40.0]
        assert nccl["rateLow"][-1] == pytest.approx(40 / 1.1, rel=1e-5)
        assert nccl["rateHigh"][-1] == pytest.approx(40 / 0.9, rel=1e-5)
        assert nccl["time"][-1] == pytest.approx(39.3216)
        assert mpi["rate"][:3] == [None, None, 0.078125]
        assert (mpi["texts"][0], mpi["states"][0]) == (None, "")
        assert nccl["texts"][-1] == "nccl: 40.0 of 50.0 GB/s (80 %), 39.32 µs [35.39, 43.25], expected 39.32 µs"

    def test_states_and_reasons_are_in_the_texts(self) -> None:
        rows = curve("nccl")
        rows[1] = not_measured("no <GPU> here", size_bytes=SIZES[1])
        rows[3] = replace(rows[3], flags=("drift",))
        rows[4] = replace(rows[4], wrong=7)
        found = chart_of(*rows)
        (nccl,) = data_of(found)["series"]
        assert nccl["states"] == ["", "na", "", "doubtful", "wrong", "", ""]
        assert (nccl["rate"][1], nccl["time"][1]) == (None, None)
        assert nccl["texts"][1] == "nccl: n/a (no <GPU> here)"
        assert nccl["texts"][3].endswith("; ? drift")
        assert nccl["texts"][4].endswith("; WRONG 7")
        places = marks(to_chart(found).drawing)
        assert {name: len(places[name]) for name in ("sound 0", "doubtful 0")} == {"sound 0": 4, "doubtful 0": 1}
        assert len(places["wrong 0"]) == 2  # the strokes of a cross
        assert re.search(r'data-mark="doubtful 0"><path fill="var\(--paper\)" stroke="var\(--series-0\)"', to_chart(found).drawing)
        assert re.search(r'data-mark="wrong 0"><path[^>]* stroke="var\(--bad\)"', to_chart(found).drawing)

    def test_a_series_has_one_look_in_the_picture_and_for_the_script_with_a_dash_of_its_own(self) -> None:
        found = chart_of(*(row for number in range(MOST_LINES) for row in curve(f"backend{number:02}")[:2]))
        looks = [series["look"] for series in data_of(found)["series"]]
        assert len(set(looks)) == MOST_LINES
        assert looks[:2] == ["s0 d0", "s1 d0"] and looks[7] == "s0 d1"
        drawing = to_chart(found).drawing
        for number in range(MOST_LINES):
            line = re.search(rf'data-mark="line {number}"><path[^>]*>', drawing)
            assert f"var(--series-{number % 7})" in line[0] and ("stroke-dasharray" in line[0]) == (number >= 7)
        rows = [row for kind in range(8) for row in curve("mpi", algorithm=f"algorithm{kind}")[:2]]
        found = chart_of(*rows, *curve("nccl")[:2])
        looks = [(line.color, line.dash) for line in found.lines]
        assert len(set(looks)) == len(looks) == 9
        assert looks[:5] == [(0, dash) for dash in range(5)] and looks[-1] == (1, 0)

    def test_of_two_values_the_interval_belongs_to_the_median_and_one_without_the_time_is_left_out(self) -> None:
        modes = [{"time_s": 318.7e-6, "share": 0.63}, {"time_s": 3751e-6, "share": 0.37}]
        spread = Times(450e-6, 382.4e-6, 523.8e-6, 3e-4, 4e-3, 4e-3, 4e-3)
        (point,) = chart_of(make_row(1024, time_s=spread, modes=modes, flags=("two_modes",))).lines[0].points
        assert "median 450.0 µs [382.4, 523.8]; two values: 318.7 µs 63 % / 3.751 ms 37 %" in point.text
        wide = Times(1e-5, 2e-5, 3e-5, 1e-6, 1e-5, 1e-5, 1e-5)
        (point,) = chart_of(make_row(1024, time_s=wide)).lines[0].points
        assert point.time == Value(pytest.approx(10.0), None, None)

    @pytest.mark.parametrize(("sizes", "parts"), [([256, 16384], 1), ([256, 16385], 2), ([8, 4 << 20, 16 << 20], 2)])
    def test_sizes_far_apart_are_not_joined(self, sizes: list[int], parts: int) -> None:
        found = chart_of(*(make_row(size, backend="mpi") for size in sizes))
        places = marks(to_chart(found).drawing)
        assert len(places["line 0"]) == parts
        assert len(places["sound 0"]) == len(sizes)
        assert data_of(found)["far"] == 64

    def test_a_reference_is_not_drawn_between_sizes_far_apart(self) -> None:
        sizes = [8, 4 << 20, 16 << 20]
        varying = [make_row(size, ceiling=replace(COPY, bytes_per_s=rate)) for size, rate in zip(sizes, (2e9, 23e9, 5e9), strict=True)]
        for rows, parts in ((varying, 2), ([make_row(size) for size in sizes], 1)):
            assert len(marks(to_chart(chart_of(*rows)).drawing)["limit 0"]) == parts

    def test_the_caption_has_the_row_of_the_headline(self) -> None:
        rows = [
            make_row(16384, busbw_bytes_per_s=90e9), make_row(4 << 20, busbw_bytes_per_s=60e9), make_row(16 << 20, busbw_bytes_per_s=40e9),
            make_row(64 << 20, busbw_bytes_per_s=30e9, flags=("above_bound",)),
        ]  # fmt: skip
        assert to_chart(chart_of(*rows)).caption.startswith("nccl reaches 40.0 GB/s at 16 MiB.")
        assert to_chart(chart_of(rows[0], rows[3])).caption.startswith("nccl reaches 30.0 GB/s at 64 MiB, unreliable.")
        assert to_chart(chart_of(rows[0])).caption.startswith("nccl reaches 90.0 GB/s at 16 KiB.")

    def test_latencies_have_no_bandwidth_and_one_rank_has_no_bus(self) -> None:
        latency = chart_of(*curve("mpi", operation="p2p_latency"))
        assert (latency.has_rate, latency.limits) == (False, [])
        assert "time" in texts(to_chart(latency).drawing)
        assert not chart_of(*curve("mpi", ranks=1)).has_rate

    def test_without_rows_or_sizes_there_is_no_chart_and_operations_without_bytes_are_a_table(self) -> None:
        assert size_charts(page_of()) == []
        assert size_charts(page_of(make_row(0, operation="barrier"), make_row(-5), make_row(1 << 62))) == []
        page = page_of(make_row(0, operation="barrier", backend="mpi", busbw_bytes_per_s=None, time_s=make_times(3e-6), flags=("drift",)))
        found = section(page)
        ((_, table),) = found.tables
        assert table.rows == [["run", "barrier", "mpi", "3.000 µs [2.970, 3.030]", "? drift"]]
        assert section(page_of()) is None


class TestLimits:
    def test_the_expected_rate_and_the_hard_limit_are_lines_with_labels_in_the_margin(self) -> None:
        found = chart_of(*curve("nccl", hard_bound=BOUND))
        assert [limit["name"] for limit in data_of(found)["limits"]] == ["expected 50.0 GB/s", "hard limit 100 GB/s"]
        assert [limit["rate"] for limit in data_of(found)["limits"]] == [[50.0] * 7, [100.0] * 7]
        names = ["expected 50.0 GB/s: NIC 4×100 Gb/s (ring)", "hard limit 100 GB/s: NIC 8×100 Gb/s"]
        assert [limit.name for limit in found.limits] == names
        drawing = to_chart(found).drawing
        places = {text: float(x) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*>([^<]*)<', drawing)}
        right = max(x for x, _ in marks(drawing)["sound 0"])
        assert all(places[text] > right for text in ("expected", "50.0 GB/s", "hard limit", "100 GB/s"))

    def test_a_hard_limit_that_equals_the_expected_rate_is_one_line_and_so_is_a_limit_that_fell(self) -> None:
        rows = curve("nccl", hard_bound=replace(NIC, model="bound"))
        (limit,) = chart_of(*rows).limits
        assert limit.name == "expected 50.0 GB/s: NIC 4×100 Gb/s (ring and hard limit)"
        rows[5] = replace(rows[5], percent_of_ceiling=None, flags=("above_bound",))
        (limit,) = chart_of(*rows, *curve("mpi", hard_bound=replace(NIC, model="bound"))).limits
        assert sorted(limit.rates) == SIZES
        fell = CeilingChange("allreduce", "nccl", "ring", 50e9, 40e9, NIC.limited_by, "NIC 2×160 Gb/s of cb1h2")
        slow = curve("nccl", 30, algorithm="tree", ceiling=replace(NIC, bytes_per_s=40e9, limited_by="NIC 2×160 Gb/s of cb1h2"))
        (limit,) = chart_of(*curve("nccl"), *with_ceilings_before([fell], "before", slow)).limits
        assert limit.name == "expected 50.0 GB/s: NIC 4×100 Gb/s (ring)"

    def test_a_reference_per_size_is_a_curve_and_one_of_one_size_is_not_drawn_at_the_others(self) -> None:
        ranged = [replace(COPY, bytes_per_s=size * 1e5, low_bytes_per_s=size * 9e4, high_bytes_per_s=size * 2e5) for size in SIZES]
        (limit,) = chart_of(*(replace(row, ceiling=each) for row, each in zip(curve("mpi"), ranged, strict=True))).limits
        assert limit.name == "expected 0.0256–105 GB/s: memory copy and sum (measured)"
        assert [limit.rates[size] for size in SIZES] == pytest.approx([size * 1e-4 for size in SIZES])
        rows = curve("mpi")
        rows[3] = replace(rows[3], ceiling=COPY)
        (limit,) = [limit for limit in chart_of(*rows).limits if "memory" in limit.name]
        assert limit.rates_at(SIZES) == {SIZES[3]: 34.0}
        assert chart_of(*(replace(row, percent_of_ceiling=None) for row in curve("mpi"))).limits == []
        assert chart_of(*curve("mpi", ceiling=replace(NIC, bytes_per_s=math.inf))).limits == []

    @pytest.mark.parametrize(("count", "shown"), [(2, 2), (3, 3), (12, 1), (30, 1)])
    def test_labels_of_limits_do_not_collide_and_many_owners_have_the_highest_in_common(self, count: int, shown: int) -> None:
        rows = [row for number in range(count) for row in curve(f"b{number}", ceiling=replace(NIC, bytes_per_s=(50 + 2 * number) * 1e9))]
        drawing = to_chart(chart_of(*rows)).drawing
        heights = sorted(float(y) for y, name in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>(expected[^<]*)<', drawing))
        assert len(heights) == shown
        assert all(after - before >= 18 for before, after in pairwise(heights))
        assert not outside(drawing)


def test_the_chart_of_the_page_has_the_best_values_in_its_caption_and_all_in_its_table() -> None:
    rows = curve("mpi", 20)
    rows[-1] = replace(rows[-1], wrong=1)  # wrong data has no best value
    chart = to_chart(chart_of(*curve("nccl"), *rows))
    assert chart.caption == "mpi reaches 5.00 GB/s at 256 KiB; nccl reaches 40.0 GB/s at 1 MiB. Expected 50.0 GB/s: NIC 4×100 Gb/s (ring)."
    assert list(chart.table.head) == ["size", "mpi", "nccl"]
    assert chart.table.rows[-1][2] == "40.0 of 50.0 GB/s (80 %), 39.32 µs [35.39, 43.25], expected 39.32 µs"
    assert len(chart.table.rows) == 7


WORDS = st.sampled_from(["<script>alert(1)</script>", "$x^2$", "\u202eabc\x1b[31m", "=cmd|' /C calc'!A0", "a" * 5000, "", "网络\ud800"])
NUMBERS = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -1.0, 1e-320, 1e308, math.inf, math.nan, 1e-6]))


@st.composite
def hostile_rows(draw: st.DrawFn) -> Row:
    times = Times(*(draw(NUMBERS) for _ in range(7)))  # type: ignore[arg-type]
    ceiling = Ceiling(draw(WORDS), draw(NUMBERS), draw(WORDS), draw(WORDS), draw(WORDS))
    return make_row(
        draw(st.sampled_from([0, 1, 8, 1024, 1 << 61, 1 << 70, -5])), backend=draw(WORDS),
        operation=draw(st.sampled_from(["allreduce", "</svg>"])),
        time_s=draw(st.sampled_from([times, None])), busbw_bytes_per_s=draw(NUMBERS), algbw_bytes_per_s=draw(NUMBERS), ceiling=ceiling,
        hard_bound=ceiling, percent_of_ceiling=draw(NUMBERS), flags=(draw(WORDS), "drift"), na=draw(st.sampled_from([None, "<b>"])),
        ranks=draw(st.sampled_from([0, 1, 2])), launches=draw(st.sampled_from([1, 3])), evidence={"launch_medians_s": [draw(NUMBERS), "x"]},
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(hostile_rows(), max_size=6))
def test_any_row_makes_a_chart_inside_its_picture_and_its_text_is_inert(rows: list[Row]) -> None:
    for found in size_charts(page_of(*rows)):
        chart = to_chart(found)
        assert not re.search(r"<script|\x1b|\u202e|\bnan\b|\binf\b", chart.drawing)
        assert re.fullmatch(r"[\w-]+", chart.key)
        assert len(chart.drawing) + len(chart.caption) + len(chart.method) < 40_000
        assert not outside(chart.drawing)
        values = [value for each in data_of(found)["series"] for name in ("rate", "time") for value in each[name] if value is not None]
        assert all(map(math.isfinite, values))
