"""CB2511 to CB2516: what a log of NCCL or RCCL shows of the paths that the bytes took, and what the library warns of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from collbench.machine.doctor.finding import Finding, Severity, listed, plural
from collbench.machine.doctor.view import View, same_host
from collbench.machine.readers.nccl_log import GDR, SHARED_MEMORY, NcclLog
from collbench.machine.readers.nccl_startup import Cause, FabricBroken, Library, ListedGpu, startup_facts

_NO_GDR_MODELS = re.compile(r"\bGeForce\b|\bGB10\b")


def over_tcp(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2511: bytes between nodes go over TCP sockets, or no other network was found. Not for a job on one node."""
    count = log.lines_of("NET/Socket")
    if log.net != "Socket" or (log.inside_one_node and not count):
        return
    wrote = [view for view in views if any(same_host(host, view.machine.hostname) for host in log.hosts or ("",))]
    rdma = [nic.name for view in wrote for nic in view.usable]
    proven = bool(count or log.job)
    what = "sends over TCP sockets, not RDMA" if proven else "found no network between nodes but TCP sockets"
    evidence = plural(count, "connection") + " via NET/Socket" if count else f"sockets on {listed(log.interfaces) or '?'}, no other network"
    reasons, remedy = _reasons(log)
    yield finding_of(
        log, "CB2511", "severe" if rdma and proven else "warning", f"{log.library.value} {what}",
        "; ".join([evidence, *reasons, *([f"the machine has {listed(list(dict.fromkeys(rdma)))}"] if rdma else [])]), remedy,
    )  # fmt: skip


def _reasons(log: NcclLog) -> tuple[list[str], str]:
    """Why the log has no RDMA, and what to do about the first reason."""
    causes = log.startup_of(Cause)
    found: list[tuple[str, str]] = []
    found += [(f"{name}={value} is set", f"unset {name}") for name, value in log.settings.items() if _excludes_rdma(name, value)]
    if Cause.NO_VERBS_LIBRARY in causes:
        found.append((Cause.NO_VERBS_LIBRARY.value, VERBS_REMEDY))
    if Cause.NO_RDMA_DEVICE in causes:
        found.append(
            (
                Cause.NO_RDMA_DEVICE.value,
                "if the machine has RDMA cards: load ib_uverbs and the cards' driver, and pass /dev/infiniband into the container",
            )
        )
    fallback = "see the log's lines with NET/IB and NET/Plugin: libibverbs, /dev/infiniband in the container, NCCL_IB_DISABLE"
    return [reason for reason, _ in found], found[0][1] if found else fallback


def _excludes_rdma(name: str, value: str) -> bool:
    return (name == "NCCL_IB_DISABLE" and value != "0") or (name == "NCCL_NET" and value.lower() == "socket")


