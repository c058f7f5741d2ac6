"""PCI functions from /sys/bus/pci/devices: kind, bridge above, link, NUMA node; and the GPUs that drivers list.

A few reads per function at any size of the machine. Root is not needed: the config space is not read, so `acs` is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from collbench.machine.files import Files
from collbench.machine.model import Gpu, GpuLink, Machine, PciDevice, PcieLink
from collbench.machine.readers.pci import VENDORS, VIRTUAL_LINK, Vendor, function, link_doubt, with_switches
from collbench.machine.readers.text import few, gigatransfers, lanes, numa_of, pci_address, printable, whole

# AMD GPUs from their kernel driver: /sys/class/kfd/kfd/topology has one node per die or partition, and the CPUs.

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_XGMI = 11  # HSA_IOLINKTYPE_XGMI, libhsakmt's hsakmttypes.h
_ONE_HOP = 15  # the kernel's weight of a direct xGMI link: 15 per hop (kfd_crat.c)
_MEMORY_OF_GPU = (1, 2)  # heap types: frame buffer, public and private
_MOST_MB_PER_S = 1_000_000
_MOST_LINKS = 16
_MOST_BYTES = 1 << 50


def read_kfd(files: Files) -> Machine:
    """Return the GPUs in the driver's order, and xGMI links between GPUs (without links to CPUs). Never raises."""
    doubts: list[str] = []
    nodes = sorted(int(name) for name in files.names(_NODES) if name.isascii() and name.isdigit() and len(name) < 6)
    gpus: dict[int, Gpu] = {}
    for node in nodes:
        properties = _properties(files.text(f"{_NODES}/{node}/properties"))
        if properties.get("simd_count", 0) <= 0:
            continue
        pci_location = address(properties)
        key = pci_location or f"gpu{len(gpus)}"
        if any(key == gpu.key for gpu in gpus.values()):
            doubts.append(f"{key}: the driver lists it in several partitions: counted once, with the memory of the first")
            continue
        name = architecture(properties.get("gfx_target_version"))
        folder = f"{_NODES}/{node}/mem_banks"
        banks = [_properties(files.text(f"{folder}/{bank}/properties")) for bank in files.names(folder)[:64]]
        size = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _MEMORY_OF_GPU)
        gpus[node] = Gpu(key, len(gpus), pci_location, "amd", architecture=name, memory_bytes=size if 0 < size <= _MOST_BYTES else None)
    links = tuple(link for node in gpus for link in _links(files, node, gpus, doubts))
    return Machine(gpus=tuple(gpus.values()), gpu_links=links, doubts=tuple(dict.fromkeys(doubts)))


def architecture(version: int | None) -> str | None:
    """Return gfx942 for 90402: two decimal digits each for minor and stepping, hexadecimal in the name (90010 is gfx90a)."""
    if not version or version > 999_999:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def address(properties: Mapping[str, int]) -> str | None:
    """Return the PCI address: location_id has bus, device and function in 8, 5 and 3 bits; the domain is separate."""
    location, domain = properties.get("location_id"), properties.get("domain", 0)
    if not location or location > 0xFFFF or domain > 0xFFFFFFFF:
        return None
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _properties(text: str | None) -> dict[str, int]:
    pairs = (line.split() for line in (text or "").splitlines())
    numbers = {pair[0]: whole(pair[1], 0, (1 << 64) - 1) for pair in pairs if len(pair) == 2}
    return {name: value for name, value in numbers.items() if value is not None}


def _links(files: Files, node: int, gpus: Mapping[int, Gpu], doubts: list[str]) -> Sequence[GpuLink]:
    folder = f"{_NODES}/{node}/io_links"
    listed = [_properties(files.text(f"{folder}/{name}/properties")) for name in files.names(folder)]
    xgmi = {link["node_to"]: link for link in listed if link.get("type") == _XGMI and link.get("node_to") in gpus}
    links = []
    for peer, link in xgmi.items():
        count = _count(link, doubts) if peer != node else 0
        megabytes = link.get("min_bandwidth", 0)
        rate = megabytes * 1e6 if 0 < megabytes <= _MOST_MB_PER_S else None
        if count:
            links.append(GpuLink(gpus[node].key, gpus[peer].key, count, "xgmi", rate))
    return links


def _count(link: Mapping[str, int], doubts: list[str]) -> int:
    """Return the number of links of a pair: its bandwidth over that of one link; 0 for a pair without direct links.

    The kernel gives the bandwidth of one link as minimum and that of all as maximum, which is 0 if the route is indirect
    (amdgpu_amdkfd_get_xgmi_bandwidth_mbytes). Before MI200 both are 0, and a direct pair has one link.
    """
    link_rate = link.get("min_bandwidth", 0)
    pair_rate = link.get("max_bandwidth", 0)
    if not link_rate and not pair_rate:
        return 1 if link.get("weight", _ONE_HOP) <= _ONE_HOP else 0
    if not link_rate or pair_rate % link_rate or pair_rate // link_rate > _MOST_LINKS:
        doubts.append(f"an xGMI link of {pair_rate} MB/s made of links of {link_rate} MB/s: counted as one")
        return 1
    return pair_rate // link_rate


