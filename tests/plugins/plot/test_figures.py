"""Figures of runs: their panels, and what matplotlib draws of them."""

import shutil
from itertools import pairwise
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

import collbench
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.plugins.plot.figures import MOST_PANELS, figure_of, panels_of, write
from collbench.report.charts import MOST_LINES, NODES, PERCENT, RANKS, TIME, LinePanel, MatrixPanel, Panel, size_charts
from collbench.report.figures import draw
from collbench.report.html.against import section
from collbench.report.html.curves import data_of
from collbench.report.material import Material
from collbench.results.row import Row
from tests.cli.command import ROOT, run, run_here
from tests.report.html.stored import material, run_of
from tests.results.rows import COPY, make_row, make_times, not_measured, store

SIZES = [1 << power for power in range(10, 25, 2)]


def sweep(backend: str = "mpi", factor: float = 1.0, sizes: list[int] = SIZES, **changes: Any) -> list[Row]:
    """Rows whose bandwidth approaches `factor` · 10 GB/s of an expected 12.5."""
    rows = []
    for size in sizes:
        time_s = factor * (2e-6 + size / 10e9)
        rate = size / time_s
        figures = {"time_s": make_times(time_s), "algbw_bytes_per_s": rate, "busbw_bytes_per_s": rate}
        expected = {"ceiling": replace(COPY, bytes_per_s=12.5e9), "percent_of_ceiling": 100 * rate / 12.5e9}
        rows.append(make_row(size, **{"backend": backend, **figures, **expected, **changes}))
    return rows


def of(*rows: Row, name: str = "run", **info: Any) -> Material:
    return material(run_of([(row, {}) for row in rows], name, **info))


def runs_of(**rows: list[Row]) -> Material:
    days = (f"2026-11-{day:02}T08:00:00Z" for day in range(1, 29))
    return material(*(run_of([(row, {}) for row in each], name, started_utc=next(days)) for name, each in rows.items()))


def history_of(*hosts: list[str]) -> Material:
    runs = [
        run_of([(row, {}) for row in sweep()], f"run-{day}", started_utc=f"2026-11-{day:02}T08:00:00Z", hosts=names)
        for day, names in enumerate(hosts, 1)
    ]
    return material(*runs)


def panel_of(page: Material, kind: str) -> LinePanel:
    (panel,) = panels_of(page, kind)
    assert isinstance(panel, LinePanel)
    return panel


def drawn(panel: Panel) -> dict[str, list[tuple[float, float]]]:
    axes = Figure().subplots()
    draw(panel, axes)
    artists: list[Any] = list(axes.lines)
    return {str(line.get_gid()): [(float(x), float(y)) for x, y in line.get_xydata()] for line in artists}


