"""Run all rules over the machines of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from collbench.machine.doctor import compare, gpus, host, nics, pcie
from collbench.machine.doctor.finding import Finding, MachineView, worst_first
from collbench.machine.model import Machine, known_none
from collbench.machine.ports import physical_nics
from collbench.machine.readers.nccl_log import NcclLog
from collbench.units import listed, plural


class ExaminedLog(msgspec.Struct, frozen=True):
    """A log of a job with its findings, and its summary as lines of text and for JSON."""

    log: NcclLog
    findings: Sequence[Finding]
    lines: Sequence[str]
    summary: Mapping[str, Any]


# Which parts the rules could examine. A missing finding about a part that was not read proves nothing.


def examined_parts(machines: Sequence[Machine], logs: Sequence[ExaminedLog] = ()) -> str:
    """Return what was examined as text: "1 machine: 8 GPUs, 10 NICs, 126 PCI devices; 1 NCCL log"."""
    virtual = sum(nic.virtual is not None for machine in machines for nic in machine.nics)
    parts = [
        plural(sum(len(machine.gpus) for machine in machines), "GPU"),
        plural(sum(len(physical_nics(machine)) for machine in machines), "NIC"),
    ]
    if virtual:
        parts.append(plural(virtual, "virtual interface"))
    parts.append(plural(sum(len(machine.pci) for machine in machines), "PCI device"))
    examined = [f"{plural(len(machines), 'machine')}: {', '.join(parts)}"] if machines else []
    if logs:
        examined.append(plural(len(logs), "NCCL log"))
    return "; ".join(examined) or "nothing"


def unexamined_parts(machines: Sequence[Machine], logs: Sequence[ExaminedLog] = ()) -> list[str]:
    """Return what no source covers, each with the way to get it; with several machines also their number."""
    counts = Counter(text for machine in machines for text in _gaps(MachineView(machine)))
    texts = [f"{text}, on {count} of {len(machines)} machines" if count < len(machines) else text for text, count in counts.items()]
    if not logs and any(machine.gpus for machine in machines):
        texts.append("the paths in use (NCCL's log: --log)")
    return texts


def _gaps(view: MachineView) -> Iterator[str]:
    machine = view.machine
    system = machine.system
    virtual = view.virtual_machine
    for name, title in (("gpus", "GPUs"), ("nics", "NICs")):
        if not getattr(machine, name) and not known_none(machine, name):
            yield f"{title} ({machine.unknown.get(name, 'no source lists them')})"
    gpus = machine.gpus
    amd = any(gpu.vendor == "amd" for gpu in gpus)
    ports = [port for nic in view.rdma for port in nic.ports]
    bridges = [bridge for endpoint in view.endpoints for bridge in view.path_to(endpoint.address)[1:]]
    acs_read = system.acs_ports is not None or any(bridge.acs is not None for bridge in bridges)
    pcie_read = any(device.link.speed_gt_per_s and device.link.max_speed_gt_per_s for device in machine.pci)
    paths_read = not gpus or not view.usable or any(view.distances.path(gpus[0].key, nic.key) for nic in view.usable)
    uncounted = len(gpus) > 1 and not machine.gpu_links
    no_access = len(gpus) > 1 and not machine.peer_access
    gaps = (
        (virtual, "PCIe links, ACS and IOMMU (a virtual machine hides them)"),
        (not virtual and not pcie_read, "PCIe links' speed and limits (sysfs or `lspci -vvv` has them)"),
        (gpus and not virtual and not acs_read, "ACS (`lspci -vvv`, as root)"),
        (system.iommu is None and not virtual, "the IOMMU (sysfs)"),
        (uncounted and not amd, "links between GPUs (NVML, or `nvidia-smi nvlink -s`)"),
        (uncounted and amd, "how many links join the GPUs (/sys/class/kfd, or RCCL's topology XML)"),
        (no_access and not amd, "peer access (`nvidia-smi topo -p2p r`)"),
        (no_access and amd, "peer access (`amd-smi topology`)"),
        (not paths_read, "distances from GPUs to NICs"),
        (view.rdma and not any(port.state or port.phys_state for port in ports), "states of ports (/sys/class/infiniband, ibstat)"),
        (view.rdma and not any(port.counters for port in ports), "error counters (/sys/class/infiniband)"),
        (gpus and view.rdma and system.peer_memory is None, "peer-memory modules (sysfs)"),
        (system.shm_bytes is None, "/dev/shm (only the machine itself can report it)"),
    )
    yield from (text for missing, text in gaps if missing)


def sentence(machines: Sequence[Machine], logs: Sequence[ExaminedLog] = ()) -> str:
    """Return what was and what was not examined, in one line."""
    missing = unexamined_parts(machines, logs)
    gaps = [f"not examined: {listed(missing, len(missing))}"] if missing else []
    return "; ".join([f"examined {examined_parts(machines, logs)}", *gaps])


RULES = (*pcie.RULES, *nics.RULES, *gpus.RULES, *host.RULES)
JOB_RULES = (*gpus.JOB_RULES, *compare.JOB_RULES)


def examine(machines: Sequence[Machine], logs: Sequence[ExaminedLog] = (), good: Sequence[Machine] = ()) -> list[Finding]:
    """Return the findings for the machines and logs of a job, worst first. A rule without the facts it needs reports nothing.

    good: snapshots from when the machines were healthy. Raises UsageError for a machine that has none among several snapshots.
    """
    views = [MachineView(machine) for machine in machines]
    findings = [finding for view in views for rule in RULES for finding in rule(view)]
    findings += [finding for rule in JOB_RULES for finding in rule(views)]
    findings += [finding for log in logs for finding in log.findings]
    if good:
        findings += compare.examined(machines, good)
    return worst_first(findings)
