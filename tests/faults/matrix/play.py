"""Plays a case from its start to the last trace of it."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from collbench.errors import CollbenchError
from collbench.launch.shared_memory import PREFIXES
from collbench.results.reader import Run, read_run
from tests.cli.command import environment
from tests.faults.matrix.outcome import Observation, Outcome, judged
from tests.faults.matrix.path_faults import PathFaults
from tests.faults.matrix.plan import DONE, HOSTS, PAUSE_S, STRUCK, WITHIN_S, Case, Plan
from tests.faults.matrix.starting import StartedRun, start
from tests.testbeds import Missing, SlurmBed
from tests.testbeds.bed import processes
from tests.testbeds.machines import Machines, line_of

_PATIENCE_S = 45.0  # for the start on a busy machine
_FINISH_S = 45.0  # for a run that is to come to its end
_LOSSY_S = 120.0  # for a run that goes on slowly
_OLD_S = 10.5  # collbench leaves younger files alone: a process may be about to map them
_NEXT_START = ("allreduce", "--backend", "simulated", "--ranks", "2", "--sizes", "8", "-n", "6", "--max-time", "0.1")
_SETTLE_S = 3.0
_PLACES = ("/tmp/", "/dev/shm/")
_RANK = "tests.faults.matrix.rank"


@dataclass
class Player:
    """Plays cases on a bed, one after the other; `keep`: where the folders of those that are not right are kept, if at all."""

    bed: Machines
    slurm: SlurmBed | None = None
    keep: Path | None = None

    def play(self, case: Case) -> Outcome:
        """The case's outcome. A rank that a busy machine starts too late for its short deadline is started again."""
        for _ in range(2):
            outcome = self._played(case)
            if not any("never struck" in sentence for sentence in outcome.amiss):
                break
        return outcome

    def _played(self, case: Case) -> Outcome:
        marks = self.bed.folder / f"case-{time.monotonic_ns()}"
        marks.mkdir()
        run = self.bed.disk / "run"
        shutil.rmtree(self._disk / "run", ignore_errors=True)
        self._joined()
        before = self._belongings()
        started = start(self.bed, self.slurm, case, Plan.of(case, marks).write(), run)
        try:
            seen = self._seen(case, started, marks, before)
            outcome = outcome_of(case, seen)
            self._kept(case, outcome, started)
            return outcome
        finally:
            started.kill()
            started.close()
            self._empty()
            self._sweep()
            shutil.rmtree(marks, ignore_errors=True)

    @property
    def _disk(self) -> Path:
        return self.bed.within(0, self.bed.disk)

    def _seen(self, case: Case, started: StartedRun, marks: Path, before: list[set[str]]) -> Observation:
        struck, patience = marks / STRUCK, _patience(case)
        _until(lambda: struck.exists() or started.over, _PATIENCE_S)
        there = struck.exists()
        began = json.loads(struck.read_text())["at"] if there else time.monotonic()
        with self._done(case, marks) if there else _nothing():
            _until(lambda: not self._ranks(), patience)
            seconds = time.monotonic() - began
            late = self._ranks()
            _until(lambda: started.over, max(1.0, WITHIN_S - seconds) if case.fault not in ("link", "one way", "nic 60 s") else 1.0)
        _until(lambda: started.over, WITHIN_S)
        launcher_s, left = time.monotonic() - began, [] if started.over else ["the launcher"]
        started.kill()
        if late:
            self._end_ranks()
        stored, behind = self._stored(), self._left(before)
        behind = self._after_next_start(behind, before)
        files = [what for what in behind if what.startswith(_PLACES) and "collbench" not in what and not _is_library_memory(what)]
        return Observation(
            said=[line.partition("collbench: ")[2] for line in started.said().splitlines() if "collbench: " in line],
            codes=started.codes,
            stored_code=stored.info.get("exit_code"),
            finished=[int(line.split()[0]) for line in _lines(marks / "finished")],
            kept=[row.size_bytes for row in stored.rows],
            wrong=[str(row.wrong_detail) for row in stored.rows if row.wrong],
            flags=sorted({flag for row in stored.rows for flag in row.flags}),
            seconds=round(seconds, 1),
            launcher_s=round(launcher_s, 1),
            left=[*left, *(f"process {line!r}" for line in late.values()), *(what for what in behind if what not in files)],
            files=files,
            launchers=bool(re.search(rf"\brank {case.victim}\b", _others(started.said() + started.shown()), re.IGNORECASE)),
            struck=there,
            traceback="Traceback" in started.said(),
        )

    @contextmanager
    def _done(self, case: Case, marks: Path) -> Iterator[None]:
        """Does what a rank cannot do to itself, and undoes it at last."""
        if case.of_path:
            with PathFaults(self.bed).applied(case):
                (marks / DONE).touch()
                yield
            return
        host, links = case.host, ("ctl0",) if case.fault == "control" else ("eth0", "ctl0")
        if case.fault in ("link", "link for a moment", "control"):
            self._links(host, links, "down")
        elif case.fault == "disk":
            self._fill()
        (marks / DONE).touch()
        if case.harmless:
            time.sleep(PAUSE_S)
        if case.fault == "paused":
            pid = json.loads((marks / STRUCK).read_text())["pid"]
            self.bed.run(host, ["kill", "-CONT", str(pid)])
        elif case.fault == "link for a moment":
            self._links(host, links, "up")
        yield
        self._joined()

    def _links(self, host: int, links: tuple[str, ...], state: str) -> None:
        for link in links:
            self.bed.set_link(host, link, state)

    def _joined(self) -> None:
        for host in range(HOSTS):
            self._links(host, ("eth0", "ctl0"), "up")

    def _fill(self) -> None:
        with suppress(OSError), (self._disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096) if self._free() >= 4096 else b"x")

    def _free(self) -> int:
        found = os.statvfs(self._disk)
        return found.f_bavail * found.f_frsize

    def _empty(self) -> None:
        (self._disk / "filler").unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes what libraries and launchers left in /tmp and /dev/shm."""
        for path in (path for host in range(HOSTS) for place in _PLACES for path in self.bed.within(host, place).iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _stored(self) -> Run:
        """What reads back of the run's folder; an empty run where there is none."""
        self._empty()
        try:
            return read_run(self._disk / "run")
        except CollbenchError:
            return Run(self._disk)

    def _ranks(self) -> dict[int, str]:
        """The ranks that are still there, on all hosts."""
        return {
            pid: line for host in range(HOSTS) for pid, line in self.bed.running(host).items() if _RANK in line and "-m" in line.split()[:3]
        }

    def _end_ranks(self) -> None:
        for pid in self._ranks():
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    def _belongings(self) -> list[set[str]]:
        """Of each host, and of this machine the bed's processes."""
        here = {line for pid in processes(self.bed.folder) if (line := line_of(pid))}
        return [*(self.bed.belongings(host) | set(self.bed.running(host).values()) for host in range(HOSTS)), here]

    def _left(self, before: list[set[str]]) -> list[str]:
        """What was not there before, and has not gone a moment later."""

        def more() -> list[str]:
            return sorted({what for there, was in zip(self._belongings(), before, strict=True) for what in there - was})

        _until(lambda: not more(), _SETTLE_S)
        return more()

    def _after_next_start(self, behind: list[str], before: list[set[str]]) -> list[str]:
        """What is left after the next start on each host: where all ranks of a host are killed, it removes what their libraries shared."""
        if not any(map(_is_library_memory, behind)):
            return behind
        time.sleep(_OLD_S)
        for host in range(HOSTS):
            self.bed.run(host, [sys.executable, "-m", "collbench", *_NEXT_START], 60, environment())
        return self._left(before)

    def _kept(self, case: Case, outcome: Outcome, started: StartedRun) -> None:
        """Keep all output of a case that is not right; remove that of an earlier attempt."""
        if not self.keep:
            return
        file = self.keep / f"{case.name}.txt"
        file.unlink(missing_ok=True)
        if outcome.amiss:
            self.keep.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{started.shown()}\n--- stderr\n{started.said()}\n--- amiss\n" + "\n".join(outcome.amiss) + "\n")


