"""CB2201 to CB2225, NICs and fabric: slow slots, ports that are down, subnet managers, wrong fabrics, MTU, slow rails, error counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import median

from collbench.machine.distance import CLOSE
from collbench.machine.doctor.finding import Finding, MachineView, Severity, bytes_per_s, gigabytes, is_down
from collbench.machine.model import Nic, PciDevice, PcieLink, Port, is_nccl_topology
from collbench.machine.ports import nvlink_management
from collbench.machine.readers.pci import AMAZON, INTEL, MELLANOX, card_of
from collbench.units import listed, plural

# CB2221 to CB2225, counters of NICs. They count since their last reset, at an unknown time.

_TWICE = "read the counters before and after a run: what grows is what counts"
_WAIT = "port_xmit_wait"
_FEWEST_SIBLINGS = 3
_TIMES_MEDIAN = 10
_LONG_WAIT = 1_000_000_000
_ERRORS = (
    *("symbol_error", "link_error_recovery", "port_rcv_errors", "port_rcv_remote_physical_errors"),
    *("local_link_integrity_errors", "excessive_buffer_overrun_errors"),
)
_LOSSES = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "retry_exceeded_err", "port_xmit_discards")
_CONGESTION = ("rp_cnp_handled", "np_ecn_marked_roce_packets")
# Congestion is mostly of RoCE without flow control; adaptive routing also reorders packets. link_downed stops at 255.
_FLAP_REMEDY = "change the cable or transceiver, and check the switch's log"
_LOSS_REMEDY = "check priority flow control and ECN along the way, on hosts and switches"
_CONGESTION_REMEDY = "look for many senders to one receiver, and for ECN thresholds that are too low on the switches"
_COUNTERS: tuple[tuple[str, Severity, str, tuple[str, ...], int, str], ...] = (  # code, severity, what, names, from which value, remedy
    ("CB2221", "warning", "errors on the wire of", _ERRORS, 100, "clean or change the cable and its ends"),
    ("CB2222", "warning", "the link went down again and again:", ("link_downed",), 10, _FLAP_REMEDY),
    ("CB2223", "note", "packets were lost, or came out of order, on", _LOSSES, 1000, _LOSS_REMEDY),
    ("CB2224", "note", "congestion was signalled very often on", _CONGESTION, 1_000_000, _CONGESTION_REMEDY),
)


def high_counters(view: MachineView) -> Iterator[Finding]:
    """CB2221 to CB2224: ports with high counters of errors, flaps, losses and congestion."""
    for code, severity, what, counters, threshold, remedy in _COUNTERS:
        names: dict[str, None] = {}
        texts = []
        for nic, port in _ports(view.rdma):
            high = [f"{name} {port.counters[name]}" for name in counters if port.counters.get(name, 0) >= threshold]
            if high:
                names[nic.name] = None
                texts.append(f"{nic.name} port {port.number}: {', '.join(high)}")
        if texts:
            yield view.finding(code, severity, f"{what} {listed(list(names))}", listed(texts, 4), f"{remedy}; {_TWICE}")


def waits(view: MachineView) -> Iterator[Finding]:
    """CB2225: an InfiniBand port that waited far longer for credits than the other ports. Some waiting is normal."""
    ports = [(nic, port) for nic, port in _ports(view.rdma) if port.link_layer == "infiniband" and _WAIT in port.counters]
    if len(ports) < _FEWEST_SIBLINGS:
        return
    common = median(port.counters[_WAIT] for _, port in ports)
    long = [(nic, port) for nic, port in ports if port.counters[_WAIT] >= max(_TIMES_MEDIAN * common, _LONG_WAIT)]
    if long:
        what = f"waited far longer to send than {len(ports) - len(long)} siblings: {listed([nic.name for nic, _ in long])}"
        high = listed([f"{nic.name} port {port.number}: {_WAIT} {port.counters[_WAIT]}" for nic, port in long], 4)
        remedy = f"check the switch port, and the receivers on this rail; {_TWICE}"
        yield view.finding("CB2225", "note", what, f"{high}; the median of all is {common:g}", remedy)


_SLACK = 0.95  # QDR in Gen3 x4 loses 1.5 %, too little for a finding
_ROCE_MTU = 2048  # larger than a frame of 1500 bytes
_ETHERNET_MTU = 1500
_LARGE_FRAMES = "set the interfaces, and the switches between them, to frames of 9000 bytes (`ip link set IFACE mtu 9000`)"
_FAST = 25e9
_FIRST_OF_MLX5 = 0x1011  # Connect-IB
_WIFI = 0x0280  # "network controller"


def slow_slots(view: MachineView) -> Iterator[Finding]:
    """CB2201: the ports of a card together are faster than the maximum of its slot."""
    if view.virtual_machine:
        return
    first_of = {name: shared.names[0] for shared in view.shared_ports if shared.certain for name in shared.names}
    slot_of = {nic.name: _card(nic) for nic in view.real_nics if nic.address}
    cards: dict[str, list[Nic]] = {}  # the functions of one device share a slot; those of one port may have a slot each
    for nic in view.real_nics:
        if nic.address:
            cards.setdefault(slot_of.get(first_of.get(nic.name, nic.name), slot_of[nic.name]), []).append(nic)
    for nics in cards.values():
        devices = [view.pci.get(nic.address or "") for nic in nics]
        if any(device and (device.class_id or 0) >> 8 == _WIFI for device in devices):
            continue
        port_rates = {(first_of.get(nic.name, nic.address), port.number): port.rate_bits_per_s or 0.0 for nic, port in _ports(nics)}
        wire = sum(port_rates.values()) / 8
        links = {slot_of[nic.name]: _max_link(view, nic) for nic in reversed(nics)}.values()
        slot_rates = [bytes_per_s(speed, width) for speed, width in links]
        slot = sum(rate for rate in slot_rates if rate)
        if all(slot_rates) and wire and slot < _SLACK * wire:
            what = f"{listed([nic.name for nic in nics])}: the slot carries {gigabytes(slot)} of the {gigabytes(wire)} of its wire"
            slots = [
                f"PCIe {speed or 0:g} GT/s x{width} = {gigabytes(rate or 0)}"
                for (speed, width), rate in zip(links, slot_rates, strict=True)
            ]
            evidence = f"{' and '.join(slots)}; ports {listed(_rates(nics))}"
            remedy = "use a slot with more lanes or a newer generation; otherwise expect no more than the slot"
            yield view.finding("CB2201", "warning", what, evidence, remedy)


def _max_link(view: MachineView, nic: Nic) -> tuple[float | None, int | None]:
    """Return the maximum GT/s and lanes of the slot of a NIC; None for what is unknown."""
    device = view.pci.get(nic.address or "")
    link = PcieLink() if device is None or device.virtual else view.pcie_links.of(device)
    return link.max_speed_gt_per_s or link.speed_gt_per_s, link.max_width or link.width


def down(view: MachineView) -> Iterator[Finding]:
    """CB2202: an RDMA device without an active port. A second port or function of a card in use may be unused."""
    idle = [nic for nic in view.network if nic.ports and all(is_down(port) and port.state not in {"init", "armed"} for port in nic.ports)]
    in_use = {_card(nic) for nic in view.rdma if any(port.state == "active" for port in nic.ports)}
    # the ports with two PCIe functions that are all down, on a card that has another port which is active
    active_cards = {nic.card_guid for nic in view.usable if nic.card_guid and any(port.state == "active" for port in nic.ports)}
    guids = {nic.name: nic.card_guid for nic in idle}
    shared = [port.names for port in view.shared_ports if port.certain]
    unused = [names for names in shared if guids.keys() >= set(names) and guids[names[0]] in active_cards]
    for names in unused:
        what = f"{listed(list(names))} {'is' if len(names) == 1 else 'are'} down: perhaps an unused port of a card in use"
        evidence = "all functions of the port are down, and another port of the card is active"
        yield view.finding("CB2202", "note", what, evidence, "connect the port, or leave it out with NCCL_IB_HCA")
    for nic in idle:
        if _card(nic) in in_use or any(nic.name in names for names in unused):
            continue
        port = nic.ports[0]
        states = ", ".join(word for word in (port.state, port.phys_state) if word)
        manager = f"; no subnet manager seen (sm_lid {port.sm_lid})" if port.sm_lid == 0 and port.link_layer == "infiniband" else ""
        others = f"{len(view.usable)} of {len(view.network)} RDMA devices are up"
        evidence = f"port {port.number}: {states}{manager}; {others}"
        remedy = (
            "check the cable, the switch port and `ibstat` or `ip link`; a port that is unused on purpose: leave it out with NCCL_IB_HCA"
        )
        yield view.finding("CB2202", _loss(view, nic), f"{nic.name} is down", evidence, remedy)


def no_ports_of_their_own(view: MachineView) -> Iterator[Finding]:
    """CB2211 and CB2212: PCIe functions of one port, which share its rate, and RDMA devices that lead to the board's NVLink switches."""
    ports = [port.names for port in view.shared_ports if port.certain]
    if ports:
        what = f"{'; '.join(listed(list(names)) for names in ports)}: PCIe functions of one port{' each' if len(ports) > 1 else ''}"
        remedy = "count the rate of a port once; `ibstat` shows the system image GUID of the card"
        yield view.finding("CB2211", "note", what, "they are on the same card, by its GUID or its place on the PCI bus", remedy)
    names = nvlink_management(view.machine)
    if names:
        what = f"{listed(list(names))} lead to the NVLink switches of the board, not to the network"
        evidence = "ConnectX-7 at 100 Gb/s with the subnet manager on this host, beside other adapters"
        yield view.finding("CB2212", "note", what, evidence, f"leave them out: NCCL_IB_HCA=^={','.join(names)}")


