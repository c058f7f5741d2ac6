"""Merging of several sources of one machine: each fact comes from the first source that has it, with its origin recorded.

A field with its default value counts as unknown. Fact paths are those of `model`. Where one source reported all of a part,
`origins` has only the part's own path; `origin` finds either.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from collbench.machine.model import LISTS, Disagreement, Gpu, GpuLink, Machine, Nic, PciDevice, Port, known_none, name_by_lid

# Comparison of two sources: numbers within a tolerance, names without case and prefixes.

# EDR has 100 Gb/s of data and 103.125 on the wire, an NVLink 25 and 25.781, and tools print either. 180 and 200 Gb/s disagree.
_TOLERANCE = 0.04
# Not compared, since sources use different terms or views: names from other databases, the MTU of a device and of its interface,
# and NCCL's files, which omit bridges.
_WORDS = {"model", "name", "rate_text", "cpu_model", "kind", "interfaces", "counters", "mtu_bytes", "virtual", "parent"}


class Statement(NamedTuple):
    """A value and the source that reports it."""

    source: str
    value: Any


def agree(path: str, statements: Sequence[Statement]) -> Iterator[Disagreement]:
    """Yield a disagreement for each later source with a value other than that of the first source, which is used."""
    name = path.rpartition("/")[2]
    if name in _WORDS:
        return
    for other in statements[1:]:
        if not _alike(name, statements[0].value, other.value):
            yield Disagreement(path, written(name, statements[0].value), statements[0].source, written(name, other.value), other.source)


def counted(taken: Machine, other: Machine, taken_from: str, other_from: str) -> Iterable[Disagreement]:
    """Yield a disagreement for each GPU for which two sources report different numbers of links."""
    own, others = _counts(taken), _counts(other)
    for gpu, count in own.items():
        if gpu in others and others[gpu] != count:
            yield Disagreement(f"gpu_links/{gpu}", f"{count} links", taken_from, f"{others[gpu]} links", other_from)


def _counts(machine: Machine) -> Counter[str]:
    counts: Counter[str] = Counter()
    for link in machine.gpu_links:
        counts[link.a] += link.count
    return counts


def written(name: str, value: Any) -> str:
    """Return a fact as text for users: "180 Gb/s", "25 GB/s", "16 GT/s", "80 GiB"."""
    if name.endswith("bits_per_s"):
        return f"{value / 1e9:g} Gb/s"
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:g} GB/s"
    if name.endswith("gt_per_s"):
        return f"{value:g} GT/s"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.4g} GiB"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _alike(name: str, one: Any, other: Any) -> bool:
    if name.endswith(("per_s", "memory_bytes", "shm_bytes")):
        return bool(abs(one - other) <= _TOLERANCE * max(abs(one), abs(other)))
    if name == "hostname":
        return bool(one.partition(".")[0] == other.partition(".")[0])
    if isinstance(one, tuple):
        return set(one) == set(other)
    return bool(_folded(one) == _folded(other))


def _folded(value: Any) -> Any:
    """Return a text in lower case without leading zeros and 0x, so that spellings of one value compare equal."""
    return value.lower().removeprefix("0x").lstrip("0") if isinstance(value, str) else value


# Matching of parts between sources: GPUs by address, serial number or index, NICs by name or address.

_PLACE = re.compile(r"^NIC\d+$")  # nvidia-smi's number for a NIC, without the legend that names it


@dataclass
class MatchedParts:
    """The merged keys of the sources' parts: one mapping (own key to merged key) per machine. Parts without an entry are left out."""

    gpus: list[dict[str, str]] = field(default_factory=list)
    nics: list[dict[str, str]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def same_parts(machines: Sequence[Machine]) -> MatchedParts:
    """Return the merged key of every GPU and NIC of every machine, and what could not be matched."""
    same = MatchedParts()
    _match_gpus(machines, same)
    _match_nics(machines, same)
    return same


def source_of(machine: Machine) -> str:
    """Return the sources of a machine's facts as a short text."""
    return ", ".join(machine.sources) or "a source without a name"


def _match_gpus(machines: Sequence[Machine], same: MatchedParts) -> None:
    known = _addressed(machines)
    for machine in machines:
        bare = [gpu for gpu in machine.gpus if not gpu.address]
        keys = {gpu.key: gpu.address for gpu in machine.gpus if gpu.address}
        keys.update(_numbered(bare, known, source_of(machine), same.doubts))
        same.gpus.append(keys)


def _addressed(machines: Sequence[Machine]) -> list[Gpu]:
    """Return one GPU per address, in PCI order, with the first index and serial number that a source gives."""
    found: dict[str, Gpu] = {}
    for gpu in (gpu for machine in machines for gpu in machine.gpus if gpu.address):
        before = found.get(str(gpu.address), gpu)
        index = gpu.index if before.index is None else before.index
        found[str(gpu.address)] = Gpu(str(gpu.address), index, gpu.address, before.vendor or gpu.vendor, uuid=before.uuid or gpu.uuid)
    return [found[address] for address in sorted(found)]


def _numbered(bare: Sequence[Gpu], known: Sequence[Gpu], source: str, doubts: list[str]) -> dict[str, str]:
    """Return merged keys for GPUs that a source only numbers. nvidia-smi numbers them in PCI order, so equal counts match one to one."""
    by_uuid = {gpu.uuid: gpu.key for gpu in known if gpu.uuid}
    by_index: dict[int | None, str] = {gpu.index: gpu.key for gpu in known if gpu.index is not None}
    if not bare or not known:
        return {gpu.key: _own_key(gpu) for gpu in bare}
    if all(gpu.uuid in by_uuid for gpu in bare):
        return {gpu.key: by_uuid[str(gpu.uuid)] for gpu in bare}
    if by_index:
        return {gpu.key: by_index.get(gpu.index, _own_key(gpu)) for gpu in bare}
    candidates = [gpu for gpu in known if gpu.vendor in (bare[0].vendor, None)] if bare[0].vendor else list(known)
    if len(candidates) != len(bare):
        doubts.append(f"{source} counts {len(bare)} GPUs where {len(candidates)} have PCI addresses: its GPUs are left out")
        return {}
    ordered = sorted(bare, key=lambda gpu: -1 if gpu.index is None else gpu.index)
    return {gpu.key: candidate.key for gpu, candidate in zip(ordered, candidates, strict=True)}


def _own_key(gpu: Gpu) -> str:
    return gpu.key if gpu.index is None else f"gpu{gpu.index}"


def _match_nics(machines: Sequence[Machine], same: MatchedParts) -> None:
    named = any(not _PLACE.match(nic.name) for machine in machines for nic in machine.nics)
    names = _names_by_lid(machines)
    at: dict[str, str] = {}
    found: dict[int, dict[str, str]] = {}
    for place in sorted(range(len(machines)), key=lambda place: _nameless(machines[place])):
        machine = machines[place]
        left_out = [nic.name for nic in machine.nics if _PLACE.match(nic.name)] if named else []
        if left_out:
            listing = left_out[0] if len(left_out) == 1 else f"{left_out[0]}…{left_out[-1]}"
            same.doubts.append(f"{source_of(machine)} does not name the devices {listing} (no NIC Legend): they are left out")
        nics = [nic for nic in machine.nics if nic.name not in left_out]
        found[place] = _keys_of_nics(nics, names, at)
        _remember(nics, found[place], names, at)
    same.nics = [found[place] for place in range(len(machines))]


def _names_by_lid(machines: Sequence[Machine]) -> dict[str, str]:
    """Return device names from other sources for NICs of which only the LID is known ("LID 12")."""
    ports = [(nic.name, port.lid) for machine in machines for nic in machine.nics for port in nic.ports if port.lid]
    named = {name_by_lid(local): name for name, local in ports if name != name_by_lid(local)}
    return {name: named[name] for name, _ in ports if name in named}


def _nameless(machine: Machine) -> bool:
    """Return whether the machine names NICs only by address. Names from other sources are preferred."""
    return any(nic.name == nic.address for nic in machine.nics)


def _keys_of_nics(nics: Sequence[Nic], names: dict[str, str], at: dict[str, str]) -> dict[str, str]:
    """Return merged keys by name (an RDMA device owns its network interfaces), else by address where the source has one NIC there."""
    here = Counter(nic.address for nic in nics)
    keys: dict[str, str] = {}
    for nic in nics:
        key = names.get(nic.name)
        if key is None and nic.address and (here[nic.address] == 1 or nic.name == nic.address):
            key = at.get(nic.address)
        keys[nic.name] = key or next((names[name] for name in nic.interfaces if name in names), nic.name)
    return keys


def _remember(nics: Iterable[Nic], keys: dict[str, str], names: dict[str, str], at: dict[str, str]) -> None:
    for nic in nics:
        key = keys[nic.name]
        for name in (nic.name, *nic.interfaces):
            names.setdefault(name, key)
        if nic.address:
            at.setdefault(nic.address, key)


_IDENTITY = {"key", "address", "name", "number", "id", "index"}  # the key of a match, and its spelling in each source


@dataclass
class _Record:
    """The results that merging collects: origins, disagreements and doubts."""

    origins: dict[str, str] = field(default_factory=dict)
    disagreements: list[Disagreement] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def merge(machines: Sequence[Machine]) -> Machine:
    """Return one machine from several readings of it, the most trusted first. Without readings, return an empty machine."""
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
    """Return the source of a fact: its own entry in `origins`, or that of the part it belongs to; None when unknown."""
    while path:
        if path in machine.origins:
            return machine.origins[path]
        path = path.rpartition("/")[0]
    return None


def _finished(merged: Machine, readings: Sequence[Machine], same: MatchedParts, record: _Record) -> Machine:
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
    """Return the reading with the merged machine's keys, without the parts that have none."""
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
    """Return the first known value of a fact of the whole machine; None without one."""
    found = [Statement(_source(machine, name), getattr(machine, name)) for machine in readings if getattr(machine, name)]
    if not found:
        return None
    record.origins[name] = found[0].source
    if name == "hostname":
        record.disagreements += agree(name, found)
    return found[0].value


def _merged_parts(name: str, readings: Sequence[Machine], record: _Record) -> tuple[Any, ...]:
    """Return the merged parts of one list, in the order in which they first appear."""
    groups: dict[str, list[tuple[Machine, Any]]] = {}
    for machine in readings:
        for part in getattr(machine, name):
            groups.setdefault(part.key, []).append((machine, part))
    return tuple(_merged(f"{name}/{key}", group, record) for key, group in groups.items())


def _merged(path: str, group: Sequence[tuple[Machine, Any]], record: _Record) -> Any:
    """Return one part merged from the values of several sources."""
    machine, part = group[0]
    if len(group) == 1 and not machine.origins:
        record.origins[path] = source_of(machine)
        return part
    kind: Any = type(part)
    statements = {name: _known_values(name, default, group) for name, default in _defaults(kind).items()}
    values = {name: _fact(f"{path}/{name}", found, record) for name, found in statements.items() if found}
    return replace(part, **values)


def _known_values(name: str, default: Any, group: Sequence[tuple[Machine, Any]]) -> list[tuple[Machine, Any]]:
    if name == "ports":
        return [(machine, part.ports) for machine, part in group if part.ports]
    return [(machine, value) for machine, part in group if (value := getattr(part, name)) != default]


def _fact(path: str, found: Sequence[tuple[Machine, Any]], record: _Record) -> Any:
    name = path.rpartition("/")[2]
    if name == "ports":
        return tuple(_ports(path, found, record))
    if dataclasses.is_dataclass(found[0][1]):
        return _merged(path, found, record)
    statements = [Statement(_source(machine, path), value) for machine, value in found]
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
    """Return the fields of a part's class with the default value that means unknown."""
    names = {
        one.name: one.default if one.default_factory is dataclasses.MISSING else one.default_factory() for one in dataclasses.fields(kind)
    }
    return {name: None if default is dataclasses.MISSING else default for name, default in names.items()}


def _links(readings: Sequence[Machine], record: _Record) -> tuple[GpuLink, ...]:
    """Return the links from the first source with their far ends, else from the first that counts them. Compare the others' counts."""
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
    """Return the rate of one link per GPU, from the first source that gives all links of that GPU the same rate."""
    found: dict[str, float] = {}
    for other in others:
        rates: dict[str, set[float | None]] = {}
        for link in other.gpu_links:
            rates.setdefault(link.a, set()).add(link.bytes_per_s)
        found = {**{gpu: rate for gpu, (rate, *rest) in rates.items() if rate and not rest}, **found}
    return found


def _without_circles(devices: Sequence[PciDevice], record: _Record) -> Iterable[PciDevice]:
    """Return the devices with circular parent chains cut. They occur when two sources disagree about parents."""
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
    """Return the first reason per fact for the facts that no source knows."""
    reasons = {path: why for machine in reversed(readings) for path, why in machine.unknown.items()}
    parts = {name: {part.key: part for part in getattr(merged, name)} for name in ("numa_nodes", "pci", "gpus", "nics")} if reasons else {}
    none = {name for name in LISTS if any(known_none(machine, name) for machine in readings)}
    return {path: why for path, why in reasons.items() if path not in none and not _known(merged, parts, path.split("/"))}


def _known(merged: Machine, parts: Mapping[str, Mapping[str, Any]], steps: Sequence[str]) -> bool:
    """Return whether the merged machine has a value at this path."""
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
