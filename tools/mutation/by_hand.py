"""The deliberate defects of tests/mutants.toml, which no tool would make: each is applied to a copy, and its tests have to fail."""

from __future__ import annotations

import ast
import subprocess
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.copy import check_import, copy_project, environment, python_of

LIST = Path("tests/mutants.toml")
_PASSED, _FAILED, _INTERRUPTED = 0, 1, 2  # exit codes of pytest; a module that cannot be imported interrupts it
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Mutant:
    """One deliberate defect.

    file     the source, relative to the project's folder
    before   text that occurs exactly once in the file; after: its replacement
    tests    test files or folders that mirror the source: at least one of their tests has to fail
    why      what would go wrong, one line
    """

    id: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    why: str


class UnusableError(RuntimeError):
    """The tests fail without any mutant, or cannot run; the text is the end of pytest's output."""


def read_list(root: Path) -> list[Mutant]:
    """Return the mutants of the list."""
    rows = tomllib.loads((root / LIST).read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def problems(root: Path, mutants: Sequence[Mutant]) -> Iterator[str]:
    """Yield a sentence for each entry that cannot be used: the quick check that the list still fits the sources."""
    for name, count in Counter(mutant.id for mutant in mutants).items():
        if count > 1:
            yield f"{name}: {count} entries have this id"
    for mutant in mutants:
        missing = [name for name in (mutant.file, *mutant.tests) if not (root / name).exists()]
        if missing or not mutant.tests:
            yield f"{mutant.id}: a source or test is missing: {missing}"
            continue
        text = (root / mutant.file).read_text(encoding="utf-8")
        if text.count(mutant.before) != 1:
            yield f"{mutant.id}: its text occurs {text.count(mutant.before)} times in {mutant.file}, not once"
        elif ast.dump(ast.parse(text)) == ast.dump(ast.parse(text.replace(mutant.before, mutant.after))):
            yield f"{mutant.id}: it changes nothing in the code"


def survivors(root: Path, mutants: Sequence[Mutant]) -> list[str]:
    """Run the tests of each mutant in a copy of the project, and return those that no test detects. Raises UnusableError."""
    with tempfile.TemporaryDirectory(prefix="collbench-mutants-") as folder:
        copy = Path(folder)
        copy_project(root, copy)
        check_import(copy)
        _passes(copy, sorted({test for mutant in mutants for test in mutant.tests}), expect_pass=True)
        return [f"{mutant.id}: {mutant.why}" for mutant in mutants if not is_detected(copy, mutant)]


def is_detected(copy: Path, mutant: Mutant) -> bool:
    """Apply a mutant in the copy, run its tests, restore the source; return whether a test failed, or did not end."""
    source = copy / mutant.file
    original = source.read_text(encoding="utf-8")
    source.write_text(original.replace(mutant.before, mutant.after), encoding="utf-8")
    try:
        return not _passes(copy, mutant.tests)
    except subprocess.TimeoutExpired:
        return True
    finally:
        source.write_text(original, encoding="utf-8")


def _passes(copy: Path, tests: Sequence[str], expect_pass: bool = False) -> bool:
    """Run tests in the copy and return whether they pass. Raises UnusableError if pytest cannot run, and subprocess.TimeoutExpired."""
    command = [str(python_of(copy)), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slurm and not hosts", *tests]
    done = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode not in (_PASSED, _FAILED, _INTERRUPTED) or (expect_pass and done.returncode != _PASSED):
        raise UnusableError((done.stdout + done.stderr)[-3000:])
    return done.returncode == _PASSED
