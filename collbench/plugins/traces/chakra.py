"""Read Chakra execution traces: the JSON that torch.profiler.ExecutionTraceObserver writes, and the `.et` files of MLCommons Chakra.

The JSON has the nodes of one rank, in the order in which they ended; their numbers are the order in which they began. NCCL's operations
are `record_param_comms` nodes with the process group, root and sizes. Gloo has `c10d::` nodes only, in which the group and the reduction
op are objects without a value: the group is known if the job has only one that fits, or if the call is a functional collective.

`.et` files are read by `chakra_protobuf`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.traces import chakra_protobuf
from collbench.plugins.traces.c10d import GROUPS_NODE, MESSAGES, OUTPUT_FIRST, ROOTED, dtype_in, kind_of, redop_of
from collbench.plugins.traces.files import text_chunks
from collbench.plugins.traces.json_records import INVALID, JsonRecords
from collbench.plugins.traces.model import KIND, NONE, UNKNOWN, Part, ProcessGroup, RankTrace
from collbench.plugins.traces.rank_builder import MOST_WAITS, RankBuilder, dependencies
from collbench.untrusted import uncollected

FORM = "chakra"

_JSON = re.compile(rb'\s*\{\s*["}{]')  # "{" alone may also be the length of a protobuf message
_STEP = "ProfilerStep#"


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether a file is an execution trace, from its name and its first 64 KiB."""
    if _JSON.match(head):
        return b'"schema"' in head and b'"nodes"' in head
    return chakra_protobuf.recognizes(path, head)


def read(path: Path) -> list[RankTrace]:
    """Return the rank of a file. Raises UsageError with the file and the place of what is invalid."""
    first = next(text_chunks(path), b"")
    with uncollected():
        return [_read_json(path) if _JSON.match(first) else chakra_protobuf.read_rank(path)]


class _Node(msgspec.Struct, gc=False):
    """A node; up to schema 1.0.1 the parent is `parent`, and inputs are a list beside `input_types`."""

    name: str = ""
    id: int = UNKNOWN
    ctrl_deps: int = UNKNOWN
    parent: int = UNKNOWN
    inputs: msgspec.Raw = msgspec.Raw(b"[]")
    input_types: msgspec.Raw = msgspec.Raw(b"[]")
    outputs: msgspec.Raw = msgspec.Raw(b"[]")
    output_types: msgspec.Raw = msgspec.Raw(b"[]")


class _Values(msgspec.Struct, gc=False):
    values: list[Any] = []
    types: msgspec.Raw = msgspec.Raw(b"[]")


_decode_values = msgspec.json.Decoder(_Values | list[Any]).decode
_decode_types = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_equal_types = lru_cache(maxsize=1024)(_decode_types)  # most nodes of one operation have the same types
_LONGEST_TYPES = 4096  # bytes of types that are kept
_dtype_in = lru_cache(maxsize=1024)(dtype_in)


