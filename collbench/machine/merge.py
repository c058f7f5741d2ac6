"""Merging of several sources of one machine: each fact comes from the first source that has it, with its origin recorded.

A field with its default value counts as unknown. Fact paths are those of `model`. Where one source reported all of a part,
`origins` has only the part's own path; `origin` finds either.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import fields, replace

from collbench.machine.model import LISTS, Disagreement, Gpu, GpuLink, Machine, PciDevice, known_none, name_by_lid

# Comparison of two sources: numbers within a tolerance, names without case and prefixes.

# EDR has 100 Gb/s of data and 103.125 on the wire, an NVLink 25 and 25.781, and tools print either. 180 and 200 Gb/s disagree.
_TOLERANCE = 0.04
# Not compared: the key of a match and its spelling in each source, and facts for which sources use different terms or views: names from
# other databases, the MTU of a device and of its interface, and NCCL's files, which omit bridges.
_KEYS = {"key", "address", "name", "number", "id", "index", "paths", "peer_access"}
_WORDED_DIFFERENTLY = {"model", "rate_text", "cpu_model", "kind", "interfaces", "counters", "mtu_bytes", "virtual", "parent"}


class _Record(msgspec.Struct):
    """The results that merging collects: origins, disagreements and doubts."""

    origins: dict[str, str] = msgspec.field(default_factory=dict)
    disagreements: list[Disagreement] = msgspec.field(default_factory=list)
    doubts: list[str] = msgspec.field(default_factory=list)


def _taken(path: str, readings: Sequence[tuple[Machine, Any]], record: _Record) -> Any:
    """Return the value of the first source. Record it as the origin, and each later source with another value."""
    name = path.rpartition("/")[2]
    (machine, value), *others = readings
    source = _source(machine, path)
    if name != "key":
        record.origins[path] = source
    if name in _KEYS | _WORDED_DIFFERENTLY:
        return value
    for other, other_value in others:
        if not _alike(name, value, other_value):
            record.disagreements.append(Disagreement(path, written(name, value), source, written(name, other_value), _source(other, path)))
    return value


def _source(machine: Machine, path: str) -> str:
    return origin(machine, path) or source_of(machine)


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


def _alike(name: str, a: Any, b: Any) -> bool:
    if name.endswith(("per_s", "memory_bytes", "shm_bytes")):
        return bool(abs(a - b) <= _TOLERANCE * max(abs(a), abs(b)))
    if name == "hostname":
        return bool(a.partition(".")[0] == b.partition(".")[0])
    if isinstance(a, tuple):
        return set(a) == set(b)
    if isinstance(a, str) and isinstance(b, str):  # in lower case without leading zeros and 0x: spellings of one value
        a, b = (text.lower().removeprefix("0x").lstrip("0") for text in (a, b))
    return bool(a == b)


# Matching of parts between sources: GPUs by address, serial number or index, NICs by name or address.

_NIC_NUMBER = re.compile(r"^NIC\d+$")  # nvidia-smi's number for a NIC, without the legend that names it


def source_of(machine: Machine) -> str:
    """Return the sources of a machine's facts as a short text."""
    return ", ".join(machine.sources) or "a source without a name"


def _match_gpus(machines: Sequence[Machine], record: _Record) -> list[dict[str, str]]:
    """Return the merged machine's key of each GPU by its own key, for each source. GPUs that cannot be matched have none."""
    by_address: dict[str, Gpu] = {}
    for gpu in (gpu for machine in machines for gpu in machine.gpus):
        if gpu.address:
            earlier = by_address.get(gpu.address, gpu)
            index = gpu.index if earlier.index is None else earlier.index
            by_address[gpu.address] = Gpu(gpu.address, index, gpu.address, earlier.vendor or gpu.vendor, uuid=earlier.uuid or gpu.uuid)
    addressed = [by_address[address] for address in sorted(by_address)]
    keys = []
    for machine in machines:
        numbered = [gpu for gpu in machine.gpus if not gpu.address]
        addresses = {gpu.key: gpu.address for gpu in machine.gpus if gpu.address}
        keys.append({**addresses, **_match_numbered(numbered, addressed, source_of(machine), record.doubts)})
    return keys


