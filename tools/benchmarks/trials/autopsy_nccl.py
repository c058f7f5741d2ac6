"""python -m tools.benchmarks.trials.autopsy_nccl FOLDER [options]   checks `autopsy` on dumps as PyTorch writes them with NCCL.

Seeded jobs of 3 to 8 ranks: data parallel, pipelines with single messages or batches, rings of batches, and grids of groups. Their ranks
are executed by `simulated_ranks`, which knows nothing of the analysis: what hangs a job follows from the execution. The faults:
    healthy       none                                         -> nothing may be found
    stopped       the program of a rank stops                  -> that rank
    no-dump       the same, and its dump is missing or cut     -> that rank
    stuck-kernel  a kernel of a rank does not end              -> that rank, or no rank without recorded starts
    send, recv    a rank sends or receives once more           -> it and its peer: the dumps do not show which of them is wrong
    ring          all ranks send before they receive           -> all ranks
    additional    a rank makes an additional collective        -> that rank, or none
    skipped       a rank skips a collective                    -> that rank, or no rank with active entries only
    root          a rank passes another root to a broadcast    -> no other rank
    network       a collective moves nothing                   -> no rank
    size          a message or collective has another size     -> no other rank
    groups        a rank calls two new groups in another order -> the ranks that then wait for one another
    fresh         a rank stops before its first call of a group -> that rank, or with Gloo no rank
Dumps are whole, have only active entries, or the last ones; are JSON, or a pickle of PyTorch or of Python; with and without starts
and status.
A quarter of the jobs without messages writes them as with Gloo, without members.

A rank is falsely accused if it is named, did nothing wrong, and does not wait in a circle with the faulty rank in the execution.
Writes to FOLDER trials.jsonl (a line per trial) and README.md. A trial that has a line is not repeated. The command was developed
with the seeds below 1000: a series without --first has none of them.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from collbench.cli.version import commit
from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyVerdict, autopsy
from collbench.plugins.traces.reading import read_traces
from tests.plugins.traces.dumps import pickled
from tools.benchmarks.trials.series import ROOT, keep, trials_in
from tools.benchmarks.trials.simulated_ranks import Batch, Collective, Execution, Instruction, Message, Stop, StuckKernel, Sync

KINDS = (
    "healthy", "stopped", "no-dump", "stuck-kernel", "send", "recv", "ring", "additional", "skipped", "root", "network", "size", "groups",
    "fresh",
)  # fmt: skip
STYLES = ("data", "pipeline", "batches", "grid")
_FIRST_UNSEEN = 1000
_WITH_MESSAGES = ("send", "recv", "ring")
Programs = dict[int, list[list[Instruction]]]  # by rank and step


@dataclass(frozen=True)
class Form:
    """How dumps are written. library: nccl or gloo; most: entries of the buffer; encoding: json, pytorch or python."""

    library: str
    timing: bool
    active: bool
    most: int
    status: bool
    encoding: str

    def __str__(self) -> str:
        parts = (self.library, self.encoding, "active" if self.active else f"last {self.most}" if self.most < 1000 else "whole")
        return " ".join(parts) + ("" if self.timing else ", no starts") + ("" if self.status else ", no status")


@dataclass
class Job:
    """A job with a fault. rank: the faulty one, or -1; peer: that of an additional message, or -1. groups: ranks of each."""

    kind: str
    style: str
    seed: int
    groups: dict[str, tuple[int, ...]]
    programs: Programs
    form: Form
    rank: int = -1
    peer: int = -1

    def execute(self) -> Execution:
        """Execute the job until nothing changes."""
        flat: dict[int, list[Instruction]] = {rank: [call for step in steps for call in step] for rank, steps in self.programs.items()}
        if self.form.library == "gloo":
            flat = {rank: [each for call in program for each in (call, Sync())] for rank, program in flat.items()}
        execution = Execution(self.groups, flat, self.seed)
        execution.run()
        return execution


def job_of(kind: str, seed: int) -> tuple[Job, Execution]:
    """Return the job of a seed and its execution: with a fault, one that hangs and in which another rank waits."""
    draw = random.Random(f"{kind} {seed}")
    while True:
        job = _healthy(kind, seed, draw)
        if not job.execute().is_finished:
            raise AssertionError(f"the healthy job {kind} {seed} hangs")
        if kind != "healthy":
            _FAULTS[kind](job, draw)
        execution = job.execute()
        others = [rank for rank in job.programs if rank != job.rank and execution.is_pending(rank)]
        if kind == "healthy" or others or (kind == "additional" and not execution.is_finished):
            return job, execution


def _healthy(kind: str, seed: int, draw: random.Random) -> Job:
    style = STYLES[seed % len(STYLES)]
    ranks = draw.choice((4, 6, 8)) if style == "grid" else draw.randint(3, 8)
    groups: dict[str, tuple[int, ...]] = {"0": tuple(range(ranks))}
    rows = ranks // 2
    if style == "grid":
        groups |= {str(1 + column): tuple(range(column * rows, (column + 1) * rows)) for column in range(2)}
        groups |= {str(3 + row): (row, row + rows) for row in range(rows)}
    sizes = [draw.randrange(1, 5000) for _ in range(6)]
    micro, has_root, syncs = draw.randint(1, 3), draw.random() < 0.5, draw.random() < 0.6

    def step(rank: int, number: int) -> list[Instruction]:
        calls: list[Instruction] = []
        if style in ("pipeline", "batches"):
            calls += _pipeline(rank, ranks, micro, sizes[:2], style == "batches")
        if style == "batches" and ranks > 2:
            following, preceding = (rank + 1) % ranks, (rank - 1) % ranks
            calls.append(Batch((Message("send", "0", sizes[5], following), Message("recv", "0", sizes[5], preceding))))
        for name, members in groups.items():
            if name != "0" and rank in members:
                calls += [Collective("all_reduce", name, sizes[2]), Collective("all_gather", name, sizes[3])]
        calls += [Collective("all_reduce", "0", sizes[4]), Collective("all_reduce", "0", 7)]
        if has_root:
            calls.append(Collective("broadcast", "0", 3, root=number % ranks))
        return [*calls, Sync()] if syncs else calls

    steps = draw.randint(3, 7)
    programs = {rank: [step(rank, number) for number in range(steps)] for rank in range(ranks)}
    without_messages = style in ("data", "grid") and kind not in _WITH_MESSAGES
    form = Form(
        "gloo" if without_messages and draw.random() < 0.25 else "nccl", draw.random() < 0.6, draw.random() < 0.25,
        draw.choice((1 << 20, 1 << 20, 60)), draw.random() < 0.7, draw.choice(("json", "pytorch", "python")),
    )  # fmt: skip
    if form.library == "gloo":
        form = replace(form, active=False, most=1 << 20, timing=False, status=False)
    return Job(kind, style, seed, groups, programs, form)


def _pipeline(rank: int, ranks: int, micro: int, sizes: Sequence[int], batched: bool) -> list[Instruction]:
    """Return the forward and backward messages of a stage."""
    calls: list[Message] = []
    for before, after, size in ((rank - 1, rank + 1, sizes[0]), (rank + 1, rank - 1, sizes[1])):
        for _ in range(micro):
            if 0 <= before < ranks:
                calls.append(Message("recv", "0", size, before))
            if 0 <= after < ranks:
                calls.append(Message("send", "0", size, after))
    return [Batch((call,)) if batched else call for call in calls]


# Faults. Each changes the programs of a job.


def _choose(job: Job, draw: random.Random) -> int:
    """Choose the faulty rank, and return the step."""
    job.rank = draw.choice(sorted(job.programs))
    return draw.randrange(1, len(job.programs[0]))


def _insert(job: Job, step: int, calls: Mapping[int, Sequence[Instruction]]) -> None:
    """Insert calls before the end of a step."""
    for rank, own in calls.items():
        program = job.programs[rank][step]
        at = len(program) - isinstance(program[-1], Sync)
        program[at:at] = own


def _stop(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    steps = job.programs[job.rank]
    steps[step] = [*steps[step][: draw.randrange(len(steps[step]))], Stop()]
    del steps[step + 1 :]


def _stuck(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    calls = job.programs[job.rank][step]
    calls.insert(draw.randrange(len(calls)), StuckKernel())


def _message(kind: str) -> Callable[[Job, random.Random], None]:
    def add(job: Job, draw: random.Random) -> None:
        step = _choose(job, draw)
        job.peer = draw.choice([rank for rank in job.programs if rank != job.rank])
        message = Message(kind, "0", draw.randrange(1, 5000), job.peer)
        _insert(job, step, {job.rank: [Batch((message,)) if job.style == "batches" else message]})

    return add


def _ring(job: Job, draw: random.Random) -> None:
    step, ranks = _choose(job, draw), len(job.programs)
    calls = {rank: [Message("send", "0", 9, (rank + 1) % ranks), Message("recv", "0", 9, (rank - 1) % ranks)] for rank in job.programs}
    _insert(job, step, calls)


def _additional(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    _insert(job, draw.choice((step, len(job.programs[0]) - 1)), {job.rank: [Collective("all_reduce", "0", 7)]})


def _skipped(job: Job, draw: random.Random) -> None:
    step = draw.choice((_choose(job, draw), len(job.programs[0]) - 1))
    calls = job.programs[job.rank][step]
    del calls[draw.choice([at for at, call in enumerate(calls) if isinstance(call, Collective) and call.group == "0"])]


def _root(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    right, wrong = draw.sample(sorted(job.programs), 2)
    _insert(job, step, {rank: [Collective("broadcast", "0", 9, root=wrong if rank == job.rank else right)] for rank in job.programs})


def _network(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    job.rank = -1
    _insert(job, step, {rank: [Collective("all_reduce", "0", 9, never=True)] for rank in job.programs})


def _size(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    if job.form.library == "gloo" or draw.random() < 0.4:
        calls: dict[int, list[Instruction]] = {rank: [Collective("all_reduce", "0", 9 + (rank == job.rank))] for rank in job.programs}
    else:
        job.peer = draw.choice([rank for rank in job.programs if rank != job.rank])
        sent, received = Message("send", "0", 5000, job.peer), Message("recv", "0", 4000, job.rank)
        calls = {job.rank: [Batch((sent,)) if job.style == "batches" else sent]}
        calls[job.peer] = [Batch((received,)) if job.style == "batches" else received]
    _insert(job, step, calls)


def _fresh_groups(job: Job, draw: random.Random) -> tuple[str, str, list[int]]:
    """Add two groups with common ranks, and return their names and the common ranks, of which one is faulty."""
    ranks = sorted(job.programs)
    common = draw.sample(ranks, draw.randint(2, len(ranks)))
    names = str(len(job.groups)), str(len(job.groups) + 1)
    for name in names:
        job.groups[name] = tuple(sorted({*common, *draw.sample(ranks, draw.randint(0, 1))}))
    job.rank = draw.choice(common)
    return *names, common


def _groups(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    one, other, _ = _fresh_groups(job, draw)
    calls: dict[int, list[Instruction]] = {}
    for rank in job.programs:
        order = (other, one) if rank == job.rank else (one, other)
        calls[rank] = [Collective("all_reduce", name, 9) for name in order if rank in job.groups[name]]
    _insert(job, step, calls)


def _fresh(job: Job, draw: random.Random) -> None:
    step = _choose(job, draw)
    one, other, _ = _fresh_groups(job, draw)
    calls: dict[int, list[Instruction]] = {}
    for rank in job.programs:
        calls[rank] = [Collective("all_reduce", name, 9) for name in (one, other) if rank in job.groups[name]]
    at = draw.randrange(len(calls[job.rank]))
    calls[job.rank][at:] = [Stop()]
    _insert(job, step, calls)


_FAULTS: dict[str, Callable[[Job, random.Random], None]] = {
    "stopped": _stop, "no-dump": _stop, "stuck-kernel": _stuck, "send": _message("send"), "recv": _message("recv"), "ring": _ring,
    "additional": _additional, "skipped": _skipped, "root": _root, "network": _network, "size": _size, "groups": _groups, "fresh": _fresh,
}  # fmt: skip


# Dumps, and the judgment of a verdict.


def write_dumps(job: Job, execution: Execution, folder: Path) -> list[Path]:
    """Write the dump of each rank; of a job of kind no-dump that of the faulty rank is missing, empty or cut."""
    form, paths = job.form, []
    for rank in job.programs:
        if form.library == "gloo":
            dump = execution.dump_of_gloo(rank)
        else:
            most = max(form.most, execution.pending_entries(rank))  # PyTorch's 2000 entries are more than a GPU queues
            dump = execution.dump(rank, timing=form.timing, active=form.active, most=most, status=form.status)
        data = json.dumps(dump).encode() if form.encoding == "json" else pickled(dump)
        if form.encoding == "python":
            data = pickle.dumps(dump, protocol=2 + job.seed % 4)
        path = folder / f"rank_{rank}"
        if job.kind == "no-dump" and rank == job.rank:
            draw = random.Random(job.seed)
            size = draw.choice((-1, 0, draw.randrange(1, len(data) - 1)))
            if size < 0:
                continue
            data = data[:size]
        path.write_bytes(data)
        paths.append(path)
    return paths


@dataclass(frozen=True)
class Trial:
    """A job and the verdict on its dumps.

    truth       the ranks that may be named: the faulty one, its peer, and those in a circle with it in the execution
    accused     the ranks that the verdict names; innocent: those of them that are not in `truth`
    false_fine  whether the verdict is that nothing was found, though the job hangs
    right       whether neither is the case, and the faulty rank is named where the dumps show it
    """

    kind: str
    style: str
    seed: int
    ranks: int
    form: str
    rank: int
    truth: list[int]
    result: str
    accused: list[int]
    causes: list[str]
    innocent: list[int]
    false_fine: bool
    right: bool
    sentence: str
    commit: str

    @property
    def key(self) -> tuple[str, int]:
        """Return the fields that identify a trial."""
        return self.kind, self.seed


def play(kind: str, seed: int, folder: Path, code: str) -> tuple[Trial, AutopsyVerdict]:
    """Execute a job and judge its dumps, which are written to an empty folder."""
    job, execution = job_of(kind, seed)
    world = len(job.programs) if job.form.library == "gloo" else None
    verdict = autopsy(read_traces(write_dumps(job, execution, folder), without_damaged=True), world)
    truth = {job.rank, job.peer} - {-1}
    closed = execution.waits()
    truth |= {rank for rank in job.programs for faulty in tuple(truth) if closed[rank, faulty] and closed[faulty, rank]}
    certain = [each for each in verdict.findings if not each.is_open and each.cause is not AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL]
    accused = {rank for finding in certain for rank in finding.ranks}
    false_fine = kind != "healthy" and verdict.exit_code == 0
    right = not false_fine and accused <= truth
    if kind == "healthy":
        right = not verdict.findings and verdict.exit_code == (3 if job.form.active else 0)
    elif kind in ("stopped", "no-dump", "ring", "skipped"):
        is_hidden = job.form.active and kind == "skipped"  # a broadcast that has completed at a rank is not in its dump
        right &= job.rank in accused or (is_hidden and not accused)
    elif kind in ("send", "recv"):  # with other messages between the two, their sizes differ from then on
        disagree = {rank for finding in certain for rank in finding.compared if finding.cause is AutopsyCause.SIZE}
        right &= bool(accused & {job.rank, job.peer}) or disagree == {job.rank, job.peer}
    elif kind == "size":
        right &= verdict.findings[0].cause is AutopsyCause.SIZE
    trial = Trial(
        kind, job.style, seed, len(job.programs), str(job.form), job.rank, sorted(truth), verdict.result.value, sorted(accused),
        [finding.cause.value for finding in verdict.findings], sorted(accused - truth), false_fine, right, verdict.render(), code,
    )  # fmt: skip
    return trial, verdict


def readme(trials: Sequence[Trial]) -> str:
    """Return the table of a series."""
    rows = []
    for kind in KINDS:
        own = [trial for trial in trials if trial.kind == kind]
        if own:
            named = sum(bool(trial.accused) for trial in own)
            counts = (len(own), sum(trial.right for trial in own), named, sum(bool(trial.innocent) for trial in own))
            fine = sum(trial.false_fine for trial in own)
            causes = ", ".join(sorted({trial.causes[0] for trial in own if trial.causes})) or "–"
            rows.append(f"| {kind} | {' | '.join(map(str, (*counts, fine)))} | {causes} |")
    faulty, seeds = [trial for trial in trials if trial.kind != "healthy"], [trial.seed for trial in trials]
    lines = [
        "# Trials of autopsy on dumps in the form of NCCL", "",
        f"Made by `python -m tools.benchmarks.trials.autopsy_nccl FOLDER` to {datetime.now(UTC):%Y-%m-%d}: simulated ranks that execute "
        "programs as PyTorch and NCCL do, and real readers.",
        f"Of {len(faulty)} jobs that hang, {sum(trial.false_fine for trial in faulty)} had the verdict \"no hang\"; "
        f"an innocent rank was accused in {sum(bool(trial.innocent) for trial in trials)} of {len(trials)} jobs.", "",
        "| fault | trials | right | ranks named | innocent ranks named | false \"no hang\" | first cause found |",
        "|---|---|---|---|---|---|---|",
        *rows, "",
        "Right: neither of the two errors, and the faulty rank is named where the dumps show it. "
        "`python -m tools.benchmarks.trials.autopsy_nccl --help` has the faults.",
        f"Seeds {min(seeds)} to {max(seeds)}; the command was developed with the seeds below {_FIRST_UNSEEN}. "
        f"Judged by commit {', '.join(sorted({trial.commit for trial in trials}))}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Play the trials that are missing, and write README.md; return 1 if one of the series is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=15, help="trials of each fault (default: 15)")
    parser.add_argument("--first", type=int, default=_FIRST_UNSEEN, help=f"the first seed (default: {_FIRST_UNSEEN})")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    arguments = parser.parse_args(words)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    done = {trial.key for trial in trials_in(arguments.folder, Trial)}
    code = commit(ROOT / "collbench")
    for seed in range(arguments.first, arguments.first + arguments.each):
        for kind in arguments.kinds:
            if (kind, seed) in done:
                continue
            with TemporaryDirectory() as scratch:
                trial, _ = play(kind, seed, Path(scratch), code)
            keep(arguments.folder, trial, readme)
            word = "right" if trial.right else "WRONG"
            print(f"{word} {kind} {trial.style} {seed} ({trial.form}), truth {trial.truth}: {trial.sentence}", flush=True)
    trials = trials_in(arguments.folder, Trial)
    return int(any(not trial.right for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