DEVICES = "/sys/bus/pci/devices"
_BRIDGES = 0x06  # base class of every bridge
_SPEED = re.compile(r"\d{1,3}(?:\.\d)? ?GT/s")  # as the kernel prints it, and not part of a longer number


def read(files: Files) -> Machine:
    """Return the functions in /sys/bus/pci/devices by address, with doubts instead of impossible links and parents. Never raises."""
    names = {address: name for name in reversed(files.names(DEVICES)) if (address := pci_address(name))}
    if not names:
        return Machine(unknown={"pci": f"{DEVICES} lists nothing: no PCI bus, or it was not copied"})
    doubts: list[str] = []
    listed = {address: _device(files, address, f"{DEVICES}/{names[address]}", doubts) for address in sorted(names, key=_order)}
    parents = {}  # "" at a root, None when unknown
    for device in listed.values():
        why = _impossible(device, listed.get(device.parent)) if device.parent else None
        parents[device.address] = None if why else device.parent
        if why:
            doubts.append(f"{device.address}: its path leads through {device.parent}, {why}: its parent is unknown")
    devices = with_switches([replace(device, parent=parents[device.address] or None) for device in listed.values()])
    unknown = {f"pci/{address}/parent": "the tree does not show what it hangs from" for address in parents if parents[address] is None}
    unknown |= {f"pci/{device.address}/link": VIRTUAL_LINK for device in devices if device.virtual and device.kind != "other"}
    return Machine(pci=devices, unknown=unknown, doubts=(*few(doubts), *few(list(filter(None, map(link_doubt, devices))))))


def _order(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split("[:.]", address))


def _device(files: Files, address: str, folder: str, doubts: list[str]) -> PciDevice:
    """Return one function, with `parent` from its path, unchecked."""
    names = frozenset(files.names(folder))

    def text(name: str) -> str:
        return (files.text(f"{folder}/{name}") or "") if name in names else ""

    lines = (line.partition("=") for line in text("uevent").splitlines())
    event = {name: printable(value) for name, equals, value in lines if equals}  # one read; older kernels have only a file for each
    ids = dict(zip(("vendor", "device"), event.get("PCI_ID", "").split(":"), strict=False)) | {"class": event.get("PCI_CLASS", "")}
    vendor_id, device_id, class_id = (
        whole(f"0x{ids[name]}" if ids.get(name) else files.text(f"{folder}/{name}"), 0, 0xFFFFFF) for name in ("vendor", "device", "class")
    )
    speeds = [text("current_link_speed"), text("max_link_speed")]
    speed, max_speed = (gigatransfers(speed) if _SPEED.match(speed) else None for speed in speeds)
    link = PcieLink(speed, lanes(text("current_link_width")), max_speed, lanes(text("max_link_width")))
    driver = event.get("DRIVER") or (printable((files.real(f"{folder}/driver") or "").rpartition("/")[2]) if "driver" in names else "")
    return function(
        address, vendor_id, device_id, class_id, link, virtual="physfn" in names,
        parent=_path_parent(files, address, folder, doubts), numa=numa_of(text("numa_node")), driver=driver or None,
    )  # fmt: skip


def _path_parent(files: Files, address: str, folder: str, doubts: list[str]) -> str | None:
    """Return the second-last address in /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0; "" for a root."""
    parts = (files.real(folder) or folder).split("/")
    if "devices" not in parts[:3]:
        return None
    if pci_address(parts[-1]) != address:
        doubts.append(f"{address}: its entry leads to {printable(parts[-1])}: where it is in the PCI tree is unknown")
        return None
    return pci_address(parts[-2]) or ""


def _impossible(device: PciDevice, parent: PciDevice | None) -> str | None:
    """Return why that cannot be the parent. Buses are numbered downwards, so every circle of parents has a link upwards."""
    if parent is None:
        return "which is not listed"
    if parent.class_id is not None and parent.class_id >> 16 != _BRIDGES:
        return "which is not a bridge"
    domain, bus, *_ = _order(device.address)
    parent_domain, parent_bus, *_ = _order(parent.address)
    return None if domain == parent_domain and bus > parent_bus else "which is not on a bus before its own"


# GPUs of a Linux machine: PCI functions that a GPU driver lists; without such a list, all GPUs by class and vendor.

NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
_DISPLAY = 0x03  # base class; a capture may have only the class
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read_gpus(files: Files, devices: Sequence[PciDevice]) -> Machine:
    """Return the GPUs of `devices` in the order of their addresses, their links, and the devices with kinds that only a driver knows.

    Never raises. Virtual functions for guests are not GPUs of the host.
    """
    listed = {address: name for name in files.names(NVIDIA_GPUS) if (address := pci_address(name))}
    amd = read_kfd(files)
    amd_by_key = {gpu.key: gpu for gpu in amd.gpus}
    with_kinds: list[PciDevice] = []
    by_vendor: dict[Vendor, list[PciDevice]] = {"nvidia": [], "amd": [], "intel": []}
    for device in devices:
        is_listed = device.address in listed
        is_display = device.kind == "other" and (device.class_id or 0) >> 16 == _DISPLAY
        with_kind = replace(device, kind="gpu") if is_listed and is_display else device
        with_kinds.append(with_kind)
        vendor = "nvidia" if is_listed else VENDORS.get(device.vendor_id or 0)
        if with_kind.kind == "gpu" and not device.virtual and vendor:
            by_vendor[vendor].append(with_kind)
    doubts = list(amd.doubts)
    nvidia_gpus = _driver_gpus("nvidia", by_vendor["nvidia"], listed, NVIDIA_GPUS, doubts)
    amd_gpus = _driver_gpus("amd", by_vendor["amd"], amd_by_key, "/sys/class/kfd", doubts)
    gpus = (
        *(_nvidia(files, f"{NVIDIA_GPUS}/{listed[gpu.key]}", gpu) if gpu.key in listed else gpu for gpu in nvidia_gpus),
        *(_amd(files, amd_by_key.get(gpu.key), gpu) for gpu in amd_gpus),
        *_numbered("intel", by_vendor["intel"]),
    )
    unknown = {f"gpus/{gpu.key}/model": "the driver gives no name in its files" for gpu in gpus if not gpu.model}
    unknown |= {f"gpus/{gpu.key}/memory_bytes": "sysfs does not have it; nvidia-smi and NVML do" for gpu in gpus if not gpu.memory_bytes}
    if not gpus and not devices:
        unknown = {"gpus": "the files show no PCI bus and no GPU driver"}
    return Machine(pci=tuple(with_kinds), gpus=gpus, gpu_links=amd.gpu_links, unknown=unknown, doubts=few(doubts))


def _driver_gpus(vendor: Vendor, devices: Sequence[PciDevice], listed: Collection[str], folder: str, doubts: list[str]) -> list[Gpu]:
    """Return the GPUs of one vendor: those that the driver lists if any, else all on the bus. A container may have fewer."""
    if not listed:
        return _numbered(vendor, devices)
    counted = [device for device in devices if device.address in listed]
    if len(counted) < len(devices):
        doubts.append(
            f"{len(devices) - len(counted)} of {len(devices)} {vendor.upper()} GPUs on the PCI bus are not listed in {folder}: not counted"
            " (a container that was given some of them, or GPUs that the driver lost)"
        )
    absent = [PciDevice(name, "gpu") for name in sorted({*listed} - {device.address for device in counted})]
    # by the length of the domain first: "10000:01:00.0" comes after "ffff:…"
    return _numbered(vendor, sorted([*counted, *absent], key=lambda device: (len(device.address), device.address)))


def _numbered(vendor: Vendor, devices: Sequence[PciDevice]) -> list[Gpu]:
    return [
        Gpu(device.address, index, device.address if pci_address(device.address) else None, vendor, numa=device.numa)
        for index, device in enumerate(devices)
    ]


def _nvidia(files: Files, folder: str, gpu: Gpu) -> Gpu:
    fields = dict(re.findall(r"^([A-Za-z ]+?):[ \t]+(\S.*)$", files.text(f"{folder}/information") or "", re.M))
    model = printable(fields.get("Model", ""))
    node = re.search(r"^Node:\s*(\d+)\s*$", files.text(f"{folder}/numa_status") or "", re.M)
    uuid = _UUID.fullmatch(fields.get("GPU UUID", "").strip().replace("gpu-", "GPU-"))
    is_named = model not in ("", "Unknown")
    return replace(gpu, model=model if is_named else None, uuid=uuid[0] if uuid else None, memory_numa=numa_of(node[1]) if node else None)


def _amd(files: Files, listed: Gpu | None, gpu: Gpu) -> Gpu:
    folder = f"{DEVICES}/{gpu.key}"
    model = printable(files.text(f"{folder}/product_name") or "")
    memory = (listed.memory_bytes if listed else None) or whole(files.text(f"{folder}/mem_info_vram_total"), 1, _MOST_BYTES)
    return replace(gpu, model=model or None, architecture=listed.architecture if listed else None, memory_bytes=memory)
