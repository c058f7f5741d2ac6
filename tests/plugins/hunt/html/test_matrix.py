"""A matrix of pairs on a page: sentences, table, charts, the picture with its labels and groups, and the numbers of its script."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collbench.plugins.hunt.pairs import PairEffects
from collbench.plugins.hunt.pairs_page import MOST_ROWS, charts, cut, grouped, section
from collbench.report.material import Material
from collbench.results.reader import read_run
from collbench.units import format_rate, format_time
from tests.plugins.hunt.html.matrices import cell_classes, cell_values, drawn, even, slowed, texts_in
from tests.plugins.hunt.pair_matrices import SyntheticMatrix
from tests.stored import stored_reports

TRIALS = Path(__file__).parents[4] / "reports" / "pairs-trials"
EVIL = "<script>$x$\u202e"
CLEAR, WRONG = -1, 5
ANY = st.floats() | st.just(0.0) | st.floats(1e-9, 1e12)


def of(*runs):
    return section(Material([read_run(run) for run in runs], Path("report.html")))


def altered(tmp_path, **about):
    """The trial with another `pairs` in its run.json."""
    run = tmp_path / "run"
    shutil.copytree(TRIALS / "host-0", run)
    info = json.loads((run / "run.json").read_text())
    info["pairs"].update(about)
    (run / "run.json").write_text(json.dumps(info))
    return run


def test_of_several_runs_each_is_named_and_others_have_no_such_part():
    assert of(TRIALS.parent / "first-run") is None
    assert section(Material([], Path("report.html"))) is None
    found = of(TRIALS / "host-0", stored_reports() / "pairs-trials/pair-0")
    assert [chart.key for chart in found.charts] == ["pairs-0-bandwidth", "pairs-0-latency", "pairs-1-bandwidth", "pairs-1-latency"]
    assert found.charts[2].title == "pair-0: Bandwidth of 128 KiB messages between 8 nodes"
    assert "pair-0: cb1h6 to cb1h3 reaches 50 %" in " ".join(found.texts)
    assert [caption for caption, _ in found.tables] == [f"{run}: each place: medians over partners" for run in ("host-0", "pair-0")]


def test_names_from_a_file_stay_text(tmp_path):
    names = [f"{EVIL}{number}" + "x" * 500 for number in range(8)]
    found = of(altered(tmp_path, places=names, by=EVIL, backend=EVIL))
    for chart in found.charts:
        assert "<script" not in chart.drawing
        assert "\u202e" not in chart.drawing + json.dumps(chart.data, ensure_ascii=False) + chart.title + chart.caption
        assert max(map(len, texts_in(chart.drawing))) < 100
        assert len(chart.drawing) < 5000


def test_pairs_that_could_not_be_measured_are_reported_with_their_reason(tmp_path):
    run = altered(tmp_path)
    lines = (run / "pairs.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["na"] = ["no route", None, None, None]
    (run / "pairs.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
    found = of(run)
    assert "not measured: 1 pair: no route" in found.texts
    assert np.argwhere(np.isnan(cell_values(found.charts[0]))).tolist() == sorted([[6, 7], [7, 6], *([place, place] for place in range(8))])
    assert "not measured" in texts_in(found.charts[0].drawing)
    (run / "pairs.jsonl").write_text("")
    assert of(run).charts == []


def test_the_table_of_many_places_has_the_slowest_pairs_that_no_named_place_explains():
    bandwidth, latency = drawn(slowed(even(20), 3, 7))
    assert bandwidth.table.head == ["sender", "receiver", "GB/s", "versus the median"]
    assert bandwidth.table.rows[0] == ["node4", "node8", "5.00", "50 % of the median"]
    assert len(bandwidth.table.rows) == len(latency.table.rows) == 40
    assert latency.table.rows[0][2:] == ["20.00", "1.00 times the median"]
    assert bandwidth.wide
    assert "collbench report RUN --csv FILE" in bandwidth.method
    matrix = slowed(slowed(slowed(even(20), 3), slice(None), 7), 10, 11, 0.8)
    rows = drawn(matrix)[0].table.rows
    assert rows[0] == ["node11", "node12", "8.00", "80 % of the median"]
    assert not [row for row in rows if row[0] == "node4" or row[1] == "node8"]


def test_the_drawing_has_a_cell_per_pair_and_explains_its_colours():
    bandwidth, latency = drawn(slowed(even(6), 1, 4))
    classes = cell_classes(bandwidth.drawing, 6)
    assert np.diag(classes).tolist() == [CLEAR] * 6
    assert np.argwhere(classes == 4).tolist() == [[1, 4]]
    assert set(cell_classes(latency.drawing, 6).ravel().tolist()) == {0, CLEAR}
    bandwidth, latency = drawn(even(5))
    assert texts_in(bandwidth.drawing)[-5:] == ["95 % of the median or more", "90–95 %", "81–90 %", "66–81 %", "below 66 %"]
    assert texts_in(latency.drawing)[-5:] == ["up to 1.05 times the median", "1.05–1.11", "1.11–1.23", "1.23–1.51", "above 1.51"]


@pytest.mark.parametrize(("matrix", "again", "label", "arrows", "rings"), [
    (lambda: slowed(slowed(even(8), 2), slice(None), 2), (), "node3: both ways 50 %", 2, 0),
    (lambda: slowed(even(8), 5, 2), [(2, 5)], "node6 to node3: 50 %", 0, 2),  # a ring is light around dark
    (lambda: slowed(even(8), slice(None), 6), (), "node7: receives 50 %", 1, 0),
], ids=["place", "pair that nothing explains", "receiver"])  # fmt: skip
def test_what_is_slow_is_named_once_a_place_with_arrows_and_a_pair_with_a_ring(matrix, again, label, arrows, rings):
    drawing = drawn(matrix(), again)[0].drawing
    assert [text for text in texts_in(drawing) if "%" in text and "node" in text] == [label]
    assert (drawing.count('class="bad"'), drawing.count("rx=")) == (arrows, rings)


def test_a_slow_latency_is_reported_in_its_own_chart():
    matrix = even(8)
    matrix.latency_s[2] *= 2
    matrix.latency_s[:, 2] *= 2
    bandwidth, latency = drawn(matrix)
    assert bandwidth.caption.startswith("No slow place or pair.")
    assert "node3: 2.00 times as long" in texts_in(latency.drawing)


def test_labels_of_neighbours_do_not_overlap_and_are_within_the_matrix():
    matrix = even(40)
    for place in (0, 1, 2, 3, 37, 38, 39):
        slowed(matrix, place, ratio=0.5)
    bandwidth, _ = drawn(matrix)
    labels = re.findall(r'<text class="ink" x="([\d.]+)" y="([\d.]+)"[^>]*>(?:[^<]*: [^<]*|and \d[^<]*)</text>', bandwidth.drawing)
    heights = [float(y) for x, y in labels if float(x) > 100]  # of those on the right
    assert len(heights) == 7
    assert min(np.diff(sorted(heights))) >= 14 - 0.01
    _, top, side = bandwidth.data["box"]
    assert top < min(heights) < max(heights) < top + side


def test_wrong_data_has_a_sign_and_what_is_not_measured_is_hatched():
    matrix = even(4)
    matrix.wrong[0, 1] = matrix.wrong[1, 0] = 3
    matrix.bandwidth[0, 3] = np.nan
    bandwidth, latency = drawn(matrix)
    assert texts_in(bandwidth.drawing).count("!") == 2
    assert "wrong data (!)" in texts_in(bandwidth.drawing)
    assert np.argwhere(cell_classes(bandwidth.drawing, 4) == WRONG).tolist() == [[0, 1], [1, 0]]
    assert 'fill="url(#pairs-0-bandwidth-no)"' in bandwidth.drawing
    assert "not measured" in texts_in(bandwidth.drawing)
    assert "url(#" not in latency.drawing
    assert bandwidth.data["wrong"] == [[0, 1, 3], [1, 0, 3]]
    assert bandwidth.data["values"][0] == [None, 10, 10, None]
    assert [bound[0][1] for bound in bandwidth.data["bounds"]] == [9.9, 10.1]


@pytest.mark.parametrize(
    ("name", "shown"), [("node1", "node1"), ("ip-10-0-12-34.eu-west-1.compute", "ip-10-0-1…-1.compute"), ("a\u202eb", "a?b")]
)
def test_of_a_long_name_its_middle_is_left_out(name, shown):
    assert cut(name) == shown


def test_few_places_have_their_own_rows_and_many_are_grouped_by_host_or_neighbours():
    found = grouped(["b", "a", "c"])
    assert (found.by, found.order, found.starts, found.labels) == ("place", (0, 1, 2), (0, 1, 2), ("b", "a", "c"))
    hosts = [f"n{rank % 10}" for rank in range(80)]
    found = grouped([f"rank {rank} ({host})" for rank, host in enumerate(hosts)], hosts)
    assert (found.by, found.labels[:2], found.starts[:2]) == ("host", ("n0", "n1"), (0, 8))
    assert found.order[:9] == (0, 10, 20, 30, 40, 50, 60, 70, 1)
    found = grouped([f"node{number:04}" for number in range(1024)])
    assert (found.by, len(found.labels), found.labels[1], found.starts[1]) == ("neighbours", MOST_ROWS, "node0016 …", 16)


@pytest.mark.parametrize(
    ("pattern", "label"), [("r{:02}n{:02}", "r00n*"), ("rack{}-node{}.dc1", "rack0-node*.dc1"), ("10.1.{}.{}", "10.1.0.*")]
)
def test_hosts_with_consecutive_numbers_are_adjacent(pattern, label):
    found = grouped([pattern.format(number // 10, number % 10) for number in range(100)])
    assert (found.by, found.labels[0], len(found.labels)) == ("name", label, 10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=200), st.integers(1, 20))
def test_every_place_is_in_one_group_for_any_names(names, most):
    found = grouped(names, most=most)
    assert sorted(found.order) == list(range(len(names)))
    assert len(found.labels) == len(found.starts) <= max(most, 1)
    assert found.starts[0] == 0
    assert all(np.diff(found.starts) > 0)
    assert max(found.rows.values()) == len(found.starts) - 1


def test_many_places_share_rows_of_the_drawing_and_numbers_are_in_its_order():
    names = [f"r{number // 10}n{number % 10}" for number in range(100)]
    bandwidth, _ = drawn(slowed(even(100, names), 37, 52), again=[(37, 52)])
    assert np.argwhere(cell_classes(bandwidth.drawing, 10) == 4).tolist() == [[3, 5]]
    assert "r3n7 to r5n2: 50 %" in texts_in(bandwidth.drawing)
    assert texts_in(bandwidth.drawing)[2:4] == ["r0n*", "r0n*"]
    assert bandwidth.data["starts"] == tuple(range(0, 100, 10))
    names = [f"r{number % 10}n{number // 10}" for number in range(100)]
    bandwidth, _ = drawn(slowed(even(100, names), 73, 25), again=[(73, 25)])
    assert np.argwhere(cell_values(bandwidth) == 5).tolist() == [[37, 52]]
    assert (bandwidth.data["places"][37], bandwidth.data["places"][52]) == ("r3n7", "r5n2")
    assert bandwidth.data["again"] == [[37, 52]]
    assert bandwidth.data["bounds"] == []


def test_each_number_is_the_one_that_is_printed_elsewhere_with_few_digits():
    for n in (20, 70):
        matrix = SyntheticMatrix(n).matrix()
        rates, times = map(cell_values, drawn(matrix))
        off = ~np.eye(n, dtype=bool)
        assert np.isnan(np.diag(rates)).all() and np.isnan(np.diag(times)).all()
        assert [format_rate(rate * 1e9) for rate in rates[off]] == [format_rate(rate) for rate in matrix.bandwidth[off]]
        assert [format_time(time / 1e6) for time in times[off]] == [format_time(time) for time in matrix.latency_s[off]]
    bandwidth, latency = drawn(SyntheticMatrix(200).matrix())
    assert len(json.dumps(bandwidth.data, separators=(",", ":"))) < 39_800 * 5 + 6_000
    assert len(json.dumps(latency.data, separators=(",", ":"))) < 19_900 * 6 + 6_000


def test_paths_inside_hosts_have_a_median_of_their_own():
    matrix = even(8, hosts=[f"node{number // 2}" for number in range(8)])
    for rank in range(0, 8, 2):
        slowed(matrix, [rank, rank + 1], [rank + 1, rank], 10)
    bandwidth, latency = drawn(matrix)
    assert (bandwidth.data["medians"], latency.data["medians"]) == ([10, 100], [20, 20])
    assert bandwidth.data["hosts"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert bandwidth.data["median"] == "the median of such paths"
    assert [chart.data["medians"] for chart in drawn(even(4)) if chart.data] == [[10, None], [20, None]]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@settings(max_examples=40, deadline=None)
@given(st.lists(ANY, min_size=12, max_size=12), st.lists(ANY, min_size=6, max_size=6))
@example([5e-324] * 12, [20e-6] * 6)
def test_no_figure_ends_in_a_traceback_or_a_warning(rates, times):
    matrix = even(4)
    matrix.bandwidth[~np.eye(4, dtype=bool)] = rates
    matrix.latency_s[np.triu_indices(4, 1)] = times
    matrix.latency_s[np.tril_indices(4, -1)] = matrix.latency_s.T[np.tril_indices(4, -1)]
    for chart in charts(PairEffects(matrix), "pairs-0", "", "nodes", (1, 1)):
        assert "nan" not in chart.drawing
        json.dumps(chart.data, allow_nan=False)
