"""The parts of a machine in words, for the tree, the picture and the lists. Unknown is said as "unknown (reason)"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from collbench.machine.distance import NAMED_BY_A_FILE
from collbench.machine.lists import known_none
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System
from collbench.machine.readers.text import printable
from collbench.report.flags import printable as clean
from collbench.units import format_bytes, format_size

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_LAYERS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
_MOST_PEERS = 16
_NO_MODEL = "model unknown"
LINK_NAMES = {"nvlink": "NVLink", "xgmi": "xGMI"}
_VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
_PRINTED_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec \((.*)\)")
_IDLE_GT = 2.5  # what GPUs fall back to while they have nothing to do


def safe(text: str, most: int = 200) -> str:
    """`text` without control characters, direction marks or anything else that does not print; at most `most` characters."""
    return clean(printable(text, most))


def unknown(machine: Machine, path: str) -> str:
    """ "unknown (reason)", or "unknown" where no source gave a reason for this fact."""
    why = machine.unknown.get(path)
    return f"unknown ({safe(why)})" if why else "unknown"


def pcie(link: PcieLink, gpu: bool = False) -> str:
    """ "Gen5 x16", "Gen4 x8 of Gen4 x16 (downtrained)", "Gen1 x16 of Gen5 x16 (idle GPUs slow down)"; "unknown" without figures."""
    now, most = pcie_short(link)
    if not now:
        return f"unknown, at most {most}" if most else "unknown"
    if not slower(link):
        return now
    return f"{now} of {most} ({'idle GPUs slow down' if idle(link, gpu) else 'downtrained'})"


def pcie_short(link: PcieLink) -> tuple[str, str]:
    """The link now and what the device could, each "Gen4 x16" or ""."""
    return _pcie(link.speed_gt_per_s, link.width), _pcie(link.max_speed_gt_per_s, link.max_width)


def slower(link: PcieLink) -> bool:
    """The link runs with fewer lanes or slower lanes than the device could."""
    speeds, widths = (link.speed_gt_per_s, link.max_speed_gt_per_s), (link.width, link.max_width)
    return any(now is not None and most is not None and now < most for now, most in (speeds, widths))


def idle(link: PcieLink, gpu: bool) -> bool:
    """Slower, and no fault: a GPU that saves power; all its lanes are there."""
    full = link.width is None or link.max_width is None or link.width >= link.max_width
    return gpu and full and link.speed_gt_per_s == _IDLE_GT


def gigatransfers_in_all(link: PcieLink) -> float | None:
    """Lanes times GT/s, to compare links with; None when one of them is unknown."""
    return None if link.speed_gt_per_s is None or link.width is None else link.speed_gt_per_s * link.width


def gpu_name(gpu: Gpu) -> str:
    """ "GPU 0", or its key where the source does not count."""
    return f"GPU {gpu.index}" if gpu.index is not None else f"GPU {safe(gpu.key.removeprefix('gpu'))}"


def gpu_model(gpu: Gpu) -> str:
    """ "H100 80GB HBM3", with the architecture or vendor where that is all that is known."""
    return safe(gpu.model or gpu.architecture or (f"{_VENDORS[gpu.vendor]} GPU" if gpu.vendor else _NO_MODEL))


def _nameless(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'} ({_NO_MODEL})"


def port_state(port: Port) -> str:
    """ "active", "down (polling)"; "state unknown"."""
    physical = f" ({safe(port.phys_state)})" if port.phys_state and port.state != "active" else ""
    return f"{safe(port.state)}{physical}" if port.state else f"state unknown{physical}"


def gigabits(bits_per_s: float | None) -> str:
    """ "400 Gb/s", "54.5 Gb/s"; "rate unknown"."""
    return "rate unknown" if bits_per_s is None else f"{bits_per_s / 1e9:.4g} Gb/s"


def port_rate(port: Port) -> str:
    """ "400 Gb/s InfiniBand", with the shaper's rate where there is one; of a port that is down its layer alone."""
    layer = _LAYERS[port.link_layer] if port.link_layer else "link layer unknown"
    shaped = f", shaped to {gigabits(port.shaped_bits_per_s)}" if port.shaped_bits_per_s is not None else ""
    if port.rate_bits_per_s is None and port.state == "down":
        return layer + shaped
    return f"{gigabits(port.rate_bits_per_s)} {layer}{shaped}" if port.link_layer else f"{gigabits(port.rate_bits_per_s)}, {layer}{shaped}"


