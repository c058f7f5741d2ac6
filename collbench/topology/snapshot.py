"""A machine as plain JSON and back, without loss; what comes from elsewhere is checked, field by field, before it is believed.

A mapping whose keys are pairs is a list of [a, b, value]. Everything else has the names of `model`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from collbench.topology.model import Gpu, Machine, Nic, Port
from collbench.topology.text import Unreadable, printable

SCHEMA = 1
ADDED = ("cpus", "links", "findings", "hostnames")  # what a document of machines says beyond the machine itself


class _Foreign(Exception):
    """A value that no machine has: (where, what was expected)."""


def to_json(machine: Machine) -> dict[str, Any]:
    """The machine as JSON values: objects, lists, texts, numbers, true, false, null (unknown)."""
    plain: dict[str, Any] = _plain(machine)
    return plain


def from_json(data: object) -> Machine:
    """The machine that `to_json` was given. Raises Unreadable, one sentence, for anything else."""
    try:
        machine: Machine = _built(Machine, data, "machine")
    except _Foreign as foreign:
        where, expected = foreign.args
        raise Unreadable(f"this is no machine of collbench: {printable(where)} is not {expected}: write it again with `probe`") from None
    return machine


def topology_json(machines: Sequence[Machine]) -> dict[str, Any]:
    """A cluster, equal machines once: `{"schema": 1, "machines": [{"hostnames": [...], …machine}]}`.

    Machines are equal when only what no two machines share tells them apart: host name, serial numbers, addresses in the
    fabric and error counters. Those are null where one entry stands for several machines.
    """
    groups: dict[str, list[Machine]] = {}
    for machine in machines:
        groups.setdefault(repr(_without_identity(machine)), []).append(machine)
    return {"schema": SCHEMA, "machines": [_entry(group) for group in groups.values()]}


def machines_of(document: object, name: str) -> list[Machine]:
    """The machines of `topology_json` or of `collbench probe --format json`, one per host name.

    Raises Unreadable for other documents; `name` is the file's, for the sentence.
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
        raise Unreadable("this is no machine of collbench: hostnames is not a list of texts: write it again with `probe`")
    return [dataclasses.replace(machine, hostname=host) for host in hosts]


def _without_identity(machine: Machine) -> Machine:
    return dataclasses.replace(
        machine,
        hostname=None,
        gpus=tuple(_anonymous_gpu(gpu) for gpu in machine.gpus),
        nics=tuple(_anonymous_nic(nic) for nic in machine.nics),
    )


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
    """The fields of a dataclass of the model, by name, with their types."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _built(kind: Any, data: object, where: str) -> Any:
    """A value of the model's dataclass `kind` out of an object that has all of its fields and no others."""
    if not isinstance(data, dict):
        raise _Foreign(where, "an object")
    fields = _fields(kind)
    odd = next((name for name in (*fields, *data) if (name in fields) != (name in data)), None)
    if odd is not None:
        raise _Foreign(f"{where}/{odd}", "there" if odd in fields else "known")
    return kind(**{name: _value(hint, data[name], f"{where}/{name}") for name, hint in fields.items()})


def _value(hint: Any, data: object, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _built(hint, data, where)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if data is None else _value(next(one for one in inner if one is not type(None)), data, where)
    if origin is typing.Literal:
        return _one_of(inner, data, where)
    if origin is tuple:
        return tuple(_value(inner[0], item, f"{where}/{place}") for place, item in enumerate(_list(data, where)))
    if origin is Mapping:
        return _mapping(inner, data, where)
    return _scalar(hint, data, where)


def _one_of(allowed: Iterable[Any], data: object, where: str) -> object:
    if not isinstance(data, str) or data not in allowed:
        raise _Foreign(where, f"one of {', '.join(map(str, allowed))}")
    return data


def _list(data: object, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise _Foreign(where, "a list")
    return data


def _mapping(inner: tuple[Any, ...], data: object, where: str) -> dict[Any, Any]:
    key, value = inner
    if get_origin(key) is tuple:
        if data == {}:  # an empty mapping does not show what its keys would be
            return {}
        rows = [_list(row, where) for row in _list(data, where)]
        if not all(len(row) == 3 and all(isinstance(cell, str) for cell in row) for row in rows):
            raise _Foreign(where, "a list of [a, b, value]")
        return {(a, b): text for a, b, text in rows}
    if not isinstance(data, dict):
        raise _Foreign(where, "an object")
    return {name: _value(value, item, f"{where}/{name}") for name, item in data.items()}


def _scalar(kind: type, data: object, where: str) -> object:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data) if abs(data) < 1 << 64 else _refuse(where, "a number")
    if type(data) is not kind or (isinstance(data, float) and not math.isfinite(data)):
        return _refuse(where, {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind])
    return data


def _refuse(where: str, expected: str) -> object:
    raise _Foreign(where, expected)