def staged(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2512: RDMA without GPUDirect: bytes are staged through the host's memory."""
    direct = sum(count for key, count in log.transports.items() if key.endswith(GDR))
    if log.staged:
        part = f"{log.staged} of {log.staged + direct} RDMA connections" if direct else "all RDMA connections"
        by_design = _without_gdr(log)
        severity: Severity = "warning" if direct or by_design else "severe"
        names = [key for key in log.transports if key.startswith("NET/") and not key.endswith(GDR)]
        evidence = f"via {listed(names)}, without {GDR}{f'; {by_design}' if by_design else ''}"
        yield finding_of(log, "CB2512", severity, f"{part} are staged through the host's memory", evidence, _gdr_remedy(log))
    elif (refused := log.gdr_refused) and not direct and log.net != "Socket":
        evidence = f"GPU Direct RDMA Disabled for {listed(refused)}; no connection line proves it in use"
        what = f"{log.library.value} reports GPUDirect RDMA as disabled"
        yield finding_of(log, "CB2512", "note" if log.inside_one_node else "warning", what, evidence, _gdr_remedy(log))


def _without_gdr(log: NcclLog) -> str | None:
    """Why this hardware may not have GPUDirect RDMA at all, where the log shows it."""
    if Cause.NO_PLUGIN_GDR in log.startup_of(Cause):
        return Cause.NO_PLUGIN_GDR.value
    models = sorted({gpu.model for gpu in log.startup_of(ListedGpu)})
    if models and all(_NO_GDR_MODELS.search(model) for model in models):
        return f"{listed(models)} {'has' if len(models) == 1 else 'have'} no GPUDirect RDMA"
    return None


def one_way(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2513: GPUDirect RDMA is shown for one direction only."""
    if log.gdr_send != log.gdr_receive and not log.staged:
        seen, missing = ("[send]", "[receive]") if log.gdr_send else ("[receive]", "[send]")
        evidence = f"{seen} via {listed([key for key in log.transports if key.endswith(GDR)])}; no {missing} line"
        remedy = "save the lines of all ranks, uncut: only both lines together prove it"
        yield finding_of(log, "CB2513", "note", f"GPUDirect RDMA is shown for {seen} alone", evidence, remedy)


def shared_memory(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2514: GPUs of one host exchange through the host's shared memory."""
    count = log.lines_of(SHARED_MEMORY)
    if count:
        tool = "rocm-smi --showtopo" if log.library is Library.RCCL else "nvidia-smi topo -p2p r"
        remedy = f"see `{tool}` for why: ACS, IOMMU, containers with one GPU each, consumer cards, NCCL_P2P_DISABLE"
        what = "GPUs of one host exchange through its shared memory, not directly"
        yield finding_of(log, "CB2514", "warning", what, f"{plural(count, 'connection')} via {SHARED_MEMORY}", remedy)


def unknown_speed(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2515: NCCL could not read a NIC's speed and takes it for 10 Gb/s."""
    if log.default_speed:
        named = [name for name in log.default_speed if name != "?"]
        what = f"{log.library.value} takes {listed(named) or 'a NIC'} for 10 Gb/s: it chooses algorithms and channels by that"
        yield finding_of(
            log, "CB2515", "warning", what,
            "Could not get speed … Defaulting to 10 Gbps", "set the right speed in a topology file (NCCL_TOPO_FILE)",
        )  # fmt: skip


def warnings(log: NcclLog, views: Sequence[View]) -> Iterator[Finding]:
    """CB2516: the library prints warnings that no other rule explains."""
    others = [text for text in log.warnings if not _explained(text)]
    if others:
        what = f"{log.library.value} prints {plural(len(others), 'warning')}"
        evidence = listed([f"'{text}'" for text in others], 3)
        yield finding_of(
            log, "CB2516", "note", what, evidence, f"search the issues and the documentation of {log.library.value} for the text"
        )


def _explained(text: str) -> bool:
    return any(isinstance(fact, Cause | FabricBroken) for fact in startup_facts(text.encode()))


VERBS_REMEDY = "install libibverbs (Debian: libibverbs1 and ibverbs-providers; Red Hat: libibverbs) where the job runs, or in its image"
RCCL_GDR_REMEDY = "install amdgpu of ROCm's DKMS package beside the NIC vendor's driver, or set NCCL_DMABUF_ENABLE=1 on Linux 6.8 or later"


def _gdr_remedy(log: NcclLog) -> str:
    if log.library is Library.RCCL:
        return RCCL_GDR_REMEDY
    return "`lsmod | grep peermem` and `nvidia-smi topo -m`; see `collbench explain CB2503`, and NCCL_NET_GDR_LEVEL for the distance"


def finding_of(log: NcclLog, code: str, severity: Severity, *texts: str) -> Finding:
    """A finding of a log, on its host where one alone wrote it; `texts`: what, evidence, remedy."""
    what, evidence, remedy = texts
    host = log.hosts[0] if len(log.hosts) == 1 else None
    return Finding(code, severity, host, what, f"{log.name}: {evidence}" if log.name else evidence, remedy)


RULES = (over_tcp, staged, one_way, shared_memory, unknown_speed, warnings)