def port_text(port: Port) -> str:
    """ "port 1: 400 Gb/s InfiniBand, active, MTU 4096 [4X NDR]"; the rate as it was printed only where that says another number."""
    mtu = f", MTU {port.mtu_bytes}" if port.mtu_bytes is not None else ""
    printed = f" [{_printed(port)}]" if port.rate_text else ""
    manager = ", no subnet manager" if port.link_layer == "infiniband" and port.sm_lid == 0 else ""
    return f"port {port.number}: {port_rate(port)}, {port_state(port)}{mtu}{manager}{printed}"


def _printed(port: Port) -> str:
    match = _PRINTED_RATE.fullmatch(port.rate_text or "")
    same = match and port.rate_bits_per_s is not None and float(match[1]) * 1e9 == port.rate_bits_per_s
    return safe(match[2] if match and same else port.rate_text or "")


def gpus_text(machine: Machine) -> str:
    """Return "8 × H100 80GB HBM3", of several models each; without a GPU whether there is none or that is unknown."""
    models = Counter(gpu_model(gpu) for gpu in machine.gpus)
    if models:
        return " + ".join(f"{count} × {model}" if model != _NO_MODEL else _nameless(count) for model, count in models.items())
    return "no GPU on the PCI bus" if known_none(machine, "gpus") and machine.pci else f"GPUs {unknown(machine, 'gpus')}"


def nics_text(machine: Machine) -> str:
    """ "8 NICs at 400 Gb/s InfiniBand, 1 down"; a NIC with several ports counts by its fastest."""
    speeds = Counter(_nic_speed(nic) for nic in machine.nics if nic.virtual is None)
    told = [f"{count} {'' if place else 'NIC ' if count == 1 else 'NICs '}{speed}" for place, (speed, count) in enumerate(speeds.items())]
    if told:
        return ", ".join(told)
    if machine.nics:
        return "no NIC but virtual ones"
    return "no NIC" if known_none(machine, "nics") and machine.pci else f"NICs {unknown(machine, 'nics')}"


def _nic_speed(nic: Nic) -> str:
    up = [port for port in nic.ports if port.state != "down"]
    fastest = max(up, key=lambda port: port.rate_bits_per_s or 0, default=None)
    if fastest is None:
        return "down" if nic.ports else "of unknown speed"
    layer = f" {_LAYERS[fastest.link_layer]}" if fastest.link_layer else ""
    return f"at {gigabits(fastest.rate_bits_per_s)}{layer}" if fastest.rate_bits_per_s is not None else f"of unknown speed{layer}"


def c2c_text(gpu: Gpu) -> str:
    """Return "C2C: 5 to its CPU, each 44.7 GB/s"; "" where no source counted the links."""
    each_rate = f", each {gpu.c2c_bytes_per_s / 1e9:.3g} GB/s" if gpu.c2c_bytes_per_s else ""
    return f"C2C: {gpu.c2c_links} to its CPU{each_rate}" if gpu.c2c_links else ""


