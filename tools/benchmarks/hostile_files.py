"""Files of every kind that collbench reads, one or several of them altered; every command that reads them, and its requirements.

For any content of a file, a command ends with a documented exit code or one error. Nothing that it prints or writes can control a
terminal, be a formula, or run in a browser.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from collbench.cli.main import run as command
from collbench.errors import CollbenchError
from collbench.gating.baseline import head_of, load
from collbench.gating.conditions import read_expected
from collbench.operations.suite import read_suite
from collbench.plugin import plugins
from collbench.report.baseline import baseline_lines
from collbench.report.compare import compare_runs
from collbench.report.runs import report_run
from tests.report import test_hostile as letters
from tools.benchmarks import mutations
from tools.benchmarks.example_files import CHANGES, Files, Folder

_LARGEST = 1 << 20  # size in bytes up to which a file is altered again
_BOLD = "**Changes since the last good allocation**"


@dataclass(frozen=True)
class Played:
    """One case: the alteration and its file, and the names of the commands that ended with a code, or rejected it with an error."""

    altered: str
    shown: Sequence[str]
    refused: Sequence[str]


class Broken(Exception):
    """What a command printed or wrote that it must not."""


def play(number: int, files: Files, folder: Path) -> Played:
    """Plays the case of that number in an empty folder. Raises Broken for a forbidden output, and unexpected exceptions of a command."""
    draw = random.Random(f"folder_fuzz {number}")
    kind = draw.choices(list(_KINDS), weights=[weight for weight, _ in _KINDS.values()])[0]
    shown: list[str] = []
    refused: list[str] = []

    def calls(name: str, call: Callable[[io.StringIO, io.StringIO], object]) -> None:
        (shown if _called(call) else refused).append(name)

    altered = _KINDS[kind][1](files, folder, draw, calls)
    return Played(f"{kind}: {altered}", shown, refused)


Calls = Callable[[str, Callable[[io.StringIO, io.StringIO], object]], None]


def _called(call: Callable[[io.StringIO, io.StringIO], object]) -> bool:
    """Whether it came to a result; False: it refused with a sentence."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            call(out, err)
    except CollbenchError as error:
        said = str(error)
        if not said.strip() or len(said) > 20_000:
            raise Broken(f"a sentence of {len(said)} letters") from error
        return False
    finally:
        _check_letters(out.getvalue().replace("\r\n", "\n"))
        _check_letters(err.getvalue())
    return True


def _check_letters(text: str) -> None:
    if text.isascii() and text.replace("\n", "").isprintable():
        return
    bad = sorted({letter for letter in text if letter != "\n" and (unicodedata.category(letter) in ("Cc", "Cs", "Cf"))})
    if bad:
        raise Broken(f"printed {bad[:5]!r}")


def _alter(folder: Path, names: Sequence[str], draw: random.Random) -> str:
    """Alter one to three of the files; mostly their content, seldom their kind."""
    actual = []
    for name in draw.sample(sorted(names), min(len(names), draw.choice((1, 1, 1, 2, 3)))):
        path, kind = folder / name, draw.random()
        if kind < 0.06:
            actual.append(f"{name} is {mutations.of_file(path, draw)}")
            continue
        change = mutations.of_json if kind < 0.6 and name.endswith((".json", ".jsonl")) else mutations.of_bytes
        data = path.read_bytes()
        for _ in range(draw.choice((1, 1, 1, 3, 20))):
            data = change(data, draw) if len(data) < _LARGEST else data
        path.write_bytes(data)
        actual.append(f"{name} by {change.__name__}")
    return ", ".join(actual)