def no_subnet_manager(view: MachineView) -> Iterator[Finding]:
    """CB2203: InfiniBand links that are up but not configured by a subnet manager."""
    unmanaged = [(nic, port) for nic, port in _ports(view.rdma) if port.link_layer == "infiniband" and _lacks_manager(port)]
    if unmanaged:
        nic, port = unmanaged[0]
        what = f"no subnet manager has set up {listed([f'{nic.name} port {port.number}' for nic, port in unmanaged])}"
        states = f"{port.state or 'state unknown'}, {port.phys_state or 'link unknown'}, sm_lid {port.sm_lid}"
        remedy = "start opensm on one host of the fabric, or the subnet manager of a switch; `sminfo` shows whether there is one"
        yield view.finding("CB2203", "severe", what, f"{nic.name} port {port.number}: {states}", remedy)


def _lacks_manager(port: Port) -> bool:
    return port.state == "init" or (port.sm_lid == 0 and (port.state in {"active", "armed"} or port.phys_state == "linkup"))


def other_fabric(view: MachineView) -> Iterator[Finding]:
    """CB2204: Ethernet among InfiniBand: often a storage or management port that NCCL would use as a rail."""
    ports = [(nic, port) for nic, port in _ports(view.usable) if not is_down(port)]
    ethernet = list(dict.fromkeys(nic.name for nic, port in ports if port.link_layer == "ethernet"))
    rails = list(dict.fromkeys(nic.name for nic, port in ports if port.link_layer == "infiniband"))
    if ethernet and rails:
        what = f"{listed(ethernet)} {'is' if len(ethernet) == 1 else 'are'} Ethernet among {plural(len(rails), 'InfiniBand device')}"
        evidence = f"link_layer of {ethernet[0]}: Ethernet, of {rails[0]}: InfiniBand"
        yield view.finding("CB2204", "note", what, evidence, f"name the rails for NCCL: NCCL_IB_HCA=={','.join(rails)}")