class TestMarks:
    def test_the_figure_and_the_page_mark_the_same_points(self) -> None:
        rows = sweep()
        rows[1] = replace(rows[1], wrong=3)
        rows[2] = replace(rows[2], flags=("drift",))
        rows[3] = replace(rows[3], flags=("outliers", "drift"))
        rows[4] = not_measured("no such size", size_bytes=SIZES[4], backend="mpi")
        page = of(*rows)
        (chart,) = size_charts(page)
        data = data_of(chart)
        (series,) = data["series"]
        artists = drawn(panel_of(page, "bandwidth"))
        for state, name in (("", "sound 0"), ("doubtful", "doubtful 0"), ("wrong", "wrong 0")):
            points = zip(data["sizes"], series["rate"], series["states"], strict=True)
            on_page = [(size, rate) for size, rate, at in points if at == state and rate is not None]
            assert [size for size, _ in on_page] == [size for size, _ in artists[name]], name
            assert [rate for _, rate in artists[name]] == pytest.approx([rate for _, rate in on_page], rel=1e-5), name
        assert len(artists["wrong 0"]) == 1 and len(artists["doubtful 0"]) == 2 and len(artists["sound 0"]) == 4

    def test_values_have_units_and_intervals_of_the_time_and_percentages_a_line_at_100(self) -> None:
        (row,) = sweep(sizes=[1 << 20])
        assert drawn(panel_of(of(row), "bandwidth"))["sound 0"][0][1] == pytest.approx(row.busbw_bytes_per_s / 1e9)  # type: ignore[operator]
        assert drawn(panel_of(of(row), "time"))["sound 0"][0][1] == pytest.approx(row.time_s.p50)  # type: ignore[union-attr]
        panel = panel_of(of(row), "percent")
        assert panel.values == PERCENT and set(panel.limits[0].values.values()) == {100.0}
        assert drawn(panel)["sound 0"][0][1] == pytest.approx(row.percent_of_ceiling)
        (mark,) = panel.lines[0].marks
        percent = row.percent_of_ceiling
        assert percent is not None
        assert (mark.value.value, mark.value.low, mark.value.high) == pytest.approx((percent, percent / 1.01, percent / 0.99))

    def test_no_line_joins_what_was_not_measured_and_unreliable_values_are_open(self) -> None:
        path = drawn(panel_of(of(*sweep(sizes=[8, 64, 1 << 22])), "bandwidth"))["line 0"]
        assert [isnan(value) for _, value in path] == [False, False, True, False]
        rows = sweep()
        rows[3] = replace(rows[3], percent_of_ceiling=None)
        path = drawn(panel_of(of(*rows), "percent"))["line 0"]
        assert [isnan(value) for _, value in path] == [False] * 3 + [True] + [False] * 4
        rows[3] = replace(rows[3], flags=("above_bound",))
        artists = drawn(panel_of(of(*rows), "bandwidth"))
        assert [size for size, _ in artists["doubtful 0"]] == [SIZES[3]]

    def test_expected_lines_have_their_owners(self) -> None:
        mpi = [replace(row, ceiling=Ceiling("measured", 20e9, "memory copy")) for row in sweep("mpi")]
        apart, common = of(*sweep("gloo"), *mpi), of(*sweep("gloo"), *sweep("mpi"))
        assert [(limit.name, limit.rates, limit.color) for limit in panel_of(apart, "bandwidth").limits] == [
            ("expected (gloo)", "12.5 GB/s", 0), ("expected (mpi)", "20.0 GB/s", 1),
        ]  # fmt: skip
        assert [(limit.name, limit.color) for limit in panel_of(common, "bandwidth").limits] == [("expected", None)]


