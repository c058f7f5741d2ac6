"""The log of a pod: rows between two marks return unchanged, with any text around them, and missing parts are reported."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.importers.gloo import GLOO
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import FailedCommand, IncompleteLog, MissingItem, NotInOutput, SkippedLines, SkippedReason
from collbench.plugins.importers.pod_log import BEGIN, END, POD_LOG
from collbench.plugins.importers.store import reader_for
from collbench.results.reader import read_run
from collbench.results.row import Row, Times
from collbench.results.store import to_line
from tests.cli.command import run_here

TIMES = Times(1e-3, 0.9e-3, 1.1e-3, 0.8e-3, 1.5e-3, 2e-3, 3e-3)


def row(size=1024, **more):
    same = {
        "operation": "allreduce", "backend": "gloo", "api": "torch", "device": "cpu", "dtype": "float32", "redop": "sum", "root": None,
        "mode": "isolated", "in_place": True, "buffers": "fixed", "group": "all", "window": None, "count": size // 4, "ranks": 4,
        "nodes": 2, "n": 60, "n_eff": 55.5, "time_s": TIMES, "algbw_bytes_per_s": size / 1e-3, "busbw_bytes_per_s": size / 1e-3,
        "wrong": 0, "checked": 1, "flags": ("target_missed",), "samples": {"max_s": {"offset": 0, "dtype": "<f8", "shape": [60]}},
    }  # fmt: skip
    return Row(**{**same, "size_bytes": size, **more})


LINES = [BEGIN, f"{END} 0 -----", f"{END} x -----", "{", "{}", '{"a": NaN}', to_line(row().as_json())]


def log(*rows, code=0, between=""):
    """The lines of a log; code None: it ends before the command."""
    end = [] if code is None else [f"{END} {code} -----"]
    return ["a pod begins", BEGIN, *(line for each in rows for line in (to_line(each.as_json()), *between.splitlines())), *end, "it ends"]


def test_rows_come_back_as_they_were_but_for_their_samples():
    (run,) = POD_LOG.read(log(row(), row(2048), between="collbench: run folder: /tmp/collbench-run"), UserInput()).runs
    assert run.rows == [row(samples={}), row(2048, samples={})]
    assert (run.tool, run.program, run.statistic, run.doubts) == ("collbench", "allreduce", "the median over the samples", [])
    assert NotInOutput(MissingItem.SAMPLES) in run.missing
    lines = log(row(), between="size (B) elements min (us) p50 (us) p99 (us) max (us) avg (us)")
    assert GLOO.knows(lines) and reader_for(lines, None).name == "log"


@pytest.mark.parametrize(
    "before",
    ["[pod/b-0-x7k2p/collbench] ", "2026-11-22T05:36:28.123456789Z ", "[pod/b/c] 2026-11-22T05:36:28Z ", "2026-11-22T05:36:28.1+02:00 "],
)
def test_what_kubectl_puts_before_each_line_is_no_part_of_it(before):
    lines = [f"{before}{line}" for line in log(row())]
    assert POD_LOG.knows(lines) and reader_for(lines, None).name == "log"
    assert POD_LOG.read(lines, UserInput()).runs[0].rows == [row(samples={})]


def test_each_pair_of_marks_is_a_run_and_what_is_cut_or_failed_is_doubtful():
    assert [len(run.rows) for run in POD_LOG.read([*log(row()), *log(), *log(row(), row(2048))], UserInput()).runs] == [1, 2]
    assert POD_LOG.read(log(row(), code=None), UserInput()).runs[0].doubts == [IncompleteLog()]
    assert POD_LOG.read(log(row(), code=4), UserInput()).runs[0].doubts == [FailedCommand(4)]
    whole = to_line(row().as_json())
    altered = json.dumps({**row().as_json(), "time_s": "quick"}, default=vars)
    lines = [BEGIN, whole, whole[:200], altered, f"{END} 0 -----"]
    (run,) = POD_LOG.read(lines, UserInput()).runs
    assert run.rows == [row(samples={})]
    assert run.doubts == [SkippedLines(2, SkippedReason.UNREADABLE, 3, "not JSON (JSONDecodeError)")]


@pytest.mark.parametrize(("lines", "given_", "sentence"), [
    (log(), UserInput(), "no rows between the marks"),
    ([BEGIN, '{"round": 1}'], UserInput(), "line 2 between the marks is not a valid row \\(fields are missing"),
    (log(row()), UserInput(ranks=8), "the log has 4 ranks, not --ranks 8"),
    (log(row()), UserInput(nodes=4), "the log has 2 nodes, not --nodes 4"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(lines, given_, sentence):
    with pytest.raises(UsageError, match=sentence):
        POD_LOG.read(lines, given_)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from(LINES) | st.text()))
def test_no_log_is_more_than_a_sentence(lines):
    try:
        runs = POD_LOG.read(lines, UserInput()).runs
    except UsageError:
        return
    assert all(each == row(samples={}) for run in runs for each in run.rows)


def test_a_log_becomes_a_run_that_reads_back(tmp_path):
    (tmp_path / "pod.log").write_text("\n".join(log(row(), row(2048), code=4)))
    done = run_here(tmp_path, "import", "pod.log", "--out", "run")
    assert (done.returncode, done.stdout) == (0, "run: 2 rows\n")
    assert done.stderr.splitlines() == [
        "collbench: imported from collbench: 2 rows of allreduce (pod.log); a time is the median over the samples",
        "collbench: missing in the output: samples; host names; per-rank data; versions of libraries",
        f"collbench: doubtful: pod.log, allreduce: {FailedCommand(4).render()}",
    ]
    found = read_run(tmp_path / "run")
    assert (found.rows, found.warnings) == ([row(samples={}), row(2048, samples={})], [])
    assert found.info["exit_code"] == 4  # as the command's: a gate takes no run that failed
    again = run_here(tmp_path, "report", "run")
    assert again.returncode == 0 and "allreduce" in again.stdout
