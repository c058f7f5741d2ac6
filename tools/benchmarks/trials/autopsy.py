"""python -m tools.benchmarks.trials.autopsy FOLDER [options]   checks that `autopsy` names the right rank and the right cause.

Seeded training jobs of 2 to 4 ranks with the real DDP or FSDP2 of PyTorch over Gloo, of which a rank
    healthy    does nothing wrong                                 -> nothing may be found
    stopped    is stopped by SIGSTOP, and so writes no dump       -> that rank, "no dump"
    exception  raises an exception, and ends                      -> that rank, "did not arrive"
    skipped    skips a collective, or ends some steps too early   -> that rank; "did not arrive" if no call follows
    size       calls a collective with another number of elements -> that rank, "different size"
    dtype      calls a collective with another data type          -> that rank, "different data type"
    order      calls two collectives in the other order           -> that rank
Where a blocking call precedes another one, a skipped call and another order give the same dumps: the cause is then "skipped a call or
reordered calls". Each rank writes its dump when it ends, also by an exception or an abort of Gloo, and on request when the job hangs.

All jobs run in processes that are forked from one, which has imported PyTorch. Writes to FOLDER trials.jsonl (a line per trial), README.md
(the counts, with the date) and the dumps of wrong trials. A trial that has a line is not repeated, so an interrupted series continues.
Several processes may fill one folder, each with its own --kinds. The command was developed with the seeds below 34: a series without
--first has none of them.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import pickle
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from collbench.cli.version import commit
from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyVerdict, autopsy
from collbench.plugins.traces.reading import read_traces
from tools.benchmarks.trials.series import ROOT, keep, span, trials_in

KINDS = ("healthy", "stopped", "exception", "skipped", "size", "dtype", "order")
FRAMEWORKS = ("ddp", "fsdp")
_QUIET_S = 5.0  # without progress, after which a job hangs
_STARTS_S = 60.0
_STARTS = 3
_LONGEST_S = 180.0
_ENDS_S = 5.0
_SETTLES_S = 1.0
_BUFFER = 2000
_FIRST_UNSEEN = 34


@dataclass(frozen=True)
class Job:
    """A training job and its fault.

    rank, step   the faulty rank, and the step of its fault, from 0; steps: of the job
    variant      of the fault: where a rank stops, which call it skips
    pair         whether ranks 0 and 1 also have a group of their own, with a call in each step
    """

    kind: str
    framework: str
    seed: int
    ranks: int
    steps: int
    rank: int
    step: int
    variant: str
    pair: bool

    @property
    def causes(self) -> frozenset[AutopsyCause]:
        """The right causes; several only where the dumps of both are the same."""
        return {
            "stopped": frozenset({AutopsyCause.NO_DUMP}),
            "exception": frozenset({AutopsyCause.NOT_ARRIVED}),
            "skipped": frozenset(
                {{"blocking": AutopsyCause.AHEAD, "async": AutopsyCause.SKIPPED}.get(self.variant, AutopsyCause.NOT_ARRIVED)}
            ),
            "size": frozenset({AutopsyCause.SIZE}),
            "dtype": frozenset({AutopsyCause.DTYPE}),
            "order": frozenset({AutopsyCause.ORDER if self.variant == "async" else AutopsyCause.AHEAD}),
        }.get(self.kind, frozenset())


_VARIANTS = {
    "healthy": ("plain", "uneven"),
    "stopped": ("before", "forward", "backward", "metrics"),
    "exception": ("before", "forward", "metrics"),
    "skipped": ("last", "early", "blocking", "async"),
    "size": ("allreduce", "allgather"),
    "dtype": ("allreduce", "allgather"),
    "order": ("blocking", "async"),
}


def job_of(kind: str, seed: int) -> Job:
    """Return the job of a seed."""
    chosen = random.Random(f"{kind} {seed}")
    framework, ranks, variants = FRAMEWORKS[seed % 2], chosen.randint(2, 4), _VARIANTS[kind]
    steps = chosen.randint(5, 8)
    variant = variants[seed // 2 % len(variants)]
    step = steps - 1 if variant == "last" else chosen.randint(3, steps - 2)
    return Job(kind, framework, seed, ranks, steps, chosen.randrange(ranks), step, variant, chosen.random() < 0.4)


# A rank of a job.


def _rank(job: Job, rank: int, folder: Path, progress: mmap.mmap, asked: int) -> None:
    """Train, and write the dump at the end. Never returns."""
    from torch._C import _distributed_c10d

    def dump() -> None:
        path = folder / f"dump_rank_{rank}"
        path.with_suffix(".part").write_bytes(_distributed_c10d._dump_fr_trace(True, True, False))
        path.with_suffix(".part").rename(path)

    def recorder_settles() -> None:
        """Wait until the recorder shows all calls as completed: Gloo's thread notes the end of a call after the call has returned."""
        deadline = time.monotonic() + _SETTLES_S
        while time.monotonic() < deadline:
            entries = pickle.loads(_distributed_c10d._dump_fr_trace(True, False, False)).get("entries", [])
            if all(entry["state"] == "completed" for entry in entries):
                return
            time.sleep(0.01)

    def answer() -> None:
        os.read(asked, 1)
        dump()
        os._exit(3)

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: dump())  # Python's own run only after abort() has ended the process
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)
    log = os.open(folder / f"log{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=answer, daemon=True).start()
    try:
        _train(job, rank, folder, progress)
    except BaseException as error:
        print(repr(error), flush=True)
        recorder_settles()
        dump()
        os._exit(1)
    recorder_settles()
    dump()
    os._exit(0)


def _train(job: Job, rank: int, folder: Path, progress: mmap.mmap) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(job.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), job.ranks), rank=rank, world_size=job.ranks)
    pair = dist.new_group([0, 1]) if job.pair and job.ranks > 2 else None
    layers = [nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 20), nn.ReLU(), nn.Linear(20, 4)]
    model: nn.Module = nn.Sequential(*layers)
    faulty = {"step": False}

    def fault(where: str) -> None:
        if not faulty["step"] or job.variant != where:
            return
        if job.kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif job.kind == "exception":
            raise ValueError("out of data")

    layers[2].register_forward_pre_hook(lambda *_: fault("forward"))
    layers[2].register_full_backward_hook(lambda *_: fault("backward"))
    if job.framework == "ddp":
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)  # a bucket per layer
    else:
        mesh = init_device_mesh("cpu", (job.ranks,))
        for layer in (layers[0], layers[2], layers[4]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(job.steps):
        progress[rank] = step + 1
        faulty["step"] = job.kind != "healthy" and rank == job.rank and step == job.step
        if job.kind == "skipped" and job.variant == "early" and faulty["step"]:
            time.sleep(_LONGEST_S)
        if job.variant == "uneven":
            time.sleep(random.random() / 50)
        fault("before")
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        if pair is not None and rank < 2:
            dist.all_reduce(torch.ones(9), group=pair)
        fault("metrics")
        _metrics(job, faulty["step"])
    if job.kind == "skipped" and faulty["step"]:
        time.sleep(_LONGEST_S)


def _metrics(job: Job, faulty: bool) -> None:
    """Exchange the loss, counts and norms of a step as training programs do; the faulty rank in its own way."""
    import torch
    import torch.distributed as dist

    more = 5 if faulty and job.kind == "size" else 0
    dtype = torch.float64 if faulty and job.kind == "dtype" else torch.float32
    counts, norms = (
        torch.ones(n + more, dtype=dtype) if job.variant == name else torch.ones(n) for n, name in ((7, "allreduce"), (3, "allgather"))
    )
    is_async = job.variant == "async"
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(11), async_op=is_async),
        lambda: dist.all_reduce(counts, async_op=is_async),
        lambda: dist.all_gather([torch.empty_like(norms) for _ in range(job.ranks)], norms, async_op=is_async),
        lambda: dist.broadcast(torch.ones(2), 0, async_op=is_async),
    ]
    if faulty and job.kind == "order":
        calls[1], calls[2] = calls[2], calls[1]
    if faulty and job.kind == "skipped":
        del calls[{"last": 3}.get(job.variant, 1)]
    works = [call() for call in calls]
    for work in works:
        if work is not None:
            work.wait()