class TestKinds:
    def test_scaling_is_over_ranks_or_of_a_barrier_over_time(self) -> None:
        def barrier(ranks: int, time_s: float) -> list[Row]:
            nothing = {"algbw_bytes_per_s": None, "busbw_bytes_per_s": None, "ceiling": None, "percent_of_ceiling": None}
            return [make_row(0, operation="barrier", ranks=ranks, time_s=make_times(time_s), **nothing)]

        panel = panel_of(runs_of(two=barrier(2, 1e-6), eight=barrier(8, 3e-6)), "scaling")
        assert (panel.title, panel.values) == ("barrier", TIME)
        assert [mark.value.value for mark in panel.lines[0].marks] == pytest.approx([1e-6, 3e-6])
        page = runs_of(two=sweep(ranks=2, sizes=SIZES), four=sweep(ranks=4, factor=2.0, sizes=SIZES[:-1]))
        panel = panel_of(page, "scaling")
        assert (panel.title, panel.over) == ("allreduce, 4 MiB", RANKS)
        (line,) = panel.lines
        two, four = (mark.value.value for mark in line.marks)
        assert [mark.at for mark in line.marks] == [2, 4]
        assert two == pytest.approx(2 * four)
        assert panel.limits[0].values == {2.0: 12.5, 4.0: 12.5}

    def test_scaling_over_ranks_joins_runs_by_their_numbers_of_ranks(self) -> None:
        page = runs_of(two=sweep(ranks=2), four=sweep(ranks=4), again=sweep(ranks=4, factor=2.0))
        panel = panel_of(page, "scaling")
        (line,) = panel.lines
        assert (line.name, line.is_joined, [mark.at for mark in line.marks]) == ("mpi", False, [2, 4, 4])
        artists = drawn(panel)
        assert artists["points 0"] == [] and "line 0" not in artists
        assert [at for at, _ in artists["sound 0"]] == [2, 4, 4]
        page = runs_of(before=[*sweep(ranks=2), *sweep(ranks=4)], after=[*sweep(ranks=2, factor=2.0), *sweep(ranks=4, factor=2.0)])
        lines = panel_of(page, "scaling").lines
        assert [(line.name, line.dash, line.is_joined, [mark.at for mark in line.marks]) for line in lines] == [
            ("mpi (before)", 0, True, [2, 4]), ("mpi (after)", 1, True, [2, 4]),
        ]  # fmt: skip
        page = runs_of(a=[*sweep(ranks=2), *sweep(ranks=2, dtype="float64")], b=[*sweep(ranks=4), *sweep(ranks=4, dtype="float64")],
                       c=[*sweep(ranks=4), *sweep(ranks=4, dtype="float64")])  # fmt: skip
        lines = panel_of(page, "scaling").lines
        assert [(line.name, line.color, line.is_joined) for line in lines] == [("mpi float32", 0, False), ("mpi float64", 1, False)]

    def test_scaling_over_nodes_has_a_line_for_each_number_of_ranks_per_node(self) -> None:
        page = runs_of(a=sweep(ranks=2, nodes=1), b=sweep(ranks=4, nodes=1), c=sweep(ranks=4, nodes=2), d=sweep(ranks=8, nodes=2))
        panel = panel_of(page, "scaling")
        assert panel.over == NODES
        assert [(line.name, line.is_joined, [mark.at for mark in line.marks]) for line in panel.lines] == [
            ("mpi, 2 ranks per node", True, [1, 2]), ("mpi, 4 ranks per node", True, [1, 2]),
        ]  # fmt: skip
        (line,) = panel_of(runs_of(a=sweep(ranks=4, nodes=1), b=sweep(ranks=4, nodes=2)), "scaling").lines
        assert (line.name, [mark.at for mark in line.marks]) == ("mpi", [1, 2])

    def test_scaling_has_expected_lines_of_few_backends(self) -> None:
        def both(ranks: int) -> list[Row]:
            mpi = [replace(row, ceiling=Ceiling("measured", 20e9, "memory copy")) for row in sweep("mpi", ranks=ranks)]
            return [*sweep("gloo", ranks=ranks), *mpi]

        panel = panel_of(runs_of(two=both(2), four=both(4)), "scaling")
        assert [(limit.name, limit.values, limit.color) for limit in panel.limits] == [
            ("expected (gloo)", {2: 12.5, 4: 12.5}, 0), ("expected (mpi)", {2: 20.0, 4: 20.0}, 1),
        ]  # fmt: skip

        def all_of(ranks: int) -> list[Row]:
            limits = {f"library-{number}": Ceiling("measured", (10 + number) * 1e9, "memory copy") for number in range(4)}
            return [replace(row, ceiling=limit) for name, limit in limits.items() for row in sweep(name, ranks=ranks)]

        panel = panel_of(runs_of(two=all_of(2), four=all_of(4)), "scaling")
        assert [(limit.name, limit.values, limit.color) for limit in panel.limits] == [("expected", {2: 13.0, 4: 13.0}, None)]

    def test_history_joins_equal_hosts_and_leaves_out_impossible_dates(self) -> None:
        panel = panel_of(history_of(["a1", "a2"], ["a1", "a2"], ["b"]), "history")
        assert [(line.name, line.is_joined, len(line.marks)) for line in panel.lines] == [
            ("mpi, a[1-2]", True, 2), ("mpi, b", False, 1),
        ]  # fmt: skip
        assert [line.color for line in panel.lines] == [0, 1]
        assert panel.lines[0].marks[1].at - panel.lines[0].marks[0].at == 1  # day
        long = [f"{letter}{'-' * 70}" for letter in "xx"]
        page = history_of([long[0] + "1"], [long[0] + "1"], [long[1] + "2"], [long[1] + "2"])
        panel = panel_of(page, "history")
        assert [line.dash for line in panel.lines] == [0, 1]
        assert [line.name[-4:] for line in panel.lines] == ["… #1", "… #2"]
        axes = Figure().subplots()
        draw(panel, axes)
        legend = axes.get_legend()
        assert legend is not None and len(legend.get_texts()) == 2
        days = ["2026-11-01T08:00:00Z", "2026-11-02T08:00:00Z", "9999-12-31T23:59:59Z", "1969-12-31T00:00:00Z"]
        runs = [run_of([(row, {}) for row in sweep()], f"run-{day}", started_utc=day) for day in days]
        panel = panel_of(material(*runs), "history")
        assert panel.note == "2 runs left out: no date (1970 to 2200)"
        assert len(panel.lines[0].marks) == 2
        with pytest.raises(UsageError, match=r"several runs with a date \(1970 to 2200\): these are 1"):
            panels_of(material(runs[0], runs[2]), "history")

    def test_a_comparison_has_names_the_worst_case_first_and_what_is_left_out(self) -> None:
        names = ["base", *(f"run-{number}" for number in range(10))]
        rows = {name: sweep(sizes=[1 << 20]) for name in names} | {"run-1": sweep(sizes=[1 << 10])}
        panels = panels_of(runs_of(**rows), "compare")
        assert [panel.title for panel in panels] == [f"run-{number} against base" for number in (0, *range(2, 8))]
        assert panels[0].note == ("run-1 against base: not drawn, since no case has a time in both; the first 8 of 10 candidates are drawn")
        runs = [run_of([(row, {}) for row in sweep()], f"{parent}/allreduce") for parent in ("old", "new")]
        assert [panel.title for panel in panels_of(material(*runs), "compare")] == ["new/allreduce against old/allreduce"]
        found = section(material(*runs))
        assert found is not None
        assert [chart.title for chart in found.charts] == ["new/allreduce against old/allreduce: time, case by case"]

    def test_a_matrix_has_a_field_for_each_pair(self) -> None:
        panel = MatrixPanel("bandwidth", ["a", "b"], [[float("nan"), 1.0], [2.0, float("nan")]], "GB/s", [(1, 0)])
        figure = figure_of([panel])
        (image,) = figure.axes[0].images
        assert image.get_array().shape == (2, 2)  # type: ignore[union-attr]
        assert [str(line.get_gid()) for line in figure.axes[0].lines] == ["marked 1 0"] * 2  # on a white ring

    @pytest.mark.parametrize(("kind", "page", "said"), [
        ("pie", of(*sweep()), "--kind 'pie' is unknown: choose from bandwidth, time, percent, scaling, history, compare, pairs"),
        ("scaling", of(*sweep()), "--kind scaling needs runs of one operation with several numbers of ranks or nodes"),
        ("history", of(*sweep()), "--kind history needs several runs with a date (1970 to 2200): these are 0"),
        ("compare", of(*sweep()), "--kind compare needs two runs: the baseline, then the candidates"),
        ("bandwidth", of(not_measured("no GPU")), "--kind bandwidth: these runs have no such values"),
        ("percent", of(*sweep(ceiling=None, percent_of_ceiling=None)), "--kind percent: these runs have no such values"),
    ], ids=["unknown", "scaling", "history", "compare", "bandwidth", "percent"])  # fmt: skip
    def test_runs_without_such_values_are_refused(self, kind: str, page: Material, said: str) -> None:
        with pytest.raises(UsageError) as refused:
            panels_of(page, kind)
        assert said in str(refused.value)

    def test_operations_are_selected_and_names_stay_apart(self) -> None:
        page = of(*sweep(), *sweep(operation="alltoall"))
        assert [panel.title for panel in panels_of(page, "bandwidth", ["alltoall"])] == ["alltoall"]
        with pytest.raises(UsageError, match="--operation 'gather': these runs have allreduce, alltoall"):
            panels_of(page, "bandwidth", ["gather"])
        rows = [row for number in range(MOST_LINES + 2) for row in sweep(backend=f"library-{number}", sizes=[1 << 20])]
        panel = panel_of(of(*rows), "bandwidth")
        assert (len(panel.lines), panel.note) == (MOST_LINES, "allreduce: 2 lines left out, since 16 are drawn")
        page = of(*(row for number in range(MOST_PANELS + 1) for row in sweep(operation=f"operation_{number}", sizes=[1 << 20])))
        with pytest.raises(UsageError, match="select at most 12 with --operation"):
            panels_of(page, "bandwidth")
        rows = [row for end in "ab" for row in sweep(backend=f"{'library' * 10}-{end}")]
        names = [line.name for line in panel_of(of(*rows), "bandwidth").lines]
        assert [(len(name), name[-4:]) for name in names] == [(59, "… #1"), (59, "… #2")]


