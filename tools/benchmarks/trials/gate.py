"""python -m tools.benchmarks.trials.gate FOLDER [KIND… [N]]   checks that `collbench gate` finds what became slower, and nothing else.

Interleaved seeded trials of these kinds (all of them; N of each, by default the numbers in KINDS):
    same    no defect                                                            -> no alarm
    cell    a case, drawn, is slowed by 10 % (`--slowed`)                       -> it is found
    group   the large messages of a backend, drawn, are slowed by 5 %           -> the group is found
    link    the link gets nine tenths of its rate, at every other trial where the hosts see it (and it is announced)  -> named as the link
    twice   on shared memory a case is slowed by twice the smallest slowdown that `baseline show` printed for it      -> it is found
    half    likewise by half of that                                            -> it is not
Over two hosts joined by 500 Mbit/s, `srun -N2`, and between two ranks on this host. The command line
measures and evaluates every allocation: five launches; suspects are measured again, by the gate's suite, in two new allocations.
Launches in another machine state (state probe) are replaced, two of an allocation at most. If more launches changed their state, the
allocation is repeated before its evaluation, twice at most. A first allocation without a verdict is repeated once.

Writes to FOLDER the baselines, the output of `baseline show`, the verdicts of every trial and an archive of its runs, trials.jsonl and
a table (README.md). A trial that has a line is not repeated, so an interrupted series continues with the same baselines.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tarfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from collbench.gating.allocation import allocations_in
from collbench.gating.baseline import CaseGroup, load, size_class
from collbench.gating.rule import flipped, typical_probe_s
from collbench.units import parse_sizes
from tests.cli.command import run
from tests.testbeds import Hosts, SlurmBed
from tests.testbeds.bed import Finished
from tools.benchmarks.trials.series import BURST, ROOT, keep, shape, span, srun, trials_in

# Where trials are measured: two hosts on a link with a variable rate, or two ranks on this host's shared memory.

LINK_MBIT, RESHAPED_MBIT = 500, 450
_PATIENCE_S = 60
_UNTIL_PRECISE = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}


class Place(Protocol):
    """A place to measure: its name, the suite (TOML), and `options` that keep a launch short."""

    name: str
    suite: str
    options: Sequence[str]

    def launch(self, words: Sequence[str]) -> Finished:
        """Start all ranks once with `collbench WORDS`."""

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """Set the link's rate both ways; `at_hosts`: visible to the hosts, not only in the switch between them."""


class Link:
    """Two hosts of a test bed under Slurm: Gloo and MPI in one start, so that other work on the machine affects both."""

    name = "link"
    suite = (
        'schema = 1\ntitle = "the gate\'s trials over a link"\n\n[[sweeps]]\noperations = ["allreduce"]\n'
        'backends = ["gloo", "mpi"]\nsizes = ["4M", "8M", "16M"]\n'
    )
    # While a rank is held by `--slowed` the shaper saves up its burst, 4 ms at this rate: of smaller messages that would be all of 5 %.
    # An iteration of all cases takes 1 s, comparing what arrived twice that (other tests do it). Gloo's first sample is a slow one.
    options = ("-n", "3", "-w", "1", "-c", "0")

    def __init__(self, hosts: Hosts, bed: SlurmBed) -> None:
        self._hosts, self._bed = hosts, bed
        self.reshape(LINK_MBIT, at_hosts=True)

    def launch(self, words: Sequence[str]) -> Finished:
        """Start with srun. MPI uses the test bed's libfabric: with UCX, 8 MiB and more randomly take 1 or 1.5 times the link's time."""
        return srun(self._bed, ["-N2", "--mpi=pmi2"], words, timeout=_PATIENCE_S)

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """The lower of the rates that switch and host set is the link's."""
        for index in range(len(self._hosts.names)):
            shape(self._hosts, index, mbit, mbit if at_hosts else LINK_MBIT)