class NotStarted(RuntimeError):
    """A rank of a job did not begin its first step in time."""


# The launch of a job, in processes that are forked from this one.


def run_job(job: Job, folder: Path) -> list[Path]:
    """Run the job to its end, or until it hangs; return the dumps. `folder` must be empty. Torch must have been imported."""
    progress = mmap.mmap(-1, job.ranks)
    ends = [os.pipe() for _ in range(job.ranks)]
    pids = []
    for rank in range(job.ranks):
        pid = os.fork()
        if not pid:
            try:
                _rank(job, rank, folder, progress, ends[rank][0])
            finally:
                os._exit(4)
        pids.append(pid)
    running, seen, since, began = set(pids), b"", time.monotonic(), time.monotonic()
    deadline = 0.0
    while running:
        running -= {pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]}
        now, state = time.monotonic(), progress[:] + bytes([len(running)])
        if state != seen:
            seen, since = state, now
        quiet = _QUIET_S if min(progress[:]) else _STARTS_S
        if not deadline and (now - since > quiet or now - began > _LONGEST_S):
            deadline = now + _ENDS_S
            for _, write in ends:
                os.write(write, b"x")
        stopped = job.kind == "stopped" and len(running) == 1
        if deadline and (now > deadline or stopped):
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            break
        time.sleep(0.02)
    for end in (each for both in ends for each in both):
        os.close(end)
    if not min(progress[:]):
        raise NotStarted(f"{job} did not start within {_STARTS_S:g} s: {sorted(path.name for path in folder.iterdir())}")
    return sorted(folder.glob("dump_rank_[0-9]"))


@dataclass(frozen=True)
class Trial:
    """A job and the verdict on its dumps.

    truth    the faulty rank, or None; found: the ranks that the first finding names; causes: of all findings
    commit   of the code that judged; load: the load average (1 min) at the end
    """

    kind: str
    framework: str
    seed: int
    ranks: int
    variant: str
    truth: int | None
    result: str
    found: list[int]
    causes: list[str]
    dumps: int
    right: bool
    false_accusation: bool
    seconds: float
    sentence: str
    commit: str
    load: float

    @property
    def key(self) -> tuple[str, int]:
        """Return the fields that identify a trial."""
        return self.kind, self.seed