def _match_numbered(numbered: Sequence[Gpu], addressed: Sequence[Gpu], source: str, doubts: list[str]) -> dict[str, str]:
    """Return merged keys for GPUs that a source only numbers. nvidia-smi numbers them in PCI order, so equal counts match one to one."""
    by_uuid = {gpu.uuid: gpu.key for gpu in addressed if gpu.uuid}
    by_index: dict[int | None, str] = {gpu.index: gpu.key for gpu in addressed if gpu.index is not None}
    if addressed and all(gpu.uuid in by_uuid for gpu in numbered):
        return {gpu.key: by_uuid[str(gpu.uuid)] for gpu in numbered}
    if by_index or not addressed:
        return {gpu.key: by_index.get(gpu.index, gpu.key if gpu.index is None else f"gpu{gpu.index}") for gpu in numbered}
    vendor = numbered[0].vendor
    candidates = [gpu for gpu in addressed if vendor is None or gpu.vendor in (vendor, None)]
    if len(candidates) != len(numbered):
        doubts.append(f"{source} counts {len(numbered)} GPUs where {len(candidates)} have PCI addresses: its GPUs are left out")
        return {}
    ordered = sorted(numbered, key=lambda gpu: -1 if gpu.index is None else gpu.index)
    return {gpu.key: candidate.key for gpu, candidate in zip(ordered, candidates, strict=True)}


def _match_nics(machines: Sequence[Machine], record: _Record) -> list[dict[str, str]]:
    """Return the merged machine's key of each NIC by its name, for each source."""
    any_named = any(not _NIC_NUMBER.match(nic.name) for machine in machines for nic in machine.nics)
    ports = [(nic.name, port.lid) for machine in machines for nic in machine.nics for port in nic.ports if port.lid]
    by_lid = {name_by_lid(lid): name for name, lid in ports if name != name_by_lid(lid)}
    names = {name: by_lid[name] for name, _ in ports if name in by_lid}  # of NICs of which one source has only the LID
    by_address: dict[str | None, str] = {}
    all_keys: list[dict[str, str]] = [{} for _ in machines]
    # names from other sources are preferred to addresses
    by_preference = sorted(zip(machines, all_keys, strict=True), key=lambda pair: any(nic.name == nic.address for nic in pair[0].nics))
    for machine, keys in by_preference:
        left_out = [nic.name for nic in machine.nics if any_named and _NIC_NUMBER.match(nic.name)]
        if left_out:
            listing = left_out[0] if len(left_out) == 1 else f"{left_out[0]}…{left_out[-1]}"
            record.doubts.append(f"{source_of(machine)} does not name the devices {listing} (no NIC Legend): they are left out")
        nics = [nic for nic in machine.nics if nic.name not in left_out]
        nics_at = Counter(nic.address for nic in nics)
        # by name (an RDMA device owns its network interfaces), else by address where the source has one NIC there
        for nic in nics:
            key = names.get(nic.name)
            if key is None and (nics_at[nic.address] == 1 or nic.name == nic.address):
                key = by_address.get(nic.address)
            keys[nic.name] = key or next((names[name] for name in nic.interfaces if name in names), nic.name)
        for nic in nics:
            for name in (nic.name, *nic.interfaces):
                names.setdefault(name, keys[nic.name])
            if nic.address:
                by_address.setdefault(nic.address, keys[nic.name])
    return all_keys