class Memory:
    """Two MPI ranks on this host, without a system launcher."""

    name = "memory"
    suite = (
        'schema = 1\ntitle = "the gate\'s trials on shared memory"\n\n[[sweeps]]\noperations = ["allreduce"]\n'
        'backends = ["mpi"]\nsizes = ["8", "512", "8K", "128K", "2M", "4M"]\n'
    )
    options = ("--max-time", "0.15", "--ranks", "2")

    def launch(self, words: Sequence[str]) -> Finished:
        """Start in a folder of its own."""
        with TemporaryDirectory() as folder:
            return run(Path(folder), *words, env=_UNTIL_PRECISE, timeout=_PATIENCE_S)

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """Do nothing: shared memory has no link."""


@contextmanager
def link() -> Iterator[Link]:
    """Yield the hosts and their Slurm. Raises Missing if this machine cannot run them."""
    with Hosts(2, f"{LINK_MBIT}mbit", BURST) as hosts, SlurmBed(hosts) as bed:
        yield Link(hosts, bed)


@contextmanager
def memory() -> Iterator[Memory]:
    """Yield this host."""
    yield Memory()


# The defect of a trial, drawn by its seed, and the verdict that is expected of it.

CASE_PERCENT, GROUP_PERCENT = 10.0, 5.0


@dataclass(frozen=True)
class Done:
    """The defect of a trial: a slowdown in percent of a backend's sizes, or of the link; neither: no defect.

    sizes     of allreduce, in bytes
    at_hosts  whether the hosts see the link's new rate; None: the link is unchanged
    """

    backend: str = ""
    sizes: tuple[int, ...] = ()
    percent: float = 0.0
    at_hosts: bool | None = None

    @property
    def spec(self) -> str:
        """Return the value for `--slowed`; "" without one."""
        sizes = ",".join(map(str, self.sizes))
        return f"by={self.percent:.4g}% operations=allreduce backends={self.backend} sizes={sizes}" if self.sizes else ""

    @property
    def words(self) -> str:
        """Return the text for a table."""
        if self.at_hosts is None:
            return self.spec or "no defect"
        return "link rate changed, visible to the hosts" if self.at_hosts else "link rate changed, hidden from the hosts"

    def explains(self, suspicion: Mapping[str, Any]) -> bool:
        """Whether this defect explains a suspicion of verdict.json: its case, its case's group, or anything over the link."""
        if self.at_hosts is not None:
            return True
        if suspicion["kind"] == "cell":
            return suspicion["cell"]["backend"] == self.backend and suspicion["cell"]["size_bytes"] in self.sizes
        return suspicion["kind"] == "group" and suspicion["name"] in self._groups()

    def _groups(self) -> set[str]:
        return {str(CaseGroup(self.backend, "allreduce", size_class(size))) for size in self.sizes}


def drawn(kind: str, seed: int, visible: Mapping[tuple[str, int], float]) -> Done:
    """Draw the defect of a trial; `visible` is the smallest visible slowdown, in percent, by backend and size."""
    (backend, size), percent = random.Random(f"{kind} {seed}").choice(sorted(visible.items()))
    if kind == "link":
        return Done(at_hosts=seed % 2 == 1)
    if kind == "group":
        large = sorted(one for name, one in visible if name == backend and size_class(one) == "large")
        return Done(backend, tuple(large), GROUP_PERCENT)
    if kind in ("twice", "half"):
        return Done(backend, (size,), percent * (2 if kind == "twice" else 0.5))
    return Done(backend, (size,), CASE_PERCENT) if kind == "cell" else Done()


