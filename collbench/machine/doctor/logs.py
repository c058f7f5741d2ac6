"""CB2511 to CB2534: what an NCCL or RCCL log shows of the data path, the library's warnings and its start."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from collbench.machine.doctor.finding import Finding, MachineView, Severity, same_host
from collbench.machine.doctor.log_summary import Hca, LinkLayer, hcas_in
from collbench.machine.readers.nccl_log import GDR, SHARED_MEMORY, NcclLog
from collbench.machine.readers.nccl_startup import (
    FABRIC_COMPLETED,
    CollNetDevice,
    DirectPeers,
    FabricBroken,
    FabricMember,
    HostProblem,
    ListedGpu,
    LogLibrary,
    NcclPlugin,
    NvSwitch,
    PluginKind,
    PluginSetting,
    PluginState,
    SlowGraphLink,
    startup_facts,
)
from collbench.units import listed, plural

_NO_GDR_MODELS = re.compile(r"\bGeForce\b|\bGB10\b")


def over_tcp(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2511: data between nodes goes over TCP sockets, or no other network was found. Not for a job on one node."""
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
    """Return the reasons why the log shows no RDMA, and the remedy for the first one."""
    causes = log.startup_of(HostProblem)
    found: list[tuple[str, str]] = []
    found += [(f"{name}={value} is set", f"unset {name}") for name, value in log.settings.items() if _excludes_rdma(name, value)]
    if HostProblem.NO_VERBS_LIBRARY in causes:
        found.append((HostProblem.NO_VERBS_LIBRARY.value, VERBS_REMEDY))
    if HostProblem.NO_RDMA_DEVICE in causes:
        found.append(
            (
                HostProblem.NO_RDMA_DEVICE.value,
                "if the machine has RDMA cards: load ib_uverbs and the cards' driver, and pass /dev/infiniband into the container",
            )
        )
    fallback = "see the log's lines with NET/IB and NET/Plugin: libibverbs, /dev/infiniband in the container, NCCL_IB_DISABLE"
    return [reason for reason, _ in found], found[0][1] if found else fallback


def _excludes_rdma(name: str, value: str) -> bool:
    return (name == "NCCL_IB_DISABLE" and value != "0") or (name == "NCCL_NET" and value.lower() == "socket")


