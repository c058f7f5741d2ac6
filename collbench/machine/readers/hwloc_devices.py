"""The devices in hwloc's XML: PCI functions and the tree they hang in, what drivers call GPUs, network and RDMA devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collbench.machine.model import SWITCH, Gpu, Nic, PciDevice, PcieLink, Port
from collbench.machine.readers import pci_parts
from collbench.machine.readers.cpu_sets import cpu_mask
from collbench.machine.readers.hwloc_links import pcie
from collbench.machine.readers.hwloc_xml import Thing, number_of
from collbench.machine.readers.part_names import part_name
from collbench.machine.readers.rdma_words import guid, lid
from collbench.machine.readers.text import printable

_TYPE = re.compile(r"^([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\](?:.* [0-9a-f]{2} ([0-9a-f]{2})$)?", re.IGNORECASE)
_GPU_NAME = re.compile(r"^(nvml|rsmi)(\d{1,3})$")
_PORT = re.compile(r"^Port(\d{1,2})(?:State|LID)$")
_STATES = {"1": "down", "2": "init", "3": "armed", "4": "active"}  # of IBTA's PortInfo, as /sys/class/infiniband prints it
_NETWORK, _OPENFABRICS = {2: 2, 3: 16}, {2: 3, 3: 32}  # osdev_type: one number in versions 1 and 2, bits in version 3 (hwloc.h)
_MEMORY = ("CUDAGlobalMemorySize", "RSMIVRAMSize", "LevelZeroHBMSize")  # KiB


@dataclass
class Devices:
    """What was found; `ends` says which GPU or switch an object of a distance matrix is."""

    pci: tuple[PciDevice, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    ends: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


def devices(things: Sequence[Thing], version: int, numa_ids: frozenset[int]) -> Devices:
    """Everything below the bridges of a topology. `version` is the format's major one, 1 to 3."""
    found = Devices()
    drivers = _drivers(things)
    seen: dict[str, PciDevice] = {}
    for thing in things:
        address = thing.address
        if address and address in seen:
            found.doubts.append(f"hwloc lists {address} twice: the first is taken")
        elif address:
            seen[address] = _pci(thing, address, _model(drivers.get(address, ())), numa_ids, found.unknown)
    found.pci = pci_parts.with_switches(tuple(seen.values()))
    found.gpus = tuple(_gpu(device, drivers.get(device.address, ())) for device in found.pci if device.kind == "gpu")
    found.nics = tuple(_nics(found.pci, drivers, version))
    found.ends = dict(_ends(things, seen))
    return found


def _drivers(things: Sequence[Thing]) -> dict[str | None, list[Thing]]:
    """What the operating system calls the devices, by the PCI function they are on (None: on none)."""
    drivers: dict[str | None, list[Thing]] = {}
    for thing in things:
        if thing.type == "OSDev":
            on = next((above.address for above in thing.up() if above.type == "PCIDev"), None)
            drivers.setdefault(on, []).append(thing)
    return drivers


def _pci(thing: Thing, address: str, model: str | None, numa_ids: frozenset[int], unknown: dict[str, str]) -> PciDevice:
    class_id, vendor, device_id = _ids(thing.element.get("pci_type", ""))
    kind = pci_parts.kind_of(address, vendor, class_id)
    kind = "nvswitch" if thing.element.get("subtype") == "NVSwitch" else "bridge" if thing.type == "Bridge" else kind
    name = _name(thing)
    link, why = pcie(thing.element.get("pci_link_speed"), model or part_name(vendor, device_id))
    virtual = pci_parts.is_virtual(address, vendor, device_id, class_id, name)
    if kind != "other" and (why or virtual):
        unknown[f"pci/{address}/link"] = why or pci_parts.VIRTUAL_LINK
    parent = next((above.address for above in thing.up() if above.address), None)
    link = PcieLink() if virtual else link
    numa = _numa(thing, numa_ids)
    return PciDevice(address, kind, parent, vendor, device_id, class_id, name, numa, link, virtual=virtual)


def _ids(text: str) -> tuple[int | None, int | None, int | None]:
    """Class, vendor and device of "0302 [10de:1db8] [10de:131d] a1 00"; None for each zero, which means that nothing could be read."""
    match = _TYPE.match(text.strip())
    if not match:
        return None, None, None
    class_id = int(match[1], 16) << 8 | int(match[4] or "0", 16)
    return class_id or None, int(match[2], 16) or None, int(match[3], 16) or None


def _name(thing: Thing) -> str | None:
    """Version 1 has a name attribute, later ones PCIVendor and PCIDevice."""
    infos = thing.infos
    called = " ".join(infos[word] for word in ("PCIVendor", "PCIDevice") if infos.get(word))
    return called or printable(thing.element.get("name", "")) or None