def not_real(view: MachineView) -> Iterator[Finding]:
    """CB2205: software RDMA devices, and virtual interfaces that an NCCL file lists as networks."""
    from_nccl = any(map(is_nccl_topology, view.machine.sources))
    virtual = [nic for nic in view.machine.nics if nic.virtual not in (None, "bond") and (nic.rdma or from_nccl)]
    if virtual:
        names = listed([f"{nic.name} ({nic.virtual})" for nic in virtual])
        what = f"{names} {'is' if len(virtual) == 1 else 'are'} no port of the machine, and would be counted as a network"
        evidence = f"no PCI device behind {virtual[0].name}"
        rdma = [nic.name for nic in virtual if nic.rdma]
        plain = [nic.name for nic in virtual if not nic.rdma]
        settings = [f"{name}=^={','.join(nics)}" for name, nics in (("NCCL_IB_HCA", rdma), ("NCCL_SOCKET_IFNAME", plain)) if nics]
        yield view.finding("CB2205", "note", what, evidence, f"leave {'it' if len(virtual) == 1 else 'them'} out: {' '.join(settings)}")


def small_mtu(view: MachineView) -> Iterator[Finding]:
    """CB2206: RoCE with packets of 1024 bytes, because the interface's frames hold 1500 bytes. Not where InfiniBand is the fabric."""
    up = [(nic, port) for nic, port in _ports(view.network) if not is_down(port)]
    if any(port.link_layer == "infiniband" for _, port in up):
        return
    ports = [(nic, port) for nic, port in up if port.link_layer == "ethernet"]
    small = [(nic, port) for nic, port in ports if port.mtu_bytes and port.mtu_bytes < _ROCE_MTU]
    if small:
        nic, port = small[0]
        what = f"small RoCE packets on {listed([nic.name for nic, _ in small])}: 1024 bytes are 92.6 % payload, 4096 bytes 98.0 %"
        yield view.finding("CB2206", "warning", what, f"{nic.name} port {port.number}: active MTU {port.mtu_bytes}", _LARGE_FRAMES)


