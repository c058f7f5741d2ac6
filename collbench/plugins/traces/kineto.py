"""Read Kineto traces, the Chrome JSON that torch.profiler exports.

NCCL's operations are `record_param_comms` events with the process group and the sizes; the kernels that have their "External id" give
start, end and stream. Gloo has `c10d::` events, and a "gloo:" event on the thread that runs each; the profiler records their sizes with
record_shapes=True only. A kernel's name does not give the reduction op: NCCL runs different ones in one kernel.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.plugins.traces.c10d import MESSAGES, OUTPUT_FIRST, ROOTED, dtype_of, kind_of
from collbench.plugins.traces.json_records import INVALID, JsonRecords
from collbench.plugins.traces.model import KIND, NONE, STATE, UNKNOWN, RankTrace, union
from collbench.plugins.traces.rank_builder import RankBuilder
from collbench.untrusted import dict_of, list_of, uncollected

T = TypeVar("T")

FORM = "kineto"

_STEP = "ProfilerStep#"
_TRUNCATED = "..."  # torch writes the first 29 of more than 30 ranks or sizes
_COMPLETED = STATE["completed"]
_MOST_NS = 1 << 62
_CPU_COMMUNICATION = ("_c10d_functional", "c10d_functional", "nccl:", "gloo:")
_DEVICE_COMMUNICATION = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether a file is a Kineto trace, from its first 64 KiB. The list of events may come after them."""
    begin = head.lstrip()[:1] == b"{"
    return begin and (b'"traceEvents"' in head or (b'"schemaVersion"' in head and b'"distributedInfo"' in head))


