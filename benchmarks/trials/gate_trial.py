"""One gate trial: its allocations, their evaluation, and what is stored."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trials.gate_done import Done, confirmed, drawn, right
from benchmarks.trials.gate_places import LINK_MBIT, RESHAPED_MBIT, Place
from collbench.gate.allocation import allocations_in
from collbench.gate.baseline import load
from collbench.gate.state import flipped, typical_probe_s
from collbench.units import parse_sizes
from tests.cli.command import ROOT, run
from tests.testbeds.bed import Finished

REPLACED = 2  # launches of an allocation, at most
AFRESH = 2  # most repetitions of an allocation with more changed launches than may be replaced
_CONFIRM = "confirm.toml"
_MOST = 5.0  # twice that is the largest slowdown of `--slowed`
_UNDECIDED, _FLIPPED = "undecided-", "flipped-"
_ANNOUNCED = """\
[[change]]
kind = "topology"
what = "*shaped*"
reason = "the shaper was set anew"
reviewer = "the trial"
expires = 9999-12-31
"""


@dataclass(frozen=True)
class Effort:
    """Allocations of a baseline, and launches of each allocation of the baseline and of the candidate."""

    allocations: int = 6
    baseline_launches: int = 3
    launches: int = 5


@dataclass(frozen=True)
class Trial:
    """A trial: its defect and its last verdict.

    confirmed  names of slower cells and groups; beside: those that the defect does not explain
    suspected  number of suspects of the first allocation
    right      whether the verdict is the expected one
    undecided  first allocations without a verdict, which were repeated (at most one)
    flipped    allocations repeated before their evaluation, since the state probe detected another machine state
    launches   of all allocations; replaced: how many of them replaced others
    seconds    of the whole trial; load: the machine's load average at its end
    """

    kind: str
    seed: int
    done: str
    result: str
    reasons: list[str]
    confirmed: list[str]
    beside: list[str]
    suspected: int
    cause: str | None
    right: bool
    undecided: int
    launches: int
    replaced: int
    seconds: float
    load: float
    flipped: int = 0

    def sentence(self) -> str:
        """ "by=10% …: regression (allreduce 4 MiB mpi)"."""
        named = ", ".join(self.confirmed) or "; ".join(self.reasons)
        return f"{self.done}: {self.result}{f' ({named})' if named else ''}{f', cause: {self.cause}' if self.cause else ''}"


@dataclass(frozen=True)
class Trials:
    """What trials of a place share: their folder, and the amount of measurements."""

    place: Place
    folder: Path
    effort: Effort = Effort()

    @property
    def baseline(self) -> Path:
        """Return the path of the place's baseline."""
        return self.folder / f"baseline-{self.place.name}"

    @property
    def suite(self) -> Path:
        """Return the path of the place's suite."""
        return self.folder / f"{self.place.name}.toml"

    def learn(self) -> None:
        """Measure the missing allocations of the baseline, and store the output of `baseline show` with it."""
        self.suite.write_text(self.place.suite)
        there = {each.name for each in load(self.baseline).allocations} if self.baseline.exists() else set[str]()
        for name in sorted({f"{self.place.name}-{number}" for number in range(self.effort.allocations)} - there):
            measured = self.folder / f"measured-{name}"
            shutil.rmtree(measured, ignore_errors=True)
            for number in range(self.effort.baseline_launches):
                self._launch(self.suite, measured / f"launch-{number + 1}", name)
            _collbench(self.folder, {0}, "baseline", "add", self.baseline.name, measured.name)
            shutil.rmtree(measured)
        shown = _collbench(self.folder, {0}, "baseline", "show", self.baseline.name)
        (self.folder / f"visible-{self.place.name}.txt").write_text(shown.stdout)

    def play(self, kind: str, seed: int) -> Trial:
        """Run a trial. Raises RuntimeError if a command ends with an unexpected code."""
        began, target = time.monotonic(), self.folder / f"{kind}-{seed}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        done = drawn(kind, seed, self._visible())
        self.place.reshape(LINK_MBIT if done.at_hosts is None else RESHAPED_MBIT, bool(done.at_hosts))
        try:
            first, last = self._judged(target, done)
        finally:
            self.place.reshape(LINK_MBIT, True)
        launches = [len(list(each.glob("launch-*"))) for each in _allocations(target)]
        undecided, flipped = (sum(each.name.startswith(mark) for each in _allocations(target)) for mark in (_UNDECIDED, _FLIPPED))
        archive(self.folder, target)
        found = confirmed(last)
        return Trial(
            kind, seed, done.words, last["result"], last["reasons"], [each["name"] for each in found],
            [each["name"] for each in found if not done.explains(each)], len(first["suspicions"]), last["cause"] and last["cause"]["kind"],
            right(kind, done, last), undecided, sum(launches), sum(count - self.effort.launches for count in launches),
            round(time.monotonic() - began, 1), round(os.getloadavg()[0], 1), flipped,
        )  # fmt: skip

    def _visible(self) -> dict[tuple[str, int], float]:
        """Return the smallest visible slowdown of `baseline show`, in percent, by backend and size, if `--slowed` can double it."""
        shown = _collbench(self.folder, {0}, "baseline", "show", self.baseline.name, "--format", "json").stdout
        cells = map(json.loads, shown.splitlines())
        return {
            (each["backend"], each["size_bytes"]): 100 * each["visible_slowdown"]
            for each in cells
            if 0 < (each["visible_slowdown"] or 0) <= _MOST
        }

    def _judged(self, target: Path, done: Done) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the verdict on the first allocation and that on all. A first allocation without a verdict is repeated once."""
        expect = ("--expect", "expected.toml") if done.at_hosts else ()
        if expect:
            (target / "expected.toml").write_text(_ANNOUNCED)
        self._allocation(target / "1-first", self.suite, done)
        first = last = self._gate(target, "verdict-of-first.json", *expect, "--confirm-suite", _CONFIRM)
        if first["result"] == "no verdict" and not (target / _CONFIRM).exists():
            (target / "1-first").rename(target / f"{_UNDECIDED}1-first")
            self._allocation(target / "1-fresh", self.suite, done)
            first = last = self._gate(target, "verdict-of-first.json", *expect, "--confirm-suite", _CONFIRM)
        if (target / _CONFIRM).exists():
            for name in ("2-again", "3-again"):
                self._allocation(target / name, target / _CONFIRM, done)
            last = self._gate(target, "verdict.json", *expect)
        return first, last

    def _gate(self, target: Path, out: str, *more: str) -> dict[str, Any]:
        runs = [each.name for each in _allocations(target) if not each.name.startswith((_UNDECIDED, _FLIPPED))]
        _collbench(target, {0, 1, 3}, "gate", "--baseline", f"../{self.baseline.name}", "--out", out, *more, *runs)
        found: dict[str, Any] = json.loads((target / out).read_text())
        return found

    def _allocation(self, out: Path, suite: Path, done: Done) -> None:
        """Measure one allocation; repeat it while the state probe alone prevents its evaluation. Its figures do not matter for that."""
        self._measured(out, suite, done)
        for number in range(AFRESH):
            if self._steady(out) >= self.effort.launches:
                return
            out.rename(out.with_name(f"{_FLIPPED}{out.name}-{number + 1}"))
            self._measured(out, suite, done)

    def _measured(self, out: Path, suite: Path, done: Done) -> None:
        """Measure an allocation; launches in another machine state are kept, and further launches replace them."""
        name = f"{out.parent.name}-{out.name}"
        slowed = done.spec if set(done.sizes) & sizes_in(suite, done.backend) else ""
        for number in range(self.effort.launches):
            self._launch(suite, out / f"launch-{number + 1}", name, slowed)
        for number in range(self.effort.launches, self.effort.launches + REPLACED):
            if self._steady(out) < self.effort.launches:
                self._launch(suite, out / f"launch-{number + 1}", name, slowed)

    def _steady(self, measured: Path) -> int:
        """Return the number of launches in the baseline's machine state, by the state probe; all if there is none."""
        usual = typical_probe_s(load(self.baseline).allocations)
        return sum(not each for allocation in allocations_in([measured]) for each in flipped(allocation, usual))

    def _launch(self, suite: Path, out: Path, allocation: str, slowed: str = "") -> None:
        slower = ("--slowed", slowed) if slowed else ()
        where = ("--out", str(out), "--allocation", allocation)
        done = self.place.launch(["run", str(suite), *self.place.options, *where, *slower, "--quiet"])
        if done.returncode:
            raise RuntimeError(f"{out} ended with {done.returncode}: {done.stderr}")