class _JsonReader:
    """What is collected of the nodes; an operation's columns have its index."""

    def __init__(self, path: Path) -> None:
        self.rank = RankBuilder(path)
        self.pointers: dict[int, str] = {}  # names of groups that nodes give by address
        self.numbers: set[tuple[str, int]] = set()  # of the rank in its groups, as different operations have them
        # Of operations: node, parent, storage of the first input and of the first output (UNKNOWN: none), whether the program waited at
        # once, whether it is a `c10d::` call
        self.columns = array("q")
        self.callers: dict[int, int] = {}  # of `c10d::` nodes that contain a record, their parents
        self.recorded: set[int] = set()  # parents of records
        self.functional: dict[int, tuple[int, str]] = {}  # reduction op and group of functional collectives
        self.waits: list[tuple[int, Any]] = []  # node, and either a storage or (group, sequence)
        self.defined: set[tuple[Any, ...]] = set()
        self.sequences: dict[str, dict[int, int]] = {}  # by group: of 2 × sequence + (of a message)
        self.steps = array("q")
        self.barrier = UNKNOWN  # parent of the record just before, if that is a barrier

    def node(self, node: _Node) -> None:
        """Collect a node, if it belongs to communication."""
        name = node.name
        if name == "record_param_comms":
            self.record(node)
        elif name.startswith("c10d::"):
            self.call(node)
        elif name.startswith("_c10d_functional"):
            values, _ = _values(node.inputs, node.input_types)
            strings = [value for value in values if isinstance(value, str)]
            if name.endswith("::wait_tensor"):
                self.waits.append((node.id, _summary(values[:1])[1]))
            elif strings:
                redop = next((number for number in map(redop_of, strings[:-1]) if number != NONE), NONE)
                self.functional[node.id] = redop, strings[-1]
        elif name.startswith(_STEP):
            self.steps.append(node.id)
        elif name == GROUPS_NODE:
            values, _ = _values(node.inputs, node.input_types)
            for address, group in self.rank.define_all(values[0] if values else "").items():
                self.pointers.setdefault(address, group)

    def record(self, node: _Node) -> None:
        """Collect a `record_param_comms`: [tensors], sequence, group, rank or root or peer, name, sizes to and from each rank, ranks."""
        parent = node.ctrl_deps if node.ctrl_deps != UNKNOWN else node.parent
        values, types = _values(node.inputs, node.input_types)
        first = 0 if len(values) > 3 and isinstance(values[3], str) else 1  # after the tensors, which may be missing
        if len(values) < first + 6 or not isinstance(values[first + 3], str) or type(values[first + 2]) is not int:
            raise self.rank.fail("the arguments of record_param_comms are not valid")
        numbered, named, number, name, to, back, *ranks = values[first:]
        is_pair = isinstance(numbered, list) and len(numbered) == 2
        sequence, p2p = numbered if is_pair else (numbered, False)  # 47, or [47, whether it is a message]
        if type(sequence) is not int:
            sequence = UNKNOWN
        p2p = bool(p2p)
        group = self.group_of(named)
        kind = kind_of(name)
        if kind is None:
            if name == "wait":
                self.waits.append((node.id, (group, 2 * sequence + p2p)))
            return
        if parent in self.recorded and kind == KIND["allreduce"] and self.barrier == parent:
            return  # older versions implement the barrier as an all-reduce, and record both
        self.recorded.add(parent)
        self.barrier = parent if kind == KIND["barrier"] else UNKNOWN
        if type(to) is not list or type(back) is not list:
            raise self.rank.fail("the arguments of record_param_comms are not valid")
        size = UNKNOWN
        if ranks:
            size = ranks[2] if len(ranks) > 2 else ranks[0]
        if (group, *ranks) not in self.defined:
            what = named[1] if isinstance(named, list) and len(named) > 1 and isinstance(named[1], str) else ""
            self.define(group, ranks, size, what)
        outputs, output_types = _values(node.outputs, node.output_types)
        sent, source = _summary(values[:1]) if first else (0, UNKNOWN)
        received, target = _summary(outputs)
        received = received if output_types else sent
        if kind not in ROOTED and kind not in MESSAGES:
            self.numbers.add((group, number))
            number = UNKNOWN
        dtype = _dtype_in(types[:1] if first else ()) or _dtype_in(output_types)
        self.operation(
            kind, group, size, dtype, (node.id, parent, source, target, False, False), elements=(sent, received), parts=(to, back),
            number=number, sequence=sequence,
        )  # fmt: skip
        self.sequences.setdefault(group, {})[2 * sequence + p2p] = len(self.columns) // 6 - 1

    def define(self, group: str, ranks: list[Any], size: Any, what: str) -> None:
        """Define a process group of a record: first rank, distance and number of ranks."""
        if any(type(value) not in (int, bool) for value in (*ranks, size)):
            raise self.rank.fail("the arguments of record_param_comms are not valid")
        self.defined.add((group, *ranks))
        if len(ranks) > 2 and ranks[0] >= 0 and ranks[1] > 0 and 0 < size < 1 << 24:
            self.rank.define(group, range(ranks[0], ranks[0] + ranks[1] * size, ranks[1]), size, what)

    def call(self, node: _Node) -> None:
        """Collect a `c10d::` call, unless it contains a record: tensors, group, [reduction op], root or peer, …, asynchronous, …"""
        parent = node.ctrl_deps if node.ctrl_deps != UNKNOWN else node.parent
        if node.id in self.recorded:
            self.callers[node.id] = parent
            return
        kind = kind_of(node.name.rstrip("_"))
        values, types = _values(node.inputs, node.input_types)
        objects = [place for place, value in enumerate(values) if value == "<Object>"]
        if kind is None or not objects or len(types) != len(values):
            return
        tensors = objects[0]
        rest = values[objects[-1] + 1 :]
        outputs = values[:1]
        inputs = values[1:2] if kind in OUTPUT_FIRST and tensors > 1 else outputs
        sent, source = _summary(inputs)
        received, target = _summary(outputs)
        to: Sequence[Any] = ()
        back: Sequence[Any] = ()
        if kind == KIND["alltoall"] and "base" in node.name:
            back, to = [*(value for value in rest if isinstance(value, list)), [], []][:2]
        elif kind == KIND["alltoall"]:
            back, to = ([_summary([tensor])[0] for tensors in buffers for tensor in tensors] for buffers in (outputs, inputs))
        number = UNKNOWN
        if (kind in ROOTED or kind in MESSAGES) and "any_source" not in node.name:
            number = next((value for value in rest if type(value) is int), UNKNOWN)
        size = UNKNOWN
        if kind == KIND["allgather"] and sent > 0:
            size = received // sent
        elif kind == KIND["reducescatter"] and received > 0:
            size = sent // received
        elif to:
            size = len(to)
        asynchronous = next((value for value in rest if isinstance(value, bool)), True)
        dtype = _dtype_in(types[:tensors])
        row = (node.id, parent, source, target, not asynchronous, True)
        self.operation(kind, "", size, dtype, row, elements=(sent, received), parts=(to, back), number=number, sequence=UNKNOWN)

    def operation(
        self, kind: int, group: str, size: int, dtype: str, row: tuple[int, ...], *, elements: tuple[int, int],
        parts: tuple[Sequence[Any], Sequence[Any]], number: int, sequence: int,
    ) -> None:  # fmt: skip
        """Add an operation. number: of the root or peer within the group, UNKNOWN if it has none; row: of `columns`."""
        splits = UNKNOWN
        if (parts[0] or parts[1]) and kind in (KIND["alltoall"], KIND["alltoallv"]):
            kind = KIND["alltoallv"]
            splits = self.rank.split(*parts, *elements, size)
        self.rank.add(
            kind, self.rank.group(group), dtype, *elements, sequence=sequence, root=self.rank.checked_rank(number), splits=splits,
            members=size, is_local=True,
        )  # fmt: skip
        self.columns.extend(row)

    def group_of(self, value: Any) -> str:
        """Return the name of a group: a name, [name, description], or the address of its object."""
        if isinstance(value, list):
            value = value[0] if value else ""
        if value == 0 and type(value) is int:
            return ""
        if type(value) is int:
            if value not in self.pointers:
                self.pointers[value] = hex(value) if "" in self.pointers.values() else ""
            return self.pointers[value]
        if not isinstance(value, str):
            raise self.rank.fail("the process group of record_param_comms is not valid")
        return value

    def trace(self) -> RankTrace:
        """Return the trace, with the operations in the order in which they began."""
        operations = self.rank.operations()
        columns = np.frombuffer(self.columns, np.int64).reshape(-1, 6)
        nodes = columns[:, 0]
        is_call = columns[:, 5] > 0
        # A call may come before the record that it contains.
        contains = np.isin(nodes, np.fromiter(self.recorded, np.int64, len(self.recorded)))
        keep = ~(contains & is_call)
        order = np.flatnonzero(keep)[np.argsort(nodes[keep], kind="stable")]
        place = np.full(len(nodes), UNKNOWN, np.int64)
        place[order] = np.arange(len(order))
        operations = operations[order]
        nodes = nodes[order]
        lacks = set()
        if not is_call[order].any() and self.define_only_group():
            lacks.add(Part.GROUPS)
        self.use_functional_collectives(operations, columns[order, 1])
        self.rank.resolve(operations, order)
        ranks = {self.rank.rank_of(*number) for number in self.numbers} - {UNKNOWN}
        if len(ranks) > 1:
            raise UsageError(f"{self.rank.path}: it has operations of ranks {min(ranks)} and {max(ranks)}: record or copy the trace again")
        self.rank.rank = ranks.pop() if ranks else UNKNOWN
        after, complete = self.after(columns[order], place)
        if not complete:
            lacks.add(Part.DEPENDENCIES)
        steps = np.searchsorted(nodes, np.sort(np.frombuffer(self.steps, np.int64)))
        return self.rank.trace(
            operations, lacks, after=after if len(after[1]) or complete else None, steps=np.unique(steps[steps < len(nodes)])
        )

    def define_only_group(self) -> bool:
        """Return whether the ranks of the only group are assumed: it has an address, and an uneven all-to-all has its number of ranks.

        Then it has the ranks from 0 on, which the trace does not contain.
        """
        sizes = {len(parts) for both in self.rank.splits for parts in both if parts}
        only = list(self.pointers.values()) == [""] and list(self.rank.groups) == [""] and len(sizes) == 1
        if only and all(number < min(sizes) for _, number in self.numbers):
            self.rank.groups[""] = ProcessGroup("", tuple(range(min(sizes))), "all ranks")
            return True
        return False

    def use_functional_collectives(self, operations: NDArray[Any], parents: NDArray[Any]) -> None:
        """Set the groups and reduction ops that follow from the functional collectives."""
        unnamed = self.rank.group("")
        for index, parent in enumerate(parents.tolist() if self.functional else ()):
            redop, name = self.functional.get(self.callers.get(parent, parent), (NONE, ""))
            if redop != NONE:
                operations["redop"][index] = redop
            if operations["group"][index] == unnamed and name in self.rank.groups:
                operations["group"][index] = self.rank.group(name)

    def after(self, columns: NDArray[Any], place: NDArray[Any]) -> tuple[tuple[Any, Any], bool]:
        """Return `RankTrace.after`, and whether a wait is recorded for every operation.

        An operation waits for those that the program had waited for before, and for the last one that used its tensors. Threads of one
        rank count as one: the one that computes gradients runs while the program waits for it.
        """
        waits: list[tuple[int, ...]] = []
        done: tuple[int, ...] = ()
        waited = bytearray(len(columns))
        users: dict[int, int] = {UNKNOWN: UNKNOWN}
        pending = sorted(self.waits, key=lambda wait: wait[0])
        next_wait, last_wait = 0, len(pending)
        for index, (node, source, target, waits_now) in enumerate(zip(*columns[:, (0, 2, 3, 4)].T.tolist(), strict=True)):
            while next_wait < last_wait and pending[next_wait][0] < node:
                finished = self.waited_for(pending[next_wait][1], users, place)
                if 0 <= finished < index:
                    done = self.finish(finished, done, waits, waited)
                next_wait += 1
            last, other = users.get(source, UNKNOWN), users.get(target, UNKNOWN)
            if last == other:
                waits.append(done if last == UNKNOWN or last in done else (*done, last))
            else:
                waits.append((*done, *sorted({last, other} - {UNKNOWN, *done})))
            users[source] = users[target] = index
            users[UNKNOWN] = UNKNOWN
            if waits_now:
                done = self.finish(index, done, waits, waited)
        for _, what in pending[next_wait:]:
            finished = self.waited_for(what, users, place)
            if finished >= 0:
                waited[finished] = True
        return dependencies(waits), all(waited)

    def finish(self, index: int, done: tuple[int, ...], waits: list[tuple[int, ...]], waited: bytearray) -> tuple[int, ...]:
        """Return the operations that later ones wait for, now that the program has waited for one."""
        if waited[index]:
            return done
        waited[index] = True
        return (*(earlier for earlier in done if earlier not in waits[index]), index)[-MOST_WAITS:]

    def waited_for(self, what: Any, users: dict[int, int], place: NDArray[Any]) -> int:
        """Return the operation that a wait waited for, UNKNOWN if it is not in the trace or in several groups."""
        if not isinstance(what, tuple):
            return users.get(what, UNKNOWN)
        group, number = what
        groups = [self.sequences.get(group, {})] if group else list(self.sequences.values())
        indices = [by_number[number] for by_number in groups if number in by_number]
        return int(place[indices[0]]) if len(indices) == 1 else UNKNOWN


