"""collbench autopsy: verdict, formats, page and exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import collbench
from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyResult
from tests.cli.command import ROOT, run_here
from tests.plugins.traces.dumps import entries, write

RECORDED = ROOT / "reports/hang-dumps"
HANG = [str(RECORDED / f"dump_rank_{rank}") for rank in range(3)]  # rank 2 does not arrive at the last call


def healthy(folder: Path) -> list[str]:
    return [str(path) for path in write(folder, {rank: entries([("all_reduce", 4)] * 3) for rank in range(2)}, {"0": range(2)})]


def test_a_hang_has_exit_code_1_and_its_json_has_rank_and_cause() -> None:
    done = run_here(ROOT, "autopsy", *HANG, "--format", "json")
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["exit_code"], verdict["result"]) == (1, 1, "cause found")
    assert [(each["cause"], each["ranks"]) for each in verdict["findings"]] == [("did not arrive", [2])]


def test_csv_has_a_line_per_finding() -> None:
    done = run_here(ROOT, "autopsy", *HANG, "--format", "csv")
    (line,) = csv.DictReader(io.StringIO(done.stdout))
    assert (line["cause"], line["ranks"], line["operation"], line["waiting"]) == ("did not arrive", "2", "allreduce", "0 1")


def test_the_table_has_the_verdict_and_what_to_do() -> None:
    done = run_here(ROOT, "autopsy", *HANG)
    assert done.returncode == 1 and len(done.stdout.splitlines()) >= 2


def test_a_healthy_job_has_exit_code_0_and_a_missing_dump_3(tmp_path: Path) -> None:
    dumps = healthy(tmp_path)
    assert run_here(ROOT, "autopsy", str(tmp_path)).returncode == 0
    assert run_here(ROOT, "autopsy", dumps[0]).returncode == 3
    assert run_here(ROOT, "autopsy", *dumps, "--ranks", "3").returncode == 3


def test_the_page_has_the_verdict_and_the_findings(tmp_path: Path) -> None:
    page = tmp_path / "hang.html"
    done = run_here(ROOT, "autopsy", *HANG, "--html", str(page), "--format", "json")
    text = page.read_text(encoding="utf-8")
    assert done.returncode == 1
    assert "CAUSE FOUND" in text and 'id="findings"' in text and "did not arrive at allreduce" in text


def test_names_in_a_dump_are_escaped_on_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\x1b[31m"
    ranks = {rank: entries([("all_reduce", 4), ("all_reduce", 4, "started")][: 2 - rank], name, name) for rank in range(2)}
    write(tmp_path, ranks, {name: range(2)})
    page = tmp_path / "page.html"
    done = run_here(ROOT, "autopsy", *map(str, sorted(tmp_path.glob("dump*"))), "--html", str(page))
    assert done.returncode == 1 and "\x1b" not in done.stdout
    assert "<script>alert" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02cos\nsystem\n", b'{"entries": [{"profiling_name"'])
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "dump_rank_0"
    path.write_bytes(content)
    done = run_here(ROOT, "autopsy", str(path))
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and str(path) in done.stderr


def test_a_rank_twice_is_an_error(tmp_path: Path) -> None:
    copy = tmp_path / "again_0"
    copy.write_bytes((RECORDED / "dump_rank_0").read_bytes())
    assert run_here(ROOT, "autopsy", HANG[0], str(copy)).returncode == 2


def test_the_function_of_the_api_returns_the_verdict() -> None:
    verdict = collbench.autopsy(*HANG)
    assert (verdict.result, verdict.culprits, verdict.findings[0].cause) == (AutopsyResult.FOUND, (2,), AutopsyCause.NOT_ARRIVED)
    assert collbench.autopsy(HANG[0], HANG[1]).findings[0].cause is AutopsyCause.NO_DUMP
