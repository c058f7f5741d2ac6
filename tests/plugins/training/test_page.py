"""The page of trainings: the answer, the chart of the step and its parts or routings, and the tables."""

import re
from pathlib import Path

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


def stored(folder, *rows, **about):
    run = RunFolder.create(folder / "run", "workload", {"workload": {"ranks": 2, **about}})
    for row in rows:
        run.append_record(row.as_json(), FILE)
    run.finish(exit_code=0)
    return read_run(folder / "run")


def of(folder, *rows, **about):
    found = section(Material([stored(folder, *rows, **about)], Path("page.html")))
    assert found is not None
    return found


def test_of_several_backends_each_is_named_and_one_that_was_not_measured_has_no_bar(tmp_path):
    gloo = replace(ROW, backend="gloo", percent_of_ceiling=None, parts=(PART.replace(time_s=None),))
    (chart,) = of(tmp_path, ROW, gloo, replace(ROW, backend="nccl", time_s=None, na="no GPU here")).charts
    assert [row[0].partition(":")[0] for row in chart.table.rows] == ["mpi", "mpi", "gloo"]
    assert len(re.findall(r'data-mark="expected \d+"', chart.drawing)) == 2
    assert of(tmp_path / "other", NA).charts == []


def test_of_many_parts_the_first_are_drawn_and_the_rest_is_counted(tmp_path):
    (chart,) = of(tmp_path, replace(ROW, parts=tuple(PART.replace(what=f"layer {number}") for number in range(40)))).charts
    assert (len(re.findall(r'data-mark="bar \d+"', chart.drawing)), len(chart.table.rows)) == (24, 41)
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
    return screen_of(material(stored(folder, *rows)))


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