def confirmed(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the confirmed suspicions."""
    return [each for each in verdict["suspicions"] if each["state"] == "confirmed"]


def right(kind: str, done: Done, verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict is the expected one for this defect."""
    if kind == "same":
        return verdict["result"] != "regression"
    explained = [each for each in confirmed(verdict) if done.explains(each)] if verdict["result"] == "regression" else []
    if kind == "link":
        return bool(explained) and verdict["cause"] is not None and verdict["cause"]["kind"] == "link"
    if kind == "group":
        return any(each["kind"] == "group" for each in explained)
    return bool(explained) == (kind != "half")


# One trial: its allocations, their evaluation, and what is stored.

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

    confirmed  names of slower cases and groups; beside: those that the defect does not explain
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
        cases = map(json.loads, shown.splitlines())
        return {
            (each["backend"], each["size_bytes"]): 100 * each["visible_slowdown"]
            for each in cases
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


# The series.

KINDS = {"same": 20, "cell": 10, "group": 10, "link": 10, "twice": 10, "half": 10}
ON_MEMORY = ("twice", "half")
WHAT = {
    "same": ("none", "no alarm"),
    "cell": ("a cell 10 % slower", "found"),
    "group": ("large messages of a backend 5 % slower", "found"),
    "link": ("the link 500 → 450 Mbit/s", "found, named as the link"),
    "twice": ("a cell slower by twice the visible slowdown", "found"),
    "half": ("a cell slower by half of that", "not found"),
}


def wanted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return kinds and seeds, each kind spread evenly over the series, so that other work on the machine affects all kinds alike."""
    return [
        (kind, seed)
        for _, kind, seed in sorted(((seed + 0.5) / count, kind, seed) for kind, count in counts.items() for seed in range(count))
    ]


def series(folder: Path, counts: Mapping[str, int]) -> Iterator[Trial]:
    """Run the trials that are missing; yield each one after it is stored in the folder.

    Raises Missing if this machine cannot run the test bed, RuntimeError if a command ends with an unexpected code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = {(trial.kind, trial.seed) for trial in trials_in(folder, Trial)}
    with ExitStack() as stack:
        places: dict[bool, Trials] = {}
        for kind, seed in (each for each in wanted(counts) if each not in done):
            on_memory = kind in ON_MEMORY
            if on_memory not in places:
                places[on_memory] = Trials(stack.enter_context(memory() if on_memory else link()), folder)
                places[on_memory].learn()
            trial = places[on_memory].play(kind, seed)
            keep(folder, trial, readme)
            yield trial


def table(trials: Sequence[Trial]) -> str:
    """Return the outcomes as Markdown, with every wrong or undecided trial."""
    lines = [
        "| defect | trials | expected | as expected | other alarms | no verdict | launches each | seconds each |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(kind, those) for kind in KINDS if (those := [trial for trial in trials if trial.kind == kind])]
    wrong = [
        f"- {trial.kind} {trial.seed}: {trial.sentence()}"
        for trial in trials
        if not trial.right or trial.beside or trial.result == "no verdict"
    ]
    return "\n".join([*lines, *([""] if wrong else []), *wrong])


def _line(kind: str, trials: Sequence[Trial]) -> str:
    results = Counter(trial.result for trial in trials)
    right, beside = sum(trial.right for trial in trials), sum(bool(trial.beside) for trial in trials)
    spans = [span([trial.launches for trial in trials]), span([round(trial.seconds) for trial in trials])]
    what, aim = WHAT[kind]
    return f"| {' | '.join([what, str(len(trials)), aim, str(right), str(beside), str(results['no verdict']), *spans])} |"


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README."""
    replaced, undecided, flipped = (sum(getattr(trial, what) for trial in trials) for what in ("replaced", "undecided", "flipped"))
    effort = Effort()
    return "\n".join(
        [
            "# Trials of the gate",
            "",
            f"Made by `python -m tools.benchmarks.trials.gate FOLDER` on {os.cpu_count()} cores. Baselines of {effort.allocations}",
            f"allocations of {effort.baseline_launches} launches; {effort.launches} launches in each evaluated allocation. {replaced} more",
            f"launches replaced those in which the state probe detected another machine state (at most {REPLACED} per allocation).",
            f"Measured again: {flipped} allocations before their evaluation, since more of their launches had another state (each at most",
            f"{AFRESH} times), and {undecided} first allocations without a verdict (at most one per trial).",
            "",
            table(trials),
            "",
            "`trials.jsonl` has a line per trial, and `raw.tar.xz` the runs and verdicts of all. To judge them again and print the table:",
            "`python -m tools.benchmarks.trials.replay FOLDER`.",
            "",
        ]
    )


def main(words: Sequence[str]) -> None:
    """Run the trials, print each outcome, and print the table."""
    folder, *more = words
    count = int(more.pop()) if more and more[-1].isdecimal() else None
    for trial in series(Path(folder).resolve(), {kind: count or KINDS[kind] for kind in more or KINDS}):
        print(f"{trial.kind} {trial.seed}: {trial.sentence()}; {trial.launches} launches, {trial.seconds:.0f} s", flush=True)
    print(table(trials_in(Path(folder), Trial)))


if __name__ == "__main__":
    main(sys.argv[1:])