def _written(path: Path, rows: list[Row]) -> bytes:
    write(figure_of(panels_of(of(*rows), "bandwidth")), path)
    return path.read_bytes()


def test_a_slide_is_wide_and_has_few_panels() -> None:
    page = of(*sweep(), *sweep(operation="broadcast"))
    width, height = figure_of(panels_of(page, "bandwidth"), "slide").get_size_inches()
    assert (width, height) == (13.33, 7.5)
    many = of(*(row for number in range(5) for row in sweep(operation=f"operation_{number}", sizes=[1 << 20])))
    with pytest.raises(UsageError, match="a slide of 5 panels is not readable: select at most 4 with --operation"):
        figure_of(panels_of(many, "bandwidth"), "slide")


def extents(figure: Figure) -> list[tuple[str, float, float]]:
    """Return each title, label and legend with its first and last pixel from the left (of labels of a y axis: from below)."""
    figure.draw_without_rendering()
    found = []
    for axes in figure.axes:
        title = next(text for text in (axes.title, axes._right_title) if text.get_text())  # type: ignore[attr-defined]
        box = title.get_window_extent()
        found.append((title.get_text(), box.x0, box.x1))
        box = axes.yaxis.label.get_window_extent()
        found.append((axes.get_ylabel(), box.y0, box.y1))
    for legend in figure.legends:
        box = legend.get_window_extent()
        found.append(("legend", box.x0, box.x1))
    return found


