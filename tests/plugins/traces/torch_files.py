"""Write traces as PyTorch and MLCommons Chakra do, of any number of operations: for tests of the readers."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """An operation as NCCL records it. number: rank in the group, root or peer; parts: rows to and from each rank."""

    collective: str = "allreduce"
    sent: int = 1024
    received: int = 1024
    number: int = 0
    parts: tuple[Sequence[int], Sequence[int]] = ((), ())
    group: str = "0"
    ranks: tuple[int, ...] = (0, 1)


def execution_trace(path, calls, groups=(), indent="\n  "):
    """Write an execution trace of `record_param_comms` nodes, in the text form of PyTorch."""
    attributes = [{"name": "rf_id", "type": "uint64", "value": 1}, {"name": "tid", "type": "uint64", "value": 1}]

    def nodes():
        text = json.dumps(list(groups or [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 2}]))
        yield _node(2, "## process_group:init ##", ([text], ["String"]), ([], []), attributes)
        for number, call in enumerate(calls, 3):
            to, back = map(list, call.parts)
            stride = call.ranks[1] - call.ranks[0] if len(call.ranks) > 1 else 1
            place = [call.number, call.collective, to, back, call.ranks[0], stride, len(call.ranks)]
            values = [[[number, 7, 0, call.sent, 4, "cpu"]], number, [call.group, ""], *place]
            types = ["GenericList[Tensor(float)]", "Int", "Tuple[String,String]", "Int", "String", "GenericList[]", "GenericList[]"]
            output = ([[[number, 8, 0, call.received, 4, "cpu"]]], ["GenericList[Tensor(float)]"])
            yield _node(number, "record_param_comms", (values, [*types, "Int", "Int", "Int"]), output, attributes)

    with _open(path) as file:
        file.write('{\n  "schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2026-01-01 00:00:00", "start_ts": 1,\n  "nodes": [')
        for at, node in enumerate(nodes()):
            file.write(("," if at else "") + indent + json.dumps(node))
        file.write('\n  ],\n  "finish_ts": 2\n}\n')


def _node(number, name, inputs, outputs, attributes):
    both = [{"values": values, "shapes": [[] for _ in values], "types": types} for values, types in (inputs, outputs)]
    return {"id": number, "name": name, "ctrl_deps": number - 1, "inputs": both[0], "outputs": both[1], "attrs": attributes}


def kineto_trace(path, calls, rank=0, world=2, indent="\n  "):
    """Write a Kineto trace: a record and a kernel for each call, and a kernel that computes before each."""
    with _open(path) as file:
        file.write('{\n  "schemaVersion": 1,\n  "distributedInfo": ' + json.dumps({"backend": "nccl", "rank": rank, "world_size": world}))
        file.write(',\n  "baseTimeNanoseconds": 1000,\n  "traceEvents": [')
        first = True
        for at, call in enumerate(calls):
            arguments = {
                "External id": at + 1, "Record function id": at + 1, "Collective name": call.collective, "dtype": "Float",
                "In msg nelems": call.sent, "Out msg nelems": call.received, "Group size": len(call.ranks),
                "In split size": str(list(call.parts[0])), "Out split size": str(list(call.parts[1])),
                "Process Group Name": call.group, "Process Group Ranks": str(list(call.ranks)), "Rank": call.number, "Seq": at,
            }  # fmt: skip
            events = (
                ("cpu_op", "record_param_comms", 11, at * 100.0, 5.5, arguments),
                ("kernel", "gemm", 7, at * 100 + 1.25, 10.0, {"stream": 7}),
                ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, at * 100 + 20.5, 60.0, {"External id": at + 1, "stream": 20}),
            )
            for category, name, thread, begin, length, args in events:
                event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": begin, "dur": length, "args": args}
                file.write(("" if first else ",") + indent + json.dumps(event))
                first = False
        file.write('\n  ],\n  "traceName": "trace.json"\n}\n')


def _open(path):
    return gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w")


# Protobuf


@dataclass(frozen=True)
class Node:
    """A node of an `.et` file: its type as in NodeType, its attributes, and the inputs that the converter of PyTorch's traces keeps."""

    number: int
    type: int = 4
    waits: Sequence[int] = ()
    attributes: Sequence[tuple[str, int | str]] = ()
    name: str = ""
    start: int = 0
    duration: int = 0
    values: str = ""
    types: str = ""


def protobuf_trace(path, nodes, version="0.0.4"):
    with path.open("wb") as file:
        file.write(_delimited(_field(1, version.encode())))
        for node in nodes:
            data = _field(1, node.number) + _field(2, node.name.encode()) + _field(3, node.type)
            data += _field(5, b"".join(map(varint, node.waits))) + _field(6, node.start) + _field(7, node.duration)
            if node.values or node.types:
                data += _field(8, _field(1, node.values.encode()) + _field(3, node.types.encode()))
            for name, value in node.attributes:
                data += _field(10, _field(1, name.encode()) + (_field(9, value) if isinstance(value, int) else _field(29, value.encode())))
            file.write(_delimited(data))


def varint(value):
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def _delimited(data):
    return varint(len(data)) + data
