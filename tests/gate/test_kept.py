"""The file of an allocation: written completely or not at all, replaces nothing; an altered file is one error or can be judged."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collbench.analysis.ceilings import LinkCeiling
from collbench.errors import UsageError
from collbench.gate import baseline
from collbench.gate.baseline import Baseline, add_all, load
from collbench.report.baseline import baseline_lines
from tests.gate.judging import allocation, judged

FILE = "good-0.allocation.jsonl"


class TestWithoutLinks:
    @pytest.fixture(autouse=True)
    def _no_links(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)

    def test_the_file_is_written(self, tmp_path: Path) -> None:
        add_all(tmp_path, [allocation("good-0")])
        assert load(tmp_path).allocations == [allocation("good-0")]
        assert [each.name for each in tmp_path.iterdir()] == [FILE]

    def test_it_replaces_nothing(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_text("another file")
        with pytest.raises(UsageError, match="good-0"):
            add_all(tmp_path, [allocation("good-0")])
        assert (tmp_path / FILE).read_text() == "another file"

    def test_an_incomplete_file_is_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([None, OSError(errno.ENOSPC, "No space left on device")])  # the draft is the first

        def full(_: int) -> None:
            error = next(answers)
            if error is not None:
                raise error

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match=os.strerror(errno.ENOSPC)):
            add_all(tmp_path, [allocation("good-0")])
        assert not list(tmp_path.iterdir())


def test_ceilings_are_stored_and_a_file_without_them_is_read(tmp_path: Path) -> None:
    was = LinkCeiling("allreduce", "mpi", "all", 2, 2, None, "ring", 1e9, "NIC eth0 10 Gb/s")
    add_all(tmp_path, [allocation("good-0", ceilings=(was,))])
    assert load(tmp_path).allocations[0].ceilings == (was,)
    file = tmp_path / FILE
    file.write_text(file.read_text().replace('"ceilings":', '"unknown":').replace('"ceilings" :', '"unknown":'))
    assert load(tmp_path).allocations[0].ceilings == ()


def test_a_link_that_was_made_despite_an_error_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def twice(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", twice)
    add_all(tmp_path, [allocation("good-0")])
    assert [each.name for each in load(tmp_path).allocations] == ["good-0"]


def test_the_error_of_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UsageError, match=os.strerror(errno.EROFS)):
        add_all(tmp_path, [allocation("good-0")])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"launches": 4}, "4 .*3 state probes"),
        ({"facts": {"weather": {"rain": "yes"}}}, "'facts'"),
        ({"facts": {"software": {"mpi": "\ud800"}}}, "surrogate"),
        ({"imported": "yes"}, "'imported' .*'yes'"),
        ({"canary_s": [float("nan")] * 3}, "malformed"),
        ({"ceilings": [["allreduce", "mpi"]]}, "'ceilings'"),
        ({"ceilings": [["allreduce", "mpi", "all", 2, 2, None, "ring", "fast", "NIC"]]}, "'ceilings'"),
    ],
)
def test_an_impossible_first_line_is_rejected(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    file = written(tmp_path)
    first, *rest = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps({**json.loads(first), **changes}), *rest]))
    with pytest.raises(UsageError, match=words):
        load(tmp_path)


@pytest.mark.parametrize(
    ("column", "value"),
    [("nodes", "two"), ("in_place", 1), ("backend", None), ("size_bytes", True), ("backend", "n\x1b[2Jccl"), ("mode", [])],
)
def test_an_impossible_column_is_rejected(tmp_path: Path, column: str, value: object) -> None:
    file = written(tmp_path)
    head, first, *rest = file.read_text().splitlines()
    actual = json.loads(first)
    actual[baseline.COLUMNS.index(column)] = value
    file.write_text("\n".join([head, json.dumps(actual), *rest]))
    with pytest.raises(UsageError, match="line 2 "):
        load(tmp_path)


def test_a_repeated_case_is_rejected(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text() + file.read_text().splitlines()[1] + "\n")
    with pytest.raises(UsageError, match="1 of its lines"):
        load(tmp_path)


def written(folder: Path) -> Path:
    (file,) = add_all(folder, [allocation("good-0", launches=3)])
    return file


ODD = st.sampled_from(
    [None, True, -1, 0, 3, 2**70, 1e-300, 1e308, "", "x", "\x1b[2J", "2026-11-12T00:00:00+14:00", "0001-01-01", [], [1e-6] * 3, {}]
)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), ODD), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_altered_baseline_is_one_sentence_or_can_be_judged(tmp_path: Path, edits: list[tuple[int, int, Any]]) -> None:
    (tmp_path / FILE).unlink(missing_ok=True)
    file = written(tmp_path)
    actual = [json.loads(line) for line in file.read_text().splitlines()]
    for line, place, value in edits:
        names = list(actual[line]) if line == 0 else range(len(actual[line]))
        actual[line][names[place % len(names)]] = value
    file.write_text("\n".join(map(json.dumps, actual)))
    try:
        (odd,) = load(tmp_path).allocations
        base = Baseline(tmp_path, [*(allocation(f"good-{number}", launches=3) for number in range(1, 5)), odd])
        verdict = judged(allocation("new"), baseline=base)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert verdict.result in ("passed", "no verdict", "wrong data")
        assert json.dumps(verdict.as_json())
        assert [line.text for line in baseline_lines(base, "table")]


def test_a_file_with_too_many_values_is_rejected_before_it_fills_the_memory(tmp_path: Path) -> None:
    add_all(tmp_path, [allocation("good-0")])
    head = (tmp_path / FILE).read_bytes().partition(b"\n")[0]
    for more, words in ((b"[" + b"[]," * (1 << 23) + b"1]", "values"), (b"\n" * ((1 << 20) + 1), "cases"), (b"[" * 100_000, "recursion")):
        (tmp_path / FILE).write_bytes(head + b"\n" + more + b"\n")
        with pytest.raises(UsageError, match=rf"good-0.*{words}"):
            load(tmp_path)


def test_a_pipe_in_place_of_a_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(UsageError, match="pipe"):
        load(tmp_path)
    assert baseline.head_of(tmp_path / FILE) is None
