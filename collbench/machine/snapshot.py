"""Lossless conversion of a machine to plain JSON and back. Documents are checked field by field when they are read.

A mapping with pairs as keys becomes a list of [a, b, value]. All other names are those of `model`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from collbench.machine.model import Gpu, Machine, Nic, Port
from collbench.machine.readers.text import Unreadable, printable

SCHEMA = 1
ADDED = ("cpus", "links", "findings", "hostnames")  # entries that a document of machines has in addition to the machines
# Fields that are missing in documents of earlier releases, with the value that means unknown.
LATER: Mapping[str, object] = {
    "memory_numa": None, "c2c_links": None, "c2c_bytes_per_s": None, "rdma_missing": False, "cpu_links": None, "cpu_link_bytes_per_s": None,
    "clique": None, "lanes": None, "max_lanes": None, "acs_ports": None, "acs_on": None,
}  # fmt: skip


_Reader = Callable[[object], Any]


class _Foreign(Exception):
    """A value that is not valid for a machine: what was expected, and the path to it, innermost step first."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected
        self.way: list[str] = []

    def below(self, step: str) -> _Foreign:
        """Add a step to the path and return this error."""
        self.way.append(step)
        return self


def to_json(machine: Machine) -> dict[str, Any]:
    """Return the machine as JSON values: objects, lists, strings, numbers, true, false, null (unknown)."""
    plain: dict[str, Any] = _plain(machine)
    return plain


def from_json(data: object) -> Machine:
    """Return the machine that `to_json` wrote. Raises Unreadable, with one sentence, for anything else."""
    try:
        machine: Machine = _part_reader(Machine)(data)
    except _Foreign as foreign:
        where = printable("/".join(["machine", *reversed(foreign.way)]))
        remedy = "write it again with `probe --format json`"
        raise Unreadable(f"not a machine that `collbench probe` wrote: {where} is not {foreign.expected}: {remedy}") from None
    return machine


def topology_json(machines: Sequence[Machine]) -> dict[str, Any]:
    """Return a cluster with equal machines listed once: `{"schema": 1, "machines": [{"hostnames": [...], …machine}]}`.

    Machines are equal when they differ only in host name, serial numbers, fabric addresses and error counters.
    These are null where one entry describes several machines.
    The memory sizes of such an entry are those of its first machine; the others differ by some KiB.
    """
    groups: dict[str, list[Machine]] = {}
    for machine in machines:
        groups.setdefault(repr(_rounded(_without_identity(machine))), []).append(machine)
    return {"schema": SCHEMA, "machines": [_entry(group) for group in groups.values()]}


def machines_of(document: object, name: str) -> list[Machine]:
    """Return the machines of `topology_json` or of `collbench probe --format json`, one per host name.

    Raises Unreadable for other documents. `name`: the file's name, for the message.
    """
    listed = document.get("machines") if isinstance(document, dict) and document.get("schema") == SCHEMA else None
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise Unreadable(f'{printable(name)} is JSON, but no {{"schema": {SCHEMA}, "machines": [...]}} that `collbench probe` wrote')
    return [machine for entry in listed for machine in _spread(entry)]


def _entry(group: list[Machine]) -> dict[str, Any]:
    one = group[0] if len(group) == 1 else _without_identity(group[0])
    return {"hostnames": [machine.hostname for machine in group], **to_json(one)}


def _spread(entry: Mapping[str, Any]) -> list[Machine]:
    machine = from_json({key: value for key, value in entry.items() if key not in ADDED})
    hosts = entry.get("hostnames") or [machine.hostname]
    if not isinstance(hosts, list) or not all(host is None or isinstance(host, str) for host in hosts):
        remedy = "write it again with `probe --format json`"
        raise Unreadable(f"not a machine that `collbench probe` wrote: hostnames is not a list of texts: {remedy}")
    return [dataclasses.replace(machine, hostname=host) for host in hosts]


def _without_identity(machine: Machine) -> Machine:
    return dataclasses.replace(
        machine,
        hostname=None,
        gpus=tuple(_anonymous_gpu(gpu) for gpu in machine.gpus),
        nics=tuple(_anonymous_nic(nic) for nic in machine.nics),
    )


def _rounded(machine: Machine) -> Machine:
    """Return the machine with memory sizes in steps of 4 %, since kernels of equal nodes reserve different amounts."""
    system = dataclasses.replace(machine.system, memory_bytes=_step(machine.system.memory_bytes), shm_bytes=_step(machine.system.shm_bytes))
    nodes = tuple(dataclasses.replace(node, memory_bytes=_step(node.memory_bytes)) for node in machine.numa_nodes)
    return dataclasses.replace(machine, system=system, numa_nodes=nodes)