def merge(machines: Sequence[Machine]) -> Machine:
    """Return one machine from several readings of it, the most trusted first. Without readings, return an empty machine."""
    if not machines:
        return Machine()
    record = _Record()
    keys = zip(machines, _match_gpus(machines, record), _match_nics(machines, record), strict=True)
    readings = [_renamed(machine, gpus, nics) for machine, gpus, nics in keys]

    def first(name: str) -> Any:
        values = [(machine, value) for machine in readings if (value := getattr(machine, name))]
        return _taken(name, values, record) if values else None

    def parts(name: str) -> tuple[Any, ...]:
        return _merged_parts(name, [(machine, getattr(machine, name)) for machine in readings], record)

    merged = Machine(
        hostname=first("hostname"),
        sources=tuple(dict.fromkeys(source for machine in machines for source in machine.sources)),
        system=_merged("system", [(machine, machine.system) for machine in readings], record),
        numa_nodes=parts("numa_nodes"),
        pci=tuple(_without_circles(parts("pci"), record)),
        gpus=tuple(sorted(parts("gpus"), key=lambda gpu: (gpu.index is None, gpu.index or 0, gpu.key))),
        gpu_links=_links(readings, record),
        nics=parts("nics"),
        fabric=tuple(dict.fromkeys(link for machine in readings for link in machine.fabric)),
        paths=first("paths") or {},
        peer_access=first("peer_access") or {},
    )
    disagreements = [disagreement for machine in readings for disagreement in machine.disagreements]
    doubts = [doubt for machine in readings for doubt in machine.doubts]
    return replace(
        merged,
        unknown=_still_unknown(merged, readings),
        origins=record.origins,
        disagreements=tuple(dict.fromkeys([*disagreements, *record.disagreements])),
        doubts=tuple(dict.fromkeys([*doubts, *record.doubts])),
    )


def origin(machine: Machine, path: str) -> str | None:
    """Return the source of a fact: its own entry in `origins`, or that of the part it belongs to; None when unknown."""
    while path:
        if path in machine.origins:
            return machine.origins[path]
        path = path.rpartition("/")[0]
    return None


