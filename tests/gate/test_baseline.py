"""The folder of a baseline: allocations are stored once and read back; altered files are rejected."""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.analysis.ceilings import LinkCeiling
from collbench.errors import UsageError
from collbench.gating import baseline
from collbench.gating.allocation import COLUMNS, allocation_from, allocations_in
from collbench.gating.reasons import BaselineOfOneJob, SameJob, SameJobAsBaseline
from collbench.records import document
from collbench.report.baseline import baseline_lines
from collbench.results.reader import read_run
from tests.gate.allocations import launch, launches
from tests.gate.judging import BASE, allocation, base, judged, slow
from tests.results.rows import make_row, not_measured, store

JOB = ("Slurm job testbed-12",)
FILE = "night-1.allocation.jsonl"
Edit = Callable[[list[str]], list[str]]
_STORED = COLUMNS[: COLUMNS.index("size_bytes") + 1]  # of cases without values of later columns


@pytest.fixture
def night(tmp_path: Path) -> Path:
    return launches(tmp_path / "runs", "night-1", {1024: 4e-6, 8: 1e-6}, {8: 3e-6, 64 << 20: 0.1})


def test_an_allocation_reads_back_as_it_was_added_with_its_cases_in_order(tmp_path: Path, night: Path) -> None:
    (allocation,) = allocations_in([night])
    assert [file.name for file in baseline.add_all(tmp_path / "base", [allocation])] == [FILE]
    (again,) = baseline.load(tmp_path / "base").allocations
    assert again == allocation
    lines = (tmp_path / "base" / FILE).read_text().splitlines()
    assert [json.loads(line)[-4] for line in lines[1:]] == [8, 1024, 64 << 20]
    assert not list((tmp_path / "base").glob(".*"))


def test_only_an_allocation_with_other_calls_has_a_column_of_them(tmp_path: Path, night: Path) -> None:
    (plain,) = allocations_in([night])
    case, times = next(iter(plain.cases.items()))
    other = replace(plain, name="night-2", cases={**plain.cases, case._replace(call="persistent"): times})
    files = baseline.add_all(tmp_path / "base", [plain, other])
    assert [json.loads(file.read_text().splitlines()[0])["columns"][:-3] for file in files] == [list(_STORED), list(COLUMNS)]
    assert baseline.load(tmp_path / "base").allocations == [plain, other]


def test_allocations_are_added_once_with_an_error_none_is_and_they_are_dropped(tmp_path: Path, night: Path) -> None:
    baseline.add_all(tmp_path / "base", allocations_in([night, launch(tmp_path / "other", {8: 2e-6})]))
    with pytest.raises(UsageError, match="allocation night-1 "):
        baseline.add_all(tmp_path / "base", [*allocations_in([launch(tmp_path / "another", {8: 1e-6})]), *allocations_in([night])])
    stored = baseline.load(tmp_path / "base")
    assert [each.name for each in stored.allocations] == ["night-1", "other"]
    times = np.exp(baseline.times_of(stored.allocations, stored.cases))
    assert times == pytest.approx(np.array([[2e-6, 4e-6, 0.1], [2e-6, np.nan, np.nan]]), nan_ok=True)
    groups = [str(group) for group in baseline.scheme_of(stored.cases).groups]
    assert groups == ["allreduce on nccl, small messages", "allreduce on nccl, large messages"]
    baseline.drop(tmp_path / "base", "night-1")
    assert [each.name for each in baseline.load(tmp_path / "base").allocations] == ["other"]
    with pytest.raises(UsageError, match=r"night-1 .* other$"):
        baseline.drop(tmp_path / "base", "night-1")


def test_what_is_not_good_is_not_added(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="runs/a/launch-2"):
        baseline.add_all(tmp_path / "base", [allocation("bad", unfinished=1, stopped=("runs/a/launch-2",))])
    assert not (tmp_path / "base").exists()


def _line(number: int, change: Callable[[Any], Any]) -> Edit:
    return lambda lines: [json.dumps(change(json.loads(line))) if at == number else line for at, line in enumerate(lines)]


def _head(**changes: Any) -> Edit:
    return _line(0, lambda head: {**head, **changes})


def _column(name: str, value: Any) -> Edit:
    return _line(1, lambda case: [value if column == name else each for column, each in zip((*_STORED, "", "", ""), case, strict=True)])