def outcome_of(case: Case, seen: Observation) -> Outcome:
    return Outcome(
        case.fault, case.phase, case.library, case.launcher, case.victim, case.after_s, list(seen.said), list(seen.codes), seen.stored_code,
        len(seen.finished), len(seen.kept), seen.seconds, seen.launcher_s, list(seen.left), list(seen.files), judged(case, seen),
        round(os.getloadavg()[0], 1), time.strftime("%Y-%m-%d"), list(seen.flags),
    )  # fmt: skip


@contextmanager
def player(slurm: bool = True, keep: Path | None = None) -> Iterator[Player]:
    """A bed to play on, with Slurm across it where that is wanted and there. Raises Missing where there are no such hosts."""
    with Machines(HOSTS, "1gbit") as bed:
        bed.limit_packets()
        try:
            cluster = SlurmBed(bed, cpus=2).__enter__() if slurm else None
        except Missing:
            cluster = None
        try:
            yield Player(bed, cluster, keep)
        finally:
            if cluster:
                cluster.__exit__()


def _patience(case: Case) -> float:
    if case.of_path:
        return _LOSSY_S
    return _FINISH_S if case.harmless or case.fault == "wrong data" else 2 * WITHIN_S


def _is_library_memory(what: str) -> bool:
    return what.startswith(tuple(f"/dev/shm/{prefix}" for prefix in PREFIXES))


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _until(true: Callable[[], object], patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _others(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "collbench: " not in line)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
