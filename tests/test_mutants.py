"""tools/mutants: the list still applies to the sources, and a small project's defects are counted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mutation import run
from mutation.copy import CopyError, check_import, copy_project
from mutation.mutant import LIST, DoesNotApply, ListError, Mutant, check, chosen, read_list
from mutation.run import BaselineError, Outcome, Result, check_baseline, copies, outcome_of, run_all, share, store, table

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[1]
PACKAGES = {path.name for path in (ROOT / "collbench").iterdir() if (path / "__init__.py").exists()}


def test_every_entry_of_the_list_applies_to_the_sources() -> None:
    mutants = read_list(ROOT)
    assert check(ROOT, mutants) == []
    assert len(mutants) >= 150 and {mutant.package for mutant in mutants} == PACKAGES | {"collbench"}


def test_no_entry_names_a_single_test() -> None:
    """A test that is selected by its name always runs, although `make test` may skip it."""
    assert not [mutant.id for mutant in read_list(ROOT) for test in mutant.tests if "::" in test]


ADD = "def add(a, b):\n    return a + b\n"


def mutant(**changes: object) -> Mutant:
    actual = {
        "id": "add",
        "file": "collbench/sums.py",
        "before": "a + b",
        "after": "a - b",
        "tests": ("tests/test_sums.py",),
        "why": "wrong sums",
    }
    return Mutant(**{**actual, **changes})  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one function, a test that tests it in part, and a list."""
    root = tmp_path / "project"
    for folder in ("collbench", "tests", "tools"):
        (root / folder).mkdir(parents=True)
    (root / "collbench/__init__.py").touch()
    (root / "collbench/testing").mkdir()
    for file in ("__init__.py", "plugin.py"):  # pytest loads the plug-in of the installed collbench
        (root / "collbench/testing" / file).touch()
    (root / "collbench/sums.py").write_text(ADD)
    (root / "tests/test_sums.py").write_text("from collbench.sums import add\n\n\ndef test_sums():\n    assert add(2, 2) == 4\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_mutants_are_run_in_a_copy_and_counted(project: Path) -> None:
    mutants = [
        mutant(),
        mutant(id="multiply", after="a * b"),
        mutant(id="gone", before="a / b"),
    ]
    actual: list[Result] = []
    with copies(project, 1) as found:
        assert check_baseline(found[0], mutants, 60) > 0
        results = run_all(found, mutants, 60, actual.append)
        assert (found[0] / "collbench/sums.py").read_text() == (project / "collbench/sums.py").read_text() == ADD
    assert not found[0].exists() and sorted(actual, key=str) == sorted(results, key=str)
    assert [result.outcome for result in results] == ["killed", "survived", "does not apply"]
    assert "test_sums" in results[0].detail and share(results) == 50
    store(project / "build", results, "# head")
    assert "| **all** | 1 | 1 | 1 | 0 | 50.0 % |" in (project / "build/MUTANTS.md").read_text()


def test_tests_that_never_end_detect_a_mutant_and_the_source_is_restored(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_ends(copy: Path, tests: object, timeout_s: float) -> tuple[int, str]:
        raise subprocess.TimeoutExpired("pytest", timeout_s)

    monkeypatch.setattr(run, "_pytest", never_ends)
    result = run.run_one(project, mutant(), 5)
    assert (result.outcome, share([result])) == (Outcome.TIMED_OUT, 100)
    assert (project / "collbench/sums.py").read_text() == ADD


def test_tests_that_fail_without_a_mutant_are_an_error(project: Path) -> None:
    (project / "tests/test_sums.py").write_text("def test_sums():\n    assert False\n")
    with copies(project, 1) as found, pytest.raises(BaselineError, match="assert False"):
        check_baseline(found[0], [mutant()], 60)


def test_a_copy_that_tests_would_not_import_is_rejected(project: Path, tmp_path: Path) -> None:
    copy_project(project, tmp_path / "copy")
    check_import(tmp_path / "copy")
    (tmp_path / "copy/collbench/__init__.py").unlink()
    (tmp_path / "copy/collbench/sums.py").unlink()
    with pytest.raises(CopyError, match="not the copy"):
        check_import(tmp_path / "copy")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"before": "a / b"}, "0 times in collbench/sums.py"),
        ({"before": "a"}, "3 times"),
        ({"after": "a +"}, "valid Python"),
        ({"after": "(a + b)"}, "nothing"),
        ({"tests": ()}, "(none named)"),
        ({"tests": ("tests/test_no.py",)}, "tests/test_no.py"),
        ({"file": "collbench/no.py"}, "collbench/no.py"),
    ],
)
def test_an_entry_that_cannot_be_used_is_reported(project: Path, changes: dict[str, object], words: str) -> None:
    (found,) = check(project, [mutant(**changes)])
    assert found.startswith("add: ") and words in found
    (found,) = check(project, [mutant(), mutant()])
    assert found.startswith("add: 2 ")


def test_a_list_that_cannot_be_read_is_an_error(project: Path) -> None:
    for text in ("[[mutant", '[[mutant]]\nid = "x"\n'):
        (project / LIST).write_text(text)
        with pytest.raises(ListError, match=r"tests/mutants.toml"):
            read_list(project)


def test_only_some_of_them() -> None:
    found = [mutant(), mutant(id="other", file="collbench/plugins/hunt/judging.py")]
    assert [each.id for each in chosen(found, [])] == ["add", "other"]
    assert [each.id for each in chosen(found, ["plugins"])] == ["other"]
    assert [each.id for each in chosen(found, ["add", "plugins"])] == ["add", "other"]
    with pytest.raises(ListError, match="--only gate"):
        chosen(found, ["gate"])
    with pytest.raises(DoesNotApply):
        mutant().applied("")


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, Outcome.SURVIVED), (1, Outcome.KILLED), (2, Outcome.KILLED), (4, Outcome.BROKEN), (5, Outcome.BROKEN), (-9, Outcome.BROKEN)],
)
def test_the_outcome_for_each_exit_code_of_pytest(code: int, outcome: Outcome) -> None:
    found, detail = outcome_of(code, "FAILED tests/test_sums.py::test_sums\nlast line\n")
    assert (found, detail.startswith("FAILED")) == (outcome, outcome is Outcome.KILLED)


def test_mutants_that_could_not_run_do_not_count() -> None:
    results = [Result("a", "hunt", Outcome.KILLED), Result("b", "hunt", Outcome.NOT_APPLIED), Result("c", "gate", Outcome.BROKEN)]
    assert share(results) == 100 and share(results[1:]) is None
    assert "| gate | 0 | 0 | 0 | 0 | 1 | – |" in table(results) and "- does not apply: `b`" in table(results)
