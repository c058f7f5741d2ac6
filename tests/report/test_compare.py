"""A comparison as people and programs read it."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.compare import compare
from collbench.errors import UsageError
from collbench.report.compare import compare_runs, table_lines
from collbench.results.row import Row
from tests.report.golden import assert_golden
from tests.results.rows import make_row, make_times, not_measured, store
from tests.stored import stored_reports

KINDS = {"backend": "mpi", "device": "cpu", "ranks": 2}


def row(size: int, p50: float, **changes: Any) -> Row:
    return make_row(size, time_s=make_times(p50), **{**KINDS, **changes})


def side(folder: Path, factor: float, launches: int, extra: list[Row], **info: Any) -> Path:
    """Launches of a few cases, all `factor` slower than the first side's; `extra` are rows of every launch."""
    for number in range(launches):
        noise = 1 + 0.002 * (number % 3)
        probe = {"before": 65e-9 * factor, "after": 65e-9 * factor}
        rows = [
            row(64 << 20, 2.4e-3 * factor * noise, canary_s={"before": 65e-9, "after": 66e-9}),
            row(8, 1e-6 * factor * noise, canary_s=probe), row(1024, 2e-6 * noise), row(2048, 2.2e-6 / factor * noise), *extra,
        ]  # fmt: skip
        store(folder / f"launch-{number + 1}", rows, allocation_id=folder.name, **info)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """B: a newer MPI, slower in one case and faster in another, on a machine with a state probe that flipped at 8 B."""
    folder = tmp_path_factory.mktemp("both")
    before = [not_measured("no bfloat16", size_bytes=16, dtype="bfloat16", **KINDS), row(4096, 3e-6, wrong=0), row(32, 1e-6, in_place=True)]
    after = [row(16, 3e-6, dtype="bfloat16"), row(4096, 3e-6, wrong=7, flags=("simulated",)), row(64, 1e-6)]
    a = side(folder / "before", 1.0, 5, before, backends={"mpi": {"mpi": "MPICH 4.3"}}, environment={})
    b = side(folder / "after", 1.3, 5, after, backends={"mpi": {"mpi": "MPICH 5.0"}}, environment={"MPICH_CH4_NETMOD": "u|cx\x1b"})
    return a, b


