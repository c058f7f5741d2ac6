"""CB2511 to CB2516: what NCCL's log shows of the paths that the bytes took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.doctor.finding import Finding, Severity, listed, plural
from collbench.doctor.view import View, same_host
from collbench.evidence.nccl_log import GDR, SHARED_MEMORY, NcclLog


def over_tcp(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2511: bytes between hosts go over TCP sockets."""
    if log.net != "Socket":
        return
    wrote = [view for view in views if any(same_host(host, view.machine.hostname) for host in log.hosts or ("",))]
    rdma = [nic.name for view in wrote for nic in view.usable]
    count = log.lines_of("NET/Socket")
    evidence = plural(count, "connection") + " via NET/Socket" if count else f"sockets on {listed(log.interfaces) or '?'}, no other network"
    yield _finding(
        log, "CB2511", "severe" if rdma else "warning", "NCCL sends over TCP sockets, not RDMA",
        f"{evidence}{f'; the machine has {listed(list(dict.fromkeys(rdma)))}' if rdma else ''}",
        "NCCL_DEBUG=INFO tells why NET/IB or the plugin was passed over: libibverbs, /dev/infiniband in the container, NCCL_IB_DISABLE",
    )  # fmt: skip


def staged(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2512: RDMA without GPUDirect: bytes are staged through the host's memory."""
    direct = sum(count for key, count in log.transports.items() if key.endswith(GDR))
    if log.staged:
        part = f"{log.staged} of {log.staged + direct} RDMA connections" if direct else "all RDMA connections"
        severity: Severity = "warning" if direct else "severe"
        names = [key for key in log.transports if key.startswith("NET/") and not key.endswith(GDR)]
        evidence = f"via {listed(names)}, without {GDR}"
        yield _finding(log, "CB2512", severity, f"{part} are staged through the host's memory", evidence, _GDR_REMEDY)
    elif (refused := log.gdr_refused) and not direct and log.net != "Socket":
        evidence = f"GPU Direct RDMA Disabled for {listed(refused)}; no connection line proves it in use"
        yield _finding(log, "CB2512", "warning", "NCCL says that GPUDirect RDMA is disabled", evidence, _GDR_REMEDY)


def one_way(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2513: GPUDirect RDMA is shown for one direction only."""
    if log.gdr_send != log.gdr_receive and not log.staged:
        seen, missing = ("[send]", "[receive]") if log.gdr_send else ("[receive]", "[send]")
        evidence = f"{seen} via {listed([key for key in log.transports if key.endswith(GDR)])}; no {missing} line"
        remedy = "save the lines of all ranks, uncut: only both lines together prove it"
        yield _finding(log, "CB2513", "note", f"GPUDirect RDMA is shown for {seen} alone", evidence, remedy)


def shared_memory(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2514: GPUs of one host exchange through the host's shared memory."""
    count = log.lines_of(SHARED_MEMORY)
    if count:
        remedy = "see `nvidia-smi topo -p2p r` for why: ACS, IOMMU, containers with one GPU each, consumer cards, NCCL_P2P_DISABLE"
        what = "GPUs of one host exchange through its shared memory, not directly"
        yield _finding(log, "CB2514", "warning", what, f"{plural(count, 'connection')} via {SHARED_MEMORY}", remedy)


def unknown_speed(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2515: NCCL could not read a NIC's speed and takes it for 10 Gb/s."""
    if log.default_speed:
        named = [name for name in log.default_speed if name != "?"]
        yield _finding(
            log, "CB2515", "warning", f"NCCL takes {listed(named) or 'a NIC'} for 10 Gb/s: it chooses algorithms and channels by that",
            "Could not get speed … Defaulting to 10 Gbps", "give NCCL the right speed in a topology file (NCCL_TOPO_FILE)",
        )  # fmt: skip


def warnings(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2516: NCCL itself warns."""
    if log.warnings:
        what = f"NCCL prints {plural(len(log.warnings), 'warning')}"
        evidence = listed([f"'{text}'" for text in log.warnings], 3)
        yield _finding(log, "CB2516", "note", what, evidence, "search NCCL's issues and documentation for the sentence")


_GDR_REMEDY = "`lsmod | grep peermem` and `nvidia-smi topo -m`; see `collbench explain CB2503`, and NCCL_NET_GDR_LEVEL for the distance"


def _finding(log: NcclLog, code: str, severity: Severity, *texts: str) -> Finding:
    what, evidence, remedy = texts
    host = log.hosts[0] if len(log.hosts) == 1 else None
    return Finding(code, severity, host, what, f"{log.name}: {evidence}" if log.name else evidence, remedy)


RULES = (over_tcp, staged, one_way, shared_memory, unknown_speed, warnings)
