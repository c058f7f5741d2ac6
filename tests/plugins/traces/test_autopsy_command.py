"""collbench autopsy: verdict, formats, page and exit codes; and an autopsy and a replay by the Python API."""

import pytest

import collbench
from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyResult
from tests.api import test_measure
from tests.api.test_html import check_fragment
from tests.cli.command import ROOT, run_here
from tests.plugins.traces.dumps import entries, write
from tests.plugins.traces.recorded import Op, write_dumps

RECORDED = ROOT / "reports/hang-dumps"
HANG = [str(RECORDED / f"dump_rank_{rank}") for rank in range(3)]  # rank 2 does not arrive at the last call
folder = test_measure.folder  # a fixture


def healthy(folder):
    return [str(path) for path in write(folder, {rank: entries([("all_reduce", 4)] * 3) for rank in range(2)}, {"0": range(2)})]


def test_exit_codes_of_a_healthy_job_a_missing_dump_and_a_rank_twice(tmp_path):
    dumps = healthy(tmp_path)
    assert run_here(ROOT, "autopsy", str(tmp_path)).returncode == 0
    assert run_here(ROOT, "autopsy", dumps[0]).returncode == 3
    assert run_here(ROOT, "autopsy", *dumps, "--ranks", "3").returncode == 3
    copy = tmp_path / "again_0"
    copy.write_bytes((RECORDED / "dump_rank_0").read_bytes())
    assert run_here(ROOT, "autopsy", HANG[0], str(copy)).returncode == 2


def test_names_in_a_dump_are_escaped_on_the_page_and_in_the_terminal(tmp_path):
    name = "<script>alert(1)</script>\x1b[31m"
    ranks = {rank: entries([("all_reduce", 4), ("all_reduce", 4, "started")][: 2 - rank], name, name) for rank in range(2)}
    write(tmp_path, ranks, {name: range(2)})
    page = tmp_path / "page.html"
    done = run_here(ROOT, "autopsy", *map(str, sorted(tmp_path.glob("dump*"))), "--html", str(page))
    assert done.returncode == 1 and "\x1b" not in done.stdout
    assert "<script>alert" not in page.read_text(encoding="utf-8")


def test_the_api_returns_the_verdict_which_shows_its_findings_in_a_notebook():
    verdict = collbench.autopsy(*HANG)
    assert (verdict.result, verdict.culprits, verdict.findings[0].cause) == (AutopsyResult.FOUND, (2,), AutopsyCause.NOT_ARRIVED)
    assert collbench.autopsy(HANG[0], HANG[1]).findings[0].cause is AutopsyCause.NO_DUMP
    found = collbench.autopsy(*HANG)
    assert (found.code, len(found.findings)) == ("autopsy_verdict", 1)
    texts = check_fragment(found._repr_html_())
    assert texts[0] == found.render() and found.findings[0].cause.value in texts
    assert repr(found) == f"<AutopsyVerdict: {found.render()}>"


@pytest.mark.long
def test_a_replay_is_a_stored_run(folder):
    operations = [Op("allreduce", sent=256, start_ms=0, end_ms=1), Op("broadcast", sent=64, root=0, start_ms=3, end_ms=4)]
    traces = write_dumps(folder / "dumps", {"world": (0, 1)}, {0: operations, 1: operations})
    runs = collbench.replay(traces, step="all", backend="simulated", iterations=20, out=folder / "out")
    (row,) = runs.rows
    assert (row.operation, row.ranks, row.wrong, row.n) == ("replay", 2, 0, 20)
    table = runs.workloads()
    assert list(table["trace_format"]) == ["flight-recorder"] and list(table["recorded_step_time_s"]) == [pytest.approx(0.004)]
    with pytest.raises(collbench.UsageError, match="--step all"):
        collbench.replay(traces, step="median", backend="simulated")