def printed(a: Path, b: Path, format: str = "table", **options: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    assert compare_runs(a, b, format, out, err=err, **options) == 0
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize(("format", "golden"), [("table", "compare.txt"), ("markdown", "compare.md")])
def test_for_people(format: str, golden: str, both: tuple[Path, Path]) -> None:
    out, err = printed(*both, format)
    assert_golden(golden, out)
    assert err == ""


def test_a_double_time_of_one_launch_each_is_inconclusive_everywhere(tmp_path: Path) -> None:
    a, b = store(tmp_path / "a", [row(8, 1e-6)]), store(tmp_path / "b", [row(8, 2e-6)])
    for format in ("table", "markdown"):
        assert "inconclusive (one launch each): 2.0×" in printed(a, b, format)[0]
    found = json.loads(printed(a, b, "json")[0])
    (case,) = found["cells"]
    outcome = {name: case[name] for name in ("outcome", "doubt", "within", "interval_over_launches")}
    assert outcome == {"outcome": "inconclusive", "doubt": "one launch each", "within": None, "interval_over_launches": False}
    assert (case["time_ratio"]["value"], found["summary"]["inconclusive"], found["summary"]["one_run_each"]) == (2.0, 1, 1)
    (record,) = csv.DictReader(io.StringIO(printed(a, b, "csv")[0]))
    assert record["outcome"] == "inconclusive"


def test_the_scatter_of_earlier_runs_is_named(tmp_path: Path) -> None:
    runs = [
        store(tmp_path / str(number), [row(8, p50)], allocation_id=str(number), hosts=["n1"])
        for number, p50 in enumerate([1e-6, 1.01e-6, 0.99e-6, 1e-6, 1.02e-6, 1e-6, 2e-6])
    ]
    out, _ = printed(*runs[-2:])
    assert "1 case: 1 slower (2.00×)" in out and "by how far 5 launches of the same case differ" in out


@pytest.mark.parametrize(("slower", "text"), [(9.97, "10×"), (25, "25×"), (123, "120×"), (1234, "1200×")])
def test_a_large_multiple_has_neither_an_exponent_nor_a_point_at_its_end(tmp_path: Path, slower: float, text: str) -> None:
    a = store(tmp_path / "a", [row(8, 1e-6)])
    b = store(tmp_path / "b", [row(8, slower * 1e-6)])
    assert f"1 inconclusive (one launch each; {text})" in printed(a, b)[0]


def test_json(both: tuple[Path, Path]) -> None:
    found = json.loads(printed(*both, "json")[0])
    assert (found["schema"], found["a"], found["b"]) == (2, {"name": "before", "launches": 5}, {"name": "after", "launches": 5})
    cases = {(case["size_bytes"], case["in_place"]): case for case in found["cells"]}
    assert {key: case["outcome"] for key, case in cases.items()} == {
        (8, False): "slower", (16, False): "n/a", (1024, False): "no change", (2048, False): "faster", (4096, False): "no change",
        (64 << 20, False): "slower", (32, True): "only in A", (64, False): "only in B",
    }  # fmt: skip
    assert found["margin"] == 0.05
    assert found["summary"] == {
        "slower": 2, "inconclusive": 0, "no_change": 1, "faster": 1, "one_run_each": 0, "not_available": 1, "wrong_data": 1,
        "only_a": 1, "only_b": 1,
    }  # fmt: skip
    first = cases[8, False]
    assert first["time_ratio"]["value"] == pytest.approx(1.3) and first["time_ratio"]["low"] < 1.3 < first["time_ratio"]["high"]
    assert first["busbw_ratio"]["value"] == pytest.approx(1 / 1.3)
    assert (first["interval_over_launches"], first["machine_state_differs"], first["time_ratio"]["n"]) == (True, True, 5)
    assert (first["b"]["launches"], first["b"]["canary_s"]) == (5, pytest.approx(84.5e-9))
    assert (cases[4096, False]["b"]["wrong"], cases[16, False]["a"]["na"]) == (35, "no bfloat16")
    assert found["differences"] == [
        {"kind": "software", "what": "mpi mpi", "a": "MPICH 4.3", "b": "MPICH 5.0"},
        {"kind": "environment", "what": "MPICH_CH4_NETMOD", "a": "–", "b": "u|cx\x1b"},
    ]


def test_csv_with_defused_formulas(both: tuple[Path, Path], tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(*both, "csv")[0], newline="")))
    assert len(rows) == 8
    first = next(row for row in rows if row["size_bytes"] == "8")
    assert (first["size_bytes"], first["outcome"], first["a_launches"], first["b_flags"]) == ("8", "slower", "5", "")
    assert float(first["time_ratio_value"]) == pytest.approx(1.3)
    assert rows[-2]["outcome"] == "only in A" and rows[-2]["b_p50_s"] == ""
    a, b = (store(tmp_path / name, [make_row(8, operation="=1+1", flags=("@x",))]) for name in "ab")
    rows = list(csv.DictReader(io.StringIO(printed(a, b, "csv")[0], newline="")))
    assert (rows[0]["operation"], rows[0]["a_flags"]) == ("'=1+1", "'@x")


def test_a_hostile_run_moves_no_cursor(tmp_path: Path) -> None:
    evil = "\x1b[2Jé|<b>"
    a, b = (store(tmp_path / name, [make_row(8, operation=evil, flags=(evil, name))], backends={evil: name}) for name in "ab")
    for format in ("table", "markdown", "csv", "json"):
        out, _ = printed(a, b, format)
        assert "\x1b" not in out and out.count("\n") > 1
    assert "<b>" not in printed(a, b, "markdown")[0]


def test_bad_formats_are_refused_and_what_could_not_be_read_is_reported(tmp_path: Path) -> None:
    a, b = (store(tmp_path / name, [make_row(8)]) for name in "ab")
    with (b / "cells.jsonl").open("a") as file:
        file.write("{}\nhalf")
    assert printed(a, b)[1].startswith(f"{b}/cells.jsonl ends in the middle of line 3")
    with pytest.raises(UsageError, match=r"--format 'xml': .*table, csv, jsonl, markdown"):
        printed(tmp_path, tmp_path, "xml")
    with pytest.raises(UsageError, match="--color 'red' is unknown"):
        printed(a, b, color="red")


def test_a_narrow_terminal_gets_a_block_for_each_series_with_its_outcomes() -> None:
    reports = stored_reports()
    found = compare(reports / "shaped-1gbit-pmi2", reports / "shaped-1gbit-pmix")
    lines = [line.text for line in table_lines(found, 80)]
    assert [line for line in lines if line.startswith("allreduce")] == [
        "allreduce · gloo · float32 · sum · in place", "allreduce · mpi · float32 · sum · out of place",
    ]  # fmt: skip
    assert sum(line.startswith(tuple("  0123456789")) and "iB " in line for line in lines) == len(found.cases)
    assert not any(line.endswith("…") for line in lines) and max(map(len, lines)) <= 80
