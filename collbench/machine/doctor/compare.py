"""CB26xx: differences between the nodes of a job. CB27xx: what a node lacks compared with a snapshot from when it was healthy.

A part counts as lost only where the machine now has fewer of its kind: an added card may shift the bus addresses of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from collbench.errors import UsageError
from collbench.machine.doctor.finding import Finding, MachineView, Severity, gpu_name, is_down
from collbench.machine.model import Gpu, Machine
from collbench.units import listed, plural

# CB26xx, between the nodes of a job: a node with fewer parts than the others, and different software.

_LOST_GPU = "a GPU that is missing fell off its bus: check the kernel's log (Xid 79) and drain the node; else request equal nodes"
_LOST_PORT = "the node with the fewest decides the job's speed: check its links, or leave it out"
_ONE_MTU = "set one MTU on all hosts and switches: the smaller one is used, or packets are lost"
_SAME = "install the same on all nodes; until then do not compare runs of different nodes"


def _gpus(view: MachineView) -> str | None:
    return plural(len(view.machine.gpus), "GPU") if view.machine.gpus or view.machine.pci else None


def _models(view: MachineView) -> str | None:
    models = {(gpu.model or "").removeprefix("NVIDIA ") for gpu in view.machine.gpus}  # only the driver has the prefix
    return listed(sorted(models)) if models and "" not in models else None


def _active_ports(view: MachineView) -> str | None:
    ports = [port for nic in view.rdma for port in nic.ports]
    ports_read = ports or (view.machine.pci and not view.machine.nics)
    return plural(sum(not is_down(port) for port in ports), "RDMA port") + " up" if ports_read else None


def _mtus(view: MachineView) -> str | None:
    mtus = {port.mtu_bytes for nic in view.rdma for port in nic.ports if not is_down(port)}
    return f"MTU {', '.join(str(mtu) for mtu in sorted(mtu for mtu in mtus if mtu))}" if mtus and None not in mtus else None


# Facts that should be equal on all nodes of a job: code, severity, name, the text for a node (None where it is unknown), remedy.
_EQUAL: tuple[tuple[str, Severity, str, Callable[[MachineView], str | None], str], ...] = (
    ("CB2601", "severe", "GPUs", _gpus, _LOST_GPU),
    ("CB2602", "severe", "RDMA ports", _active_ports, _LOST_PORT),
    ("CB2603", "warning", "GPU drivers", lambda view: view.machine.system.driver, _SAME),
    ("CB2604", "note", "kernels", lambda view: view.machine.system.kernel, _SAME),
    ("CB2606", "warning", "MTUs", _mtus, _ONE_MTU),
    ("CB2607", "warning", "GPU models", _models, "request equal nodes: the slowest decides the job's speed"),
)


def different_nodes(views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2601 to CB2607 except CB2605: nodes that differ from the majority in a fact. Nodes without the fact are skipped."""
    for code, severity, name, text_of, remedy in _EQUAL:
        hosts_by_text: dict[str, list[str]] = {}
        for number, view in enumerate(views, 1):
            text = text_of(view)
            if text is not None:
                hosts_by_text.setdefault(text, []).append(view.machine.hostname or f"machine {number}")
        (common, majority), *minorities = sorted(hosts_by_text.items(), key=lambda item: -len(item[1])) or [("", [])]
        for text, hosts in minorities:
            verb = "differs" if len(hosts) == 1 else "differ"
            what = f"{name}: {listed(hosts)} {verb} from {plural(len(majority), 'other node')}"
            yield Finding(code, severity, None, what, f"{listed(hosts)}: {text}; {listed(majority, 4)}: {common}", remedy)