@pytest.mark.parametrize(("edit", "words"), [
    (lambda lines: ["[]", *lines[1:]], "first line .*schema"), (_head(launches=-1), "'launches' .*'-1'"),
    (_line(0, lambda head: {name: value for name, value in head.items() if name != "launches"}), "'launches' .*'None'"),
    (_head(facts={"software": {"nccl": 2}}), "'facts'"),
    (_head(facts={"weather": {"rain": "yes"}}), "'facts'"), (_head(facts={"software": {"mpi": "\ud800"}}), "surrogate"),
    (_head(imported="yes"), "'imported' .*'yes'"), (_head(jobs=[7]), "'jobs'"), (_head(canary_s=[float("nan")] * 2), "malformed"),
    (_head(ceilings=[["allreduce", "mpi"]]), "'ceilings'"),
    (_head(ceilings=[["allreduce", "mpi", "all", 2, 2, None, "ring", "fast", "NIC"]]), "'ceilings'"),
    (_head(columns=[]), r"'columns' .*'\[\]'"), (lambda lines: [*lines, "{"], "truncated"), (_line(1, lambda case: case[:-1]), "line 2 "),
    (_line(1, lambda case: [*case[:-4], 10**400, *case[-3:]]), "line 2 "),
    (_line(1, lambda case: [*case[:-3], [-1.0, 1e-6], 0, None]), "line 2 "),
    (_line(2, lambda case: [*case[:-3], [1e-6], 0, None]), "line 3 "), (_column("operation", {"a": 1}), "line 2 "),
    (_column("nodes", "two"), "line 2 "), (_column("in_place", 1), "line 2 "), (_column("backend", None), "line 2 "),
    (_column("size_bytes", True), "line 2 "), (_column("backend", "n\x1b[2Jccl"), "line 2 "), (_column("mode", []), "line 2 "),
])  # fmt: skip
def test_the_error_of_an_altered_file_has_the_place(tmp_path, night, edit, words):
    baseline.add_all(tmp_path / "base", allocations_in([night]))
    file = tmp_path / "base" / FILE
    file.write_text("\n".join(edit(file.read_text().splitlines())))
    with pytest.raises(UsageError, match=words):
        baseline.load(tmp_path / "base")


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_content_of_a_file_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="night-1"):
        baseline.load(tmp_path)


def test_a_case_that_could_not_be_measured_keeps_its_reason(tmp_path: Path) -> None:
    baseline.add_all(tmp_path / "base", allocations_in([store(tmp_path / "a", [not_measured("no GPU"), make_row(8)])]))
    (again,) = baseline.load(tmp_path / "base").allocations
    assert sorted(str(measured.na) for measured in again.cases.values()) == ["None", "no GPU"]


def test_one_allocation_under_two_names_counts_once(tmp_path: Path, night: Path) -> None:
    (one,) = allocations_in([night])
    baseline.add_all(tmp_path / "base", [one])
    with pytest.raises(UsageError, match="night-1 and again "):
        baseline.add_all(tmp_path / "base", [replace(one, name="again")])
    head, *rest = (tmp_path / "base" / FILE).read_text().splitlines()
    copied = json.dumps({**json.loads(head), "name": "copy"})
    (tmp_path / "base" / FILE.replace("night-1", "copy")).write_text("\n".join([copied, *rest]))
    with pytest.raises(UsageError, match="copy and night-1 "):
        baseline.load(tmp_path / "base")


def test_imported_and_measured_allocations_need_two_baselines(tmp_path: Path, night: Path) -> None:
    (one,) = allocations_in([night])
    other = replace(one, name="other", began_utc="2026-11-01T00:00:00Z", imported=True)
    baseline.add_all(tmp_path / "base", [other])
    assert baseline.load(tmp_path / "base").allocations[0].imported
    with pytest.raises(UsageError, match=r"other .*imported.*night-1"):
        baseline.add_all(tmp_path / "base", [one])


def test_a_baseline_without_a_start_comes_first(tmp_path: Path, night: Path) -> None:
    (one,) = allocations_in([night])
    names = {"a": "2026-11-02T00:00:00+02:00", "b": "", "c": "2026-11-01T23:00:00Z"}
    baseline.add_all(tmp_path / "base", [replace(one, name=name, began_utc=began) for name, began in names.items()])
    assert [each.name for each in baseline.load(tmp_path / "base").allocations] == ["b", "a", "c"]


