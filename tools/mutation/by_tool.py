"""Runs mutmut on a module with the tests that mirror it, in a folder of its own: the working tree is not changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutation.result import change

# Each mutant's function is in `mutants` of the folder, where mutmut runs pytest. The folder has links to everything that tests read.
_COPIED = ("collbench", "tests", "pyproject.toml")  # mutmut copies these
_PYTEST = ("-p", "no:cacheprovider", "-p", "no:xdist")
# Mutants are forked from a process that has run the tests, which is fast. What tests or sources compute once is then without the mutant, so
# those that survive run again, forked from a process that has imported neither.
_PRELOADED = "preloaded.txt"
_FAST: dict[str, object] = {}
_SEPARATE: dict[str, object] = {"process_isolation": "forkserver", "forkserver_warmup": "import", "preload_modules_file": _PRELOADED}
_PACKAGES = ("pytest", "_pytest.assertion.rewrite", "numpy", "hypothesis.strategies", "msgspec", "rich.console", "jinja2", "zmq", "psutil")
# Lines with a text of three words or more: tests do not compare sentences, but the stored texts of tests/golden and tests/corpus do.
_SENTENCE = r'(?:^|[\s(\[{=,])f?"[^"]*\w [^"]*\w [^"]*"'
_DETECTED = ("killed", "timeout")  # with a mutant that makes tests hang, a test run does not pass
_OPEN = "not checked"
_NOTHING = "nothing"  # no mutant has this name


class ToolError(RuntimeError):
    """mutmut cannot run the mutants; the text is the end of its output."""


@dataclass(frozen=True)
class Module:
    """Sources (patterns below collbench) and the tests that mirror them.

    texts    sources whose strings other tests compare with stored texts: left out
    left     tests that start processes, or read sources: they cannot run with mutants
    kinds    which kinds of tests run
    """

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    texts: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    kinds: str = "unit"


_HUNT = ("candidates", "cover", "crosscheck", "drain", "growing", "isolation", "judging", "pair_statistics", "protocol", "recommendation")
MODULES = {
    "gate": Module(("gating/*",), ("gate",), texts=("gating/reasons.py",), left=("gate/test_replay.py",)),
    "hunt": Module(
        tuple(f"plugins/hunt/{name}.py" for name in (*_HUNT, "significance", "strategy")),
        ("plugins/hunt",),
        left=tuple(f"plugins/hunt/{name}" for name in ("measure", "browser", "html", "test_hunt_command.py")),
    ),
    "peak": Module(("machine/peak/*",), ("peak", "analysis/test_expected_time.py")),
    "doctor": Module(
        ("machine/doctor/*",),
        ("doctor",),
        left=("doctor/test_software.py::test_the_command_finds_them_in_the_environment_it_runs_in",),
        kinds="unit or contract",  # rules about software import it in another process
    ),
    "stats": Module(("stats/*",), ("stats",)),
    "units": Module(("units.py",), ("test_units.py",)),
    "engine": Module(
        ("measuring/engine.py", "measuring/sampling.py", "measuring/verification.py"),
        ("timing/test_sampling.py", "measure/test_engine.py", "measure/test_prepared_case.py"),
        kinds="contract",
    ),
    "records": Module(("records.py",), ("test_records.py",)),
    "importers": Module(("plugins/importers/*",), ("plugins/importers",), left=("plugins/importers/measure",)),
}


def run(root: Path, name: str, sample: int | None, resume: bool, jobs: int) -> tuple[int, int, list[str]]:
    """Run mutants of a module, all or so many.

    Return their number, the number of mutants there are, and the survivors. Raises ToolError.
    """
    folder = root / "build/mutants" / name
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    _prepare(root, folder, MODULES[name], _FAST)
    output = _mutmut(root, folder, "run", "--max-children", str(jobs), _NOTHING)  # generates them, and finds the tests of each function
    generated = sorted(_states(root, folder))
    if not generated or not (folder / "mutants/mutmut-stats.json").exists():
        raise ToolError(output[-3000:])
    chosen = sampled(generated, sample)
    output = _mutmut(root, folder, "run", "--max-children", str(jobs), *([] if sample is None else chosen))
    survivors = _survivors(root, folder, chosen)
    if survivors:
        _prepare(root, folder, MODULES[name], _SEPARATE)
        _add_tests_of_imports(folder / "mutants/mutmut-stats.json")
        output = _mutmut(root, folder, "run", "--max-children", str(jobs), *survivors)
        survivors = _survivors(root, folder, list(survivors))
    if any(state == _OPEN for _, state in survivors.items()):
        raise ToolError(output[-3000:])
    return len(chosen), len(generated), [described(mutant, _mutmut(root, folder, "show", mutant)) for mutant in survivors]


def _add_tests_of_imports(stats: Path) -> None:
    """Add all tests to functions that some test module calls while it is imported: mutmut has noted only the first test for these calls."""
    known = json.loads(stats.read_text(encoding="utf-8"))
    tests = list(known["duration_by_test"])
    by_function = known["tests_by_mangled_function_name"]
    known["tests_by_mangled_function_name"] = {name: tests if tests[0] in some else some for name, some in by_function.items()}
    stats.write_text(json.dumps(known), encoding="utf-8")


def _survivors(root: Path, folder: Path, mutants: Sequence[str]) -> dict[str, str]:
    """Return by mutant its state, of those that no test detected."""
    states = _states(root, folder)
    return {mutant: states[mutant] for mutant in mutants if states[mutant] not in _DETECTED}


def sampled(mutants: Sequence[str], number: int | None) -> list[str]:
    """Return so many of the mutants, all for None: the same ones in every run, and nearly the same ones after a change of the code."""
    by_digest = sorted(mutants, key=lambda mutant: hashlib.sha256(mutant.encode()).digest())
    return sorted(by_digest[:number])


def described(mutant: str, diff: str) -> str:
    """Return function and change of a mutant, whose name mutmut has from its module, class and function, and a number."""
    function = mutant.rpartition("__mutmut_")[0].removeprefix("collbench.")
    module, _, name = function.rpartition(".")
    readable = name.removeprefix("x").removeprefix("_").replace("ǁ", ".").lstrip(".")
    changed = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    before = "\n".join(line[1:] for line in changed if line.startswith("-"))
    after = "\n".join(line[1:] for line in changed if line.startswith("+"))
    return f"{module.rpartition('.')[2]}.{readable}: {change(before, after)}"


def _prepare(root: Path, folder: Path, module: Module, isolation: dict[str, object]) -> None:
    """Make the folder: links to the project, and a configuration for this module."""
    copy = folder / "mutants"
    copy.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    names = {name.partition("/")[0] for name in listed if name}
    for link in (*(folder / name for name in names - {"pyproject.toml"}), *(copy / name for name in names - set(_COPIED))):
        if not link.is_symlink():
            link.symlink_to(root / link.name)
    left_out = [f"--deselect=tests/{test}" if "::" in test else f"--ignore=tests/{test}" for test in module.left]
    marks = f"({module.kinds}) and not hosts and not slurm"
    settings: dict[str, object] = {
        "source_paths": ["collbench"],
        "only_mutate": [f"collbench/{source}" for source in module.sources],
        "do_not_mutate": [f"collbench/{source}" for source in module.texts],
        "pytest_add_cli_args_test_selection": [f"tests/{test}" for test in module.tests],
        "pytest_add_cli_args": [*_PYTEST, *left_out, "-m", marks],
        "do_not_mutate_patterns": [_SENTENCE],
        "timeout_constant": 5.0,  # times 15: a busy machine must not make a mutant a detected one
        "track_dependencies": False,
        "use_git_change_detection": False,
        **isolation,
    }
    (folder / _PRELOADED).write_text("\n".join(_PACKAGES), encoding="utf-8")
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    (folder / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *lines, ""]), encoding="utf-8")


def _mutmut(root: Path, folder: Path, *arguments: str) -> str:
    """Run mutmut in the folder and return its output. Processes that tests start import the mutants, too."""
    own = root / ".venv-mutants/bin/mutmut"
    program = own if own.exists() else Path(sys.executable).with_name("mutmut")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder / "mutants"), str(root / "tools")))}
    command = [str(program), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    ).stdout


def _states(root: Path, folder: Path) -> dict[str, str]:
    """Return by mutant what mutmut knows of it."""
    lines = _mutmut(root, folder, "results", "--all", "true").splitlines()
    return dict(line.strip().split(": ", 1) for line in lines if "__mutmut_" in line)