def read(path: Path) -> list[RankTrace]:
    """Return the rank of a file. Raises UsageError with the file and the place of what is invalid."""
    with uncollected():
        reader = _Reader(path)
        records = JsonRecords(path, "traceEvents", _KinetoEvent)
        for block in records:
            reader.rank.check_records((len(reader.cpu_times) + len(reader.kernel_times)) // 6)
            reader.events(block)
        reader.rank.what = ""
        reader.job(records.fields)
        return [reader.trace()]


class _KinetoEvent(msgspec.Struct, gc=False):
    """An event. Times in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Arguments(msgspec.Struct, gc=False):
    """What the profiler writes of a communication call, and of the kernels that it launched."""

    external: int = msgspec.field(name="External id", default=UNKNOWN)
    function: int = msgspec.field(name="Record function id", default=UNKNOWN)
    collective: str | None = msgspec.field(name="Collective name", default=None)
    sent: int = msgspec.field(name="In msg nelems", default=UNKNOWN)
    received: int = msgspec.field(name="Out msg nelems", default=UNKNOWN)
    dtype: str = ""
    to: str | list[int] = msgspec.field(name="In split size", default="[]")
    back: str | list[int] = msgspec.field(name="Out split size", default="[]")
    size: int = msgspec.field(name="Group size", default=UNKNOWN)
    group: str | None = msgspec.field(name="Process Group Name", default=None)
    group_id: int | str = msgspec.field(name="Process Group ID", default="")
    description: str = msgspec.field(name="Process Group Description", default="")
    ranks: str | list[int] = msgspec.field(name="Process Group Ranks", default="")
    first: int = msgspec.field(name="Global rank start", default=UNKNOWN)
    stride: int = msgspec.field(name="Global rank stride", default=UNKNOWN)
    number: int = msgspec.field(name="Rank", default=UNKNOWN)
    source: int = msgspec.field(name="Src Rank", default=UNKNOWN)
    destination: int = msgspec.field(name="Dst Rank", default=UNKNOWN)
    sequence: int = msgspec.field(name="Seq", default=UNKNOWN)
    shapes: list[Any] = msgspec.field(name="Input Dims", default=[])
    types: list[str] = msgspec.field(name="Input type", default=[])
    values: list[Any] = msgspec.field(name="Concrete Inputs", default=[])


class _Launch(msgspec.Struct, gc=False):
    """What connects a kernel, or an event of Gloo, with its call."""

    external: int = msgspec.field(name="External id", default=UNKNOWN)
    function: int = msgspec.field(name="Record function id", default=UNKNOWN)
    types: list[str] = msgspec.field(name="Input type", default=[])
    stream: int | str = UNKNOWN


_decode_arguments = msgspec.json.Decoder(_Arguments).decode
_decode_launch = msgspec.json.Decoder(_Launch).decode


class _Reader:
    """What is collected of the events; an operation's columns have its index."""

    def __init__(self, path: Path) -> None:
        self.rank = RankBuilder(path)
        self.rank.what = "event"
        self.external = array("q")  # ids of operations
        self.calls = array("q")  # `c10d::` events: function id, thread, begin and end, operation
        self.recorded = array("q")  # record_param_comms events: thread, begin and end
        self.runs = array("q")  # "gloo:" events: function id, start, end, thread, data type
        self.dtypes: dict[str, int] = {}
        self.defined: set[Any] = set()
        self.kernels = array("q")  # of communication: external id, start, end, stream
        self.kernel_times = array("q")  # start and end
        self.cpu_times = array("q")  # thread, start and end
        self.steps = array("q")
        self.threads: dict[tuple[int | str, int | str], int] = {}
        self.base = 0
        self.host = ""

    def events(self, block: Sequence[_KinetoEvent]) -> None:
        count = self.rank.count
        starts, ends, valid = _times(block)
        try:
            for number, (event, start, end) in enumerate(zip(block, starts, ends, strict=True)):
                if valid and event.cat == "kernel" and event.ph == "X" and not _communicates(event.name):
                    self.kernel_times.extend((start, end))  # most events of a job on GPUs
                elif event.ph == "X":
                    self.rank.count = count + number + 1
                    if not valid and not _times([event])[2]:
                        raise self.rank.fail("its time is not valid")
                    self.event(event, start, end)
        except OverflowError as error:
            raise self.rank.fail("a number is too large") from error
        self.rank.count = count + len(block)

    def event(self, event: _KinetoEvent, start: int, end: int) -> None:
        """Collect an event, from start to end in ns, if it is communication, computing, or a step."""
        category = event.cat
        name = event.name
        if category == "cpu_op":
            if name == "record_param_comms":
                self.record(event, start, end)
            elif name.startswith("c10d::"):
                self.call(event, start, end)
            elif not name.startswith(_CPU_COMMUNICATION):
                self.cpu_times.extend((self.thread(event), start, end))
        elif category == "kernel":
            if _communicates(name):
                launch = self.arguments(event, _decode_launch)
                stream = launch.stream if isinstance(launch.stream, int) else UNKNOWN
                self.kernels.extend((launch.external, start, end, stream))
            else:
                self.kernel_times.extend((start, end))
        elif category == "user_annotation":
            if name.startswith(_STEP):
                self.steps.append(start)
            elif name.startswith("gloo:"):
                launch = self.arguments(event, _decode_launch)
                dtype = self.dtypes.setdefault(launch.types[0] if launch.types else "", len(self.dtypes))
                self.runs.extend((launch.function, start, end, self.thread(event), dtype))

    def arguments(self, event: _KinetoEvent, decode: Callable[[msgspec.Raw], T]) -> T:
        try:
            return decode(event.args)
        except INVALID as error:
            raise self.rank.fail(f"the arguments of {event.name[:100]} are not valid ({error})") from error

    def thread(self, event: _KinetoEvent) -> int:
        return self.threads.setdefault((event.pid, event.tid), len(self.threads))

    def record(self, event: _KinetoEvent, start: int, end: int) -> None:
        """Add the operation of a `record_param_comms`; without arguments, which old versions write, its name is not known."""
        x = self.arguments(event, _decode_arguments)
        kind = kind_of(x.collective or "")
        if kind is None:
            return  # "wait", "init"
        group = x.group if x.group is not None else str(x.group_id)
        if isinstance(x.ranks, list) or (group, x.ranks, x.first, x.stride, x.size) not in self.defined:
            self.define(group, x)
        sent = UNKNOWN if kind == KIND["scatter"] else x.sent  # NCCL's record has that of the root at each rank
        received = UNKNOWN if kind == KIND["gather"] else x.received
        root = UNKNOWN
        if kind in MESSAGES:
            root = x.destination if kind == KIND["send"] else x.source
        is_local = root == UNKNOWN and (kind in MESSAGES or kind in ROOTED)
        if is_local:
            root = x.number
        self.operation(start, x, kind, group, x.dtype, sent=sent, received=received, parts=(_numbers(x.to), _numbers(x.back)), root=root,
                       is_local=is_local, members=x.size)  # fmt: skip
        self.recorded.extend((self.thread(event), start, end))

    def define(self, group: str, x: _Arguments) -> None:
        ranks: Sequence[int] | None = _numbers(x.ranks)
        if ranks is None and x.first >= 0 and x.stride > 0 and 0 < x.size < 1 << 24:
            ranks = range(x.first, x.first + x.stride * x.size, x.stride)
        if ranks and group:
            self.rank.define(group, ranks, x.size, x.description)
        if isinstance(x.ranks, str) and len(self.defined) < 1 << 16:
            self.defined.add((group, x.ranks, x.first, x.stride, x.size))

    def call(self, event: _KinetoEvent, start: int, end: int) -> None:
        """Add the operation of a `c10d::` call: its tensors, objects without a value, then numbers."""
        kind = kind_of(event.name.rstrip("_"))
        if kind is None:
            return
        x = self.arguments(event, _decode_arguments)
        if len(x.shapes) != len(x.types) or len(x.values) != len(x.types):
            x.shapes, x.types, x.values = [], [], []
        received = self.elements(x, 0)
        sent = self.elements(x, 1) if kind in OUTPUT_FIRST else received
        tensors = next((n for n, type_name in enumerate(x.types) if n and not type_name), len(x.types))
        scalars = [_scalar(value) for value in x.values[tensors:]]
        integers = [value for value in scalars if type(value) is int]
        root = integers[0] if integers and (kind in ROOTED or kind in MESSAGES) and "any_source" not in event.name else UNKNOWN
        parts: tuple[Sequence[int] | None, Sequence[int] | None] = (), ()
        if kind == KIND["alltoall"]:
            lists = [value for value in scalars if isinstance(value, list)]
            parts = (lists[1], lists[0]) if len(lists) > 1 else (None, None)
        members = UNKNOWN
        if kind == KIND["allgather"] and sent > 0 and received > 0:
            members = received // sent
        elif kind == KIND["reducescatter"] and sent > 0 and received > 0:
            members = sent // received
        dtype = next((name for name in x.types if name and name not in ("TensorList", "Scalar", "ScalarList")), "")
        index = self.operation(
            start, x, kind, "", dtype, sent=sent, received=received, parts=parts, root=root, is_local=True, members=members
        )
        self.calls.extend((x.function, self.thread(event), start, end, index))

    def elements(self, x: _Arguments, index: int) -> int:
        """Return the elements of a tensor or a list of tensors, UNKNOWN if they are not recorded: lists of lists, and of more than 30."""
        if index >= len(x.types) or not x.types[index]:
            return UNKNOWN
        shape = x.shapes[index]
        if x.types[index] == "ScalarList" and x.values[index] == "[]":
            return 0  # an empty list of tensors
        if not isinstance(shape, list):
            raise self.rank.fail("a shape is not valid")
        shapes = shape if x.types[index] == "TensorList" else [shape]
        if x.types[index] == "TensorList" and not shapes:
            return UNKNOWN
        if any(not isinstance(sizes, list) or any(type(n) is not int or not 0 <= n < 1 << 53 for n in sizes) for sizes in shapes):
            raise self.rank.fail("a shape is not valid")
        return sum(map(prod, shapes))

    def operation(
        self, created: int, x: _Arguments, kind: int, group: str, dtype: str, *, sent: int, received: int,
        parts: tuple[Sequence[int] | None, Sequence[int] | None], root: int, is_local: bool, members: int,
    ) -> int:  # fmt: skip
        """Add an operation, and return its index."""
        splits = UNKNOWN
        if kind in (KIND["alltoall"], KIND["alltoallv"]) and (None in parts or any(parts)):
            kind = KIND["alltoallv"]
            if parts[0] and parts[1]:
                splits = self.rank.split(parts[0], parts[1], sent, received, members)
        if not UNKNOWN <= root < 1 << 24 or not UNKNOWN <= members < 1 << 62:
            raise self.rank.fail("a rank is not valid")
        self.external.append(x.external)
        return self.rank.add(
            kind, self.rank.group(group), dtype, sent, received, sequence=x.sequence, root=root, splits=splits, created=created,
            members=members, is_local=is_local,
        )  # fmt: skip

    def job(self, fields: Mapping[str, Any]) -> None:
        """Set rank, world and groups from `distributedInfo`."""
        info = dict_of(fields.get("distributedInfo"))
        rank, world = info.get("rank"), info.get("world_size")
        if rank is not None and (type(rank) is not int or not 0 <= rank < 1 << 24):
            raise self.rank.fail("'distributedInfo' has a rank that is not valid")
        if world is not None and (type(world) is not int or not 0 < world < 1 << 24):
            raise self.rank.fail("'distributedInfo' has a world_size that is not valid")
        self.rank.rank = UNKNOWN if rank is None else rank
        self.rank.world = UNKNOWN if world is None else world
        for group in list_of(info.get("pg_config"), dict):
            description = group.get("pg_desc", "")
            ranks = group.get("ranks", [])
            if isinstance(ranks, list) and isinstance(description, str):
                self.rank.define(str(group.get("pg_name", "")), ranks, group.get("pg_size"), description)
        base = fields.get("baseTimeNanoseconds", 0)
        self.base = base if type(base) is int and 0 <= base < _MOST_NS else 0
        host = fields.get("host_name", "")
        self.host = host if isinstance(host, str) else ""

    def trace(self) -> RankTrace:
        """Return the trace, with the operations in the order in which they were called."""
        operations = self.rank.operations()
        operations = operations[self.resolve(operations)]
        operations = operations[np.argsort(operations["created"], kind="stable")]
        steps = np.unique(np.searchsorted(operations["created"], np.sort(np.frombuffer(self.steps, np.int64))))
        compute = self.compute()
        for name in ("created", "start", "end"):
            operations[name][operations[name] != UNKNOWN] += self.base
        return self.rank.trace(operations, compute=compute + self.base, steps=steps[steps < len(operations)], host=self.host)

    def resolve(self, operations: NDArray[Any]) -> NDArray[Any]:
        """Set times, queues, groups, sizes and roots, and return which operations to keep: calls that contain a record are the record."""
        calls = np.frombuffer(self.calls, np.int64).reshape(-1, 5)
        recorded = np.frombuffer(self.recorded, np.int64).reshape(-1, 3)
        keep = np.ones(len(operations), bool)
        keep[calls[_contain(calls[:, 1:4], recorded, "right"), 4]] = False
        self.resolve_kernels(operations)
        self.resolve_gloo(operations, calls)
        operations["state"][operations["end"] != UNKNOWN] = _COMPLETED
        self.rank.resolve(operations)
        return keep

    def resolve_kernels(self, operations: NDArray[Any]) -> None:
        """Set start, end and stream from the kernels with the operation's external id: from the first one's start to the last one's end."""
        kernels = np.frombuffer(self.kernels, np.int64).reshape(-1, 4)
        kernels = kernels[kernels[:, 0] >= 0]
        if not len(kernels):
            return
        kernels = kernels[np.lexsort((kernels[:, 1], kernels[:, 0]))]
        ids, first = np.unique(kernels[:, 0], return_index=True)
        last_end = np.maximum.reduceat(kernels[:, 2], first)
        external = np.frombuffer(self.external, np.int64)
        place = np.minimum(np.searchsorted(ids, external), len(ids) - 1)
        has_kernels = ids[place] == external
        place = place[has_kernels]
        operations["start"][has_kernels] = kernels[first[place], 1]
        operations["end"][has_kernels] = last_end[place]
        stream = kernels[first[place], 3]
        operations["queue"][has_kernels] = np.where((stream >= 0) & (stream < 1 << 31), stream, UNKNOWN)

    def resolve_gloo(self, operations: NDArray[Any], calls: NDArray[Any]) -> None:
        """Set start, end, thread and data type from the "gloo:" event of each call: the next one by the number of the recorded function."""
        runs = np.frombuffer(self.runs, np.int64).reshape(-1, 5)
        calls = calls[calls[:, 0] >= 0]
        calls = calls[np.argsort(calls[:, 0], kind="stable")]
        runs = runs[runs[:, 0] >= 0]
        caller = np.searchsorted(calls[:, 0], runs[:, 0]) - 1
        runs = runs[caller >= 0]
        index = calls[caller[caller >= 0], 4]
        for number, name in enumerate(("start", "end", "queue"), 1):
            operations[name][index] = runs[:, number]
        for name, number in self.dtypes.items():
            dtype, scale = dtype_of(name)
            same = index[runs[:, 4] == number]
            same = same[(operations["dtype"][same] == NONE) & (operations["kind"][same] != KIND["barrier"])]
            operations["dtype"][same] = dtype
            for field in ("sent", "received"):
                operations[field][same[operations[field][same] > 0]] *= scale

    def compute(self) -> NDArray[np.int64]:
        """Return when the rank computed: its kernels, or without a device the calls in which it does not communicate."""
        if self.kernel_times or self.kernels:
            return union(np.frombuffer(self.kernel_times, np.int64).reshape(-1, 2))
        calls = np.frombuffer(self.cpu_times, np.int64).reshape(-1, 3)
        communication = np.frombuffer(self.calls, np.int64).reshape(-1, 5)[:, 1:3]
        return union(calls[~_contain(calls, communication, "left"), 1:])


def _contain(calls: NDArray[np.int64], others: NDArray[np.int64], end: Literal["left", "right"]) -> NDArray[np.bool_]:
    """Return by call whether another one begins in it on the same thread; end: "right" if its end is part of it.

    calls   [n × 3] thread, begin and end; others: [m × 2 or more] thread and begin
    """
    contain = np.zeros(len(calls), bool)
    for thread in np.unique(others[:, 0]).tolist():
        begins = np.sort(others[others[:, 0] == thread, 1])
        same = np.flatnonzero(calls[:, 0] == thread)
        contain[same] = np.searchsorted(begins, calls[same, 1]) < np.searchsorted(begins, calls[same, 2], side=end)
    return contain


def _times(events: Sequence[_KinetoEvent]) -> tuple[list[int], list[int], bool]:
    """Return starts and ends of events in ns, and whether they are valid; those that are not have start and end 0."""
    begins = np.array([event.ts for event in events])
    lengths = np.array([event.dur for event in events]) * 1000
    invalid = ~((np.abs(begins) < _MOST_NS / 1000) & (lengths >= 0) & (lengths < _MOST_NS))
    begins[invalid] = lengths[invalid] = 0
    whole = np.trunc(begins)  # the product of a large number of microseconds would be rounded to 256 ns
    starts = whole.astype(np.int64) * 1000 + np.rint((begins - whole) * 1000).astype(np.int64)
    return starts.tolist(), (starts + np.rint(lengths).astype(np.int64)).tolist(), not invalid.any()


@lru_cache(maxsize=4096)
def _communicates(kernel: str) -> bool:
    return _DEVICE_COMMUNICATION.search(kernel) is not None


def _numbers(value: str | list[int]) -> list[int] | None:
    """Return the numbers of "[0, 1]", None if torch cut the list."""
    if isinstance(value, list):
        return value
    if value == "[]":
        return []
    if _TRUNCATED in value:
        return None
    try:
        return msgspec.json.decode(value, type=list[int]) if value else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _scalar(value: Any) -> Any:
    """Return a recorded argument: a number, a truth value or a list of numbers; None for others."""
    if value in ("True", "False"):
        return value == "True"
    if isinstance(value, str) and value.startswith("["):
        return _numbers(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value) else None
