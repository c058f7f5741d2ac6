"""What a replay runs and compares with: a step of a trace with its recorded times, and what was assumed, left out and chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from collbench.plugins.training.workloads.step import Action, Compute, Exchange, Start, Step, Wait
from collbench.reason import Fact
from collbench.units import plural


class DefaultUsed(Fact, frozen=True):
    """The trace does not contain a field of some operations, and the replay uses a default.

    field   "reduction op", "data type", "root"
    used    the value that is used; operations: how many exchanges have it
    """

    text = "{field} not recorded in {operations:exchange}: {used} is used"
    field: str
    used: str
    operations: int


class OperationsLeftOut(Fact, frozen=True):
    """Operations of the trace are not in the replay.

    reason   "unsupported": collbench has no such operation; "empty": without data; "alone": of groups of one rank;
             "incomplete": not recorded at all ranks that were read
    """

    reason: str
    operations: int

    def render(self) -> str:
        """Return how many operations are left out, and why."""
        why = {
            "unsupported": "of a kind that cannot be replayed", "empty": "without data", "alone": "of groups of one rank",
            "incomplete": "that some ranks did not record (at the start or the end of the trace)",
        }.get(self.reason, self.reason)  # fmt: skip
        return f"left out: {plural(self.operations, 'operation')} {why}"


class StepChosen(Fact, frozen=True):
    """The part of the trace that is replayed.

    how      "recorded": the trace has boundaries; "repeated": an exact repetition was found; "whole": the whole trace is one step
    number   of the step, from 0; steps: how many there are
    """

    how: str
    number: int
    steps: int

    def render(self) -> str:
        """Return the step and how it was found."""
        if self.how == "whole":
            return "the whole trace is replayed as one step: it has no step boundaries and no exact repetition"
        if self.how == "all":
            return "the whole trace is replayed as one step"
        origin = "recorded" if self.how == "recorded" else "found as exact repetitions, since the trace has no step boundaries"
        return f"step {self.number} of 0 to {self.steps - 1} ({origin}) is replayed"


class OverlapNotRecorded(Fact, frozen=True):
    """Some ranks have no start or end times, so their operations run one after the other.

    ranks   how many
    """

    text = "times of {ranks:rank} not recorded: their operations run one after the other, without computing"
    ranks: int


class ComputeFromGaps(Fact, frozen=True):
    """The trace has no compute intervals. Computing is what lies between operations, so computing during operations is not replayed."""

    text = "computing not recorded: gaps between operations are replayed as computing; computing during operations is not"


class RanksAbsent(Fact, frozen=True):
    """Ranks have no trace. They take part in the collectives of their groups, in the order of the other ranks, and do not compute."""

    ranks: tuple[int, ...]

    def render(self) -> str:
        """Return the ranks, and what they do in a replay."""
        some = ", ".join(map(str, self.ranks[:8])) + (" …" if len(self.ranks) > 8 else "")
        return (
            f"no trace of {plural(len(self.ranks), 'rank')} ({some}): they take part in the recorded operations of their groups, "
            "without computing"
        )


class GroupsUnknown(Fact, frozen=True):
    """The ranks of some process groups were not recorded; the ranks that use a group are its ranks."""

    text = "ranks of {groups:process group} not recorded: the ranks that use a group are used"
    groups: int


class GroupsMixed(Fact, frozen=True):
    """The preferred format has no names of process groups, so another format of the same folder is replayed.

    form   the preferred format; used: the format that is replayed
    """

    text = "the {form} trace does not distinguish the process groups: the {used} trace is replayed"
    form: str
    used: str


class FilesIgnored(Fact, frozen=True):
    """The given folders have traces of other formats, too.

    files   the first ones; more: how many others there are
    """

    files: tuple[str, ...]
    more: int

    def render(self) -> str:
        """Return the files."""
        more = f" and {self.more} more" if self.more else ""
        return f"ignored, since only one format is read: {', '.join(self.files)}{more}"


class ShrunkTo(Fact, frozen=True):
    """The replay has fewer ranks than the trace: one data-parallel dimension of its mesh is shorter. Buffers keep their whole size.

    ranks, now         of the job, and of the replay
    dimension, became  ranks of the dimension; stride: between its ranks
    """

    text = (
        "{now} of {ranks} ranks: the data-parallel dimension of {dimension} ranks (stride {stride}) has {became}; buffers keep their whole "
        "size, so that a rank's part of them is larger"
    )
    ranks: int
    now: int
    dimension: int
    became: int
    stride: int


TraceFact = (
    DefaultUsed | OperationsLeftOut | StepChosen | OverlapNotRecorded | ComputeFromGaps | RanksAbsent | GroupsUnknown | GroupsMixed
    | FilesIgnored | ShrunkTo
)  # fmt: skip


class RecordedExchange(msgspec.Struct, frozen=True):
    """An exchange at one rank as recorded; times in seconds since the rank's step began, by its own clock."""

    operation: str
    what: str
    size_bytes: int
    begin_s: float
    end_s: float