def _renamed(machine: Machine, gpus: Mapping[str, str], nics: Mapping[str, str]) -> Machine:
    """Return the reading with the merged machine's keys, without the parts that have none."""
    keys = {**gpus, **nics}

    def pairs(texts: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
        return {(keys[a], keys[b]): text for (a, b), text in texts.items() if a in keys and b in keys}

    def renamed(path: str) -> str:
        head, _, rest = path.partition("/")
        key, slash, tail = rest.partition("/")
        new_keys = {"gpus": gpus, "nics": nics}.get(head, {})
        return f"{head}/{new_keys[key]}{slash}{tail}" if rest and key in new_keys else path

    return replace(
        machine,
        gpus=tuple(replace(gpu, key=gpus[gpu.key]) for gpu in machine.gpus if gpu.key in gpus),
        nics=tuple(replace(nic, name=nics[nic.name]) for nic in machine.nics if nic.name in nics),
        gpu_links=tuple(
            replace(link, a=gpus[link.a], b=gpus.get(link.b, link.b) if link.b else None) for link in machine.gpu_links if link.a in gpus
        ),
        paths=pairs(machine.paths),
        peer_access=pairs(machine.peer_access),
        unknown={renamed(path): text for path, text in machine.unknown.items()},
        origins={renamed(path): text for path, text in machine.origins.items()},
    )


def _merged_parts(path: str, lists: Sequence[tuple[Machine, Sequence[Any]]], record: _Record) -> tuple[Any, ...]:
    """Return the merged parts of one list, in the order in which they first appear."""
    groups: dict[str, list[tuple[Machine, Any]]] = {}
    for machine, parts in lists:
        for part in parts:
            groups.setdefault(part.key, []).append((machine, part))
    return tuple(_merged(f"{path}/{key}", group, record) for key, group in groups.items())


def _merged(path: str, group: Sequence[tuple[Machine, Any]], record: _Record) -> Any:
    machine, part = group[0]
    if len(group) == 1 and not machine.origins:
        record.origins[path] = source_of(machine)
        return part
    values: dict[str, Any] = {}
    kind: Any = type(part)
    for name, default in _defaults(kind).items():
        readings = [(source, getattr(reading, name)) for source, reading in group]
        readings = [(source, value) for source, value in readings if value != default]
        if readings and name == "ports":
            ports = _merged_parts(f"{path}/ports", readings, record)
            values[name] = tuple(sorted(ports, key=lambda port: port.number))
        elif readings:
            rule = _merged if isinstance(readings[0][1], msgspec.Struct) else _taken
            values[name] = rule(f"{path}/{name}", readings, record)
    return replace(part, **values)


@functools.cache
def _defaults(kind: Any) -> dict[str, Any]:
    """Return the fields of a part's class with the default value that means unknown."""
    defaults = {}
    for field in fields(kind):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        defaults[field.name] = None if default is msgspec.NODEFAULT else default
    return defaults


def _links(readings: Sequence[Machine], record: _Record) -> tuple[GpuLink, ...]:
    """Return the links from the first source with their far ends, else from the first that counts them. Compare the others' counts."""
    with_links = [machine for machine in readings if machine.gpu_links]
    with_links.sort(key=lambda machine: all(link.b is None for link in machine.gpu_links))
    if not with_links:
        return ()
    taken, *others = with_links
    source = _source(taken, "gpu_links")
    record.origins["gpu_links"] = source
    counts = _link_counts(taken)
    rates: dict[str, float] = {}  # of one link, from the first source that gives all links of that GPU the same rate
    for other in others:
        rates_by_gpu: dict[str, set[float | None]] = {}
        for link in other.gpu_links:
            rates_by_gpu.setdefault(link.a, set()).add(link.bytes_per_s)
        rates = {gpu: rate for gpu, (rate, *more) in rates_by_gpu.items() if rate and not more} | rates
        for gpu, count in _link_counts(other).items():
            if counts.get(gpu, count) != count:
                other_source = _source(other, "gpu_links")
                record.disagreements.append(
                    Disagreement(f"gpu_links/{gpu}", f"{counts[gpu]} links", source, f"{count} links", other_source)
                )
    return tuple(replace(link, bytes_per_s=rates.get(link.a)) if link.bytes_per_s is None else link for link in taken.gpu_links)


def _link_counts(machine: Machine) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for link in machine.gpu_links:
        counts[link.a] += link.count
    return counts


def _without_circles(devices: Sequence[PciDevice], record: _Record) -> Iterable[PciDevice]:
    """Return the devices with circular parent chains cut. They occur when two sources disagree about parents."""
    parents = {device.address: device.parent for device in devices}
    sound: set[str] = set()
    for device in devices:
        chain: set[str] = set()
        address: str | None = device.address
        while address is not None and address not in sound and address not in chain:
            chain.add(address)
            address = parents.get(address)
        if address is not None and address in chain:
            parents[address] = None
            record.doubts.append(f"PCI device {address} is above itself when the sources are put together: its parent is not believed")
        sound |= chain
    return [device if device.parent == parents[device.address] else replace(device, parent=None) for device in devices]


def _still_unknown(merged: Machine, readings: Sequence[Machine]) -> dict[str, str]:
    """Return the first reason per fact for the facts that no source knows."""
    reasons = {path: why for machine in reversed(readings) for path, why in machine.unknown.items()}
    parts = {name: {part.key: part for part in getattr(merged, name)} for name in ("numa_nodes", "pci", "gpus", "nics")} if reasons else {}
    empty = {name for name in LISTS if any(known_none(machine, name) for machine in readings)}
    return {path: why for path, why in reasons.items() if path not in empty and not _has_value(merged, parts, path.split("/"))}


def _has_value(merged: Machine, parts: Mapping[str, Mapping[str, Any]], steps: Sequence[str]) -> bool:
    name, *names = steps
    value: Any = getattr(merged, name, None)
    if name in parts and names:
        value = parts[name].get(names.pop(0))
    for name in names:
        if isinstance(value, tuple):
            value = next((port for port in value if getattr(port, "key", "") == name), None)
        else:
            value = getattr(value, name, None)
    return value is not None and value not in ((), {})
