"""tools/mutants: the hand-made list still applies to the sources, and results are counted and described."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mutation.by_hand import Mutant, UnusableError, problems, read_list, survivors
from mutation.by_tool import MODULES, described, sampled
from mutation.copy import CopyError, check_import, copy_project
from mutation.result import Result, change, read_reasons, store, stored, table

ROOT = Path(__file__).parents[1]
ADD = "def add(a, b):\n    return a + b\n"
MUTANT = Mutant("add", "collbench/sums.py", "a + b", "a - b", ("tests/test_sums.py",), "wrong sums")


def test_every_entry_of_the_list_applies_to_the_sources() -> None:
    mutants = read_list(ROOT)
    assert list(problems(ROOT, mutants)) == []
    assert 50 <= len(mutants) <= 70 and not [mutant.id for mutant in mutants for test in mutant.tests if "::" in test]


def test_every_module_has_sources_and_tests() -> None:
    for module in MODULES.values():
        assert all(list((ROOT / "collbench").glob(pattern)) for pattern in module.sources + module.texts)
        assert all((ROOT / "tests" / name.partition("::")[0]).exists() for name in module.tests + module.left)
    assert set(read_reasons(ROOT)) <= {*MODULES, "all"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one function, and a test that tests it in part."""
    root = tmp_path / "project"
    for folder in ("collbench", "tests", "scripts"):
        (root / folder).mkdir(parents=True)
    (root / "collbench/__init__.py").touch()
    (root / "collbench/testing").mkdir()
    for file in ("__init__.py", "plugin.py"):  # pytest loads the plug-in of the installed collbench
        (root / "collbench/testing" / file).touch()
    (root / "collbench/sums.py").write_text(ADD)
    (root / "tests/test_sums.py").write_text("from collbench.sums import add\n\n\ndef test_sums():\n    assert add(2, 2) == 4\n")
    return root


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"before": "a / b"}, "0 times"), ({"before": "a"}, "3 times"), ({"after": "(a + b)"}, "nothing"), ({"tests": ()}, "missing"),
        ({"tests": ("tests/test_no.py",)}, "tests/test_no.py"), ({"file": "collbench/no.py"}, "collbench/no.py"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_used_is_reported(project: Path, changes: dict[str, str], words: str) -> None:
    (problem,) = problems(project, [replace(MUTANT, **changes)])  # type: ignore[arg-type]
    assert problem.startswith("add: ") and words in problem
    (problem,) = problems(project, [MUTANT, MUTANT])
    assert problem.startswith("add: 2 ")


@pytest.mark.system
def test_mutants_of_the_list_are_run_in_a_copy(project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    assert survivors(project, [MUTANT, replace(MUTANT, id="multiply", after="a * b")]) == ["multiply: wrong sums"]
    assert (project / "collbench/sums.py").read_text() == ADD
    (project / "tests/test_sums.py").write_text("def test_sums():\n    assert False\n")
    with pytest.raises(UnusableError, match="assert False"):
        survivors(project, [MUTANT])


@pytest.mark.system
def test_a_copy_that_tests_would_not_import_is_rejected(project: Path, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    copy_project(project, tmp_path / "copy")
    check_import(tmp_path / "copy")
    (tmp_path / "copy/collbench/__init__.py").unlink()
    (tmp_path / "copy/collbench/sums.py").unlink()
    with pytest.raises(CopyError, match="not the copy"):
        check_import(tmp_path / "copy")


def test_a_sample_is_the_same_in_every_run_and_nearly_the_same_after_a_change() -> None:
    names = [f"module.x_f__mutmut_{number}" for number in range(200)]
    assert sampled(names, 50) == sampled(names[::-1], 50) and len(set(sampled(names, 50))) == 50
    assert len(set(sampled(names[20:], 50)) & set(sampled(names, 50))) >= 35
    assert sampled(names, None) == sorted(names)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("if a < b:", "if a <= b:", "`if a < b:` → `if a <= b:`"), ("f(first, second)", "f(first, )", "`f(first, second)` → `f(first, )`"),
        (f"{'x' * 40} + 1", f"{'x' * 40} - 1", f"`{'x' * 11} + 1` → `{'x' * 11} - 1`"), ("aa", "aaa", "`aa` → `aaa`"),
    ],
)  # fmt: skip
def test_a_change_is_shown_with_what_is_around(before: str, after: str, text: str) -> None:
    assert change(before, after) == text
    diff = f"# name: survived\n--- a\n+++ b\n@@ -1 +1 @@\n same\n-{before}\n+{after}\n"
    assert described("collbench.gating.rule.xǁLimitsǁvisible__mutmut_12", diff) == f"rule.Limits.visible: {text}"
    assert described("collbench.units.x__range__mutmut_3", diff) == f"units._range: {text}"


def test_the_table_has_the_share_of_each_module_and_the_reasons_of_survivors(tmp_path: Path) -> None:
    results = [Result("gate", 20, 300, ("rule.f: `a` → `b`", "rule.g: `c` → `d`"), "2026-11-30", "abc"), Result("units", 3, 3, (), "", "")]
    for result in results:
        store(tmp_path, result)
    assert stored(tmp_path) == results
    text = table(results, {"gate": {"rule.f": "equivalent"}}, ["hunt"])
    assert "| hunt | – | – | – | – | – | – | – |" in text
    assert "| gate | 20 | 18 | 2 | 90.0 % | 300 | 2026-11-30 | abc |" in text and "| units | 3 | 3 | 0 | 100.0 % | 3 |" in text
    assert "- rule.f: `a` → `b`: equivalent\n- rule.g: `c` → `d`: no reason yet" in text and text.count("## ") == 1