def play(job: Job, folder: Path, code: str) -> tuple[Trial, AutopsyVerdict]:
    """Run a job in an empty folder and judge its dumps."""
    began = time.monotonic()
    dumps = run_job(job, folder)
    verdict = autopsy(read_traces(dumps))
    truth = None if job.kind == "healthy" else job.rank
    accused = {rank for finding in verdict.findings if not finding.is_open for rank in finding.ranks}
    if truth is None:
        right = verdict.exit_code == 0 and not verdict.findings
    else:
        right = verdict.exit_code == 1 and verdict.culprits == (truth,) and accused == {truth} and verdict.findings[0].cause in job.causes
    trial = Trial(
        job.kind, job.framework, job.seed, job.ranks, job.variant, truth, verdict.result.value, list(verdict.culprits),
        [finding.cause.value for finding in verdict.findings], len(dumps), right, bool(accused - {truth}),
        round(time.monotonic() - began, 1), verdict.render(), code, round(os.getloadavg()[0], 1),
    )  # fmt: skip
    return trial, verdict


def readme(trials: Sequence[Trial]) -> str:
    """Return the table of a series."""
    rows = []
    for kind in KINDS:
        for framework in FRAMEWORKS:
            own = [trial for trial in trials if (trial.kind, trial.framework) == (kind, framework)]
            if own:
                wrong, false = sum(not trial.right for trial in own), sum(trial.false_accusation for trial in own)
                causes = ", ".join(sorted({trial.causes[0] for trial in own if trial.causes})) or "–"
                rows.append(f"| {kind} | {framework} | {len(own)} | {len(own) - wrong} | {wrong} | {false} | {causes} |")
    faulty, seeds = [trial for trial in trials if trial.truth is not None], [trial.seed for trial in trials]
    healthy = len(trials) - len(faulty)
    commits = Counter(trial.commit for trial in trials)
    lines = [
        "# Trials of autopsy", "",
        f"Made by `python -m tools.benchmarks.trials.autopsy FOLDER` to {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} cores: jobs of "
        "2 to 4 ranks with the real DDP and FSDP2 of PyTorch over Gloo.",
        f"Right rank and right cause in {sum(trial.right for trial in faulty)} of {len(faulty)} jobs with a fault; "
        f"another rank was accused in {sum(trial.false_accusation for trial in faulty)}.",
        f"Nothing found in {sum(trial.right for trial in trials if trial.truth is None)} of {healthy} healthy jobs." if healthy else "", "",
        "| fault | framework | trials | rank and cause right | wrong | false accusations | causes found |", "|---|---|---|---|---|---|---|",
        *rows, "",
        f"Seeds {min(seeds)} to {max(seeds)}; the command was developed with the seeds below {_FIRST_UNSEEN}. "
        f"Load average (1 min) {span([trial.load for trial in trials])}.",
        f"Judged by commit {', '.join(f'{name} ({n})' for name, n in commits.items())}.",
        "A healthy job is right if nothing is found (exit code 0). `trials.jsonl` has each verdict's sentence, the rank of the fault and "
        "its variant.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Play the trials that are missing, and write README.md; return 1 if one of the series is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=34, help="trials of each fault (default: 34)")
    parser.add_argument("--first", type=int, default=_FIRST_UNSEEN, help=f"the first seed (default: {_FIRST_UNSEEN})")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    arguments = parser.parse_args(words)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    prepare()
    done = {trial.key for trial in trials_in(arguments.folder, Trial)}
    code = commit(ROOT / "collbench")
    for seed in range(arguments.first, arguments.first + arguments.each):
        for kind in arguments.kinds:
            if (kind, seed) in done:
                continue
            trial = _tried(job_of(kind, seed), arguments.folder / f"{kind}-{seed}", code)
            keep(arguments.folder, trial, readme)
            word = "right" if trial.right else "WRONG"
            print(f"{word} {kind} {trial.framework} {trial.variant} {seed} {trial.seconds} s: {trial.sentence}", flush=True)
    trials = trials_in(arguments.folder, Trial)
    (arguments.folder / "README.md").write_text(readme(trials))
    return int(any(not trial.right for trial in trials))


def _tried(job: Job, wrong: Path, code: str) -> Trial:
    """Return the trial of a job; keep its dumps in `wrong` if its verdict is. A job that does not start on a busy machine starts again."""
    for start in range(1, _STARTS + 1):
        with TemporaryDirectory() as scratch:
            try:
                trial, _ = play(job, Path(scratch), code)
            except NotStarted:
                if start == _STARTS:
                    raise
                continue
            if not trial.right:
                shutil.copytree(scratch, wrong, dirs_exist_ok=True)
            return trial
    raise AssertionError


def prepare() -> None:
    """Import PyTorch, with its Flight Recorder switched on, before the first fork."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(_BUFFER)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed.device_mesh
    import torch.distributed.fsdp
    import torch.nn.parallel

    torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())