def _step(amount: int | None) -> int | None:
    return round(math.log(amount) / 0.04) if amount else amount


def _anonymous_gpu(gpu: Gpu) -> Gpu:
    return dataclasses.replace(gpu, uuid=None)


def _anonymous_nic(nic: Nic) -> Nic:
    return dataclasses.replace(nic, guid=None, ports=tuple(_anonymous_port(port) for port in nic.ports))


def _anonymous_port(port: Port) -> Port:
    return dataclasses.replace(port, lid=None, counters={})


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return {name: _plain(getattr(value, name)) for name in _fields(kind)}
    if isinstance(value, Mapping):
        pairs = any(isinstance(key, tuple) for key in value)
        return [[*key, item] for key, item in value.items()] if pairs else dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass of the model, by name, with their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _reader(hint: Any) -> _Reader:
    """Return the function that reads a value of a type of the model."""
    if dataclasses.is_dataclass(hint):
        return _part_reader(typing.cast(type, hint))
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _optional(_reader(next(one for one in inner if one is not type(None))))
    if origin is typing.Literal:
        return functools.partial(_one_of, inner)
    if origin is tuple:
        return functools.partial(_list_of, _reader(inner[0]))
    if origin is Mapping:
        return _paired if get_origin(inner[0]) is tuple else functools.partial(_mapping_of, _reader(inner[1]))
    return _number if hint is float else functools.partial(_exactly, hint)


def _as_they_are(hint: Any) -> frozenset[type]:
    """Return the JSON types that need no conversion. Most values have one of them; skipping the call saves time."""
    kinds = frozenset(get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,))
    return kinds & {str, int, bool, type(None)}


@functools.cache
def _part_reader(kind: type) -> _Reader:
    """Return the reader of an object with exactly the fields of a dataclass of the model. Fields added later may be missing. Cached."""
    readers = [(name, _as_they_are(hint), _reader(hint)) for name, hint in _fields(kind).items()]
    names = frozenset(_fields(kind))
    later = {name: value for name, value in LATER.items() if name in names}

    def read(data: object) -> Any:
        """Return one part. Raises _Foreign with the path of a value that does not fit."""
        if isinstance(data, dict) and later and data.keys() != names:
            data = {**later, **data}
        if not isinstance(data, dict) or data.keys() != names:
            raise _not_the_fields(data, names)
        name = ""
        try:
            values = []
            for name, taken, one in readers:
                value = data[name]
                values.append(value if type(value) in taken else one(value))
        except _Foreign as foreign:
            raise foreign.below(name) from None
        return kind(*values)

    return read


def _not_the_fields(data: object, names: frozenset[str]) -> _Foreign:
    if not isinstance(data, dict):
        return _Foreign("an object")
    missing, odd = sorted(names - data.keys()), sorted(map(str, data.keys() - names))
    return _Foreign("there").below(missing[0]) if missing else _Foreign("known").below(odd[0])


def _optional(read: _Reader) -> _Reader:
    return lambda data: None if data is None else read(data)


def _one_of(allowed: tuple[str, ...], data: object) -> object:
    if not isinstance(data, str) or data not in allowed:
        raise _Foreign(f"one of {', '.join(allowed)}")
    return data


def _list_of(read: _Reader, data: object) -> tuple[Any, ...]:
    values: list[Any] = []
    items = _list(data)
    try:
        for item in items:
            values.append(read(item))
    except _Foreign as foreign:
        raise foreign.below(str(len(values))) from None
    return tuple(values)


def _list(data: object) -> list[Any]:
    if not isinstance(data, list):
        raise _Foreign("a list")
    return data


def _paired(data: object) -> dict[tuple[str, str], str]:
    if data == {}:  # an empty mapping does not show the type of its keys
        return {}
    rows = _list(data)
    if not all(isinstance(row, list) and len(row) == 3 and all(isinstance(case, str) for case in row) for row in rows):
        raise _Foreign("a list of [a, b, value]")
    return {(a, b): text for a, b, text in rows}


def _mapping_of(read: _Reader, data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _Foreign("an object")
    found = {}
    for name, item in data.items():
        try:
            found[name] = read(item)
        except _Foreign as foreign:
            raise foreign.below(name) from None
    return found


def _number(data: object) -> float:
    if type(data) is float and math.isfinite(data):
        return data
    if type(data) is int and abs(data) < 1 << 64:
        return float(data)
    raise _Foreign("a number")


def _exactly(kind: type, data: object) -> object:
    if type(data) is not kind:
        raise _Foreign({str: "a text", int: "a whole number", bool: "true or false"}[kind])
    return data
