"""Read Kineto traces, the Chrome JSON that torch.profiler exports.

NCCL's operations are `record_param_comms` events with the process group and the sizes; the kernels that have their "External id" give
start, end and stream. Gloo has `c10d::` events, and a "gloo:" event on the thread that runs each; the profiler records their sizes with
record_shapes=True only. A kernel's name does not give the reduction op: NCCL runs different ones in one kernel.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.traces.c10d import MESSAGES, ROOTED, RankBuilder, dtype_of, kind_of, sizes_of
from collbench.traces.json_records import JsonRecords
from collbench.traces.model import KIND, NONE, STATE, UNKNOWN, RankTrace, union
from collbench.untrusted import dict_of, list_of, uncollected

T = TypeVar("T")

FORM = "kineto"

_STEP = "ProfilerStep#"
_TRUNCATED = "..."  # torch writes the first 29 of more than 30 ranks or sizes
_COMPLETED = STATE["completed"]
_OUTPUT_FIRST = frozenset(KIND[name] for name in ("allgather", "reducescatter", "gather", "scatter", "alltoall", "alltoallv"))
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
            for event in block:
                reader.event(event)
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
        self.created, self.ids, self.roots, self.fits = (array("q") for _ in range(4))
        self.local = array("b")  # whether the root is a number within the group
        self.calls = array("q")  # `c10d::` events: function id, thread, begin and end, operation
        self.recorded = array("q")  # record_param_comms events: thread, begin and end
        self.runs = array("q")  # "gloo:" events: function id, start, end, thread, data type
        self.dtypes: dict[str, int] = {}
        self.defined: set[Any] = set()
        self.kernels = array("q")  # of communication: external id, start, end, stream
        self.kernel_times, self.cpu_times = array("q"), array("q")  # start and end; thread, start and end
        self.steps = array("q")
        self.threads: dict[tuple[int | str, int | str], int] = {}
        self.base = 0
        self.host = ""
        self.has_device = False

    def event(self, event: _KinetoEvent) -> None:
        """Collect an event, if it is communication, computing, or a step."""
        self.rank.count += 1
        if event.ph != "X":
            return
        category, name = event.cat, event.name
        if category == "cpu_op":
            if name == "record_param_comms":
                self.record(event)
            elif name.startswith("c10d::"):
                self.call(event)
            elif not name.startswith(_CPU_COMMUNICATION):
                self.cpu_times.extend((self.thread(event), *self.interval(event)))
        elif category == "kernel":
            self.has_device = True
            start, end = self.interval(event)
            if _DEVICE_COMMUNICATION.search(name):
                launch = self.arguments(event, _decode_launch)
                stream = launch.stream if isinstance(launch.stream, int) else UNKNOWN
                self.kernels.extend((self.integer(launch.external), start, end, self.integer(stream)))
            else:
                self.kernel_times.extend((start, end))
        elif category == "user_annotation":
            if name.startswith(_STEP):
                self.steps.append(self.interval(event)[0])
            elif name.startswith("gloo:"):
                launch = self.arguments(event, _decode_launch)
                dtype = self.dtypes.setdefault(launch.types[0] if launch.types else "", len(self.dtypes))
                self.runs.extend((self.integer(launch.function), *self.interval(event), self.thread(event), dtype))

    def arguments(self, event: _KinetoEvent, decode: Callable[[msgspec.Raw], T]) -> T:
        """Return the arguments of an event."""
        try:
            return decode(event.args)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise self.rank.fail(f"the arguments of {event.name[:100]} are not valid ({error})") from error

    def interval(self, event: _KinetoEvent) -> tuple[int, int]:
        """Return start and end in ns."""
        whole = int(event.ts)  # the product of a large number of microseconds would be rounded to 256 ns
        start, length = whole * 1000 + round((event.ts - whole) * 1000), event.dur * 1000
        if not (-_MOST_NS < start < _MOST_NS and 0 <= length < _MOST_NS):
            raise self.rank.fail("its time is not valid")
        return start, start + round(length)

    def thread(self, event: _KinetoEvent) -> int:
        """Return a number for the thread of an event."""
        return self.threads.setdefault((event.pid, event.tid), len(self.threads))

    def integer(self, number: int) -> int:
        """Return a number that fits into 64 bits."""
        if not -(1 << 63) <= number < 1 << 63:
            raise self.rank.fail("a number is too large")
        return number

    def record(self, event: _KinetoEvent) -> None:
        """Add the operation of a `record_param_comms`; without arguments, which old versions write, its name is not known."""
        x = self.arguments(event, _decode_arguments)
        kind = kind_of(x.collective or "")
        if kind is None:
            return  # "wait", "init"
        group = x.group if x.group is not None else str(x.group_id)
        if isinstance(x.ranks, list) or (group, x.ranks, x.first, x.stride, x.size) not in self.defined:
            self.define(group, x)
        sent, received = x.sent, x.received
        if kind == KIND["gather"]:
            received = UNKNOWN  # NCCL's record has that of the root at each rank
        elif kind == KIND["scatter"]:
            sent = UNKNOWN
        root, local = UNKNOWN, False
        if kind in MESSAGES:
            root = x.destination if kind == KIND["send"] else x.source
            if root == UNKNOWN:
                root, local = x.number, True
        elif kind in ROOTED:
            root, local = x.number, True
        interval = self.interval(event)
        self.operation(interval[0], x, kind, group=group, sent=sent, received=received, dtype=x.dtype,
                       parts=(_numbers(x.to), _numbers(x.back)), root=root, local=local, fits=x.size)  # fmt: skip
        self.recorded.extend((self.thread(event), *interval))

    def define(self, group: str, x: _Arguments) -> None:
        """Define the process group of a record."""
        ranks: Sequence[int] | None = _numbers(x.ranks)
        if ranks is None and x.first >= 0 and x.stride > 0 and 0 < x.size < 1 << 24:
            ranks = range(x.first, x.first + x.stride * x.size, x.stride)
        if ranks and group:
            self.rank.define(group, ranks, x.size, x.description)
        if isinstance(x.ranks, str) and len(self.defined) < 1 << 16:
            self.defined.add((group, x.ranks, x.first, x.stride, x.size))

    def call(self, event: _KinetoEvent) -> None:
        """Add the operation of a `c10d::` call: its tensors, objects without a value, then numbers."""
        kind = kind_of(event.name.rstrip("_"))
        if kind is None:
            return
        x = self.arguments(event, _decode_arguments)
        tensors = next((at for at, kind_name in enumerate(x.types) if at and not kind_name), len(x.types)) if x.types else 0
        if len(x.shapes) != len(x.types) or len(x.values) != len(x.types):
            x.shapes, x.types, x.values, tensors = [], [], [], 0
        output_first = kind in _OUTPUT_FIRST
        received = self.elements(x, 0)
        sent = self.elements(x, 1) if output_first else received
        scalars = [_scalar(value) for value in x.values[tensors:]]
        integers = [value for value in scalars if type(value) is int]
        root = integers[0] if integers and (kind in ROOTED or kind in MESSAGES) and "any_source" not in event.name else UNKNOWN
        parts: tuple[Sequence[int] | None, Sequence[int] | None] = (), ()
        if kind == KIND["alltoall"]:
            lists = [value for value in scalars if isinstance(value, list)]
            parts = (lists[1], lists[0]) if len(lists) > 1 else (None, None)
        fits = UNKNOWN
        if kind == KIND["allgather"] and sent > 0 and received > 0:
            fits = received // sent
        elif kind == KIND["reducescatter"] and sent > 0 and received > 0:
            fits = sent // received
        dtype = next((each for each in x.types if each and each not in ("TensorList", "Scalar", "ScalarList")), "")
        interval = self.interval(event)
        self.calls.extend((self.integer(x.function), self.thread(event), *interval, len(self.created)))
        self.operation(interval[0], x, kind, group="", sent=sent, received=received, dtype=dtype, parts=parts, root=root, local=True,
                       fits=fits)  # fmt: skip

    def elements(self, x: _Arguments, at: int) -> int:
        """Return the elements of a tensor or a list of tensors, UNKNOWN if they are not recorded: lists of lists, and of more than 30."""
        if at >= len(x.types) or not x.types[at]:
            return UNKNOWN
        shape = x.shapes[at]
        if x.types[at] == "ScalarList" and x.values[at] == "[]":
            return 0  # an empty list of tensors
        if not isinstance(shape, list):
            raise self.rank.fail("a shape is not valid")
        shapes = shape if x.types[at] == "TensorList" else [shape]
        if x.types[at] == "TensorList" and not shapes:
            return UNKNOWN
        if any(not isinstance(each, list) or any(type(n) is not int or not 0 <= n < 1 << 53 for n in each) for each in shapes):
            raise self.rank.fail("a shape is not valid")
        return sum(map(prod, shapes))

    def operation(
        self, created: int, x: _Arguments, kind: int, *, group: str, sent: int, received: int, dtype: str,
        parts: tuple[Sequence[int] | None, Sequence[int] | None], root: int, local: bool, fits: int,
    ) -> None:  # fmt: skip
        """Add an operation."""
        splits = UNKNOWN
        if kind in (KIND["alltoall"], KIND["alltoallv"]) and (None in parts or any(parts)):
            kind = KIND["alltoallv"]
            if parts[0] and parts[1]:
                splits = self.rank.split(parts[0], parts[1], sent, received, fits)
        self.rank.add(kind, self.rank.group(group), dtype, sent, received, sequence=self.integer(x.sequence), splits=splits)
        self.created.append(created)
        self.ids.append(self.integer(x.external))
        if not UNKNOWN <= root < 1 << 24 or not UNKNOWN <= fits < 1 << 62:
            raise self.rank.fail("a rank is not valid")
        self.roots.append(root)
        self.local.append(local)
        self.fits.append(fits)

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
            what, ranks = group.get("pg_desc", ""), group.get("ranks", [])
            if isinstance(ranks, list) and isinstance(what, str):
                self.rank.define(str(group.get("pg_name", "")), ranks, group.get("pg_size"), what)
        base = fields.get("baseTimeNanoseconds", 0)
        self.base = base if type(base) is int and 0 <= base < _MOST_NS else 0
        host = fields.get("host_name", "")
        self.host = host if isinstance(host, str) else ""

    def trace(self) -> RankTrace:
        """Return the trace, with the operations in the order in which they were called."""
        operations = self.rank.operations()
        operations["created"] = np.frombuffer(self.created, np.int64)
        keep = self.resolve(operations)
        operations = operations[keep]
        order = np.argsort(operations["created"], kind="stable")
        operations = operations[order]
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
        for thread in np.unique(recorded[:, 0]).tolist():
            begins = np.sort(recorded[recorded[:, 0] == thread, 1])
            own = calls[calls[:, 1] == thread]
            inside = np.searchsorted(begins, own[:, 2]) < np.searchsorted(begins, own[:, 3], side="right")
            keep[own[inside, 4]] = False
        self.resolve_kernels(operations)
        self.resolve_gloo(operations, calls)
        operations["state"][operations["end"] != UNKNOWN] = _COMPLETED
        unnamed = self.rank.group("")
        fits = np.frombuffer(self.fits, np.int64)
        for size in np.unique(fits[operations["group"] == unnamed]).tolist():
            operations["group"][(operations["group"] == unnamed) & (fits == size)] = self.rank.group(self.rank.name_of_size(size))
        numbers, local = np.frombuffer(self.roots, np.int64), np.frombuffer(self.local, np.int8) > 0
        operations["root"] = np.where(local, UNKNOWN, numbers)
        for name in list(self.rank.groups):
            index = self.rank.group(name)
            members = len(self.rank.groups[name].ranks)
            own = operations["group"] == index
            for number in np.unique(numbers[own & local & (numbers != UNKNOWN)]).tolist():
                operations["root"][own & local & (numbers == number)] = self.rank.rank_of(name, number)
            for kind in (KIND["allgather"], KIND["reducescatter"], KIND["gather"], KIND["scatter"]):
                self.complete(operations, own & (operations["kind"] == kind), kind, members)
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
        own = np.frombuffer(self.ids, np.int64)
        at = np.minimum(np.searchsorted(ids, own), len(ids) - 1)
        found = ids[at] == own
        at = at[found]
        operations["start"][found], operations["end"][found] = kernels[first[at], 1], last_end[at]
        stream = kernels[first[at], 3]
        operations["queue"][found] = np.where((stream >= 0) & (stream < 1 << 31), stream, UNKNOWN)

    def resolve_gloo(self, operations: NDArray[Any], calls: NDArray[Any]) -> None:
        """Set start, end, thread and data type from the "gloo:" event of each call: the next one by the number of the recorded function."""
        runs = np.frombuffer(self.runs, np.int64).reshape(-1, 5)
        calls, runs = calls[calls[:, 0] >= 0], runs[runs[:, 0] >= 0]
        calls = calls[np.argsort(calls[:, 0], kind="stable")]
        caller = np.searchsorted(calls[:, 0], runs[:, 0]) - 1
        runs, caller = runs[caller >= 0], caller[caller >= 0]
        index = calls[caller, 4]
        operations["start"][index], operations["end"][index], operations["queue"][index] = runs[:, 1], runs[:, 2], runs[:, 3]
        for name, number in self.dtypes.items():
            dtype, scale = dtype_of(name)
            same = index[runs[:, 4] == number]
            same = same[(operations["dtype"][same] == NONE) & (operations["kind"][same] != KIND["barrier"])]
            operations["dtype"][same] = dtype
            for field in ("sent", "received"):
                known = same[operations[field][same] > 0]
                operations[field][known] *= scale

    def complete(self, operations: NDArray[Any], where: NDArray[Any], kind: int, members: int) -> None:
        """Set sizes that follow from others and the number of ranks."""
        for index in np.flatnonzero(where & ((operations["sent"] == UNKNOWN) | (operations["received"] == UNKNOWN))).tolist():
            sent, received = int(operations["sent"][index]), int(operations["received"][index])
            if kind == KIND["gather"] and members and sent >= 0:
                root = int(operations["root"][index])
                received = UNKNOWN if root == UNKNOWN else sent * members if root == self.rank.rank else 0
            elif kind == KIND["scatter"] and members and received >= 0:
                root = int(operations["root"][index])
                sent = UNKNOWN if root == UNKNOWN else received * members if root == self.rank.rank else 0
            else:
                sent, received = sizes_of(kind, sent, received, members)
            operations["sent"][index], operations["received"][index] = sent, received

    def compute(self) -> NDArray[np.int64]:
        """Return when the rank computed: its kernels, or without a device the calls in which it does not communicate."""
        if self.has_device:
            return union(np.frombuffer(self.kernel_times, np.int64).reshape(-1, 2))
        calls = np.frombuffer(self.cpu_times, np.int64).reshape(-1, 3)
        communication = np.frombuffer(self.calls, np.int64).reshape(-1, 5)[:, 1:3]
        alone = np.ones(len(calls), bool)
        for thread in np.unique(communication[:, 0]).tolist():
            begins = np.sort(communication[communication[:, 0] == thread, 1])
            own = np.flatnonzero(calls[:, 0] == thread)
            inside = np.searchsorted(begins, calls[own, 1]) < np.searchsorted(begins, calls[own, 2])
            alone[own[inside]] = False
        return union(calls[alone, 1:])


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
