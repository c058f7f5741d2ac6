"""A replay launch: rank 0 reads the trace of a job, every rank gets its part of the step, and the step is measured as a training's is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from collbench.backends.backend import Backend, NonBlockingBackend, unsupported_reason
from collbench.errors import UsageError
from collbench.measuring.request import Request, TaskRequest
from collbench.measuring.session import LaunchSession, at_rank_0
from collbench.plugins.traces.flight_recorder import FORM as FLIGHT_RECORDER
from collbench.plugins.traces.matching import check_agreement, match
from collbench.plugins.traces.model import Trace
from collbench.plugins.traces.reading import FOR_REPLAY, read_traces
from collbench.plugins.traces.recording import GroupsMixed, Recording, TraceFact, decode, encode
from collbench.plugins.traces.shrink import shrunk
from collbench.plugins.traces.step import ReplayOptions, step_of
from collbench.plugins.training.step_task import Training, plan_of
from collbench.plugins.training.task import WorkloadRequest, WorkloadTask
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step, operation_of

NAME = "replay"


class ReplayRequest(TaskRequest, frozen=True):
    """The request of one replay on some backends.

    launch    options of the launch; its budget is that of a step
    paths     files and folders of the trace
    options   which step, and how much of its computing
    ranks     of the replay; None: as many as recorded
    parts     whether each exchange is also measured alone
    recording  the step, as it was read before ranks are started; None in a launch
    suite     the file of --suite, or None
    """

    paths: tuple[Path, ...]
    options: ReplayOptions
    ranks: int | None = None
    parts: bool = True
    recording: Recording | None = None
    suite: Path | None = None


def recording_of(paths: Sequence[Path], options: ReplayOptions, ranks: int | None = None) -> Recording:
    """Return the step to replay, for `ranks` ranks (None: as recorded).

    Raises UsageError for traces that cannot be read, disagree, or cannot be replayed with so many ranks.
    """
    trace, notes = _trace_of(paths)
    matches = match(trace)
    check_agreement(trace, matches)
    recording = step_of(trace, matches, options)
    recording = replace(recording, notes=(*notes, *recording.notes))
    return recording if ranks in (None, recording.ranks) else shrunk(recording, ranks or 0)


def _trace_of(paths: Sequence[Path]) -> tuple[Trace, tuple[TraceFact, ...]]:
    """Return the trace of the preferred format that distinguishes process groups, and what was chosen. Raises UsageError without one."""
    trace = read_traces(paths, FOR_REPLAY)
    if not trace.mixes_groups:
        return trace, ()
    dumps = read_traces(paths, (FLIGHT_RECORDER, *FOR_REPLAY))  # the only format in which the groups of Gloo's new_group have names
    if dumps.mixes_groups:
        raise UsageError(
            f"the {trace.form} trace does not distinguish the process groups: give the Flight Recorder dumps of the job, too "
            "(the folder flight_recorder of `collbench trace`)"
        )
    return dumps, (GroupsMixed(trace.form, dumps.form),)


class ReplayTask(WorkloadTask):
    """The replay as a training. It has its `request` when rank 0 has read the step."""

    def __init__(self, replay: ReplayRequest) -> None:
        self.replay = replay
        self.runs = []

    def agree(self, session: LaunchSession) -> None:
        """Read the trace at rank 0, and send each rank its part of the step. Raises UsageError, on all ranks, for a bad trace."""
        replay, world = self.replay, session.world
        text = at_rank_0(world, lambda: encode(recording_of(replay.paths, replay.options, replay.ranks)), "reading the trace")
        recording = decode(world.broadcast(text or "", "sending the step"), world.rank)
        self.request = WorkloadRequest(replay.launch, (training_of(recording, replay.paths),), replay.parts)


def training_of(recording: Recording, paths: Sequence[Path]) -> Training:
    """Return the replay as a training, which a workload launch measures."""
    name = paths[0].resolve().name if len(paths) == 1 else f"{paths[0].resolve().name} and {len(paths) - 1} more"
    largest = max(recording.step.exchanges, key=lambda exchange: exchange.size_bytes)

    def shape(hosts: tuple[int, ...]) -> Shape:
        if len(hosts) != recording.ranks:
            remedy = f"start {recording.ranks}"
            if len(hosts) < recording.recorded_ranks:
                remedy += f", or add --ranks {len(hosts)} to shrink the recorded job"
            raise UsageError(f"the replay is of {recording.ranks} ranks, and {len(hosts)} are there: {remedy}")
        compute = "none"
        if recording.compute is not None:
            compute = "gaps" if recording.compute == 1 else f"scale={recording.compute:g}"
        return Shape(name, 0, largest.dtype, 0, 0, hosts, options={"compute": compute})

    regime = Regime(NAME, "the step of a recorded job", lambda shape: recording.step)
    return Training(regime, shape, name, recording=recording, adapt=partial(adapted, recording.compute is not None))


def adapted(computes: bool, step: Step, request: Request, backend: Backend) -> Step:
    """Return the step for a backend, with replacements that keep the bytes of each exchange; `note` names them.

    A backend that cannot start operations without waiting runs a step without computing one operation after the other. An average
    becomes a sum, and a data type that it lacks float32, of the same bytes. What else a backend lacks stays, and is reported as n/a.
    """
    notes = dict.fromkeys([step.note] if step.note else [])
    if step.timeline and not isinstance(backend, NonBlockingBackend) and not computes:
        step = replace(step, timeline=())
        notes[f"{backend.name} cannot start operations without waiting: they run one after the other, not as recorded"] = None
    exchanges = []
    supported: dict[Exchange, Exchange] = {}
    for exchange in step.exchanges:
        key = replace(exchange, what="")
        if key not in supported:
            supported[key] = _supported(key, request, backend)
        used = supported[key]
        exchanges.append(replace(exchange, redop=used.redop, dtype=used.dtype))
        if used.redop != exchange.redop:
            notes[f"{exchange.redop} is replayed as {used.redop} on {backend.name}"] = None
        if used.dtype != exchange.dtype:
            notes[f"{exchange.dtype} is replayed as {used.dtype} of the same bytes on {backend.name}"] = None
    return replace(step, exchanges=tuple(exchanges), note="; ".join(notes))


def _supported(exchange: Exchange, request: Request, backend: Backend) -> Exchange:
    """Return the exchange, with another reduction op or data type if the backend supports only that; unchanged if it supports none."""
    redops = [exchange.redop, "sum"] if exchange.redop == "avg" else [exchange.redop]
    whole = exchange.size_bytes % (4 * operation_of(exchange).parts(len(exchange.groups[0]))) == 0
    dtypes = [exchange.dtype, "float32"] if whole and exchange.traffic is None else [exchange.dtype]
    for dtype, redop in product(dtypes, redops):
        candidate = replace(exchange, dtype=dtype, redop=redop)
        (part,) = plan_of(Step((candidate,), 0), request, backend).parts
        if unsupported_reason(backend, part.operation, part.case) is None:
            return candidate
    return exchange