class RankTimeline(msgspec.Struct, frozen=True):
    """What one rank did in the recorded step, for a drawing.

    step_s       the recorded time of its step
    computing_s, exchanges_s, exposed_s   how long it computed, had an exchange, and had one without computing. None: not recorded
    exchanges    the first ones, by time; left_out: how many more there are
    computing    (begin, end) in seconds; gaps too short to be drawn are closed
    """

    rank: int
    step_s: float
    exchanges_s: float
    computing_s: float | None = None
    exposed_s: float | None = None
    exchanges: tuple[RecordedExchange, ...] = ()
    left_out: int = 0
    computing: tuple[tuple[float, float], ...] = ()


class Recording(msgspec.Struct, frozen=True):
    """The step that a replay runs, and what the trace records of it.

    step            the exchanges, and by rank of the job what it does
    ranks           of the replay; recorded_ranks: of the job
    form            the format of the trace; missing: what it does not contain, by `Part`
    absent          ranks of the job without a trace
    compute         factor of the recorded computing in the timeline; None: without computing
    step_time_s     recorded time of the step, of the slowest rank; None: not recorded
    exchange_s      recorded seconds of each exchange: of the rank that had the shortest, because others wait for late ranks. Equal
                    exchanges that overlap share the time of their union. None: not recorded
    notes           what was assumed, left out and chosen
    timelines       of the first ranks with times, as recorded
    digest          of the step with all timelines: equal for replays that can be compared. `encode` sets it
    """

    step: Step
    ranks: int
    recorded_ranks: int
    form: str = ""
    missing: tuple[str, ...] = ()
    absent: tuple[int, ...] = ()
    compute: float | None = None
    step_time_s: float | None = None
    exchange_s: tuple[float | None, ...] = ()
    notes: tuple[TraceFact, ...] = ()
    timelines: tuple[RankTimeline, ...] = ()
    digest: str = ""

    @property
    def compute_s(self) -> float:
        """The longest computing time of a rank in a step, in seconds."""
        return max((sum(action.seconds for action in rank if isinstance(action, Compute)) for rank in self.step.timeline), default=0.0)


_ACTIONS: Mapping[str, type[Action]] = {"s": Start, "w": Wait, "c": Compute}


def encode(recording: Recording) -> str:
    """Return the recording as text for the control plane."""
    import base64
    import hashlib
    import zlib

    def fields(action: Action) -> list[Any]:
        if isinstance(action, Compute):
            return ["c", action.seconds]
        return ["s" if isinstance(action, Start) else "w", action.exchange]

    timeline = [msgspec.msgpack.encode(list(map(fields, actions))) for actions in recording.step.timeline]
    rest = {name: value for name, value in asdict(recording).items() if name != "step"}
    step = [recording.step.exchanges, recording.step.payload_bytes, recording.step.note]
    packed = msgspec.msgpack.encode(msgspec.to_builtins([step, timeline]))
    rest["digest"] = hashlib.sha256(packed).hexdigest()[:8]
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(msgspec.to_builtins([packed, rest])), 1)).decode()


def decode(text: str, rank: int | None = None) -> Recording:
    """Return the recording from the text of `encode`. rank: keep only this rank's timeline, those of other ranks are ()."""
    import base64
    import zlib

    packed, rest = msgspec.msgpack.decode(zlib.decompress(base64.b64decode(text)))
    (exchanges, payload, note), timeline = msgspec.msgpack.decode(base64.b64decode(packed))
    actions = tuple(
        tuple(_ACTIONS[kind](value) for kind, value in msgspec.msgpack.decode(base64.b64decode(raw)))
        if rank is None or rank == place
        else ()
        for place, raw in enumerate(timeline)
    )
    rest = {name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()}
    rest["notes"] = msgspec.convert(rest["notes"], tuple[TraceFact, ...])
    rest["timelines"] = msgspec.convert(rest["timelines"], tuple[RankTimeline, ...])
    return Recording(Step(msgspec.convert(exchanges, tuple[Exchange, ...]), payload, note, actions), **rest)
