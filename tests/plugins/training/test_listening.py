"""Output while a workload measures: a training is printed after its last backend, records at once, and the rest at any end of the run."""

from __future__ import annotations

from typing import Any

import pytest

from collbench.measuring.session import Plan
from collbench.plugins.training.progress import WorkloadProgressPrinter
from collbench.plugins.training.records import StepRow
from collbench.report.progress import Output
from collbench.results.row import Times

# Output of a workload: a training is printed after its last backend, records at once, and the rest at any end of the run.

ABOUT: dict[str, Any] = {"backends": ["mpi", "gloo"], "step_time_s": 0.3}


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLBENCH_TTY", "0")


def row(regime: str, backend: str) -> StepRow:
    known = Times(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    return StepRow(regime, "1M", backend, "cpu", 2, 1, "float32", 10**6, 1 << 20, 4 * 10**6, 4e6, n=9, time_s=known)


def listening(format: str = "table") -> WorkloadProgressPrinter:
    actual = WorkloadProgressPrinter(Output(format, "never"))
    actual.begin(Plan(2, {"workload": ABOUT}), "run")
    return actual


def heads(text: str) -> list[str]:
    return [line.split(" · ")[0] for line in text.splitlines() if " · " in line]


def test_a_training_is_printed_after_its_last_backend(capsys: pytest.CaptureFixture[str]) -> None:
    with listening() as actual:
        actual.progress("fsdp 1M on mpi", 0, 4, None)
        actual.record(row("fsdp", "mpi"), None)
        said = capsys.readouterr()
        assert said.out == "" and "fsdp 1M on mpi" in said.err
        actual.record(row("fsdp", "gloo"), None)
        said = capsys.readouterr().out
        assert heads(said) == ["fsdp"] and "mpi      75.0 %" in said, "300 of 400 ms"
        actual.record(row("pipeline", "mpi"), None)
        actual.record(row("pipeline", "gloo"), None)
        assert capsys.readouterr().out.startswith("\npipeline · 1M")
        actual.end()
        assert capsys.readouterr() == ("", "run folder: run\n")


def test_finished_rows_are_printed_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError), listening() as actual:
        actual.record(row("fsdp", "mpi"), None)
        raise RuntimeError
    assert heads(capsys.readouterr().out) == ["fsdp"]


@pytest.mark.parametrize(("format", "lines"), [("csv", [2, 1, 1]), ("json", [1, 1, 1])])
def test_csv_and_json_rows_are_printed_at_once(format: str, lines: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    with listening(format) as actual:
        for count, each in zip(lines, (row("fsdp", "mpi"), row("fsdp", "gloo"), row("pipeline", "mpi")), strict=True):
            actual.record(each, None)
            assert len(capsys.readouterr().out.splitlines()) == count


def test_with_a_live_line_the_tables_are_printed_at_the_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLLBENCH_TTY", "stderr")
    with listening() as actual:
        actual.progress("fsdp 1M on mpi", 0, 2, None)
        for backend in ABOUT["backends"]:
            actual.record(row("fsdp", backend), None)
        assert capsys.readouterr().out == ""
        actual.end()
    assert heads(capsys.readouterr().out) == ["fsdp"]
