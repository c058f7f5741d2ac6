"""The page of trainings: the answer, the chart of the step and its parts or routings, and the tables."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.plugins.training import FILE
from collbench.plugins.training.page import section
from collbench.report.html.first_screen import BAD, DOUBT
from collbench.report.material import Material
from collbench.results.estimate import Estimate
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from tests.plugins.training.test_records import MOE, NA, PART, ROW
from tests.report.html.stored import material
from tests.report.html.svg import outside
from tests.report.html.test_first_screen import screen_of

EVIL = "<script>\u202e</svg>"


def of(folder, *rows, **about):
    run = RunFolder.create(folder / "run", "workload", {"workload": {"ranks": 2, **about}})
    for row in rows:
        run.append_record(row.as_json(), FILE)
    run.finish(exit_code=0)
    found = section(Material([read_run(folder / "run")], Path("page.html")))
    assert found is not None
    return found


def bars(drawing):
    found = re.findall(r'data-mark="bar \d+"><path[^>]* d="M([\d.]+) [\d.]+L([\d.]+) ', drawing)
    return [float(end) - float(begin) for begin, end in found]


def marks(drawing):
    """Return where the expected times are, from the left end of the bars."""
    (begin, *_) = re.findall(r'data-mark="bar 0"><path[^>]* d="M([\d.]+) ', drawing)
    return [float(x) - float(begin) for x in re.findall(r'data-mark="expected \d+"><path[^>]* d="M([\d.]+) ', drawing)]


def test_the_step_and_its_parts_have_bars_of_their_times_and_marks_of_the_expected_ones(tmp_path):
    (chart,) = of(tmp_path, replace(ROW, staleness=None)).charts
    whole, part = bars(chart.drawing)
    assert part / whole == pytest.approx(3, rel=0.01)
    assert marks(chart.drawing) == pytest.approx([0.8 * whole, 0.8 * part], rel=0.01)
    assert chart.table.rows == [
        ["the whole step", "20.00 ms, 80 % of expected"],
        ["gradients, buckets 1 to 3 of 3 (3 × 20.00 ms)", "60.00 ms, 80 % of expected"],
    ]
    assert [spot.text for spot in chart.spots] == [": ".join(row) for row in chart.table.rows]
    assert not outside(chart.drawing)


def test_of_several_backends_each_is_named_and_one_that_was_not_measured_has_no_bar(tmp_path):
    gloo = replace(ROW, backend="gloo", percent_of_ceiling=None, parts=(PART.replace(time_s=None),))
    (chart,) = of(tmp_path, ROW, gloo, replace(ROW, backend="nccl", time_s=None, na="no GPU here")).charts
    assert [row[0].partition(":")[0] for row in chart.table.rows] == ["mpi", "mpi", "gloo"]
    assert len(marks(chart.drawing)) == 2
    assert of(tmp_path / "other", NA).charts == []


def test_of_many_parts_the_first_are_drawn_and_the_rest_is_counted(tmp_path):
    (chart,) = of(tmp_path, replace(ROW, parts=tuple(PART.replace(what=f"layer {number}") for number in range(40)))).charts
    assert (len(bars(chart.drawing)), len(chart.table.rows)) == (24, 41)
    assert "24 of 41 are drawn" in chart.caption


def test_the_scaling_efficiency_is_a_table(tmp_path):
    found = of(tmp_path, ROW, step_time_s=0.02)
    caption, table = found.tables[-1]
    assert table.head[1:] == ["no overlap, t/(t+c)", "perfect overlap, t/max(t,c)"]
    assert table.rows[0][0] == "mpi" and table.rows[0][1].startswith("50.0 %")
    assert "20.00 ms" in caption and not any("t/(t+c)" in text for text in found.texts)


def test_hostile_names_stay_text(tmp_path):
    (chart,) = of(tmp_path, replace(ROW, backend=EVIL, parts=(PART.replace(what=EVIL * 200),)), replace(ROW, backend="mpi")).charts
    assert "<script" not in chart.drawing and "\u202e" not in chart.drawing + chart.caption
    assert max(len(text) for text in re.findall(r"<text[^>]*>([^<]*)<", chart.drawing)) < 200


def test_each_routing_is_a_point_with_its_interval_above_the_even_time(tmp_path):
    found = of(tmp_path, MOE)
    (chart,) = found.charts
    points = [(spot.x, spot.y) for spot in chart.spots]
    (even,) = [float(y) for y in re.findall(r'data-mark="even 0"><path[^>]* d="M[\d.]+ ([\d.]+)L', chart.drawing)]
    (zero,) = [float(y) - 4 for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>0(?:\.0)?</text>', chart.drawing)]
    assert [(zero - y) / (zero - even) for _, y in points] == pytest.approx([10 / 8, 16 / 8], abs=0.01)
    assert points[0][0] < points[1][0]
    assert chart.table.rows == [["gloo", "3", "10.00", "+25 % (20 to 30 %)"], ["gloo", "4", "16.00", "+100.0 % (99.0 to 100.5 %)"]]
    assert [spot.text.partition(":")[0] for spot in chart.spots] == ["gloo, routing 3", "gloo, routing 4"]
    assert [caption for caption, _ in found.tables] == ["the whole step", "over all routings", "each routing"]
    assert not outside(chart.drawing)


def test_routings_with_hostile_values_make_no_broken_drawing(tmp_path):
    first, second = MOE.routing.steps
    long_step = replace(first, time_s=replace(first.time_s, high=1e300))
    odd = replace(MOE.routing, name=EVIL, even_time_s=Estimate(), steps=(long_step, second))
    (chart,) = of(tmp_path / "odd", replace(MOE, backend=EVIL, routing=odd)).charts
    assert not outside(chart.drawing) and "nan" not in chart.drawing and "inf" not in chart.drawing
    none = replace(odd, steps=(replace(first, time_s=Estimate()),))
    (bar,) = of(tmp_path / "none", replace(MOE, routing=none)).charts
    assert bar.table.rows == [["the whole step", "20.00 ms, 80 % of expected"]]


def answer_of(folder, *rows):
    run = RunFolder.create(folder / "run", "workload", {"workload": {"ranks": 2}})
    for row in rows:
        run.append_record(row.as_json(), FILE)
    run.finish(exit_code=0)
    return screen_of(material(read_run(folder / "run")))


def test_a_step_has_its_time_its_share_and_what_limits(tmp_path):
    found = answer_of(tmp_path, ROW)
    assert found.title == (
        "data-parallel training of bert-large on 2 nodes, 2 ranks: a step's exchange takes 20.00 ms over mpi, "
        "0.100 of 0.125 GB/s (80 %), limited by NIC eth0 1 Gb/s"
    )
    assert [figure.value for figure in found.figures] == ["20.00 ms", "80 %"]


def test_wrong_data_and_a_step_that_was_not_measured_are_not_good(tmp_path):
    assert answer_of(tmp_path, ROW.replace(wrong=3)).badge == (BAD, "WRONG DATA")
    found = answer_of(tmp_path / "na", NA)
    assert found.badge == (DOUBT, "NOT MEASURED") and "no GPU here" in found.title