def small_frames(view: MachineView) -> Iterator[Finding]:
    """CB2207: fast Ethernet with frames of 1500 bytes where TCP is the only transport."""
    if view.usable:
        return
    ports = _ports(nic for nic in view.machine.nics if nic.virtual is None)
    fast = [(nic, port) for nic, port in ports if (port.rate_bits_per_s or 0) >= _FAST and not is_down(port)]
    small = [(nic, port) for nic, port in fast if port.mtu_bytes and port.mtu_bytes <= _ETHERNET_MTU]
    if small:
        nic, port = small[0]
        what = f"TCP in small frames on {listed([nic.name for nic, _ in small])}: 94.1 % payload, with 9000 bytes 99.0 %"
        evidence = f"{nic.name}: MTU {port.mtu_bytes} at {(port.rate_bits_per_s or 0) / 1e9:g} Gb/s, and no RDMA device"
        yield view.finding("CB2207", "note", what, evidence, _LARGE_FRAMES)


def slow_rails(view: MachineView) -> Iterator[Finding]:
    """CB2208: a port near a GPU that is slower than most others: a cable that lost lanes, or a link trained at a low rate."""
    nearest = [view.nearest(gpu) for gpu in view.machine.gpus]
    near = {nic.name for path, nics in nearest if path in CLOSE for nic in nics}
    rails = [(nic, port) for nic, port in _ports(view.usable) if nic.name in near and port.rate_bits_per_s]
    models = {(nic.model, port.link_layer) for nic, port in rails}
    for model in sorted(models, key=str):
        siblings = [(nic, port) for nic, port in rails if (nic.model, port.link_layer) == model]
        common, ports_with_common = Counter(port.rate_bits_per_s or 0.0 for _, port in siblings).most_common(1)[0]
        slow = [nic for nic, port in siblings if (port.rate_bits_per_s or 0.0) < _SLACK * common]
        if slow and len(siblings) >= _FEWEST_SIBLINGS and 2 * ports_with_common > len(siblings):
            what = f"{listed([nic.name for nic in slow])} at less than the rate of {plural(ports_with_common, 'sibling')}"
            evidence = f"{listed(_rates(slow))}; the others {common / 1e9:g} Gb/s"
            remedy = "check the cable and its lanes (`mlxlink -d DEVICE`, `iblinkinfo`); change it when it stays so"
            yield view.finding("CB2208", "warning", what, evidence, remedy)