class TestTextsThatFit:
    @pytest.mark.parametrize("style", ["paper", "slide"])
    def test_long_names_are_cut_to_the_width_of_the_figure(self, style: str) -> None:
        names = [f"WWW-{number}-{'library' * 9}" for number in range(9)]
        rows = [row for name in names for row in sweep(name, operation="WMW_long_name_" * 12)]
        figure = figure_of(panels_of(of(*rows), "bandwidth"), style)
        figure_width = figure.bbox.width
        for text, low, high in extents(figure):
            assert 0 <= low < high <= figure_width, text
        (legend,) = figure.legends
        shown = [text.get_text() for text in legend.get_texts()]
        assert len(set(shown)) == 10  # with that of what is expected
        assert figure.axes[0].get_title(loc="right").endswith("…")

    def test_names_in_legends_and_titles_have_room(self) -> None:
        def columns(name: str, style: str) -> int:
            rows = [row for number in range(9) for row in sweep(f"{name}-{number}")]
            (legend,) = figure_of(panels_of(of(*rows), "bandwidth"), style, (7.0, 5.0)).legends
            return int(legend._ncols)  # type: ignore[attr-defined]

        assert columns("abc", "paper") > columns("a-longer-name", "paper") > columns("a-longer-name", "slide") >= 1
        names = [f"{'library' * 7}-{number}" for number in range(2)]
        figure = figure_of(panels_of(of(*(row for name in names for row in sweep(name))), "bandwidth"))
        (legend,) = figure.legends  # below all panels
        assert [axes.get_legend() for axes in figure.axes] == [None]
        assert {text.get_text() for text in legend.get_texts()} >= set(names)
        rows = [row for operation in ("allgather", "allreduce", "alltoall", "broadcast") for row in sweep(operation=operation)]
        figure = figure_of(panels_of(of(*rows), "percent"), "slide")
        assert [axes.get_ylabel() for axes in figure.axes] == ["% of expected\nbandwidth"] * 4
        for text, low, high in extents(figure):
            assert 0 <= low < high <= figure.bbox.width, text
        runs = [run_of([(row, {}) for row in sweep()], f"{parent}/{'allreduce-' * 2}name") for parent in ("old", "new")]
        figure = figure_of(panels_of(material(*runs), "compare"))
        assert figure.axes[0].get_title(loc="right").startswith("new/allreduce-allreduc")
        (_, low, high), _ = extents(figure)
        assert 0 <= low < high <= figure.bbox.width

    @pytest.mark.parametrize("days", [2, 3, 5, 8])
    def test_dates_do_not_overlap(self, days: int) -> None:
        figure = figure_of(panels_of(history_of(*[["a"]] * days), "history"))
        figure.draw_without_rendering()
        (axes,) = figure.axes
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(boxes) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))

    def test_ticks_are_apart_and_regular(self) -> None:
        axes = Figure().subplots()
        draw(panel_of(of(*sweep(sizes=[4000 * number for number in range(1, 301)])), "bandwidth"), axes)
        ticks = list(axes.get_xticks())
        assert ticks[-1] == 1_200_000 and 5 <= len(ticks) <= 8
        assert all(large / small >= 300 ** (1 / 7) for small, large in pairwise(ticks))
        axes = Figure().subplots()
        draw(panel_of(runs_of(none=sweep(ranks=0), two=sweep(ranks=2), four=sweep(ranks=4)), "scaling"), axes)
        assert list(axes.get_xticks()) == [2, 4]
        axes = Figure().subplots()
        draw(panel_of(of(*sweep()), "bandwidth"), axes)
        assert list(axes.get_xticks()) == SIZES[1::2]


