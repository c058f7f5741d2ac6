"""Other tools' rows below a matrix of pairs: this tool in the last column, doubts on the line, untrusted text escaped."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest

from collbench.report.pairs import external_lines, write_pairs
from collbench.results.flags import flag_names
from collbench.results.folder import TOOLS, RunFolder
from collbench.results.reader import read_run, row_from_json
from collbench.results.rounds import PairMatrix, PairRound, read_pairs
from collbench.results.row import Row, Times
from tests.results.rows import make_row, not_measured

MIB = 1 << 20
FLAGS = ("their_tool", "unverified")
ABOUT = {"by": "node", "backend": "socket", "places": ["n1", "n2"], "size_bytes": MIB, "latency_size_bytes": 8}


def matrix() -> PairMatrix:
    off = np.where(np.eye(2, dtype=bool), np.nan, 1.0)
    return PairMatrix(("n1", "n2"), off * 36e-6, np.array([[np.nan, 0.1199e9], [0.1e9, np.nan]]), off, off, off * 0, MIB, 8)


def theirs(operation: str, time_s: float, size: int, ends: tuple[str, str] = ("n1", "n2"), **changes: Any) -> Row:
    actual = {"from": ends[0], "to": ends[1], "tool": {"name": "x", "version": "3.12"}, "statistic": "mean over 1.00 s of it"}
    values: dict[str, Any] = {"backend": "iperf3", "flags": FLAGS, "evidence": actual, "wrong": None, "checked": 0, **changes}
    rate = size / time_s
    times = Times(time_s, None, None, None, None, None, None)
    return make_row(size, operation=operation, time_s=times, algbw_bytes_per_s=rate, busbw_bytes_per_s=rate, **values)


def text(*rows: Row) -> list[str]:
    return [line.text for line in external_lines(rows, matrix(), "socket")]


def test_theirs_are_beside_ours() -> None:
    around = theirs("p2p_bandwidth", MIB / 7.07e9, MIB, ("n2", "n1"), backend="ucx_perftest", flags=(*FLAGS, "other_path"))
    lines = text(theirs("p2p_bandwidth", MIB / 0.1194e9, MIB), around, theirs("p2p_latency", 23.6e-6, 8, backend="fi_pingpong"))
    assert lines[:6] == [
        "",
        "other tools beside ours (ours over socket)",
        "from  to  tool          of               theirs      ours        flags",
        "n1    n2  iperf3        1 MiB bandwidth  0.119 GB/s  0.120 GB/s",
        "n2    n1  ucx_perftest  1 MiB bandwidth  7.07 GB/s   0.100 GB/s  other path",
        "n1    n2  fi_pingpong   8 B latency      23.60 µs    36.00 µs",
    ]
    assert "iperf3 3.12: mean over 1.00 s of it" in lines
    assert [line.split(":")[0] for line in lines[-3:]] == flag_names(["their_tool", "other_path", "unverified"])


def test_a_reason_and_what_has_no_figure_of_ours() -> None:
    failed = not_measured(
        "iperf3 did\x1b not end", operation="p2p_bandwidth", backend="iperf3", flags=FLAGS, evidence={"from": "n1", "to": 7}
    )
    lines = text(failed, theirs("p2p_bandwidth", 1e-3, 4096, ("n1", "n2")))
    assert lines[3].split("  ")[4:] and "n/a (iperf3 did? not end)" in lines[3] and lines[3].endswith("–")
    assert lines[4].endswith("–")  # of another size


def test_nothing_without_rows_and_not_too_many() -> None:
    assert text() == []
    lines = text(*[theirs("p2p_bandwidth", 1e-3, MIB)] * 45)
    assert "and 5 more: see --format json" in lines and sum("iperf3  " in line for line in lines) == 40


@pytest.mark.parametrize("format", ["json", "csv", "table"])
def test_programs_get_the_rows(format: str) -> None:
    row, out = theirs("p2p_bandwidth", 1e-3, MIB), io.StringIO()
    write_pairs(matrix(), [], ABOUT, format, out, color=False, unsaid=[], external=[row])
    if format == "json":
        assert [row_from_json(each) for each in json.loads(out.getvalue())["theirs"]] == [row]
    else:
        assert ("iperf3" in out.getvalue()) is (format == "table")


def test_what_is_stored_reads_back_and_what_is_altered_is_left_out(tmp_path) -> None:
    folder, row = RunFolder.create(tmp_path / "run", "pairs", {"pairs": ABOUT}), theirs("p2p_bandwidth", 1e-3, MIB)
    one = ((1e-6,), ((None, None),))
    folder.append_round(PairRound(0, ((0, 1),), *one, *one, *one, (0,), (None,)).as_json())
    folder.append_round(row.as_json(), TOOLS)
    folder.finish()
    with (tmp_path / "run" / TOOLS).open("a") as file:
        file.write('{"operation": 7}\n{"oper')
    found = read_pairs(read_run(tmp_path / "run"))
    assert found and found.external == [row] and json.loads((tmp_path / "run/run.json").read_text())["rows"] == 1
    assert len(found.warnings) == 2 and "the middle of line 3" in found.warnings[0], found.warnings
