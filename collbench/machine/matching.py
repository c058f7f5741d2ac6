"""Which parts of several sources are the same part: GPUs by address, serial number or index, NICs by name or address."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from collbench.machine.model import Gpu, Machine, Nic

_LID = re.compile(r"^LID \d+$")  # ibportstate's NIC
_PLACE = re.compile(r"^NIC\d+$")  # nvidia-smi's number for a NIC, without the legend that names it


@dataclass
class Same:
    """What the merged machine calls each source's parts: one mapping of keys per machine. A part without an entry is left out."""

    gpus: list[dict[str, str]] = field(default_factory=list)
    nics: list[dict[str, str]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def same_parts(machines: Sequence[Machine]) -> Same:
    """The merged key of every GPU and NIC of every machine, and what could not be matched."""
    same = Same()
    _match_gpus(machines, same)
    _match_nics(machines, same)
    return same


def source_of(machine: Machine) -> str:
    """What a machine's facts are from, in a few words."""
    return ", ".join(machine.sources) or "a source without a name"


def _match_gpus(machines: Sequence[Machine], same: Same) -> None:
    known = _addressed(machines)
    for machine in machines:
        bare = [gpu for gpu in machine.gpus if not gpu.address]
        keys = {gpu.key: gpu.address for gpu in machine.gpus if gpu.address}
        keys.update(_numbered(bare, known, source_of(machine), same.doubts))
        same.gpus.append(keys)


def _addressed(machines: Sequence[Machine]) -> list[Gpu]:
    """One GPU per address, with the first index and serial number that any source gives, in PCI order."""
    found: dict[str, Gpu] = {}
    for gpu in (gpu for machine in machines for gpu in machine.gpus if gpu.address):
        before = found.get(str(gpu.address), gpu)
        index = gpu.index if before.index is None else before.index
        found[str(gpu.address)] = Gpu(str(gpu.address), index, gpu.address, before.vendor or gpu.vendor, uuid=before.uuid or gpu.uuid)
    return [found[address] for address in sorted(found)]


def _numbered(bare: Sequence[Gpu], known: Sequence[Gpu], source: str, doubts: list[str]) -> dict[str, str]:
    """Keys of GPUs that a source only counts. nvidia-smi counts them in PCI order: equal numbers of GPUs then match one to one."""
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


def _match_nics(machines: Sequence[Machine], same: Same) -> None:
    named = any(not _PLACE.match(nic.name) for machine in machines for nic in machine.nics)
    names = _names_by_lid(machines)
    at: dict[str, str] = {}
    found: dict[int, dict[str, str]] = {}
    for place in sorted(range(len(machines)), key=lambda place: _nameless(machines[place])):
        machine = machines[place]
        left_out = [nic.name for nic in machine.nics if _PLACE.match(nic.name)] if named else []
        if left_out:
            told = left_out[0] if len(left_out) == 1 else f"{left_out[0]}…{left_out[-1]}"
            same.doubts.append(f"{source_of(machine)} does not say which devices {told} are (no NIC Legend): they are left out")
        nics = [nic for nic in machine.nics if nic.name not in left_out]
        found[place] = _keys_of_nics(nics, names, at)
        _remember(nics, found[place], names, at)
    same.nics = [found[place] for place in range(len(machines))]


def _names_by_lid(machines: Sequence[Machine]) -> dict[str, str]:
    """The devices that other sources name for a NIC of which only the LID is known ("LID 12")."""
    ports = [(nic.name, port.lid) for machine in machines for nic in machine.nics for port in nic.ports if port.lid]
    named = {f"LID {local}": name for name, local in ports if not _LID.match(name)}
    return {name: named[name] for name, _ in ports if name in named}


def _nameless(machine: Machine) -> bool:
    """Whether it knows NICs by their addresses alone: names of other sources come first."""
    return any(nic.name == nic.address for nic in machine.nics)


def _keys_of_nics(nics: Sequence[Nic], names: dict[str, str], at: dict[str, str]) -> dict[str, str]:
    """By name (an RDMA device's network interface is that device), else by address where this source has one NIC there."""
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