# The file of an allocation: written completely or not at all, replaces nothing; an altered file is one error or can be judged.

GOOD = "good-0.allocation.jsonl"


def no_links(monkeypatch: pytest.MonkeyPatch, why: int = errno.EPERM) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(os, "link", refuse)


class TestWithoutLinks:
    @pytest.fixture(autouse=True)
    def _no_links(self, monkeypatch: pytest.MonkeyPatch) -> None:
        no_links(monkeypatch)

    def test_a_link_may_fail(self, tmp_path: Path) -> None:
        baseline.add_all(tmp_path, [allocation("good-0")])
        assert baseline.load(tmp_path).allocations == [allocation("good-0")]
        assert [each.name for each in tmp_path.iterdir()] == [GOOD]
        (tmp_path / GOOD).write_text("another file")
        with pytest.raises(UsageError, match="good-0"):
            baseline.add_all(tmp_path, [allocation("good-0")])
        assert (tmp_path / GOOD).read_text() == "another file"

    def test_an_incomplete_file_is_removed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([None, OSError(errno.ENOSPC, "No space left on device")])  # the draft is the first

        def full(_: int) -> None:
            error = next(answers)
            if error is not None:
                raise error

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UsageError, match=os.strerror(errno.ENOSPC)):
            baseline.add_all(tmp_path, [allocation("good-0")])
        assert not list(tmp_path.iterdir())


def test_ceilings_and_jobs_are_stored_and_a_file_of_an_older_collbench_without_them_is_read(tmp_path: Path) -> None:
    was = LinkCeiling("allreduce", "mpi", "all", 2, 2, None, "ring", 1e9, "NIC eth0 10 Gb/s")
    stored = allocation("good-0", ceilings=(was,), jobs=JOB)
    (file,) = baseline.add_all(tmp_path, [stored])
    assert baseline.load(tmp_path).allocations == [stored]
    head, *cases = file.read_text().splitlines()
    older = {name: value for name, value in json.loads(head).items() if name not in ("ceilings", "jobs")}
    file.write_text("\n".join([json.dumps(older), *cases]))
    assert baseline.load(tmp_path).allocations == [allocation("good-0")]


def test_a_link_that_was_made_despite_an_error_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def twice(source: Path, target: Path) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", twice)
    baseline.add_all(tmp_path, [allocation("good-0")])
    assert [each.name for each in baseline.load(tmp_path).allocations] == ["good-0"]


def test_the_error_of_a_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_links(monkeypatch, errno.EROFS)
    with pytest.raises(UsageError, match=os.strerror(errno.EROFS)):
        baseline.add_all(tmp_path, [allocation("good-0")])


def written(folder: Path) -> Path:
    (file,) = baseline.add_all(folder, [allocation("good-0", launches=3)])
    return file


ODD = st.sampled_from(
    [None, True, -1, 0, 3, 2**70, 1e-300, 1e308, "", "x", "\x1b[2J", "2026-11-12T00:00:00+14:00", "0001-01-01", [], [1e-6] * 3, {}]
)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), ODD), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_altered_baseline_is_one_sentence_or_can_be_judged(tmp_path: Path, edits: list[tuple[int, int, Any]]) -> None:
    (tmp_path / GOOD).unlink(missing_ok=True)
    file = written(tmp_path)
    actual = [json.loads(line) for line in file.read_text().splitlines()]
    for line, place, value in edits:
        names = list(actual[line]) if line == 0 else range(len(actual[line]))
        actual[line][names[place % len(names)]] = value
    file.write_text("\n".join(map(json.dumps, actual)))
    try:
        (odd,) = baseline.load(tmp_path).allocations
        around = baseline.Baseline(tmp_path, [*(allocation(f"good-{number}", launches=3) for number in range(1, 5)), odd])
        verdict = judged(allocation("new"), baseline=around)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert verdict.result in ("passed", "no verdict", "wrong data")
        assert json.dumps(document(verdict))
        assert [line.text for line in baseline_lines(around, "table")]


def test_files_that_cannot_be_an_allocation_are_rejected(tmp_path: Path) -> None:
    baseline.add_all(tmp_path, [allocation("good-0")])
    head = (tmp_path / GOOD).read_bytes().partition(b"\n")[0]
    for more, words in ((b"[" + b"[]," * (1 << 23) + b"1]", "values"), (b"\n" * ((1 << 20) + 1), "cases"), (b"[" * 100_000, "recursion")):
        (tmp_path / GOOD).write_bytes(head + b"\n" + more + b"\n")
        with pytest.raises(UsageError, match=rf"good-0.*{words}"):
            baseline.load(tmp_path)