def staged(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2512: RDMA without GPUDirect: data is staged through host memory."""
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
    """Return why this hardware may not support GPUDirect RDMA, where the log shows it."""
    if HostProblem.NO_PLUGIN_GDR in log.startup_of(HostProblem):
        return HostProblem.NO_PLUGIN_GDR.value
    models = sorted({gpu.model for gpu in log.startup_of(ListedGpu)})
    if models and all(_NO_GDR_MODELS.search(model) for model in models):
        return f"{listed(models)} {'has' if len(models) == 1 else 'have'} no GPUDirect RDMA"
    return None


def one_way(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2513: GPUDirect RDMA is shown for one direction only."""
    if log.gdr_send != log.gdr_receive and not log.staged:
        seen, missing = ("[send]", "[receive]") if log.gdr_send else ("[receive]", "[send]")
        evidence = f"{seen} via {listed([key for key in log.transports if key.endswith(GDR)])}; no {missing} line"
        remedy = "save the lines of all ranks, uncut: only both lines together prove it"
        yield finding_of(log, "CB2513", "note", f"GPUDirect RDMA is shown for {seen} alone", evidence, remedy)


def shared_memory(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2514: GPUs of one host exchange data through the host's shared memory."""
    count = log.lines_of(SHARED_MEMORY)
    if count:
        tool = "rocm-smi --showtopo" if log.library is LogLibrary.RCCL else "nvidia-smi topo -p2p r"
        remedy = f"see `{tool}` for why: ACS, IOMMU, containers with one GPU each, consumer cards, NCCL_P2P_DISABLE"
        what = "GPUs of one host exchange through its shared memory, not directly"
        yield finding_of(log, "CB2514", "warning", what, f"{plural(count, 'connection')} via {SHARED_MEMORY}", remedy)


def unknown_speed(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2515: NCCL could not read a NIC's speed and assumes 10 Gb/s."""
    if log.default_speed:
        named = [name for name in log.default_speed if name != "?"]
        what = f"{log.library.value} takes {listed(named) or 'a NIC'} for 10 Gb/s: it chooses algorithms and channels by that"
        yield finding_of(
            log, "CB2515", "warning", what,
            "Could not get speed … Defaulting to 10 Gbps", "set the right speed in a topology file (NCCL_TOPO_FILE)",
        )  # fmt: skip


def warnings(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2516: the library prints warnings that no other rule explains."""
    others = [text for text in log.warnings if not _explained(text)]
    if others:
        what = f"{log.library.value} prints {plural(len(others), 'warning')}"
        evidence = listed([f"'{text}'" for text in others], 3)
        yield finding_of(
            log, "CB2516", "note", what, evidence, f"search the issues and the documentation of {log.library.value} for the text"
        )


def _explained(text: str) -> bool:
    return any(isinstance(fact, HostProblem | FabricBroken) for fact in startup_facts(text.encode()))


VERBS_REMEDY = "install libibverbs (Debian: libibverbs1 and ibverbs-providers; Red Hat: libibverbs) where the job runs, or in its image"
RCCL_GDR_REMEDY = "install amdgpu of ROCm's DKMS package beside the NIC vendor's driver, or set NCCL_DMABUF_ENABLE=1 on Linux 6.8 or later"


def _gdr_remedy(log: NcclLog) -> str:
    if log.library is LogLibrary.RCCL:
        return RCCL_GDR_REMEDY
    return "`lsmod | grep peermem` and `nvidia-smi topo -m`; see `collbench explain CB2503`, and NCCL_NET_GDR_LEVEL for the distance"


def finding_of(log: NcclLog, code: str, severity: Severity, *texts: str) -> Finding:
    """Return a finding of a log, with its host if only one host wrote it. `texts`: what, evidence, remedy."""
    what, evidence, remedy = texts
    host = log.hosts[0] if len(log.hosts) == 1 else None
    return Finding(code, severity, host, what, f"{log.name}: {evidence}" if log.name else evidence, remedy)


# CB2517 to CB2534, the start of NCCL or RCCL: rails, NVLink domain, plug-ins, settings, and missing host features.
#
# A rule needs the lines that would contradict it. It yields nothing if a log may be incomplete or does not print settings.

FORCED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
FORCED_RCCL = ("NCCL_ALGO", "NCCL_PROTO")  # AMD recommends NCCL_MIN_NCHANNELS for some GPUs
FORCED_REMEDY = "remove {names} from the environment, /etc/nccl.conf and ~/.nccl.conf, and measure with and without"
_FULL_BOARD = 8  # GPUs of a board that always has NVSwitches
_MULTICAST_MODELS = re.compile(r"\b(?:H100|H200|H800|H20|B100|B200|B300|GB200|GB300)\b(?!.*\b(?:PCIe|NVL)\b)")
_FIRST_MULTICAST_SM = 90
_SM = re.compile(r"sm_(\d{2,3})")
_CHOOSES_GID_SINCE = (2, 21)
_NO_DOMAIN = re.compile(r"0+\.0+")
_DISABLE_NVLINK = ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_P2P_DISABLE")


def mixed_rails(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2517: NCCL uses both InfiniBand and RoCE devices; a note where no connection shows which are in use."""
    listed_here = hcas_in(log)
    used = _used(log, listed_here)
    for host, found in listed_here.items():
        rails = used.get(host) or found
        by_layer = {layer: [hca.name for hca in rails if hca.link_layer is layer] for layer in LinkLayer}
        if not all(by_layer.values()):
            continue
        infiniband, roce = by_layer[LinkLayer.INFINIBAND], by_layer[LinkLayer.ROCE]
        more, fewer = (infiniband, roce) if len(infiniband) >= len(roce) else (roce, infiniband)
        proven = host in used
        names = f"InfiniBand: {listed(infiniband)}; RoCE: {listed(roce)}"
        yield finding_of(
            log,
            "CB2517",
            "warning" if proven else "note",
            f"{log.library.value} {'sends over' if proven else 'lists'} InfiniBand and RoCE devices together",
            f"{names}{f' (on {host})' if host and len(listed_here) > 1 else ''}",
            f"if {listed(fewer)} {'is' if len(fewer) == 1 else 'are'} not part of the compute network: NCCL_IB_HCA=={','.join(more)} "
            "(two = for exact names)",
        )
        return


def no_nvls(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2518: no NVLink multicast although GPUs and NVSwitch support it. Boards without NVSwitch give no finding."""
    if log.nvls_available is not False:
        return
    model = _multicast_model(log, views)
    if model:
        yield finding_of(
            log,
            "CB2518",
            "warning",
            "NVLS (reductions in the NVSwitch) is not available, although the GPUs support it",
            f"NVLS multicast support is not available; {model} behind NVSwitches",
            "`systemctl restart nvidia-fabricmanager` on bare metal (in a virtual machine: on its host), `nvidia-smi -q | grep -A4 Fabric` "
            "must show Completed; the driver must be 530 or later and NCCL built for CUDA 12.1 or later",
        )


def collapsed_nvlink_domain(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2519: nodes of one NVLink domain (NVL72) that exchange data over the NICs."""
    broken = log.startup_of(FabricBroken)
    if broken:
        size = next((plural(each.clique_size, "GPU") for each in broken if each.clique_size), None)
        yield finding_of(
            log,
            "CB2519",
            "severe",
            f"multi-node NVLink{f' of {size}' if size else ''} is present but does not work: NCCL ends",
            "MNNVL is available but not working on this system",
            "check `nvidia-imex-ctl -N` on all nodes; give the job /dev/nvidia-caps-imex-channels (Kubernetes: a ComputeDomain; Slurm: "
            "switch/nvidia_imex)",
        )
        return
    job = log.job
    channels = f"{log.stated.get('coll', '?')} collective and {log.stated.get('nvls', '?')} NVLS channels"
    direct = log.startup_of(DirectPeers)
    hosts = _hosts_of_one_domain(log)
    if job and job.nodes > 1 and job.multi_node_nvlink is False and len(hosts) > 1:
        set_so = [f"{name}={value} is set" for name, value in log.settings.items() if name in _DISABLE_NVLINK]
        states = sorted({each.state for each in log.startup_of(FabricMember) if each.state != FABRIC_COMPLETED})
        reasons = [*set_so, *(f"fabric state {state} (complete is {FABRIC_COMPLETED})" for state in states)]
        yield finding_of(
            log,
            "CB2519",
            "warning",
            f"{plural(len(hosts), 'node')} of one NVLink domain exchange over the NICs, not over NVLink",
            "; ".join([f"MNNVL 0 with {job.nodes} nodes; {listed(hosts, 4)} have the same fabric UUID and clique", channels, *reasons]),
            f"unset {listed([name for name in log.settings if name in _DISABLE_NVLINK])}"
            if set_so
            else "`nvidia-smi -q | grep -A6 Fabric` must show Completed on all GPUs; check `nvidia-imex-ctl -N`",
        )
    elif job and job.multi_node_nvlink and log.stated.get("nvls") == 0 and direct and not any(each.every for each in direct):
        yield finding_of(
            log,
            "CB2519",
            "warning",
            "multi-node NVLink is on, and NCCL fell back: no NVLS and no direct peer-to-peer",
            f"MNNVL 1; {channels}; isAllDirectP2p 0",
            "unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_NVLS_ENABLE; check `nvidia-imex-ctl -N` and `nvidia-smi topo -p2p n`",
        )


def slow_bridges(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2520: PCIe links below 1 GB/s in NCCL's topology graph, mostly bridges that a hypervisor emulates."""
    found = log.startup_of(SlowGraphLink)
    if found:
        slowest = min(found, key=lambda each: each.gb_per_s)
        emulated = any(each.emulated for each in found)
        kind = "emulated bridges" if emulated else "PCIe links"
        above = listed([{"PCI": "switches", "GPU": "GPUs"}[part] for part in dict.fromkeys(each.part for each in found)])
        yield finding_of(
            log,
            "CB2520",
            "warning",
            f"{log.library.value} plans with {slowest.gb_per_s:g} GB/s for {kind} above {above}",
            f"PCI[{slowest.gb_per_s:g}] in the graph",
            "write the real topology into a file and name it in NCCL_TOPO_FILE (cloud providers ship one for each instance type)",
        )


def no_verbs(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2521: libibverbs cannot be loaded. Not for jobs on one node, nor with a network plug-in that carries the data."""
    if HostProblem.NO_VERBS_LIBRARY not in log.startup_of(HostProblem) or log.net not in (None, "Socket"):
        return
    if log.inside_one_node:
        return
    wrote = [view for view in views if any(same_host(host, view.machine.hostname) for host in log.hosts or ("",))]
    rdma = [nic.name for view in wrote for nic in view.usable]
    yield finding_of(
        log,
        "CB2521",
        "warning" if rdma else "note",
        f"libibverbs cannot be loaded, so {log.library.value} cannot use InfiniBand or RoCE",
        f"Failed to open libibverbs.so[.1]{f'; the machine has {listed(rdma)}' if rdma else ''}",
        VERBS_REMEDY,
    )


def plugin_mismatch(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2522: a network plug-in does not fit this NCCL version, such as a host plug-in with the NCCL of a container."""
    plugins = [plugin for plugin in log.startup_of(NcclPlugin) if plugin.kind is PluginKind.NET]
    states = {plugin.state for plugin in plugins}
    if PluginState.UNSUITABLE in states and PluginState.LOADED not in states:
        yield finding_of(
            log,
            "CB2522",
            "warning",
            f"the network plug-in does not fit this {log.library.value} and was left out",
            f"its interface version is not one that {log.library.value} {log.version or ''} supports; {_network(log)}".replace("  ", " "),
            "use a plug-in and a library of the same age: take both from the host, or both from the container image",
        )


def unused_sharp(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2523: InfiniBand switches support reductions (SHARP), and a job on several nodes does not use them."""
    devices = [device.name for device in log.startup_of(CollNetDevice)]
    complete = log.stated and log.lines_of("NET") and log.job
    if not devices or not complete or log.collnet or not log.job or log.job.nodes < 2:
        return
    enabled = log.settings.get("NCCL_COLLNET_ENABLE", "0") != "0"
    yield finding_of(
        log,
        "CB2523",
        "warning" if enabled else "note",
        "SHARP is enabled and not in use" if enabled else "SHARP is available and not in use",
        f"{listed(devices)} {'offers' if len(devices) == 1 else 'offer'} SHARP; no COLLNET connection on {log.job.nodes} nodes",
        "check the aggregation manager (`sharp_am`) and `sharp_hello` on the nodes"
        if enabled
        else "measure with NCCL_COLLNET_ENABLE=1 (and NCCL_ALGO unset); the fabric needs an aggregation manager (sharp_am)",
    )


def gid_index(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2524: RoCE with GID 0, the default of NCCL before 2.21 unless NCCL_IB_GID_INDEX is set."""
    roce = sorted({hca.name for found in hcas_in(log).values() for hca in found if hca.link_layer is LinkLayer.ROCE})
    old = log.library is LogLibrary.NCCL and log.version and _number(log.version) < _CHOOSES_GID_SINCE
    shown = log.settings and log.lines_of("NET/IB")  # the log prints settings, and connections were made
    if roce and old and shown and "NCCL_IB_GID_INDEX" not in log.settings:
        yield finding_of(
            log,
            "CB2524",
            "note",
            f"NCCL {log.version} uses GID 0 of {listed(roce)}: RoCE v1 with most NICs, without routing and DSCP",
            "NCCL_IB_GID_INDEX is not set; NCCL chooses RoCE v2 by itself from 2.21 on",
            "set NCCL_IB_GID_INDEX in /etc/nccl.conf to the index of the RoCE v2 GID with the IPv4 address (`show_gids`; often 3)",
        )


def no_profiler(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2525: a job on several nodes without a profiler plug-in, so that its collectives are not recorded."""
    states = {plugin.state for plugin in log.startup_of(NcclPlugin) if plugin.kind is PluginKind.PROFILER}
    if states == {PluginState.ABSENT} and log.job and log.job.nodes > 1:
        yield finding_of(
            log,
            "CB2525",
            "note",
            "no profiler plug-in is installed: nothing records the collectives of jobs",
            "PROFILER/Plugin: Could not find libnccl-profiler.so",
            "build the inspector plug-in of NCCL's sources (plugins/profiler/inspector) and set NCCL_PROFILER_PLUGIN to its path",
        )


def forced_choice(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2526: algorithm, protocol or channels are set manually, so that the library cannot choose by size."""
    names = FORCED_RCCL if log.library is LogLibrary.RCCL else FORCED
    own = {setting.name for setting in log.startup_of(PluginSetting)}  # a plug-in knows its network
    found = {name: log.settings[name] for name in names if name in log.settings and name not in own}
    if found:
        evidence = listed([f"{name}={value}" for name, value in found.items()])
        what = f"{listed(list(found))} {'is' if len(found) == 1 else 'are'} set: {log.library.value} cannot choose by message size"
        yield finding_of(log, "CB2526", "warning", what, evidence, FORCED_REMEDY.format(names=listed(list(found))))


def iommu(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2531: RCCL reports that iommu=pt is missing. Not where the machine's IOMMU is known to be off or in passthrough mode."""
    wrote = [view.machine.system.iommu for view in views if any(same_host(host, view.machine.hostname) for host in log.hosts or ("",))]
    if wrote and all(mode in ("off", "passthrough") for mode in wrote):
        return
    found = [cause for cause in (HostProblem.NO_IOMMU_PASSTHROUGH, HostProblem.NO_AMD_IOMMU) if cause in log.startup_of(HostProblem)]
    if found:
        verb = "is" if len(found) == 1 else "are"
        options = " ".join(
            {HostProblem.NO_IOMMU_PASSTHROUGH: "iommu=pt", HostProblem.NO_AMD_IOMMU: "amd_iommu=on"}[cause] for cause in found
        )
        yield finding_of(
            log,
            "CB2531",
            "warning",
            f"{options} {verb} missing from the kernel command line: RCCL may hang, or be slow between GPUs",
            f"RCCL's warning; {_iommu_of(wrote)}",
            f"add {options} to the kernel command line, and restart the node",
        )


def _iommu_of(modes: Sequence[str | None]) -> str:
    known = sorted({mode for mode in modes if mode})
    return f"the IOMMU is {listed(known)}" if known else "whether the IOMMU is active is unknown"


def fine_grain(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2532: RCCL reports that HSA_FORCE_FINE_GRAIN_PCIE is missing."""
    if HostProblem.NO_FINE_GRAIN_PCIE in log.startup_of(HostProblem):
        yield finding_of(
            log,
            "CB2532",
            "warning",
            "HSA_FORCE_FINE_GRAIN_PCIE=1 is not set: RCCL may be slow or hang between GPUs that PCIe joins",
            f"RCCL warns: {HostProblem.NO_FINE_GRAIN_PCIE.value}",
            "export HSA_FORCE_FINE_GRAIN_PCIE=1 for all ranks",
        )


def numa_balancing(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2533: RCCL warns of automatic NUMA balancing."""
    if HostProblem.NUMA_BALANCING in log.startup_of(HostProblem):
        yield finding_of(
            log,
            "CB2533",
            "warning",
            "automatic NUMA balancing is on: the times of RCCL vary",
            f"RCCL warns: {HostProblem.NUMA_BALANCING.value}",
            "sudo sysctl kernel.numa_balancing=0, and the same in /etc/sysctl.d",
        )


def no_peer_memory(log: NcclLog, views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2534: RCCL finds no peer-memory support, so that NICs cannot reach GPU memory. Not where GPUDirect RDMA is proven."""
    needless = log.gdr_send or log.gdr_receive or log.inside_one_node
    if HostProblem.NO_PEER_MEMORY in log.startup_of(HostProblem) and not needless and log.net not in (None, "Socket"):
        yield finding_of(
            log,
            "CB2534",
            "warning",
            "RCCL finds no peer-memory support, so that GPUDirect RDMA is off",
            "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol",
            RCCL_GDR_REMEDY,
        )


def _used(log: NcclLog, found: dict[str, list[Hca]]) -> dict[str, list[Hca]]:
    """Return the devices that connections use, by host."""
    numbers: dict[str, set[int]] = {}
    for host, connection in log.channels:
        match = re.match(r"NET/IB[^/]*/(\d{1,4})", connection.transport)
        if match:
            numbers.setdefault(host, set()).add(int(match[1]))
    return {host: used for host, hcas in found.items() if (used := [hca for hca in hcas if hca.number in numbers.get(host, set())])}


def _multicast_model(log: NcclLog, views: Sequence[MachineView]) -> str | None:
    """Return the GPU model if it and its NVSwitches are known to support multicast."""
    tested = log.startup_of(ListedGpu)
    full = max((len({gpu.device for gpu in tested if gpu.host == host}) for host in {gpu.host for gpu in tested}), default=0)
    switched = bool(log.startup_of(NvSwitch)) or full >= _FULL_BOARD or (log.job is not None and log.job.local_ranks >= _FULL_BOARD)
    models = {gpu.model for gpu in tested}
    if switched and models and all(_MULTICAST_MODELS.search(model) for model in models):
        return listed(sorted(models))
    for view in views:
        same = any(same_host(host, view.machine.hostname) for host in log.hosts or ("",))
        if (
            same
            and view.machine.switched
            and view.machine.gpus
            and all(_has_multicast(gpu.architecture, gpu.model) for gpu in view.machine.gpus)
        ):
            return f"{plural(len(view.machine.gpus), 'GPU')} ({view.machine.gpus[0].model or view.machine.gpus[0].architecture})"
    return None


def _has_multicast(architecture: str | None, model: str | None) -> bool:
    match = _SM.fullmatch(architecture or "")
    return int(match[1]) >= _FIRST_MULTICAST_SM if match else bool(_MULTICAST_MODELS.search(model or ""))


def _hosts_of_one_domain(log: NcclLog) -> list[str]:
    """Return the largest group of hosts with GPUs that report the same NVLink domain and clique."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for host, fact in log.startup:
        if isinstance(fact, FabricMember) and host and not _NO_DOMAIN.fullmatch(fact.domain):
            groups.setdefault((fact.domain, fact.clique), {})[host] = None
    found = [list(hosts) for hosts in groups.values()]
    return max(found, key=len, default=[])


def _network(log: NcclLog) -> str:
    return f"the bytes go over {log.net}" if log.net else "no other network is named"


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


STARTUP_RULES = (
    mixed_rails,
    no_nvls,
    collapsed_nvlink_domain,
    slow_bridges,
    no_verbs,
    plugin_mismatch,
    unused_sharp,
    gid_index,
    no_profiler,
    forced_choice,
    iommu,
    fine_grain,
    numa_balancing,
    no_peer_memory,
)
RULES = (over_tcp, staged, one_way, shared_memory, unknown_speed, warnings, *STARTUP_RULES)
