"""Runs the tests of each mutant in a copy of the project, and counts which mutants they detect."""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from mutation.copy import check_import, copy_project, environment, python_of
from mutation.mutant import DoesNotApply, Mutant

# Left out: tests that `make test` samples, and those that need a cluster on this machine. What is detected is detected by every run.
_SELECTED = "not in_turn and not long and not slurm and not hosts"
_PASSED, _FAILED, _INTERRUPTED = 0, 1, 2  # exit codes of pytest; a module that cannot be imported interrupts it


class Outcome(StrEnum):
    """The result of the tests with a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    NOT_APPLIED = "does not apply"
    TIMED_OUT = "times out"
    BROKEN = "tests cannot run"


@dataclass(frozen=True)
class Result:
    """One mutant's outcome. seconds: that its tests took; detail: the first failed test, or why the outcome is missing."""

    id: str
    package: str
    outcome: Outcome
    seconds: float = 0.0
    detail: str = ""


class BaselineError(RuntimeError):
    """The tests fail without any mutant; the text is the end of pytest's output."""


@contextmanager
def copies(root: Path, number: int) -> Iterator[list[Path]]:
    """Make so many copies of the project, removed at the end. Raises CopyError where tests would not import them."""
    with ExitStack() as stack:
        found = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="collbench-mutants-"))) for _ in range(number)]
        for copy in found:
            copy_project(root, copy)
            check_import(copy)
        yield found


def check_baseline(copy: Path, mutants: Sequence[Mutant], timeout_s: float) -> float:
    """Run the tests of all these mutants without a mutant; return the seconds. Raises BaselineError unless they pass."""
    tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    began = time.monotonic()
    try:
        code, output = _pytest(copy, tests, timeout_s)
    except subprocess.TimeoutExpired as error:
        raise BaselineError(f"they did not end within {timeout_s:g} s") from error
    if code != _PASSED:
        raise BaselineError(output[-3000:])
    return time.monotonic() - began


def run_all(found: Sequence[Path], mutants: Sequence[Mutant], timeout_s: float, done: Callable[[Result], None]) -> list[Result]:
    """Run each mutant in one of the copies; `done` is called for each result. The order of the list is kept."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for copy in found:
        free.put(copy)

    def one(mutant: Mutant) -> Result:
        copy = free.get()
        try:
            result = run_one(copy, mutant, timeout_s)
        finally:
            free.put(copy)
        done(result)
        return result

    with ThreadPoolExecutor(len(found)) as pool:
        return list(pool.map(one, mutants))


def run_one(copy: Path, mutant: Mutant, timeout_s: float) -> Result:
    """Apply a mutant in the copy, run its tests, restore the source."""
    source = copy / mutant.file
    original = source.read_bytes() if source.is_file() else b""
    try:
        changed = mutant.applied(original.decode("utf-8"))
    except DoesNotApply as error:
        return Result(mutant.id, mutant.package, Outcome.NOT_APPLIED, detail=str(error))
    began = time.monotonic()
    try:
        source.write_text(changed, encoding="utf-8")
        outcome, detail = outcome_of(*_pytest(copy, mutant.tests, timeout_s))
    except subprocess.TimeoutExpired:
        outcome, detail = Outcome.TIMED_OUT, f"{timeout_s:g} s"
    finally:
        source.write_bytes(original)
    return Result(mutant.id, mutant.package, outcome, round(time.monotonic() - began, 1), detail)


def outcome_of(code: int, output: str) -> tuple[Outcome, str]:
    """Return what an exit code of pytest means, and the line of its output that shows it."""
    if code == _PASSED:
        return Outcome.SURVIVED, ""
    lines = output.strip().splitlines()
    if code in (_FAILED, _INTERRUPTED):
        return Outcome.KILLED, next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "")[:200]
    return Outcome.BROKEN, f"pytest ended with {code}: {lines[-1] if lines else 'no output'}"[:200]


def _pytest(copy: Path, tests: Sequence[str], timeout_s: float) -> tuple[int, str]:
    command = [str(python_of(copy)), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", _SELECTED, *tests]
    process = subprocess.Popen(
        command, cwd=copy, env=environment(copy), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        raise
    return process.returncode, output


def _end(process: subprocess.Popen[str]) -> None:
    """End pytest and what it has started: all of them are in a session of their own."""
    import os
    import signal

    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def share(results: Sequence[Result]) -> float | None:
    """Return the percentage of mutants that were detected, of those that ran; None where none ran.

    A mutant that makes tests hang is detected: a test run would not pass.
    """
    counts = Counter(result.outcome for result in results)
    detected = counts[Outcome.KILLED] + counts[Outcome.TIMED_OUT]
    ran = detected + counts[Outcome.SURVIVED]
    return 100 * detected / ran if ran else None


def table(results: Sequence[Result]) -> str:
    """Return the counts per package as a table of Markdown, and the mutants that survived."""
    shown = [outcome for outcome in Outcome if outcome is not Outcome.BROKEN or any(each.outcome is outcome for each in results)]
    lines = [f"| package | {' | '.join(shown)} | detected |", f"|---|{'---|' * len(shown)}---|"]
    packages = sorted({result.package for result in results})
    for package in packages:
        lines.append(_line(package, [result for result in results if result.package == package], shown))
    lines.append(_line("**all**", results, shown))
    rest = [each for each in results if each.outcome not in (Outcome.KILLED, Outcome.TIMED_OUT)]
    lines += ["", *(f"- {each.outcome}: `{each.id}`{f': {each.detail}' if each.detail else ''}" for each in rest)]
    return "\n".join(lines).rstrip() + "\n"


def _line(name: str, results: Sequence[Result], shown: Sequence[Outcome]) -> str:
    counts, percent = Counter(result.outcome for result in results), share(results)
    return f"| {name} | {' | '.join(str(counts[each]) for each in shown)} | {'–' if percent is None else f'{percent:.1f} %'} |"


def store(folder: Path, results: Sequence[Result], head: str) -> None:
    """Write MUTANTS.md and mutants.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MUTANTS.md").write_text(f"{head}\n\n{table(results)}", encoding="utf-8")
    document = {"schema": 1, "share_percent": share(results), "results": [asdict(result) for result in results]}
    (folder / "mutants.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