def sizes_in(suite: Path, backend: str) -> set[int]:
    """Return the sizes that a suite measures over a backend; `--slowed` rejects others."""
    sweeps = [each for each in tomllib.loads(suite.read_text())["sweeps"] if backend in each["backends"]]
    listed = (each["sizes"] if isinstance(each["sizes"], list) else [each["sizes"]] for each in sweeps)
    return {size for sizes in listed for size in parse_sizes(",".join(map(str, sizes)))}


def archive(folder: Path, target: Path) -> None:
    """Archive the files of a trial's runs that the gate reads; commands have only the last part of the folder's path."""
    with tarfile.open(target / "runs.tar.xz", "w:xz") as packed:
        for file in _read_by_gate(target):
            file.write_text(file.read_text().replace(str(folder), "gate-trials").replace(str(ROOT), "/opt/collbench"))
            packed.add(file, file.relative_to(target))
    for each in _allocations(target):
        shutil.rmtree(each)


def _read_by_gate(target: Path) -> Iterator[Path]:
    return (file for each in _allocations(target) for file in sorted(each.rglob("*")) if file.suffix in (".json", ".jsonl"))


def _allocations(target: Path) -> Sequence[Path]:
    return sorted(each for each in target.iterdir() if each.is_dir())


def _collbench(folder: Path, codes: set[int], *words: str) -> Finished:
    done = run(folder, *words)
    if done.returncode not in codes:
        raise RuntimeError(f"collbench {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done