def no_rdma_device(view: MachineView) -> Iterator[Finding]:
    """CB2210: RDMA cards on the PCI bus without an RDMA device in the kernel; only a note for cards that work as Ethernet."""
    cards = [(nic, view.pci.get(nic.address or "")) for nic in view.real_nics if nic.rdma_missing]
    for idle in (True, False):
        group = [(nic, device) for nic, device in cards if idle == (not nic.interfaces)]
        if not group:
            continue
        names = listed([f"{nic.model} {nic.name}" if nic.model else nic.name for nic, _ in group])
        modules = sorted({_module(device) for _, device in group})
        drivers = sorted({device.driver for _, device in group if device and device.driver})
        driver = f"driver {', '.join(drivers)}" if drivers else "no driver is named"
        what = f"{plural(len(group), 'RDMA card')} on the PCI bus {'has' if len(group) == 1 else 'have'} no RDMA device: {names}"
        evidence = f"{driver}; /sys/class/infiniband has no device of these cards, or was not copied"
        remedy = f"load the driver: `modprobe -a {' '.join([*modules, 'ib_uverbs'])}`; in a container, run `ibv_devinfo` on the host first"
        yield view.finding("CB2210", "warning" if idle else "note", what, evidence, remedy)


def _module(device: PciDevice | None) -> str:
    """Return the kernel module of an RDMA card; of unknown vendors that of the most common cards."""
    vendor = device.vendor_id if device else None
    if device and vendor == MELLANOX and (device.device_id or 0) < _FIRST_OF_MLX5:
        return "mlx4_ib"
    return {AMAZON: "efa", INTEL: "hfi1"}.get(vendor or 0, "mlx5_ib")


def _ports(nics: Iterable[Nic]) -> list[tuple[Nic, Port]]:
    return [(nic, port) for nic in nics for port in nic.ports]


def _rates(nics: Iterable[Nic]) -> list[str]:
    return [f"{nic.name} {port.rate_bits_per_s / 1e9:g} Gb/s" for nic, port in _ports(nics) if port.rate_bits_per_s]


def _card(nic: Nic) -> str:
    return card_of(nic.address) if nic.address else nic.name


def _loss(view: MachineView, nic: Nic) -> Severity:
    """Return "severe" when no usable NIC is left, or when a GPU lost its rail while other GPUs have theirs; else "warning"."""
    if not view.usable:
        return "severe"
    lost_rail = any(view.distances.path(gpu.key, nic.key) in CLOSE for gpu in view.machine.gpus)
    have_rail = any(view.nearest(gpu).path in CLOSE for gpu in view.machine.gpus)
    return "severe" if lost_rail and have_rail else "warning"


def lost_lanes(view: MachineView) -> Iterator[Finding]:
    """CB2209: a port uses fewer lanes than it supports and has enabled."""
    for nic, port in _ports(view.rdma):
        if port.lanes and port.max_lanes and port.lanes < port.max_lanes and not is_down(port):
            what = f"{nic.name} uses {plural(port.lanes, 'lane')} of {port.max_lanes}"
            evidence = f"port {port.number}: LinkWidthActive {port.lanes}X, LinkWidthEnabled up to {port.max_lanes}X"
            remedy = "clean or change the cable and transceivers; the port at the other end must be enabled for as many (`iblinkinfo`)"
            yield view.finding("CB2209", "warning", what, evidence, remedy)


RULES = (slow_slots, down, no_subnet_manager, other_fabric, not_real, small_mtu, small_frames, slow_rails, lost_lanes, no_rdma_device,
         no_ports_of_their_own, high_counters, waits)  # fmt: skip