def _put(folder: Path, files: Folder) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def _of_run(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    original = draw.choice(files.runs)
    run = _put(folder / "run", original)
    altered = _alter(run, list(original), draw)
    _reports([run], folder, draw, calls)
    if draw.random() < 0.2:
        before, form = _put(folder / "before", original), draw.choice(("table", "csv", "json", "markdown"))
        pair = (before, run) if draw.random() < 0.5 else (run, before)
        calls(f"compare {form}", lambda out, err: compare_runs(*pair, form, out))
    return altered


def _of_launches(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    original = draw.choice(files.runs[:5])
    for number in (1, 2, 3):
        info = json.loads(original["run.json"]) | {"allocation_id": "a", "launches": 3, "launch_index": number, "id": f"r{number}",
                                                   "started_utc": f"2026-11-2{number}T00:00:00.000Z"}  # fmt: skip
        _put(folder / "all" / f"launch-{number}", {**original, "run.json": json.dumps(info).encode()})
    altered = _alter(folder / "all" / f"launch-{draw.choice((1, 2, 3))}", list(original), draw)
    _reports([folder / "all"], folder, draw, calls)
    calls("baseline add", lambda out, err: command(["baseline", "add", str(folder / "kept"), str(folder / "all")]))
    return altered


def _reports(runs: Sequence[Path], folder: Path, draw: random.Random, calls: Calls) -> None:
    """Every form of a report; the page seldom, since drawing it takes a hundred times as long."""
    files = {name: folder / f"out.{name}" for name in ("csv", "markdown", "openmetrics")}
    if draw.random() < 0.01:
        files["html"] = folder / "out.html"
    form = draw.choice(("table", "table", "nccl-tests", "json"))
    calls(f"report {form}", lambda out, err: report_run(runs, files.pop("csv"), form, out, err=err, **files))
    _check_written(folder, draw)


def _check_written(folder: Path, draw: random.Random) -> None:
    """As `tests/report/test_hostile.py` does with texts that are everywhere; what takes longer to read than to write, not each time."""
    checks = [("csv", letters.check_csv), ("html", letters.check_html)]
    if draw.random() < 0.2:
        checks += [("openmetrics", letters.check_openmetrics), ("markdown", _check_markdown)]
    for name, check in checks:
        path = folder / f"out.{name}"
        if path.is_file():
            _checked(check, path.read_bytes().decode())


def _check_markdown(text: str) -> None:
    """The gate's has parts that open and words in bold, which are the only markup that it may have beyond a report's."""
    if len(text) < 50_000:
        lines = [line.removeprefix(_BOLD) for line in text.split("\n") if not line.startswith(("<details><summary>", "</details>"))]
        letters.check_markdown("\n".join(lines))


def _checked(check: Callable[[str], None], text: str) -> None:
    try:
        check(text)
    except AssertionError as error:
        raise Broken(f"{check.__name__}: {str(error)[:300]}") from error


def _of_baseline(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    baseline = _put(folder / "baseline", files.baseline)
    altered = _alter(baseline, list(files.baseline), draw)
    for file in sorted(baseline.glob("*")):
        head_of(file)
    form = draw.choice(("table", "json"))
    calls("baseline show", lambda out, err: out.writelines(f"{line.text}\n" for line in baseline_lines(load(baseline), form)))
    if draw.random() < 0.3:
        calls("history", lambda out, err: command(["history", str(baseline)]))
    return altered


def _of_gate(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    baseline, candidate = _put(folder / "baseline", files.baseline), folder / "candidate"
    for launch, content in files.candidate.items():
        _put(candidate / launch, content)
    launch = draw.choice(sorted(files.candidate))
    altered = _alter(candidate / launch, list(files.candidate[launch]), draw)
    files_out = [word for name in ("out", "junit", "markdown", "openmetrics") for word in (f"--{name}", str(folder / f"out.{name}"))]
    form = draw.choice(("table", "json", "github"))
    calls("gate", lambda out, err: command(["gate", "--baseline", str(baseline), str(candidate), "--format", form, *files_out]))
    _check_written(folder, draw)
    return altered


def _of_verdict(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    _put(folder / "gate", {"verdict.json": draw.choice(files.verdicts)})
    altered = _alter(folder / "gate", ["verdict.json"], draw)
    form = draw.choice(("table", "json", "github"))
    files_out = [word for name in ("junit", "markdown", "openmetrics") for word in (f"--{name}", str(folder / f"out.{name}"))]
    line = ["gate", "--verdict", str(folder / "gate" / "verdict.json"), "--format", form, *files_out]
    calls("gate --verdict", lambda out, err: command(line))
    _check_written(folder, draw)
    return altered


def _of_peer(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    name = draw.choice(sorted(files.peers))
    _put(folder / "peer", {name: files.peers[name]})
    altered = _alter(folder / "peer", [name], draw)
    more = draw.choice(([], ["--ranks", "2"], ["--operation", "allreduce", "--ranks", "4"]))
    calls("import", lambda out, err: command(["import", str(folder / "peer" / name), "--out", str(folder / "run"), *more]))
    if (folder / "run").is_dir():
        _reports([folder / "run"], folder, draw, calls)
    return altered


def _of_suite(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    name = draw.choice(sorted(files.suites))
    _put(folder / "suite", {**files.suites, "changes.toml": CHANGES})
    altered = _alter(folder / "suite", [draw.choice((name, name, "changes.toml"))], draw)
    calls("run", lambda out, err: read_suite(str(folder / "suite" / name)))
    calls("gate --expect", lambda out, err: read_expected(folder / "suite" / "changes.toml"))
    return altered


def _of_topology(files: Files, folder: Path, draw: random.Random, calls: Calls) -> str:
    _put(folder / "node", files.topology)
    altered = _alter(folder / "node", list(files.topology), draw)
    form = draw.choice(("table", "json", "matrix"))
    calls("probe --from", lambda out, err: command(["probe", "--from", *map(str, sorted((folder / "node").iterdir())), "--format", form]))
    return altered


_KINDS: dict[str, tuple[float, Callable[[Files, Path, random.Random, Calls], str]]] = {
    "run": (80, _of_run), "launches": (5, _of_launches), "baseline": (4, _of_baseline), "gate": (1, _of_gate), "verdict": (3, _of_verdict),
    "peer": (4, _of_peer), "suite": (2, _of_suite), "topology": (1, _of_topology),
}  # fmt: skip
if "importers" not in plugins():
    del _KINDS["peer"]


def emptied(folder: Path) -> Path:
    """The folder without what an earlier case left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - one call
    return folder
