"""Several sources of one machine become one: per fact the first source that says it, and where each came from.

A field that has its default says nothing. Paths of facts are those of `model`; `origins` has a part's own path alone where one
source said all of it: `origin` finds either.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.machine.agreement import Said, agree, counted
from collbench.machine.lists import LISTS, known_none
from collbench.machine.matching import Same, same_parts, source_of
from collbench.machine.model import Disagreement, GpuLink, Machine, PciDevice, Port

_IDENTITY = {"key", "address", "name", "number", "id", "index"}  # what a part was matched by, and how each source spells it


@dataclass
class _Record:
    """What merging finds out on its way."""

    origins: dict[str, str] = field(default_factory=dict)
    disagreements: list[Disagreement] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def merge(machines: Sequence[Machine]) -> Machine:
    """One machine out of several readings of it, the most trusted first. No reading at all gives an empty machine."""
    if not machines:
        return Machine()
    same = same_parts(machines)
    readings = [_renamed(machine, gpus, nics) for machine, gpus, nics in zip(machines, same.gpus, same.nics, strict=True)]
    record = _Record()
    merged = Machine(
        hostname=_first(readings, "hostname", record),
        sources=tuple(dict.fromkeys(source for machine in machines for source in machine.sources)),
        system=_merged("system", [(machine, machine.system) for machine in readings], record),
        numa_nodes=_merged_parts("numa_nodes", readings, record),
        pci=_merged_parts("pci", readings, record),
        gpus=_merged_parts("gpus", readings, record),
        gpu_links=_links(readings, record),
        nics=_merged_parts("nics", readings, record),
        fabric=tuple(dict.fromkeys(link for machine in readings for link in machine.fabric)),
        paths=_first(readings, "paths", record) or {},
        peer_access=_first(readings, "peer_access", record) or {},
    )
    return _finished(merged, readings, same, record)


def origin(machine: Machine, path: str) -> str | None:
    """Which source said a fact: its own entry in `origins`, or that of the part it belongs to."""
    while path:
        if path in machine.origins:
            return machine.origins[path]
        path = path.rpartition("/")[0]
    return None


def _finished(merged: Machine, readings: Sequence[Machine], same: Same, record: _Record) -> Machine:
    pci = tuple(_without_circles(merged.pci, record))
    gpus = sorted(merged.gpus, key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.key))
    merged = replace(merged, pci=pci, gpus=tuple(gpus))
    earlier = [one for machine in readings for one in machine.disagreements]
    doubts = [doubt for machine in readings for doubt in machine.doubts]
    return replace(
        merged,
        unknown=_still_unknown(merged, readings),
        origins=record.origins,
        disagreements=tuple(dict.fromkeys([*earlier, *record.disagreements])),
        doubts=tuple(dict.fromkeys([*doubts, *same.doubts, *record.doubts])),
    )


def _renamed(machine: Machine, gpus: Mapping[str, str], nics: Mapping[str, str]) -> Machine:
    """The reading with the merged machine's keys everywhere, and without the parts that have none."""
    keys = {**gpus, **nics}

    def pairs(found: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
        return {(keys[a], keys[b]): text for (a, b), text in found.items() if a in keys and b in keys}

    def far(link: GpuLink) -> str | None:
        return gpus.get(link.b, link.b) if link.b else None

    def paths(found: Mapping[str, str]) -> dict[str, str]:
        return {_renamed_path(path, {"gpus": gpus, "nics": nics}): text for path, text in found.items()}

    return replace(
        machine,
        gpus=tuple(replace(gpu, key=gpus[gpu.key]) for gpu in machine.gpus if gpu.key in gpus),
        nics=tuple(replace(nic, name=nics[nic.name]) for nic in machine.nics if nic.name in nics),
        gpu_links=tuple(replace(link, a=gpus[link.a], b=far(link)) for link in machine.gpu_links if link.a in gpus),
        paths=pairs(machine.paths),
        peer_access=pairs(machine.peer_access),
        unknown=paths(machine.unknown),
        origins=paths(machine.origins),
    )


def _renamed_path(path: str, keys: Mapping[str, Mapping[str, str]]) -> str:
    head, _, rest = path.partition("/")
    key, slash, tail = rest.partition("/")
    return f"{head}/{keys[head].get(key, key)}{slash}{tail}" if head in keys and rest else path


def _source(machine: Machine, path: str) -> str:
    return origin(machine, path) or source_of(machine)


def _first(readings: Sequence[Machine], name: str, record: _Record) -> Any:
    """The first that a reading has of a fact of the whole machine."""
    found = [Said(_source(machine, name), getattr(machine, name)) for machine in readings if getattr(machine, name)]
    if not found:
        return None
    record.origins[name] = found[0].source
    if name == "hostname":
        record.disagreements += agree(name, found)
    return found[0].value


def _merged_parts(name: str, readings: Sequence[Machine], record: _Record) -> tuple[Any, ...]:
    """The parts of one list, by key, in the order in which they first appear."""
    groups: dict[str, list[tuple[Machine, Any]]] = {}
    for machine in readings:
        for part in getattr(machine, name):
            groups.setdefault(part.key, []).append((machine, part))
    return tuple(_merged(f"{name}/{key}", group, record) for key, group in groups.items())


def _merged(path: str, group: Sequence[tuple[Machine, Any]], record: _Record) -> Any:
    """One part out of what several sources say of it."""
    machine, part = group[0]
    if len(group) == 1 and not machine.origins:
        record.origins[path] = source_of(machine)
        return part
    kind: Any = type(part)
    said = {name: _said(name, default, group) for name, default in _defaults(kind).items()}
    values = {name: _fact(f"{path}/{name}", found, record) for name, found in said.items() if found}
    return replace(part, **values)


def _said(name: str, default: Any, group: Sequence[tuple[Machine, Any]]) -> list[tuple[Machine, Any]]:
    if name == "ports":
        return [(machine, part.ports) for machine, part in group if part.ports]
    return [(machine, value) for machine, part in group if (value := getattr(part, name)) != default]


def _fact(path: str, found: Sequence[tuple[Machine, Any]], record: _Record) -> Any:
    name = path.rpartition("/")[2]
    if name == "ports":
        return tuple(_ports(path, found, record))
    if dataclasses.is_dataclass(found[0][1]):
        return _merged(path, found, record)
    statements = [Said(_source(machine, path), value) for machine, value in found]
    if name != "key":
        record.origins[path] = statements[0].source
    if name not in _IDENTITY:
        record.disagreements += agree(path, statements)
    return statements[0].value


def _ports(path: str, found: Sequence[tuple[Machine, tuple[Port, ...]]], record: _Record) -> Iterable[Port]:
    groups: dict[int, list[tuple[Machine, Port]]] = {}
    for machine, ports in found:
        for port in ports:
            groups.setdefault(port.number, []).append((machine, port))
    return [_merged(f"{path}/{number}", groups[number], record) for number in sorted(groups)]


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    """The fields of a part that say something, with the value that says nothing."""
    names = {
        one.name: one.default if one.default_factory is dataclasses.MISSING else one.default_factory() for one in dataclasses.fields(kind)
    }
    return {name: None if default is dataclasses.MISSING else default for name, default in names.items()}


def _links(readings: Sequence[Machine], record: _Record) -> tuple[GpuLink, ...]:
    """The links of the first source that tells their far ends, else of the first that counts them; the others' counts are compared."""
    having = [machine for machine in readings if machine.gpu_links]
    having.sort(key=lambda machine: all(link.b is None for link in machine.gpu_links))
    if not having:
        return ()
    taken, *others = having
    record.origins["gpu_links"] = _source(taken, "gpu_links")
    for other in others:
        record.disagreements += counted(taken, other, _source(taken, "gpu_links"), _source(other, "gpu_links"))
    rates = _rates(others)
    return tuple(replace(link, bytes_per_s=rates.get(link.a)) if link.bytes_per_s is None else link for link in taken.gpu_links)


def _rates(others: Sequence[Machine]) -> dict[str, float]:
    """Per GPU the rate of a link, from the first source that gives all links of the GPU the same one."""
    found: dict[str, float] = {}
    for other in others:
        said: dict[str, set[float | None]] = {}
        for link in other.gpu_links:
            said.setdefault(link.a, set()).add(link.bytes_per_s)
        found = {**{gpu: rate for gpu, (rate, *rest) in said.items() if rate and not rest}, **found}
    return found


def _without_circles(devices: Sequence[PciDevice], record: _Record) -> Iterable[PciDevice]:
    """The devices; where two sources' parents together go round in a circle, the tree ends."""
    parents = {device.address: device.parent for device in devices}
    sound: set[str] = set()
    for device in devices:
        way: dict[str, None] = {}
        at: str | None = device.address
        while at is not None and at not in sound and at not in way:
            way[at] = None
            at = parents.get(at)
        if at is not None and at in way:
            parents[at] = None
            record.doubts.append(f"PCI device {at} is above itself when the sources are put together: its parent is not believed")
        sound.update(way)
    return [device if device.parent == parents[device.address] else replace(device, parent=None) for device in devices]


def _still_unknown(merged: Machine, readings: Sequence[Machine]) -> dict[str, str]:
    """The reasons, the first per fact, of what no source knows."""
    reasons = {path: why for machine in reversed(readings) for path, why in machine.unknown.items()}
    parts = {name: {part.key: part for part in getattr(merged, name)} for name in ("numa_nodes", "pci", "gpus", "nics")} if reasons else {}
    none = {name for name in LISTS if any(known_none(machine, name) for machine in readings)}
    return {path: why for path, why in reasons.items() if path not in none and not _known(merged, parts, path.split("/"))}


def _known(merged: Machine, parts: Mapping[str, Mapping[str, Any]], steps: Sequence[str]) -> bool:
    """Whether the fact at a path is there now."""
    name, *rest = steps
    at: Any = getattr(merged, name, None)
    if name in parts and rest:
        at, rest = parts[name].get(rest[0]), rest[1:]
    for step in rest:
        if isinstance(at, tuple):
            at = next((port for port in at if str(getattr(port, "number", "")) == step), None)
        else:
            at = getattr(at, step, None)
    return at is not None and at not in ((), {})