def links_text(machine: Machine, gpu: Gpu) -> str:
    """ "NVLink: 18 to a switch × 26.6 GB/s", "NVLink: 4 to GPU 1, 4 to GPU 2", "xGMI: to GPU 1 and 2 (number of links unknown)".

    "" where no source tells of links.
    """
    links = [link for link in machine.gpu_links if link.a == gpu.key and link.count > 0]
    off = f", {gpu.links_off} off" if gpu.links_off else ""
    names = {each.key: gpu_name(each) for each in machine.gpus}
    texts = [f"NVLink: {gpu.cpu_links} to its processor{_each_rate(gpu.cpu_link_bytes_per_s)}"] if gpu.cpu_links else []
    if links:
        rates = {link.bytes_per_s for link in links}
        rate = next(iter(rates)) if len(rates) == 1 else None
        ends = ", ".join(f"{link.count} {_far_end(link, names)}" for link in links)
        clique = f", multi-node NVLink domain {safe(gpu.clique)}" if gpu.clique else ""
        texts.insert(0, f"{LINK_NAMES[links[0].kind]}: {ends}{_each_rate(rate)}{off}{clique}")
    elif off:
        texts.insert(0, f"NVLink: none up{off}")
    elif peers := [
        names[b].removeprefix("GPU ") for (a, b), path in machine.paths.items() if a == gpu.key and path == "XGMI" and b in names
    ]:
        texts.insert(0, f"xGMI: to GPU {listed(peers, _MOST_PEERS)} (number of links unknown)")
    return "; ".join(texts)


def _each_rate(bytes_per_s: float | None) -> str:
    return f", each {bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s else ""


def _far_end(link: GpuLink, names: dict[str, str]) -> str:
    if link.b is None:
        return "(far end unknown)"
    return "to a switch" if link.b == SWITCH else f"to {names.get(link.b) or safe(link.b)}"


def numa_text(node: NumaNode | None, machine: Machine) -> str:
    """ "NUMA node 0: CPUs 0-31, 512 GiB"; None is the place of parts whose node is unknown."""
    if node is None:
        return "NUMA node unknown" if machine.numa_nodes or machine.gpus or machine.nics else f"NUMA nodes {unknown(machine, 'numa_nodes')}"
    cpus = "no CPUs" if node.cpus == "" else f"CPUs {safe(node.cpus)}" if node.cpus else "CPUs unknown"
    memory = f", {format_bytes(node.memory_bytes)}" if node.memory_bytes is not None else ""
    return f"NUMA node {node.id}: {cpus}{memory}"


def switch_text(device: PciDevice) -> str:
    """ "PCIe switch 0000:16:00.0, Gen5 x16 up"; what a hypervisor made up says so."""
    word = {"switch": "PCIe switch", "root": "PCIe root"}.get(device.kind, "PCIe bridge")
    name = f" {safe(device.name)}" if device.name else ""
    made_up = ", named by a topology file" if device.address.startswith(NAMED_BY_A_FILE) else ", made up by a hypervisor"
    up = made_up if device.virtual else _up(device) if device.parent else ""
    return f"{word} {safe(device.address)}{name}{up}"


def _up(device: PciDevice) -> str:
    text = pcie(device.link)
    return ", link up unknown" if text == "unknown" else f", {text} up"


def nic_name(nic: Nic) -> str:
    """ "mlx5_0"."""
    return safe(nic.name) or "(no name)"


def system_text(system: System) -> list[str]:
    """The machine in up to two lines: its processor; counts, memory, kernel. Nothing that is unknown."""
    counts = ((system.sockets, "socket"), (system.cores, "core"), (system.threads, "thread"))
    words = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts if number is not None]
    words += [format_bytes(system.memory_bytes)] if system.memory_bytes is not None else []
    words += [f"kernel {safe(system.kernel)}"] if system.kernel else []
    words += [f"virtual machine ({safe(system.virtualization)})"] if system.virtualization else []
    words += [f"container ({safe(system.container)})"] if system.container else []
    return [line for line in (safe(system.cpu_model or system.architecture or ""), ", ".join(words)) if line]


def memory(memory_bytes: int | None) -> str:
    """ "80 GiB", or "memory unknown"."""
    return "memory unknown" if memory_bytes is None else format_size(memory_bytes) if memory_bytes < 1024 else format_bytes(memory_bytes)


def listed(names: Iterable[str], most: int = 12) -> str:
    """ "a, b, c", and how many more there are beyond `most`."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def _pcie(speed: float | None, width: int | None) -> str:
    generation = _GENERATIONS.get(speed) if speed is not None else None
    lanes = f"x{width}" if width is not None else ""
    text = f"Gen{generation}" if generation else f"{speed:g} GT/s" if speed is not None else ""
    return " ".join(part for part in (text, lanes) if part)