def _read_json(path: Path) -> RankTrace:
    reader = _JsonReader(path)
    reader.rank.what = "node"
    for block in JsonRecords(path, "nodes", _Node):
        for node in block:
            reader.rank.count = node.id
            try:
                reader.node(node)
            except OverflowError as error:
                raise reader.rank.fail("a number is too large") from error
            except (*INVALID, TypeError) as error:
                raise reader.rank.fail(f"the arguments of {node.name[:100]} are not valid ({error})") from error
    reader.rank.what = ""
    return reader.trace()


def _values(raw: msgspec.Raw, types: msgspec.Raw) -> tuple[list[Any], tuple[str, ...]]:
    """Return the values and types of a node's inputs or outputs, in both schemas."""
    values = _decode_values(raw)
    if type(values) is _Values:
        types = values.types
        values = values.values
    text = bytes(types)
    return values, (_decode_types if len(text) > _LONGEST_TYPES else _decode_equal_types)(text)


def _summary(values: Sequence[Any]) -> tuple[int, int]:
    """Return the elements of the tensors in nested lists, and the storage of the first one (UNKNOWN: there is none).

    A tensor is its number, storage, offset, elements, bytes of an element, and device.
    """
    if len(values) == 1 and type(values[0]) is list and len(values[0]) == 1 and _is_tensor(values[0][0]):
        tensor = values[0][0]  # most operations have one
        return tensor[3], tensor[1]
    elements, storage = 0, UNKNOWN
    lists = [values]
    while lists:
        for value in lists.pop():
            if type(value) is not list:
                continue
            if not _is_tensor(value):
                lists.append(value)
                continue
            elements += value[3]
            if storage == UNKNOWN:
                storage = value[1]
    return elements, storage


def _is_tensor(value: Any) -> bool:
    if type(value) is not list or len(value) != 6 or type(value[5]) is not str:
        return False
    if type(value[3]) is not int or type(value[1]) is not int or value[3] < 0:
        raise TypeError("a tensor is not valid")
    return True
