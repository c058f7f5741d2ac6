"""Lossless conversion of a machine to plain JSON and back. Documents are checked field by field when they are read.

A mapping with pairs as keys becomes a list of [a, b, value]. All other names are those of `model`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import astuple, replace

from collbench.machine.model import Machine
from collbench.machine.readers.text import Unreadable, printable

SCHEMA = 1
ADDED = ("cpus", "links", "findings", "hostnames")  # entries that a document of machines has in addition to the machines
# Fields that are missing in documents of earlier releases, with the value that means unknown.
LATER: Mapping[str, object] = {
    "memory_numa": None, "c2c_links": None, "c2c_bytes_per_s": None, "rdma_missing": False, "cpu_links": None, "cpu_link_bytes_per_s": None,
    "clique": None, "lanes": None, "max_lanes": None, "acs_ports": None, "acs_on": None, "card_guid": None, "guid": None,
}  # fmt: skip
_PAIRS = ("paths", "peer_access")
_REMEDY = "write it again with `probe --format json`"


def to_json(machine: Machine) -> dict[str, Any]:
    """Return the machine as JSON values: objects, lists, strings, numbers, true, false, null (unknown)."""
    return cast("dict[str, Any]", _plain(machine))


def from_json(data: object) -> Machine:
    """Return the machine that `to_json` wrote. Raises Unreadable, with one sentence, for anything else."""
    if isinstance(data, dict):  # an empty mapping does not show the type of its keys
        data = {name: [] if name in _PAIRS and value == {} else value for name, value in data.items()}
    try:
        machine: Machine = _model_value(msgspec.convert(data, _document(Machine)))
    except msgspec.ValidationError as error:
        raise Unreadable(f"not a machine that `collbench probe` wrote: {printable(_what_is_wrong(str(error)))}: {_REMEDY}") from None
    return machine


def topology_json(machines: Sequence[Machine]) -> dict[str, Any]:
    """Return a cluster with equal machines listed once: `{"schema": 1, "machines": [{"hostnames": [...], …machine}]}`.

    Machines are equal when they differ only in host name, serial numbers, fabric addresses and error counters.
    These are null where one entry describes several machines.
    The memory sizes of such an entry are those of its first machine; the others differ by some KiB.
    """
    groups: dict[str, list[Machine]] = {}
    for machine in machines:
        values = repr(list(astuple(_rounded(_without_identity(machine)))))
        groups.setdefault(values, []).append(machine)
    entries = []
    for group in groups.values():
        machine = group[0] if len(group) == 1 else _without_identity(group[0])
        entries.append({"hostnames": [member.hostname for member in group], **to_json(machine)})
    return {"schema": SCHEMA, "machines": entries}


def machines_of(document: object, name: str) -> list[Machine]:
    """Return the machines of `topology_json` or `probe --format json`, one per host name. Raises Unreadable for other documents."""
    listed = document.get("machines") if isinstance(document, dict) and document.get("schema") == SCHEMA else None
    if not isinstance(listed, list) or not listed or not all(isinstance(entry, dict) for entry in listed):
        raise Unreadable(f'{printable(name)} is JSON, but no {{"schema": {SCHEMA}, "machines": [...]}} that `collbench probe` wrote')
    machines: list[Machine] = []
    for entry in listed:
        machine = from_json({key: value for key, value in entry.items() if key not in ADDED})
        hosts = entry.get("hostnames") or [machine.hostname]
        if not isinstance(hosts, list) or not all(host is None or isinstance(host, str) for host in hosts):
            raise Unreadable(f"not a machine that `collbench probe` wrote: hostnames is not a list of texts: {_REMEDY}")
        machines += [replace(machine, hostname=host) for host in hosts]
    return machines


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        pairs = any(isinstance(key, tuple) for key in value)
        return [[*key, item] for key, item in value.items()] if pairs else dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _without_identity(machine: Machine) -> Machine:
    nics = [
        replace(nic, guid=None, card_guid=None, ports=tuple(replace(port, lid=None, guid=None, counters={}) for port in nic.ports))
        for nic in machine.nics
    ]
    return replace(machine, hostname=None, gpus=tuple(replace(gpu, uuid=None) for gpu in machine.gpus), nics=tuple(nics))


def _rounded(machine: Machine) -> Machine:
    """Return the machine with memory sizes in steps of 4 %, since kernels of equal nodes reserve different amounts."""

    def step(amount: int | None) -> int | None:
        return round(math.log(amount) / 0.04) if amount else amount

    system = replace(machine.system, memory_bytes=step(machine.system.memory_bytes), shm_bytes=step(machine.system.shm_bytes))
    return replace(
        machine, system=system, numa_nodes=tuple(replace(node, memory_bytes=step(node.memory_bytes)) for node in machine.numa_nodes)
    )


# The check of a document: for each class of the model a struct with the same fields, which allows no others.


@cache
def _document(kind: Any) -> Any:
    """Return the type of the JSON of a class of the model: exactly its fields, of which those added later may be missing."""
    hints = get_type_hints(kind)
    required: list[Any] = [(name, _json_type(hint)) for name, hint in hints.items() if name not in LATER]
    later: list[Any] = [(name, _json_type(hint), LATER[name]) for name, hint in hints.items() if name in LATER]
    return msgspec.defstruct(kind.__name__, [*required, *later], namespace={"part": kind}, kw_only=True, forbid_unknown_fields=True)


def _json_type(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _document(hint)
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Mapping and get_origin(inner[0]) is tuple:
        return list[tuple[str, str, str]]  # the only `list` of a document
    if origin is tuple:
        return tuple[_json_type(inner[0]), ...]  # type: ignore[misc]
    if NoneType in inner and origin is not Literal:
        return _json_type(_without_none(hint)) | None
    return Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)] if hint is float else hint


def _without_none(hint: Any) -> Any:
    kinds = get_args(hint)
    return next(kind for kind in kinds if kind is not NoneType) if NoneType in kinds else hint


def _model_value(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        kind: Any = type(value).part  # type: ignore[attr-defined]
        return kind(*[_model_value(getattr(value, name)) for name in kind.__struct_fields__])
    if isinstance(value, tuple):
        return tuple(map(_model_value, value))
    return {(a, b): text for a, b, text in value} if isinstance(value, list) else value


def _what_is_wrong(error: str) -> str:
    """Return the place and the fault of msgspec's error in the terms of the model: "machine/pci/0/virtual is not true or false"."""
    fault, _, path = error.partition(" - at `$")
    hint: Any = Machine
    steps = ["machine"]
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        hint = _without_none(get_type_hints(hint)[name] if name else get_args(hint)[-1 if index == "..." else 0])
        steps.append(name or index)
        if name in _PAIRS:
            break
    if field := re.search(r"(missing required|unknown) field `(.*)`", fault):
        return f"{'/'.join([*steps, field[2]])} is not {'there' if field[1] == 'missing required' else 'known'}"
    return f"{'/'.join(steps)} is not {_in_words(hint)}"


def _in_words(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return f"one of {', '.join(get_args(hint))}"
    if origin is Mapping:
        return "a list of [a, b, value]" if get_origin(get_args(hint)[0]) is tuple else "an object"
    kinds = {str: "a text", int: "a whole number", bool: "true or false", float: "a number"}
    return "a list" if origin is tuple else kinds.get(hint, "an object")
