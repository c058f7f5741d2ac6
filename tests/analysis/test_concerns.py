"""Concerns about a run: their order, no repetition, and their counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collbench.analysis import concerns as module
from collbench.analysis.concerns import DOUBTFUL, FINDING, MISSING, NOTE, SEVERITIES, WRONG, Concern, concerns
from collbench.analysis.launches import Launches
from collbench.analysis.stragglers import Compared
from collbench.results.flags import DOUBTFUL as DOUBTFUL_FLAGS
from collbench.results.flags import FLAGS
from collbench.results.reader import Run
from collbench.results.row import Row
from tests.results.rows import make_row, not_measured

DONE = {"finished_utc": "2026-11-21T06:59:15.362Z"}


def of(*tables: Sequence[Row], events: Sequence[Mapping[str, Any]] = (), info: Mapping[str, Any] = DONE, **more: Any) -> list[Concern]:
    """The concerns of runs with these rows, called run-0, run-1 …"""
    runs = [Run(Path(f"run-{number}"), dict(info), list(rows), [dict(event) for event in events]) for number, rows in enumerate(tables)]
    launches = [Launches(run.path.name, (run,), run.rows) for run in runs]
    return concerns(runs, launches, more.get("compared", [[] for _ in runs]), more.get("effects", []), more.get("warnings", []))


def test_a_good_run_raises_no_concern_and_every_flag_has_its_place() -> None:
    assert of([make_row(8), make_row(16)]) == []
    assert of() == []
    assert {*module.DOUBTS, *module.REMARKS} == set(FLAGS)
    assert set(module.DOUBTS) >= DOUBTFUL_FLAGS


def test_worst_first() -> None:
    rows = [
        make_row(8, flags=("target_missed",)), make_row(16, flags=("two_modes", "remeasured")), make_row(32, wrong=2), not_measured("no"),
    ]  # fmt: skip
    texts = {"note": "started late", "abort": "rank 3 died", "finding": "a slow link"}
    found = of(rows, events=[{"kind": kind, "text": text} for kind, text in texts.items()])
    assert [(each.severity, each.what) for each in found] == [
        ("wrong data", "2 elements are wrong"), ("broken off", "abort: rank 3 died"), ("finding", "a slow link"),
        ("doubtful", "two_modes"), ("doubtful", "target_missed"), ("missing", "not measured: no"), ("note", "started late"),
        ("note", "remeasured"),
    ]  # fmt: skip
    assert [SEVERITIES.index(each.severity) for each in found] == sorted(SEVERITIES.index(each.severity) for each in found)
    assert found[0].sentence() == f"{found[0].what} ({found[0].where})"


def test_where_a_flag_is_in_few_words() -> None:
    few = [make_row(size, flags=("drift",)) for size in (8, 16)]
    many = [make_row(1 << power, backend="mpi", flags=("drift",)) for power in range(3, 13)]
    (found,) = of([*few, *many, make_row(32)])
    assert found.where == "12 of 13 cases: allreduce nccl at 8 B, 16 B; allreduce mpi at 10 sizes, 8 B to 4 KiB"
    assert of([make_row(flags=("drift",))])[0].where == "the only case"
    assert of(few)[0].where == "all 2 cases"
    others = [make_row(8, operation=name, flags=("drift",)) for name in "abcdef"]
    assert of([*others, make_row()])[0].where.endswith("; d nccl at 8 B; and 2 more series")
    barrier = make_row(0, operation="barrier", flags=("drift",))
    assert of([barrier, make_row()])[0].where == "1 of 2 cases: barrier nccl"


def test_of_several_runs_the_cases_name_theirs_and_what_all_report_is_reported_once() -> None:
    found = of([make_row(8, flags=("drift",))], [make_row(8)], events=[{"kind": "note", "text": "same"}])
    assert found == [
        Concern(DOUBTFUL, "drift", "1 of 2 cases: run-0: allreduce nccl at 8 B", "drift"),
        Concern(NOTE, "same", "run-0, run-1"),
    ]


def test_what_several_launches_settle_is_a_note() -> None:
    (found,) = of([make_row(launches=3, flags=("target_missed",))])
    assert found.severity == NOTE
    assert [each.severity for each in of([make_row(8, launches=3, flags=("drift",)), make_row(16, flags=("drift",))])] == [DOUBTFUL]
    assert [each.severity for each in of([make_row(launches=5, flags=("two_modes",))])] == [DOUBTFUL]


def test_wrong_data_is_reported_once_with_its_place() -> None:
    (found,) = of([make_row(8, wrong=1, wrong_detail="rank 2, element 7", flags=("wrong_data",)), make_row(16, wrong=4)])
    assert found.severity == WRONG and found.what.startswith("5 elements ") and found.what.endswith("rank 2, element 7")
    assert of([make_row(flags=("wrong_data",))]) == [Concern(WRONG, "wrong_data", "the only case", "wrong_data")]


def test_a_run_that_did_not_end_and_events_without_words() -> None:
    assert of([make_row(8)], info={})[0].what.endswith("finished: 1")
    (found,) = of([make_row(8)], info={}, events=[{"kind": "hang", "text": 7}, {}])
    assert found.what == "hang: without a word"


def test_reasons_and_warnings_are_there_and_never_more_than_twenty_of_a_kind() -> None:
    found = of([not_measured("a"), not_measured("b"), not_measured("a")], warnings=["run-9 is empty"])
    assert [(each.what, each.where) for each in found] == [
        ("not measured: a", "2 of 3 cases: allreduce nccl at 64 MiB"),
        ("not measured: b", "1 of 3 cases: allreduce nccl at 64 MiB"),
        ("run-9 is empty", ""),
    ]
    assert {each.severity for each in found} == {MISSING}
    found = of([make_row(8, flags=tuple(f"flag-{number}" for number in range(50)))])
    assert len(found) == 21
    assert found[0].what.startswith("flag-0, ")
    assert found[-1].what == "and 30 more of this kind"


def test_slow_ranks_are_findings() -> None:
    cases = [Compared(make_row(1 << power), np.ones(100, np.int64), np.array([1e-4, 1.5e-4, 1e-4, 1e-4])) for power in range(10, 14)]
    (found,) = of([make_row()], compared=[cases])
    assert found.severity == FINDING
    assert found.sentence().startswith("rank 1 finishes last in 100 % ")


def test_findings_of_pairs_come_from_the_matrix_and_not_from_the_events(tmp_path: Path) -> None:
    events = [{"kind": "finding", "text": "node1 is slow"}, {"kind": "note", "text": "a note"}]
    plain = Run(tmp_path, {"finished_utc": "2026-11-20T10:00:00Z"}, [], events, [])
    assert [each.severity for each in concerns([plain], [], [], []) if each.what == "node1 is slow"] == [FINDING]
    pairs = replace(plain, info={**plain.info, "pairs": {}})
    assert [each.what for each in concerns([pairs], [], [], []) if each.severity in (FINDING, NOTE)] == ["a note"]