class TestFiles:
    @pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
    def test_equal_runs_make_equal_files(self, ending: str, tmp_path: Path) -> None:
        first, again = (_written(tmp_path / f"{number}.{ending}", sweep()) for number in range(2))
        assert first == again
        assert first.startswith({"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}[ending])

    def test_texts_stay_texts_and_are_neither_formulas_nor_markup(self, tmp_path: Path) -> None:
        assert ">bus bandwidth, GB/s<" in _written(tmp_path / "a.svg", sweep()).decode()
        assert b"/Type3" not in _written(tmp_path / "a.pdf", sweep())  # journals refuse it
        names = ["$x_1$", "_hidden", "<b>bold</b>"]
        rows = [row for name in names for row in sweep(backend=name)]
        text = _written(tmp_path / "a.svg", rows).decode()
        for shown in (">$x_1$<", ">_hidden<", ">&lt;b&gt;bold&lt;/b&gt;<"):
            assert shown in text

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be written"):
            _written(tmp_path / "missing" / "a.pdf", sweep())


def test_figures_on_axes_have_one_panel_and_a_known_style(tmp_path: Path) -> None:
    runs = collbench.read(store(tmp_path / "run", sweep()))
    axes = Figure().subplots()
    assert runs.plot(ax=axes) is axes
    assert axes.get_ylabel() == "bus bandwidth, GB/s"
    assert runs.plot("time").axes[0].get_ylabel() == "time"
    runs = collbench.read(store(tmp_path / "second" / "run", [*sweep(), *sweep(operation="broadcast")]))
    with pytest.raises(UsageError, match="one panel fits on `ax`, and these runs have 2"):
        runs.plot(ax=Figure().subplots())
    assert runs.plot(ax=Figure().subplots(), operation="broadcast").get_title() == "broadcast"
    with pytest.raises(UsageError, match="style 'poster' is unknown: choose from paper, slide"):
        collbench.read(store(tmp_path / "third" / "run", sweep())).plot(style="poster")


RUN = "reports/first-run"


def test_a_figure_of_a_run(tmp_path: Path) -> None:
    done = run_here(tmp_path, "plot", str(ROOT / RUN))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "wrote bandwidth.pdf\n")
    assert (tmp_path / "bandwidth.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(("words", "inches"), [
    ("--size 3.5in", [3.5]), ("--size 89mm", [89 / 25.4]), ("--size 20x10cm", [20 / 2.54, 10 / 2.54]), ("--style slide", [13.33, 7.5]),
])  # fmt: skip
def test_sizes(words: str, inches: list[float], tmp_path: Path) -> None:
    done = run_here(tmp_path, "plot", str(ROOT / RUN), "--out", "a.svg", *words.split())
    assert done.returncode == 0, done.stderr
    head = (tmp_path / "a.svg").read_text().split("viewBox", 1)[0]
    sides = [float(head.split(f'{side}="')[1].split("pt")[0]) / 72 for side in ("width", "height")]
    assert sides[: len(inches)] == pytest.approx(inches, rel=1e-3)


@pytest.mark.parametrize(("words", "said"), [
    (["--out", "figure.gif"], "--out figure.gif: the name must end with .pdf, .svg or .png"),
    (["--out", "none/figure.pdf"], "--out none/figure.pdf cannot be written (the folder none is missing): choose another file"),
    (["--kind", "pie"], "--kind 'pie' is unknown: choose from bandwidth, time, percent, scaling, history, compare, pairs"),
    (["--size", "0.1in"], "'0.1in' is not a size of a figure: use 1 to 60 inches"),
    (["--size", "wide"], "'wide' is not a size: use a width such as 3.5in, 89mm or 9cm, or width and height as in 7x4in"),
    (["--operation", "barrier"], "--operation 'barrier': these runs have allreduce"),
], ids=["ending", "folder", "kind", "too-small", "no-size", "operation"])  # fmt: skip
def test_bad_input_writes_nothing(words: list[str], said: str, tmp_path: Path) -> None:
    done = run_here(tmp_path, "plot", str(ROOT / RUN), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.system
def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')\n")
    done = run(tmp_path, "plot", str(ROOT / RUN), env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (done.returncode, done.stderr) == (2, "collbench: a figure needs matplotlib: pip install 'collbench[report]'\n")


def test_what_was_not_read_is_named_before_a_failure(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / RUN, copy)
    with (copy / "cells.jsonl").open("a") as file:
        file.write('{"broken\n')
    done = run_here(tmp_path, "plot", "copy", "--kind", "scaling")
    warning, failure = done.stderr.splitlines()
    assert done.returncode == 2
    assert warning == "collbench: copy/cells.jsonl: 1 line is left out, the first is line 23: not JSON (JSONDecodeError)"
    assert failure.startswith("collbench: --kind scaling needs runs of one operation")
