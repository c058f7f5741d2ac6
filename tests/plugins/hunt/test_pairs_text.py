"""A matrix of pairs for people and for programs, as measured and from disk."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.hunt import PAIRS_FILE, TOOLS_FILE
from collbench.plugins.hunt.pairs import PairEffects, PairFinding
from collbench.plugins.hunt.pairs_text import DIRECTED_PAIRS, ITSELF, UNKNOWN, WRONG, classes_of, external_lines, heatmap, place_frame
from collbench.plugins.hunt.records import PairMatrix, PairRound, StoredPairs, read_pairs
from collbench.report.cases import NOTHING
from collbench.report.forms import write
from collbench.report.frame import Display, table_lines
from collbench.report.runs import report_run
from collbench.report.screen import wrapped
from collbench.results.flags import flag_names
from collbench.results.folder import RunFolder
from collbench.results.reader import decode_record, read_run
from collbench.results.row import Row, Times
from tests.plugins.hunt.html.matrices import even
from tests.plugins.hunt.pair_matrices import SyntheticMatrix, only
from tests.results.rows import make_row, not_measured

ABOUT = {"by": "node", "backend": "socket", "rounds": 7, "sampled": None}
MIB = 1 << 20
FLAGS = ("their_tool", "unverified")
EXTERNAL = {"by": "node", "backend": "socket", "rounds": 1, "places": ["n1", "n2"], "size_bytes": MIB, "latency_size_bytes": 8}


def half(matrix, place):
    matrix.bandwidth[place] /= 2
    matrix.bandwidth[:, place] /= 2
    return matrix


def text_of(matrix, format="table", about=ABOUT, color=False, external=()):
    rounds = [PairRound(number, *((),) * 9) for number in range(about["rounds"])]
    result = StoredPairs(about, rounds, external=list(external))
    result.effects = PairEffects(matrix)
    out = io.StringIO()
    write(DIRECTED_PAIRS, result, format, out, color=color)
    return out.getvalue()


def picture(matrix, width=None, color=False, blocks=True):
    return [line.text for line in heatmap(matrix, PairEffects(matrix).findings(), Display(width, color, blocks))]


def test_the_whole_table():
    matrix = half(even(5), 3)
    matrix.wrong[0, 2] = matrix.wrong[2, 0] = 7
    assert text_of(matrix).splitlines() == [
        "pairs of 5 nodes, over socket, bandwidth of 1 MiB, latency of 8 B, all 20 directed pairs, in 7 rounds",
        "wrong data: node1 and node3: 7 elements are wrong",
        "node4 sends and receives at 50 % of what the others do (8 of 8 pairs): its NIC, cable or slot",
        "bandwidth: a single slow pair is detected at 15 % or more below the expected bandwidth",
        "latency: a single slow pair is detected at 1.3 times the expected latency or more",
        "",
        "place  sends GB/s  receives GB/s  latency µs  slowest with",
        "node1        10.0           10.0       20.00  5.00 from node4",
        "node2        10.0           10.0       20.00  5.00 from node4",
        "node3        10.0           10.0       20.00  5.00 from node4",
        "node4        5.00           5.00       20.00  5.00 from node1",
        "node5        10.0           10.0       20.00  5.00 from node4",
        "",
        "senders in rows, receivers in columns",
        "        0 1 2 3 4",
        r"0 node1 \ · !!██·",
        r"1 node2 · \ · ██·",
        r"2 node3 !!· \ ██·",
        r"3 node4 ██████\ ██ ◄ node4",
        "4 node5 · · · ██\\",
        "· from 95 % on of the median  ░░ 90–95 %  ▒▒ 81–90 %  ▓▓ 66–81 %  ██ below 66 %  !! wrong data",
    ]


def test_the_head_has_what_was_sampled_the_ranks_of_a_node_and_why_none_is_named():
    sampled = only(even(6), [(0, 1), (2, 3), (4, 5)])
    lines = text_of(sampled, about={**ABOUT, "rounds": 1, "sampled": "3 of 15 pairs are sampled (--sample 1)"}).splitlines()
    assert lines[0].endswith("6 of 30 directed pairs, in one round, 3 of 15 pairs are sampled (--sample 1)")
    assert lines[1] == "no slow endpoint or pair found"
    assert "? not measured" in lines[-1]
    lines = text_of(half(even(2), 0)).splitlines()
    assert lines[1].startswith("two endpoints: one pair")
    assert "no slow endpoint or pair found" not in lines
    assert text_of(even(5), about={**ABOUT, "ranks_per_place": 2}).startswith("pairs of 5 nodes of 2 ranks, over socket, ")


def test_classes_are_five_below_the_median_of_such_paths_and_wider_with_scatter():
    matrix = even(8)
    for receiver, ratio in enumerate([0.96, 0.94, 0.85, 0.7, 0.6], start=1):
        matrix.bandwidth[0, receiver] *= ratio
    matrix.bandwidth[0, 6] = np.nan
    matrix.wrong[0, 7] = 1
    classes, step = classes_of(matrix)
    assert classes[0].tolist() == [ITSELF, 0, 1, 2, 3, 4, UNKNOWN, WRONG]
    assert step == pytest.approx(-np.log(0.95))
    classes, step = classes_of(SyntheticMatrix(32, sigma=0.02).matrix())
    assert step > 2 * -np.log(0.95)
    assert (classes > 0).sum() < 10
    made = SyntheticMatrix(8, hosts=[f"node{i // 4}" for i in range(8)]).across([0] * 4 + [1] * 4, 0.05)
    assert (classes_of(made.matrix())[0] <= 0).all()
    assert picture(made.matrix())[-1].startswith("· from 9")
    assert "of the median of such paths" in picture(made.matrix())[-1]


def test_without_blocks_there_are_letters_and_with_colours_those_of_cividis():
    found = picture(half(even(5), 3), blocks=False)
    assert found[2] == r"0 node1 \ . . d ."
    assert found[-1].startswith(". from 95 % on of the median  a 90–95 %")
    found = picture(half(even(5), 3), color=True)
    assert found[2] == "0 node1 \\ " + "\x1b[48;5;17m  \x1b[0m" * 2 + "\x1b[48;5;227m  \x1b[0m" + "\x1b[48;5;17m  \x1b[0m"
    assert set(re.findall(r"48;5;(\d+)m", found[-1])) == {"17", "60", "102", "143", "227"}


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("n", [5, 39, 200])
def test_the_terminals_width_is_respected(width, n):
    matrix = replace(half(even(n), 3), places=tuple(f"a-rather-long-host-name-{i}" for i in range(n)))
    found = PairEffects(matrix).findings()
    lines = (*wrapped(heatmap(matrix, found, Display(width)), width), *table_lines(place_frame(matrix, found), width))
    assert max(len(line.text) for line in lines) <= width


def test_many_places_share_a_row_and_the_table_shows_the_slowest_and_the_named():
    matrix = even(1024)
    matrix.bandwidth[700, 30] /= 4
    found = picture(matrix)
    assert found[1].endswith("each is 26 endpoints, and each cell their slowest pair")
    rows = [line for line in found if "██" in line and "below" not in line]
    assert len(rows) == 1
    assert rows[0].startswith("676–701")
    assert rows[0].index("██") == len("1014–1023") - 1 + 4
    assert rows[0].endswith("◄ node701 to node31")
    matrix = half(even(200), 150)
    lines = [line.text for line in table_lines(place_frame(matrix, PairEffects(matrix).findings()), None)]
    assert lines[1].startswith("node") and len(lines) <= 23
    assert any(line.startswith("node151 ") for line in lines)
    assert re.fullmatch(r"medians over partners; 1[78]\d of 200 places, which are faster, are not shown", lines[-1])


def test_csv_has_a_record_per_directed_pair_and_hostile_names_cannot_move_the_cursor():
    matrix = replace(only(even(4), [(0, 1), (2, 3)]), places=("=cmd()", "b", "c,d", "e\x1b"))
    rows = list(csv.DictReader(io.StringIO(text_of(matrix, "csv"))))
    assert [(row["sender"], row["receiver"]) for row in rows] == [("'=cmd()", "b"), ("b", "'=cmd()"), ("c,d", "e?"), ("e?", "c,d")]
    assert rows[0]["bandwidth_bytes_per_s"] == "10000000000.0"
    assert (rows[0]["size_bytes"], rows[0]["latency_size_bytes"], rows[0]["wrong"]) == ("1048576", "8", "0")
    assert float(rows[0]["latency_s"]) == 20e-6
    hostile = replace(half(even(5), 3), places=tuple(f"\x1b[31m{i}\n" for i in range(5)))
    assert all(line.isprintable() for line in text_of(hostile).splitlines())


def test_json_is_one_object_and_an_unknown_format_is_refused():
    actual = json.loads(text_of(half(even(5), 3), "json"))
    assert actual["schema"] == 1
    assert actual["places"] == ["node1", "node2", "node3", "node4", "node5"]
    assert [(each["kind"], each["places"]) for each in actual["findings"]] == [("node", [3])]
    assert actual["findings"][0]["sentence"].startswith("node4 ")
    assert actual["bandwidth_bytes_per_s"][0] == [None, 10e9, 10e9, 5e9, 10e9]
    assert actual["about"]["backend"] == "socket"
    assert np.array(actual["latency_s"], float).shape == (5, 5)
    with pytest.raises(UsageError, match=r"'nccl-tests' .*pairs: .*table, csv, json"):
        text_of(even(4), "nccl-tests")


def test_long_lists_of_findings_are_cut_and_impossible_latencies_are_no_figures(monkeypatch):
    found = [PairFinding("pair", "bandwidth", (i, i + 1), 0.5, 1, 2) for i in range(0, 60, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(PairEffects, "findings", lambda effects: found)
        shown = text_of(even(64))
    assert "and 10 more findings: see --format json" in shown
    matrix = even(16)
    matrix.wrong[0] = matrix.wrong[:, 0] = matrix.wrong[1] = matrix.wrong[:, 1] = 3
    assert "more pairs with wrong data: see --format json" in text_of(matrix)
    matrix = even(5)
    matrix.latency_s[:] = 1e305
    assert [row[3] for row in place_frame(matrix, []).records] == [NOTHING] * 5


def stored(folder, lines, names=5, finished=True):
    folder.mkdir()
    about = {"places": [f"node{i + 1}" for i in range(names)], "size_bytes": 1 << 20, "latency_size_bytes": 8, "by": "node"}
    about |= {"rounds": 12} if not finished else {"measured": len(lines)}
    end = {"finished_utc": "2026-11-21T00:00:00.000Z"} if finished else {}
    (folder / "run.json").write_text(json.dumps({"schema": 1, "operation": "pairs", "pairs": about, **end}))
    (folder / "cells.jsonl").write_text("")
    (folder / "pairs.jsonl").write_text("".join(lines))
    return folder


def rounds(matrix):
    def one(number, a, b):
        forward, backward = (matrix.size_bytes / float(matrix.bandwidth[pair]) for pair in ((a, b), (b, a)))
        time = float(matrix.latency_s[a, b])
        made = PairRound(number, ((a, b),), (time,), ((time, time),), (forward,), ((forward, forward),), (backward,),
                         ((backward, backward),), (0,), (None,))  # fmt: skip
        return json.dumps(made.as_json()) + "\n"

    return [one(number, a, b) for number, (a, b) in enumerate((a, b) for a in range(matrix.n) for b in range(a + 1, matrix.n))]


def test_a_stored_run_reads_as_it_was_measured_and_what_cannot_be_read_is_a_warning(tmp_path):
    matrix = half(even(5), 3)
    folder, out, err = stored(tmp_path / "run", rounds(matrix)), io.StringIO(), io.StringIO()
    assert report_run([folder], None, "table", out, err=err) == 0
    assert out.getvalue() == "run (10 rounds)\n" + text_of(matrix, about={"by": "node", "rounds": 10})
    assert err.getvalue() == ""
    lines = [*rounds(even(5)), "{}\n", '{"round": 3']
    folder, out, err = stored(tmp_path / "cut", lines, finished=False), io.StringIO(), io.StringIO()
    assert report_run([folder], None, "table", out, err=err) == 0
    assert out.getvalue().startswith("cut (10 of 12 rounds, not finished)")
    assert "the middle of line 12" in err.getvalue()
    assert "1 line is left out" in err.getvalue()


def test_stored_runs_are_one_csv_with_one_header_and_a_column_that_distinguishes_them(tmp_path):
    folder, out = stored(tmp_path / "run", rounds(even(5))), io.StringIO()
    assert report_run([folder], Path("-"), "table", out) == 0
    assert report_run([folder], tmp_path / "pairs.csv", "json", io.StringIO()) == 0
    assert out.getvalue() == (tmp_path / "pairs.csv").read_bytes().decode()
    assert len(out.getvalue().splitlines()) == 21
    with pytest.raises(UsageError, match="cannot be written"):
        report_run([folder], tmp_path / "no" / "pairs.csv", "json", io.StringIO())
    runs, out = [stored(tmp_path / name, rounds(even(5))) for name in ("before", "=after")], io.StringIO()
    assert report_run(runs, tmp_path / "pairs.csv", "csv", out, err=io.StringIO()) == 0
    records = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [record["run"] for record in records] == ["before"] * 20 + ["'=after"] * 20
    assert {record["sender"] for record in records} == {f"node{i + 1}" for i in range(5)}
    assert (tmp_path / "pairs.csv").read_bytes().decode() == out.getvalue()


def test_what_was_stopped_is_not_finished_and_what_does_not_fit_is_refused(tmp_path):
    folder, out = stored(tmp_path / "run", rounds(even(5)), finished=False), io.StringIO()
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "finished_utc": "2026-11-21T00:00:00.000Z", "exit_code": 130}))
    assert report_run([folder], None, "table", out) == 0
    assert out.getvalue().startswith("run (10 of 12 rounds, not finished)\n")
    out = io.StringIO()
    assert report_run([stored(tmp_path / "none", [], finished=False)], None, "table", out) == 2
    assert "0 of 20 directed pairs" in out.getvalue()
    assert report_run([stored(tmp_path / "other", [], finished=False)], None, "json", io.StringIO()) == 2
    with pytest.raises(UsageError, match="places or sizes"):
        report_run([stored(tmp_path / "unfit", rounds(even(5)), names=0)], None, "table", io.StringIO())


# Other tools' rows below a matrix of pairs: this tool in the last column, doubts on the line, untrusted text escaped.


def two_nodes():
    off = np.where(np.eye(2, dtype=bool), np.nan, 1.0)
    return PairMatrix(("n1", "n2"), off * 36e-6, np.array([[np.nan, 0.1199e9], [0.1e9, np.nan]]), off, off, off * 0, MIB, 8)


def theirs(operation, time_s, size, ends=("n1", "n2"), **changes):
    actual = {"from": ends[0], "to": ends[1], "tool": {"name": "x", "version": "3.12"}, "statistic": "mean over 1.00 s of it"}
    values = {"backend": "iperf3", "flags": FLAGS, "evidence": actual, "wrong": None, "checked": 0, **changes}
    rate = size / time_s
    times = Times(time_s, None, None, None, None, None, None)
    return make_row(size, operation=operation, time_s=times, algbw_bytes_per_s=rate, busbw_bytes_per_s=rate, **values)


def text(*rows):
    return [line.text for line in external_lines(rows, two_nodes(), "socket")]


def test_theirs_are_beside_ours():
    around = theirs("p2p_bandwidth", MIB / 7.07e9, MIB, ("n2", "n1"), backend="ucx_perftest", flags=(*FLAGS, "other_path"))
    lines = text(theirs("p2p_bandwidth", MIB / 0.1194e9, MIB), around, theirs("p2p_latency", 23.6e-6, 8, backend="fi_pingpong"))
    assert lines[:6] == [
        "",
        "external tools compared with collbench over socket",
        "from  to  tool          of               theirs      ours        flags",
        "n1    n2  iperf3        1 MiB bandwidth  0.119 GB/s  0.120 GB/s",
        "n2    n1  ucx_perftest  1 MiB bandwidth  7.07 GB/s   0.100 GB/s  other path",
        "n1    n2  fi_pingpong   8 B latency      23.60 µs    36.00 µs",
    ]
    assert "iperf3 3.12: mean over 1.00 s of it" in lines
    assert [line.split(":")[0] for line in lines[-3:]] == flag_names(["their_tool", "other_path", "unverified"])


def test_a_reason_is_shown_and_what_has_no_figure_of_ours_but_not_too_many():
    ends = {"from": "n1", "to": 7}
    failed = not_measured("iperf3 did\x1b not end", operation="p2p_bandwidth", backend="iperf3", flags=FLAGS, evidence=ends)
    lines = text(failed, theirs("p2p_bandwidth", 1e-3, 4096, ("n1", "n2")))
    assert lines[3].split("  ")[4:] and "n/a (iperf3 did? not end)" in lines[3] and lines[3].endswith("–")
    assert lines[4].endswith("–")  # of another size
    assert text() == []
    lines = text(*[theirs("p2p_bandwidth", 1e-3, MIB)] * 45)
    assert "and 5 more: see --format json" in lines and sum("iperf3  " in line for line in lines) == 40


def test_the_rows_are_in_json_and_in_the_table_and_not_in_csv():
    row = theirs("p2p_bandwidth", 1e-3, MIB)
    in_json, in_table, in_csv = (text_of(two_nodes(), format, EXTERNAL, external=[row]) for format in ("json", "table", "csv"))
    assert [decode_record(each, Row) for each in json.loads(in_json)["theirs"]] == [row]
    assert "iperf3" in in_table and "iperf3" not in in_csv


def test_what_is_stored_reads_back_and_what_is_altered_is_left_out(tmp_path):
    folder, row = RunFolder.create(tmp_path / "run", "pairs", {"pairs": EXTERNAL}), theirs("p2p_bandwidth", 1e-3, MIB)
    one = ((1e-6,), ((None, None),))
    folder.append_record(PairRound(0, ((0, 1),), *one, *one, *one, (0,), (None,)).as_json(), PAIRS_FILE)
    folder.append_record(row.as_json(), TOOLS_FILE)
    folder.finish()
    with (tmp_path / "run" / TOOLS_FILE).open("a") as file:
        file.write('{"operation": 7}\n{"oper')
    found = read_pairs(read_run(tmp_path / "run"))
    assert found and found.external == [row] and json.loads((tmp_path / "run/run.json").read_text())["rows"] == 1
    assert len(found.warnings) == 2 and "the middle of line 3" in found.warnings[0], found.warnings