def firmware(views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2605: RDMA devices of one model with different firmware, within a node or between nodes."""
    models: dict[str, dict[str, list[str]]] = {}  # the names of the devices, by model and version
    for view in views:
        for nic in view.rdma:
            if nic.firmware and nic.model:
                host = f"{view.machine.hostname} " if view.machine.hostname and len(views) > 1 else ""
                models.setdefault(nic.model, {}).setdefault(nic.firmware, []).append(f"{host}{nic.name}")
    for model, versions in sorted(models.items()):
        if len(versions) > 1:
            texts = [f"{version} on {listed(names, 4)}" for version, names in sorted(versions.items(), key=lambda item: -len(item[1]))]
            what = f"{model} runs with {len(versions)} versions of firmware"
            host_of_all = views[0].machine.hostname if len(views) == 1 else None
            yield Finding("CB2605", "warning", host_of_all, what, "; ".join(texts), f"flash one version (`mlxfwmanager`): {_SAME}")


JOB_RULES = (different_nodes, firmware)


SinceRule = Callable[[MachineView, MachineView], Iterator[Finding]]

_SLACK = 0.96  # rates and memory with a smaller difference are equal, in other units
_SEAT = "check the seat of the card, its cables and the kernel's log; when the change was meant, take a new snapshot"
_LINK_ERRORS: Mapping[str | None, str] = {"amd": "xGMI errors of amdgpu", "nvidia": "Xid 74"}


def lost_gpus(now: MachineView, good: MachineView) -> Iterator[Finding]:
    """CB2701: fewer GPUs on the bus, or fewer in the driver's count, than in the snapshot."""
    on_bus = _on_bus(now)
    were_on_bus = _on_bus(good)
    counted = _counted(now)
    were_counted = _counted(good)
    if on_bus is not None and were_on_bus is not None and len(on_bus) < len(were_on_bus):
        names = listed([good.name(address) for address in sorted(were_on_bus - on_bus)][: len(were_on_bus) - len(on_bus)])
        evidence = f"{plural(len(on_bus), 'GPU')} now, {len(were_on_bus)} then"
        yield now.finding("CB2701", "severe", f"{names} gone from the bus", evidence, _SEAT)
    elif 0 < len(counted) < len(were_counted):
        identities = {gpu.uuid or gpu.key for gpu in counted}
        names = listed([gpu_name(gpu) for gpu in were_counted if (gpu.uuid or gpu.key) not in identities])
        evidence = f"the driver counts {plural(len(counted), 'GPU')} now, {len(were_counted)} then"
        yield now.finding("CB2701", "severe", f"the driver no longer counts {names or 'a GPU'}", evidence, _SEAT)
    elif were_counted and not counted:
        why = now.machine.unknown.get("gpus", "nothing that counts GPUs answered")
        evidence = f"{why}; {plural(len(were_counted), 'GPU')} then"
        yield now.finding("CB2701", "warning", "no driver counts the GPUs", evidence, "load the driver; `nvidia-smi -L` prints the error")


def lost_nics(now: MachineView, good: MachineView) -> Iterator[Finding]:
    """CB2702: fewer NICs than in the snapshot."""
    names = {nic.name for nic in now.real_nics}
    missing = [nic for nic in good.real_nics if nic.name not in names and (nic.address is None or nic.address not in now.pci)]
    fewer = len(good.real_nics) - len(now.real_nics)
    if missing and fewer > 0 and (now.real_nics or now.pci):
        missing_names = listed([f"{nic.name} ({nic.address})" if nic.address else nic.name for nic in missing])
        evidence = f"{plural(len(now.real_nics), 'NIC')} now, {len(good.real_nics)} then"
        yield now.finding("CB2702", "severe", f"{missing_names} {'is' if len(missing) == 1 else 'are'} gone", evidence, _SEAT)


def lost_ports(now: MachineView, good: MachineView) -> Iterator[Finding]:
    """CB2703 and CB2704: a port of a physical NIC is down that was up in the snapshot, or has a lower rate."""
    in_snapshot = {(nic.name, port.number): port for nic in good.real_nics for port in nic.ports}
    ports = [(nic, port) for nic in now.real_nics for port in nic.ports if (nic.name, port.number) in in_snapshot]
    for nic, port in ports:
        then = in_snapshot[nic.name, port.number]
        if then.state == "active" and is_down(port):
            evidence = f"port {port.number}: {', '.join(word for word in (port.state, port.phys_state) if word)} now, {then.state} then"
            remedy = "check the cable, the switch port and `ibstat` or `ip link`; when the change was meant, take a new snapshot"
            yield now.finding("CB2703", "severe", f"{nic.name} was up and is down", evidence, remedy)
        if port.rate_bits_per_s and then.rate_bits_per_s and port.rate_bits_per_s < _SLACK * then.rate_bits_per_s:
            evidence = f"port {port.number}: {port.rate_bits_per_s / 1e9:g} Gb/s now, {then.rate_bits_per_s / 1e9:g} Gb/s then"
            remedy = "check the cable and its lanes (`mlxlink -d DEVICE`, `ethtool IFACE`); change it when it stays so"
            yield now.finding("CB2704", "severe", f"{nic.name} has a lower rate than it had", evidence, remedy)


def lost_lanes(now: MachineView, good: MachineView) -> Iterator[Finding]:
    """CB2705: a PCIe link with fewer lanes than in the snapshot, or a NIC's link with fewer GT/s."""
    for device in now.endpoints:
        then = good.pci.get(device.address)
        if then is None or (device.kind, device.vendor_id, device.device_id) != (then.kind, then.vendor_id, then.device_id):
            continue
        link = device.link
        good_link = then.link
        if link.width and good_link.width and link.width < good_link.width:
            evidence = f"x{link.width} now, x{good_link.width} then"
        elif device.kind == "nic" and link.speed_gt_per_s and good_link.speed_gt_per_s and link.speed_gt_per_s < good_link.speed_gt_per_s:
            evidence = f"{link.speed_gt_per_s:g} GT/s now, {good_link.speed_gt_per_s:g} GT/s then"
        else:
            continue  # an idle GPU's lower speed is not a loss
        remedy = "reseat the card, riser or cable; check the firmware's settings of the slot"
        yield now.finding("CB2705", "severe", f"{now.name(device.address)} has a slower PCIe link than it had", evidence, remedy)


def lost_links(now: MachineView, good: MachineView) -> Iterator[Finding]:
    """CB2706 and CB2707: a GPU with fewer links to other GPUs than in the snapshot, or less memory of the node."""
    for gpu in now.machine.gpus:
        links = now.machine.links_of(gpu.key)
        good_links = good.machine.links_of(gpu.key)
        if links is not None and good_links is not None and links < good_links:
            errors = _LINK_ERRORS.get(gpu.vendor, "errors of the links")
            remedy = f"reset the GPU, or the node; search the kernel log for {errors}; replace the part when it stays so"
            yield now.finding("CB2706", "severe", f"{gpu_name(gpu)} has lost GPU links", f"{links} up now, {good_links} then", remedy)
    memory = now.machine.system.memory_bytes
    good_memory = good.machine.system.memory_bytes
    if memory and good_memory and memory < _SLACK * good_memory:
        evidence = f"{memory / 2**30:.0f} GiB now, {good_memory / 2**30:.0f} GiB then"
        yield now.finding("CB2707", "warning", "less memory than the node had", evidence, "look for a module that firmware switched off")


SINCE_RULES: tuple[SinceRule, ...] = (lost_gpus, lost_nics, lost_ports, lost_lanes, lost_links)


def pairs(machines: Sequence[Machine], good: Sequence[Machine]) -> list[tuple[Machine, Machine]]:
    """Return each machine with its snapshot, matched by host name. A single snapshot applies to all machines.

    Raises UsageError for a machine that has none among several snapshots.
    """
    if len(good) == 1:
        return [(machine, good[0]) for machine in machines]
    by_name = {_host(machine): machine for machine in good}
    missing = [machine.hostname or "a machine without a name" for machine in machines if _host(machine) not in by_name]
    if missing:
        raise UsageError(f"--since has no snapshot of {listed(missing, 4)}: take one there with `collbench probe --format json`")
    return [(machine, by_name[_host(machine)]) for machine in machines]


def examined(machines: Sequence[Machine], good: Sequence[Machine]) -> list[Finding]:
    """Return the findings for each machine compared with its snapshot."""
    views = [(MachineView(machine), MachineView(then)) for machine, then in pairs(machines, good)]
    return [finding for now, then in views for rule in SINCE_RULES for finding in rule(now, then)]


def _host(machine: Machine) -> str:
    return (machine.hostname or "").partition(".")[0].lower()


def _on_bus(view: MachineView) -> set[str] | None:
    """Return the addresses of the GPUs on the PCI bus; None if no bus was read."""
    gpus = [device for device in view.machine.pci if device.kind == "gpu" and not device.virtual]
    return {gpu.address for gpu in gpus} if view.machine.pci else None


def _counted(view: MachineView) -> list[Gpu]:
    return [gpu for gpu in view.machine.gpus if gpu.index is not None]