def test_nothing_or_a_pipe_in_place_of_a_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(str(tmp_path))} "):
        baseline.load(tmp_path)
    os.mkfifo(tmp_path / GOOD)
    with pytest.raises(UsageError, match="pipe"):
        baseline.load(tmp_path)
    assert baseline.head_of(tmp_path / GOOD) is None


# Classes by size, groups, and medians over what is known.


def test_size_classes_have_the_bounds_of_the_protocol_and_groups_names_members_and_medians() -> None:
    classes = {size: baseline.size_class(size) for size in (0, 16 << 10, (16 << 10) + 1, 1 << 20, (1 << 20) + 1)}
    assert list(classes.values()) == ["small", "small", "mid", "mid", "large"]
    assert str(baseline.CaseGroup("nccl", "allreduce", "small")) == "allreduce on nccl, small messages"
    a, b = baseline.CaseGroup("mpi", "allreduce", "small"), baseline.CaseGroup("mpi", "allreduce", "large")
    scheme = baseline.Scheme.of_cases([a, b, a, b, a])
    assert [cases.tolist() for cases in scheme.members] == [[0, 2, 4], [1, 3]]
    values = np.array([1.0, 10.0, 3.0, np.nan, 2.0])
    assert scheme.medians(values).tolist() == [2.0, 10.0]
    assert scheme.means(values).tolist() == [2.0, 10.0]


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=9))
@settings(max_examples=60, deadline=None)
def test_the_known_median_is_numpys_over_what_is_known(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    known = array[np.isfinite(array)]
    found = baseline.known_median(array)
    assert np.isnan(found) if not len(known) else float(found) == pytest.approx(float(np.median(known)))


# Allocations of one job of the scheduler are not independent: noise repeats within a job.


def jobs_of(folder: Path, *environments: Any) -> tuple[str, ...]:
    runs = [store(folder / str(n), [make_row(8)], allocation_id="night", environment=each) for n, each in enumerate(environments)]
    return allocation_from([read_run(each) for each in runs]).jobs


def test_a_job_is_identified_by_its_cluster_and_number(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "testbed"}
    assert jobs_of(tmp_path / "a", slurm, slurm) == JOB
    assert jobs_of(tmp_path / "b", {"PBS_JOBID": "7.head"}, {"LSB_JOBID": "9"}) == ("PBS job 7.head", "LSF job 9")
    assert jobs_of(tmp_path / "c", {}, None, {"SLURM_CLUSTER_NAME": "testbed"}, {"SLURM_JOB_ID": 12}, {"SLURM_JOB_ID": "1" * 300}) == ()


def test_a_job_counts_once_but_launches_may_be_of_many() -> None:
    own = judged(*(replace(slow(name), jobs=(f"Slurm job {name}",)) for name in "abc"))
    assert own.result == "regression"
    verdict = judged(*(replace(slow(name), jobs=JOB) for name in "abc"))
    assert (verdict.result, {each.state for each in verdict.suspicions}) == ("no verdict", {"suspected"})
    assert verdict.reasons[0] == SameJob("a", "b", *JOB)
    # srun outside an allocation makes a job for each launch.
    assert judged(replace(allocation("new"), jobs=("Slurm job 1", "Slurm job 2"))).result == "passed"
    verdict = judged(allocation("new", jobs=JOB), baseline=base(replace(BASE.allocations[0], jobs=JOB), *BASE.allocations[1:]))
    assert (verdict.result, verdict.reasons[0]) == ("no verdict", SameJobAsBaseline("new", "good-0", *JOB))


def test_a_baseline_accepts_a_job_once_and_the_verdict_notes_a_repeated_one(tmp_path: Path) -> None:
    first, second = (replace(allocation(f"good-{number}", launches=number + 1), jobs=JOB) for number in range(2))
    baseline.add_all(tmp_path, [first])
    assert baseline.load(tmp_path).allocations == [first]
    verdict = judged(allocation("new"), baseline=base(first, second, *BASE.allocations[2:]))
    assert verdict.notes[0] == BaselineOfOneJob("good-0", "good-1", *JOB)