def _numa(thing: Thing, numa_ids: frozenset[int]) -> int | None:
    """The node near to it: of the first thing above that has a node set, if that has one node with CPUs."""
    near = next((above.element.get("nodeset") for above in thing.up() if above.element.get("nodeset")), None)
    nodes = (cpu_mask(near) or frozenset()) & numa_ids
    return next(iter(nodes)) if len(nodes) == 1 else None


def _model(drivers: Sequence[Thing]) -> str | None:
    return next((model for driver in drivers if (model := driver.infos.get("GPUModel"))), None)


def _gpu(device: PciDevice, drivers: Sequence[Thing]) -> Gpu:
    """The GPU with its index, model and serial number of NVML or ROCm, where hwloc was built with them."""
    infos = {word: value for driver in drivers for word, value in driver.infos.items()}
    index = next((int(match[2]) for driver in drivers if (match := _GPU_NAME.match(driver.element.get("name", "")))), None)
    gpu = pci_parts.gpu(device, index, _model(drivers), infos.get("NVIDIAUUID") or infos.get("AMDUUID"))
    kib = next((infos[word] for word in _MEMORY if re.fullmatch(r"\d{1,12}", infos.get(word, ""))), None)
    return replace(gpu, memory_bytes=int(kib) * 1024 if kib else None)


def _nics(found: Sequence[PciDevice], drivers: Mapping[str | None, Sequence[Thing]], version: int) -> list[Nic]:
    """RDMA devices with the interfaces beside them, interfaces alone, and functions that no driver has named."""
    nics: list[Nic] = []
    functions = {device.address: device for device in found}
    driven = any(_is(each, kinds, version) for on in drivers if on for each in drivers[on] for kinds in (_OPENFABRICS, _NETWORK))
    physical = pci_parts.physical_nics(found)
    for address in [*(device.address for device in found), None]:
        named = drivers.get(address, ())
        rdma = [each for each in named if _is(each, _OPENFABRICS, version)]
        nets = [each for each in named if _is(each, _NETWORK, version) and each not in rdma]
        device = functions.get(address) if address else None
        nics += [_nic(each, device, nets if len(rdma) == 1 else [], True) for each in rdma]
        missing = driven and not rdma and device is not None and not device.virtual and pci_parts.is_rdma_card(device)
        nics += [replace(_nic(each, device, [each], False), rdma_missing=missing) for each in ([] if rdma else nets)]
        if device and device.kind == "nic" and not rdma and not nets:
            bare = pci_parts.nic(device, physical)
            nics.append(replace(bare, rdma=bare.rdma and not missing, rdma_missing=missing))
    return list({nic.name: nic for nic in reversed(nics)}.values())[::-1]


def _is(thing: Thing, numbers: Mapping[int, int], version: int) -> bool:
    kind = number_of(thing, "osdev_type")
    if kind is None or not thing.element.get("name"):
        return False
    return bool(kind & numbers[3]) if version >= 3 else kind == numbers[2]


def _nic(thing: Thing, device: PciDevice | None, nets: Sequence[Thing], rdma: bool) -> Nic:
    infos = thing.infos
    numbers = sorted({int(match[1]) for word in infos if (match := _PORT.match(word))})
    return Nic(
        name=printable(thing.element.get("name", ""), 64),
        address=device.address if device else None,
        model=pci_parts.model_of(device) if device else None,
        rdma=rdma and thing.element.get("subtype") != "BXI",
        numa=device.numa if device else None,
        ports=tuple(_port(number, infos) for number in numbers if number),
        interfaces=tuple(printable(each.element.get("name", ""), 64) for each in nets),
        guid=guid(infos.get("NodeGUID")),
    )


def _port(number: int, infos: Mapping[str, str]) -> Port:
    """A port's state and LID; hwloc tells no rate. Only InfiniBand has LIDs."""
    own = lid(infos.get(f"Port{number}LID"))
    return Port(number, state=_STATES.get(infos.get(f"Port{number}State", "")), link_layer="infiniband" if own else None, lid=own)


def _ends(things: Sequence[Thing], found: Mapping[str, PciDevice]) -> list[tuple[str, str]]:
    """GPUs and NVSwitches by the names that distance matrices have for them."""
    ends: list[tuple[str, str]] = []
    for thing in things:
        on = next((each.address for each in (thing, *thing.up()) if each.type == "PCIDev"), None)
        device = found.get(on or "")
        if device and device.kind in ("gpu", "nvswitch") and thing.element.get("gp_index"):
            far = SWITCH if device.kind == "nvswitch" else device.address
            ends.append((f"{thing.type}:{thing.element.get('gp_index')}", far))
    return ends
