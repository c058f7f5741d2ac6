"""The folder of a baseline: allocations are stored once and read back; altered files are rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.gate.allocation import allocations_in
from collbench.gate.baseline import CaseGroup, add_all, drop, load, scheme_of, times_of
from tests.gate.allocations import launch, launches
from tests.results.rows import make_row, not_measured, store

FILE = "night-1.allocation.jsonl"
Edit = Callable[[list[str]], list[str]]


@pytest.fixture
def night(tmp_path: Path) -> Path:
    return launches(tmp_path / "runs", "night-1", {1024: 4e-6, 8: 1e-6}, {8: 3e-6, 64 << 20: 0.1})


def test_an_allocation_reads_back_as_it_was_added(tmp_path: Path, night: Path) -> None:
    (allocation,) = allocations_in([night])
    assert [file.name for file in add_all(tmp_path / "base", [allocation])] == [FILE]
    (again,) = load(tmp_path / "base").allocations
    assert again == allocation


def test_the_order_of_lines_does_not_depend_on_the_order_of_measurement(tmp_path: Path, night: Path) -> None:
    add_all(tmp_path / "base", allocations_in([night]))
    lines = (tmp_path / "base" / FILE).read_text().splitlines()
    assert [json.loads(line)[-4] for line in lines[1:]] == [8, 1024, 64 << 20]
    assert not list((tmp_path / "base").glob(".*"))


def test_times_are_a_matrix_over_allocations_and_cases_grouped_by_class(tmp_path: Path, night: Path) -> None:
    add_all(tmp_path / "base", allocations_in([night, launch(tmp_path / "other", {8: 2e-6})]))
    baseline = load(tmp_path / "base")
    times = np.exp(times_of(baseline.allocations, baseline.cases))
    assert times == pytest.approx(np.array([[2e-6, 4e-6, 0.1], [2e-6, np.nan, np.nan]]), nan_ok=True)
    assert scheme_of(baseline.cases).groups == (CaseGroup("nccl", "allreduce", "small"), CaseGroup("nccl", "allreduce", "large"))


def test_an_allocation_is_added_once_and_with_an_error_none_is(tmp_path: Path, night: Path) -> None:
    allocations = allocations_in([night])
    add_all(tmp_path / "base", allocations)
    with pytest.raises(UsageError, match="allocation night-1 "):
        add_all(tmp_path / "base", [*allocations_in([launch(tmp_path / "another", {8: 1e-6})]), *allocations])
    assert [each.name for each in load(tmp_path / "base").allocations] == ["night-1"]


def test_wrong_data_and_unfinished_launches_are_not_added(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="allocation bad has 3 "):
        add_all(tmp_path / "base", allocations_in([launch(tmp_path / "bad", {8: 1e-6}, wrong=3)]))
    torn = launch(tmp_path / "torn", {8: 1e-6})
    info = json.loads((torn / "run.json").read_text())
    del info["finished_utc"]
    (torn / "run.json").write_text(json.dumps(info))
    with pytest.raises(UsageError, match="allocation torn has 1 "):
        add_all(tmp_path / "base", allocations_in([torn]))
    assert not (tmp_path / "base").exists()


def test_dropping(tmp_path: Path, night: Path) -> None:
    add_all(tmp_path / "base", allocations_in([night, launch(tmp_path / "other", {8: 2e-6})]))
    drop(tmp_path / "base", "night-1")
    assert [each.name for each in load(tmp_path / "base").allocations] == ["other"]
    with pytest.raises(UsageError, match=r"night-1 .* other$"):
        drop(tmp_path / "base", "night-1")


def test_no_folder_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere "):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=f"^{re.escape(str(tmp_path))} "):
        load(tmp_path)


def _line(number: int, change: Callable[[Any], Any]) -> Edit:
    return lambda lines: [json.dumps(change(json.loads(line))) if at == number else line for at, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda lines: [], "first line .*schema"),
        (lambda lines: ["[]", *lines[1:]], "first line .*schema"),
        (_line(0, lambda head: {**head, "schema": 2}), "schema 2"),
        (_line(0, lambda head: {**head, "name": "night-2"}), "'name' .*'night-2'"),
        (_line(0, lambda head: {**head, "launches": -1}), "'launches' .*'-1'"),
        (_line(0, lambda head: {**head, "began_utc": "soon"}), "'began_utc' .*'soon'"),
        (_line(0, lambda head: {**head, "facts": {"software": {"nccl": 2}}}), "'facts'"),
        (lambda lines: lines[:1], "no case"),
        (_line(1, lambda case: [*case[:-4], 10**400, *case[-3:]]), "line 2 "),
        (_line(0, lambda head: {name: value for name, value in head.items() if name != "launches"}), "'launches' .*'None'"),
        (_line(0, lambda head: {**head, "columns": []}), r"'columns' .*'\[\]'"),
        (_line(1, lambda case: case[:-1]), "line 2 "),
        (_line(1, lambda case: [*case[:-3], [-1.0, 1e-6], 0, None]), "line 2 "),
        (_line(2, lambda case: [*case[:-3], [1e-6], 0, None]), "line 3 "),
        (_line(1, lambda case: [{"a": 1}, *case[1:]]), "line 2 "),
        (lambda lines: [*lines, "{"], "truncated"),
    ],
)  # fmt: skip
def test_the_error_of_an_altered_file_has_the_place(
    tmp_path: Path, night: Path, edit: Callable[[list[str]], list[str]], words: str
) -> None:
    add_all(tmp_path / "base", allocations_in([night]))
    file = tmp_path / "base" / FILE
    file.write_text("\n".join(edit(file.read_text().splitlines())))
    with pytest.raises(UsageError, match=words):
        load(tmp_path / "base")


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_content_of_a_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="night-1"):
        load(tmp_path)


def test_a_case_that_could_not_be_measured_keeps_its_reason(tmp_path: Path) -> None:
    add_all(tmp_path / "base", allocations_in([store(tmp_path / "a", [not_measured("no GPU"), make_row(8)])]))
    (again,) = load(tmp_path / "base").allocations
    assert sorted(str(measured.na) for measured in again.cases.values()) == ["None", "no GPU"]


def test_one_allocation_under_two_names_counts_once(tmp_path: Path, night: Path) -> None:
    (one,) = allocations_in([night])
    add_all(tmp_path / "base", [one])
    with pytest.raises(UsageError, match="night-1 and again "):
        add_all(tmp_path / "base", [replace(one, name="again")])
    head, *rest = (tmp_path / "base" / FILE).read_text().splitlines()
    copied = json.dumps({**json.loads(head), "name": "copy"})
    (tmp_path / "base" / FILE.replace("night-1", "copy")).write_text("\n".join([copied, *rest]))
    with pytest.raises(UsageError, match="copy and night-1 "):
        load(tmp_path / "base")


def test_a_deliberately_slowed_allocation_is_not_added(tmp_path: Path, night: Path) -> None:
    (one,) = allocations_in([night])
    with pytest.raises(UsageError, match=r"night-1 .*\(by=10%\)"):
        add_all(tmp_path / "base", [replace(one, slowed="by=10%")])


def test_imported_and_measured_allocations_need_two_baselines(tmp_path: Path, night: Path) -> None:
    (one,) = allocations_in([night])
    other = replace(one, name="other", began_utc="2026-11-01T00:00:00Z", imported=True)
    add_all(tmp_path / "base", [other])
    assert load(tmp_path / "base").allocations[0].imported
    with pytest.raises(UsageError, match=r"other .*imported.*night-1"):
        add_all(tmp_path / "base", [one])


def test_a_baseline_without_a_start_comes_first(tmp_path: Path, night: Path) -> None:
    (one,) = allocations_in([night])
    names = {"a": "2026-11-02T00:00:00+02:00", "b": "", "c": "2026-11-01T23:00:00Z"}
    add_all(tmp_path / "base", [replace(one, name=name, began_utc=began) for name, began in names.items()])
    assert [each.name for each in load(tmp_path / "base").allocations] == ["b", "a", "c"]
