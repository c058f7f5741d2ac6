"""CB2511 to CB2558: what a log of NCCL or RCCL shows of the data path, the library's start, and messages of failures.

A rule needs the lines that would contradict it. It yields nothing if a log may be incomplete or does not print settings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from collbench.machine.doctor.examine import ExaminedLog
from collbench.machine.doctor.finding import SEVERITIES, Finding, MachineView, Severity, same_host
from collbench.machine.doctor.host import FORCED, FORCED_REMEDY
from collbench.machine.model import Machine
from collbench.machine.readers import nccl_facts
from collbench.machine.readers.log_messages import LoggedMessage
from collbench.machine.readers.nccl_facts import GDR, SHARED_MEMORY, HostProblem, LogLibrary, PluginKind, PluginState, network_path
from collbench.machine.readers.nccl_log import NcclLog
from collbench.plugins.joblogs.summary import LinkLayer, hcas_in, summarize, summary_lines
from collbench.units import listed, plural

_FORCED_RCCL = ("NCCL_ALGO", "NCCL_PROTO")  # AMD recommends NCCL_MIN_NCHANNELS for some GPUs
_NO_GDR_MODELS = re.compile(r"\bGeForce\b|\bGB10\b")
_FULL_BOARD = 8  # GPUs of a board that always has NVSwitches
_MULTICAST_MODELS = re.compile(r"\b(?:H100|H200|H800|H20|B100|B200|B300|GB200|GB300)\b(?!.*\b(?:PCIe|NVL)\b)")
_FIRST_MULTICAST_SM = 90
_SM = re.compile(r"sm_(\d{2,3})")
_CHOOSES_GID_SINCE = (2, 21)
_NO_DOMAIN = re.compile(r"0+\.0+")
_DISABLE_NVLINK = ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_P2P_DISABLE")
_VERBS_REMEDY = "install libibverbs (Debian: libibverbs1 and ibverbs-providers; Red Hat: libibverbs) where the job runs, or in its image"
_RDMA_REMEDY = "if the machine has RDMA cards: load ib_uverbs and the cards' driver, and pass /dev/infiniband into the container"
_NET_REMEDY = "see the log's lines with NET/IB and NET/Plugin: libibverbs, /dev/infiniband in the container, NCCL_IB_DISABLE"
_GDR_REMEDY = "`lsmod | grep peermem` and `nvidia-smi topo -m`; see `collbench explain CB2503`, and NCCL_NET_GDR_LEVEL for the distance"
_RCCL_GDR_REMEDY = (
    "install amdgpu of ROCm's DKMS package in addition to the NIC vendor's driver, or set NCCL_DMABUF_ENABLE=1 on Linux 6.8 or later"
)


class LogView(msgspec.Struct, frozen=True):
    """A log as the rules examine it. `machines`: those of the job, as far as they are known."""

    log: NcclLog
    machines: Sequence[MachineView]

    def finding(self, code: str, severity: Severity, what: str, evidence: str, remedy: str) -> Finding:
        """Return a finding of this log, with its host if only one host wrote it."""
        host = self.log.hosts[0] if len(self.log.hosts) == 1 else None
        return Finding(code, severity, host, what, f"{self.log.name}: {evidence}" if self.log.name else evidence, remedy)

    @property
    def library(self) -> str:
        """The name of the library that wrote it."""
        return self.log.library.value

    @property
    def authors(self) -> list[MachineView]:
        """The machines that wrote it."""
        return [view for view in self.machines if any(same_host(host, view.machine.hostname) for host in self.log.hosts or ("",))]

    @property
    def rdma(self) -> list[str]:
        """The usable RDMA devices of these machines, by name."""
        return [nic.name for view in self.authors for nic in view.usable]

    def has(self, problem: HostProblem) -> bool:
        """Return whether the library reports this problem of a host."""
        return nccl_facts.ReportedProblem(problem) in self.log.of_kind(nccl_facts.ReportedProblem)


# CB2511 to CB2516, the data path: TCP, staging through the host, shared memory.


def over_tcp(view: LogView) -> Iterator[Finding]:
    """CB2511: data between nodes goes over TCP sockets, or no other network was found. Not for a job on one node."""
    log, count = view.log, view.log.lines_of("NET/Socket")
    if log.net != "Socket" or (log.inside_one_node and not count):
        return
    causes = [
        (f"{name}={value} is set", f"unset {name}")
        for name, value in log.settings.items()
        if (name == "NCCL_IB_DISABLE" and value != "0") or (name == "NCCL_NET" and value.lower() == "socket")
    ]
    remedies = {HostProblem.NO_VERBS_LIBRARY: _VERBS_REMEDY, HostProblem.NO_RDMA_DEVICE: _RDMA_REMEDY}
    causes += [(problem.value, remedy) for problem, remedy in remedies.items() if view.has(problem)]
    proven = bool(count or log.job)
    what = "sends over TCP sockets, not RDMA" if proven else "found no network between nodes but TCP sockets"
    evidence = f"sockets on {listed(log.device_names('Socket')) or '?'}, no other network"
    if count:
        evidence = f"{plural(count, 'connection')} via NET/Socket"
    has = [f"the machine has {listed(list(dict.fromkeys(view.rdma)))}"] if view.rdma else []
    severity: Severity = "severe" if view.rdma and proven else "warning"
    evidence = "; ".join([evidence, *(reason for reason, _ in causes), *has])
    yield view.finding("CB2511", severity, f"{view.library} {what}", evidence, causes[0][1] if causes else _NET_REMEDY)


def staged(view: LogView) -> Iterator[Finding]:
    """CB2512: RDMA without GPUDirect: data is staged through host memory."""
    log = view.log
    direct = sum(count for key, count in log.transports.items() if key.endswith(GDR))
    remedy = _RCCL_GDR_REMEDY if log.library is LogLibrary.RCCL else _GDR_REMEDY
    if log.staged:
        part = f"{log.staged} of {log.staged + direct} RDMA connections" if direct else "all RDMA connections"
        by_design = _without_gdr(view)
        names = [key for key in log.transports if key.startswith("NET/") and not key.endswith(GDR)]
        evidence = f"via {listed(names)}, without {GDR}{f'; {by_design}' if by_design else ''}"
        severity: Severity = "warning" if direct or by_design else "severe"
        yield view.finding("CB2512", severity, f"{part} are staged through the host's memory", evidence, remedy)
    elif (refused := log.gdr_refused) and not direct and log.net != "Socket":
        evidence = f"GPU Direct RDMA Disabled for {listed(refused)}; no connection line proves it in use"
        severity = "note" if log.inside_one_node else "warning"
        yield view.finding("CB2512", severity, f"{view.library} reports GPUDirect RDMA as disabled", evidence, remedy)


def _without_gdr(view: LogView) -> str | None:
    """Return why this hardware may not support GPUDirect RDMA, where the log shows it."""
    if view.has(HostProblem.NO_PLUGIN_GDR):
        return HostProblem.NO_PLUGIN_GDR.value
    models = sorted({rank.model for rank in view.log.of_kind(nccl_facts.ListedRank) if rank.model})
    if models and all(_NO_GDR_MODELS.search(model) for model in models):
        return f"{listed(models)} {'has' if len(models) == 1 else 'have'} no GPUDirect RDMA"
    return None


def one_way(view: LogView) -> Iterator[Finding]:
    """CB2513: GPUDirect RDMA is shown for one direction only."""
    log = view.log
    if log.gdr_send != log.gdr_receive and not log.staged:
        seen, missing = ("[send]", "[receive]") if log.gdr_send else ("[receive]", "[send]")
        evidence = f"{seen} via {listed([key for key in log.transports if key.endswith(GDR)])}; no {missing} line"
        remedy = "save the lines of all ranks, uncut: only both lines together prove it"
        yield view.finding("CB2513", "note", f"GPUDirect RDMA is shown for {seen} alone", evidence, remedy)


def shared_memory(view: LogView) -> Iterator[Finding]:
    """CB2514: GPUs of one host exchange data through the host's shared memory."""
    count = view.log.lines_of(SHARED_MEMORY)
    if count:
        tool = "rocm-smi --showtopo" if view.log.library is LogLibrary.RCCL else "nvidia-smi topo -p2p r"
        remedy = f"see `{tool}` for why: ACS, IOMMU, containers with one GPU each, consumer cards, NCCL_P2P_DISABLE"
        what = "GPUs of one host exchange through its shared memory, not directly"
        yield view.finding("CB2514", "warning", what, f"{plural(count, 'connection')} via {SHARED_MEMORY}", remedy)


def unknown_speed(view: LogView) -> Iterator[Finding]:
    """CB2515: NCCL could not read a NIC's speed and assumes 10 Gb/s."""
    speeds = view.log.of_kind(nccl_facts.AssumedSpeed)
    if speeds:
        names = listed([speed.interface for speed in speeds if speed.interface]) or "a NIC"
        what = f"{view.library} takes {names} for 10 Gb/s: it chooses algorithms and channels by that"
        remedy = "set the right speed in a topology file (NCCL_TOPO_FILE)"
        yield view.finding("CB2515", "warning", what, "Could not get speed … Defaulting to 10 Gbps", remedy)


def warnings(view: LogView) -> Iterator[Finding]:
    """CB2516: the library prints warnings that no other rule explains."""
    others = list(dict.fromkeys(warning.text for warning in view.log.of_kind(nccl_facts.LoggedWarning) if not warning.explained))
    if others:
        evidence = listed([f"'{text}'" for text in others], 3)
        remedy = f"search the issues and the documentation of {view.library} for the text"
        yield view.finding("CB2516", "note", f"{view.library} prints {plural(len(others), 'warning')}", evidence, remedy)


# CB2517 to CB2534, the start of NCCL or RCCL: rails, NVLink domain, plug-ins, settings, and missing host features.


def mixed_rails(view: LogView) -> Iterator[Finding]:
    """CB2517: NCCL uses both InfiniBand and RoCE devices; a note where no connection shows which are in use."""
    listed_here = hcas_in(view.log)
    numbers: dict[str, set[int]] = {}  # of the devices that connections use
    for connection in view.log.connections:
        path = network_path(connection.transport)
        if path and path.network.startswith("IB") and path.device is not None:
            numbers.setdefault(connection.host, set()).add(path.device)
    for host, found in listed_here.items():
        used = [hca for hca in found if hca.number in numbers.get(host, set())]
        rails = used or found
        infiniband, roce = ([hca.name for hca in rails if hca.link_layer is layer] for layer in LinkLayer)
        if not infiniband or not roce:
            continue
        more, fewer = (infiniband, roce) if len(infiniband) >= len(roce) else (roce, infiniband)
        proven = bool(used)
        where = f" (on {host})" if host and len(listed_here) > 1 else ""
        part = f"if {listed(fewer)} {'is' if len(fewer) == 1 else 'are'} not part of the compute network"
        yield view.finding(
            "CB2517",
            "warning" if proven else "note",
            f"{view.library} {'sends over' if proven else 'lists'} InfiniBand and RoCE devices together",
            f"InfiniBand: {listed(infiniband)}; RoCE: {listed(roce)}{where}",
            f"{part}: NCCL_IB_HCA=={','.join(more)} (two = for exact names)",
        )
        return


def no_nvls(view: LogView) -> Iterator[Finding]:
    """CB2518: no NVLink multicast although GPUs and NVSwitch support it. Boards without NVSwitch give no finding."""
    if view.log.nvls_available is not False or (model := _multicast_model(view)) is None:
        return
    what = "NVLS (reductions in the NVSwitch) is not available, although the GPUs support it"
    remedy = (
        "`systemctl restart nvidia-fabricmanager` on bare metal (in a virtual machine: on its host), `nvidia-smi -q | grep -A4 Fabric` "
        "must show Completed; the driver must be 530 or later and NCCL built for CUDA 12.1 or later"
    )
    yield view.finding("CB2518", "warning", what, f"NVLS multicast support is not available; {model} behind NVSwitches", remedy)


def _multicast_model(view: LogView) -> str | None:
    """Return the GPU model if it and its NVSwitches are known to support multicast."""
    log, listed_ranks = view.log, [rank for rank in view.log.of_kind(nccl_facts.ListedRank) if rank.model]
    gpus_of_hosts = Counter(host for host, _ in {(rank.host, rank.device) for rank in listed_ranks})
    local_ranks = log.job.local_ranks if log.job else 0
    has_switch = any(link.part == "NVS" for link in log.of_kind(nccl_facts.GraphLink))
    switched = has_switch or max([local_ranks, *gpus_of_hosts.values()]) >= _FULL_BOARD
    models = {rank.model for rank in listed_ranks if rank.model}
    if switched and models and all(_MULTICAST_MODELS.search(model) for model in models):
        return listed(sorted(models))
    for author in view.authors:
        gpus = author.machine.gpus
        versions = [_SM.fullmatch(gpu.architecture or "") for gpu in gpus]
        has_multicast = [
            int(match[1]) >= _FIRST_MULTICAST_SM if match else bool(_MULTICAST_MODELS.search(gpu.model or ""))
            for gpu, match in zip(gpus, versions, strict=True)
        ]
        if author.machine.switched and gpus and all(has_multicast):
            return f"{plural(len(gpus), 'GPU')} ({gpus[0].model or gpus[0].architecture})"
    return None


def collapsed_nvlink_domain(view: LogView) -> Iterator[Finding]:
    """CB2519: nodes of one NVLink domain (NVL72) that exchange data over the NICs."""
    log, job, broken = view.log, view.log.job, view.log.of_kind(nccl_facts.FabricBroken)
    channels = f"{log.stated.get('coll', '?')} collective and {log.stated.get('nvls', '?')} NVLS channels"
    direct = log.of_kind(nccl_facts.DirectPeers)
    groups: dict[tuple[str, str], dict[str, None]] = {}  # hosts with GPUs that report the same NVLink domain and clique
    for host, member in log.with_hosts(nccl_facts.FabricMember):
        if host and not _NO_DOMAIN.fullmatch(member.domain):
            groups.setdefault((member.domain, member.clique), {})[host] = None
    hosts = max(map(list, groups.values()), key=len, default=[])
    if broken:
        size = next((plural(each.clique_size, "GPU") for each in broken if each.clique_size), None)
        what = f"multi-node NVLink{f' of {size}' if size else ''} is present but does not work: NCCL ends"
        remedy = (
            "check `nvidia-imex-ctl -N` on all nodes; give the job /dev/nvidia-caps-imex-channels (Kubernetes: a ComputeDomain; Slurm: "
            "switch/nvidia_imex)"
        )
        yield view.finding("CB2519", "severe", what, "MNNVL is available but not working on this system", remedy)
    elif job and job.nodes > 1 and job.multi_node_nvlink is False and len(hosts) > 1:
        disabling = {name: value for name, value in log.settings.items() if name in _DISABLE_NVLINK}
        states = sorted({each.state for each in log.of_kind(nccl_facts.FabricMember) if each.state != nccl_facts.FABRIC_COMPLETED})
        evidence = [f"MNNVL 0 with {job.nodes} nodes; {listed(hosts, 4)} have the same fabric UUID and clique", channels]
        evidence += [f"{name}={value} is set" for name, value in disabling.items()]
        evidence += [f"fabric state {state} (complete is {nccl_facts.FABRIC_COMPLETED})" for state in states]
        what = f"{plural(len(hosts), 'node')} of one NVLink domain exchange over the NICs, not over NVLink"
        shown = "`nvidia-smi -q | grep -A6 Fabric` must show Completed on all GPUs; check `nvidia-imex-ctl -N`"
        yield view.finding("CB2519", "warning", what, "; ".join(evidence), f"unset {listed(list(disabling))}" if disabling else shown)
    elif job and job.multi_node_nvlink and log.stated.get("nvls") == 0 and direct and not any(each.every for each in direct):
        what = "multi-node NVLink is on, and NCCL fell back: no NVLS and no direct peer-to-peer"
        remedy = "unset NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_NVLS_ENABLE; check `nvidia-imex-ctl -N` and `nvidia-smi topo -p2p n`"
        yield view.finding("CB2519", "warning", what, f"MNNVL 1; {channels}; isAllDirectP2p 0", remedy)


def slow_bridges(view: LogView) -> Iterator[Finding]:
    """CB2520: PCIe links below 1 GB/s in NCCL's topology graph, mostly bridges that a hypervisor emulates."""
    links = [link for link in view.log.of_kind(nccl_facts.GraphLink) if link.is_slow]
    if links:
        slowest = min(link.gb_per_s for link in links)
        kind = "emulated bridges" if any(link.is_emulated for link in links) else "PCIe links"
        above = listed([{"PCI": "switches", "GPU": "GPUs"}[part] for part in dict.fromkeys(link.part for link in links)])
        what = f"{view.library} plans with {slowest:g} GB/s for {kind} above {above}"
        remedy = "write the real topology into a file and name it in NCCL_TOPO_FILE (cloud providers ship one for each instance type)"
        yield view.finding("CB2520", "warning", what, f"PCI[{slowest:g}] in the graph", remedy)


def no_verbs(view: LogView) -> Iterator[Finding]:
    """CB2521: libibverbs cannot be loaded. Not for jobs on one node, nor with a network plug-in that carries the data."""
    if view.has(HostProblem.NO_VERBS_LIBRARY) and view.log.net in (None, "Socket") and not view.log.inside_one_node:
        what = f"libibverbs cannot be loaded, so {view.library} cannot use InfiniBand or RoCE"
        evidence = f"Failed to open libibverbs.so[.1]{f'; the machine has {listed(view.rdma)}' if view.rdma else ''}"
        yield view.finding("CB2521", "warning" if view.rdma else "note", what, evidence, _VERBS_REMEDY)


def plugins(view: LogView) -> Iterator[Finding]:
    """CB2522 and CB2525: a network plug-in does not fit this NCCL version, such as a host plug-in with the NCCL of a container; a job on
    several nodes has no profiler plug-in, so that its collectives are not recorded.
    """
    log = view.log
    states: dict[PluginKind, set[PluginState]] = {PluginKind.NET: set(), PluginKind.PROFILER: set()}
    for plugin in log.of_kind(nccl_facts.NcclPlugin):
        states.setdefault(plugin.kind, set()).add(plugin.state)
    network_states = states[PluginKind.NET]
    if PluginState.UNSUITABLE in network_states and PluginState.LOADED not in network_states:
        what = f"the network plug-in does not fit this {view.library} and was left out"
        library = f"{view.library} {log.version}" if log.version else view.library
        network = f"the bytes go over {log.net}" if log.net else "no other network is named"
        evidence = f"its interface version is not one that {library} supports; {network}"
        remedy = "use a plug-in and a library of the same age: take both from the host, or both from the container image"
        yield view.finding("CB2522", "warning", what, evidence, remedy)
    if states[PluginKind.PROFILER] == {PluginState.ABSENT} and log.job and log.job.nodes > 1:
        what = "no profiler plug-in is installed: nothing records the collectives of jobs"
        remedy = "build the inspector plug-in of NCCL's sources (plugins/profiler/inspector) and set NCCL_PROFILER_PLUGIN to its path"
        yield view.finding("CB2525", "note", what, "PROFILER/Plugin: Could not find libnccl-profiler.so", remedy)


def unused_sharp(view: LogView) -> Iterator[Finding]:
    """CB2523: InfiniBand switches support reductions (SHARP), and a job on several nodes does not use them."""
    log, job = view.log, view.log.job
    devices = list(dict.fromkeys(device.name for device in log.of_kind(nccl_facts.NetDevice) if device.sharp))
    complete = log.stated and log.lines_of("NET")
    if not devices or not complete or log.collnet or not job or job.nodes < 2:
        return
    evidence = f"{listed(devices)} {'offers' if len(devices) == 1 else 'offer'} SHARP; no COLLNET connection on {job.nodes} nodes"
    if log.settings.get("NCCL_COLLNET_ENABLE", "0") != "0":
        remedy = "check the aggregation manager (`sharp_am`) and `sharp_hello` on the nodes"
        yield view.finding("CB2523", "warning", "SHARP is enabled and not in use", evidence, remedy)
    else:
        remedy = "measure with NCCL_COLLNET_ENABLE=1 (and NCCL_ALGO unset); the fabric needs an aggregation manager (sharp_am)"
        yield view.finding("CB2523", "note", "SHARP is available and not in use", evidence, remedy)


def gid_index(view: LogView) -> Iterator[Finding]:
    """CB2524: RoCE with GID 0, the default of NCCL before 2.21 unless NCCL_IB_GID_INDEX is set."""
    log = view.log
    roce = sorted({hca.name for found in hcas_in(log).values() for hca in found if hca.link_layer is LinkLayer.ROCE})
    old = log.library is LogLibrary.NCCL and log.version and tuple(map(int, log.version.split("."))) < _CHOOSES_GID_SINCE
    shown = log.settings and log.lines_of("NET/IB")  # the log prints settings, and connections were made
    if roce and old and shown and "NCCL_IB_GID_INDEX" not in log.settings:
        what = f"NCCL {log.version} uses GID 0 of {listed(roce)}: RoCE v1 with most NICs, without routing and DSCP"
        evidence = "NCCL_IB_GID_INDEX is not set; NCCL chooses RoCE v2 by itself from 2.21 on"
        remedy = "set NCCL_IB_GID_INDEX in /etc/nccl.conf to the index of the RoCE v2 GID with the IPv4 address (`show_gids`; often 3)"
        yield view.finding("CB2524", "note", what, evidence, remedy)


def forced_choice(view: LogView) -> Iterator[Finding]:
    """CB2526: algorithm, protocol or channels are set manually, so that the library cannot choose by size."""
    log = view.log
    names = _FORCED_RCCL if log.library is LogLibrary.RCCL else FORCED
    own = {setting.name for setting in log.of_kind(nccl_facts.PluginSetting)}  # a plug-in knows its network
    found = [name for name in names if name in log.settings and name not in own]
    if found:
        evidence = listed([f"{name}={log.settings[name]}" for name in found])
        what = f"{listed(found)} {'is' if len(found) == 1 else 'are'} set: {view.library} cannot choose by message size"
        yield view.finding("CB2526", "warning", what, evidence, FORCED_REMEDY.format(names=listed(found)))


def iommu(view: LogView) -> Iterator[Finding]:
    """CB2531: RCCL reports that iommu=pt is missing. Not where the machine's IOMMU is known to be off or in passthrough mode."""
    modes = [author.machine.system.iommu for author in view.authors]
    if modes and all(mode in ("off", "passthrough") for mode in modes):
        return
    by_problem = {HostProblem.NO_IOMMU_PASSTHROUGH: "iommu=pt", HostProblem.NO_AMD_IOMMU: "amd_iommu=on"}
    missing = [option for problem, option in by_problem.items() if view.has(problem)]
    if missing:
        options, verb = " ".join(missing), "is" if len(missing) == 1 else "are"
        what = f"{options} {verb} missing from the kernel command line: RCCL may hang, or be slow between GPUs"
        known = sorted({mode for mode in modes if mode})
        active = f"the IOMMU is {listed(known)}" if known else "whether the IOMMU is active is unknown"
        remedy = f"add {options} to the kernel command line, and restart the node"
        yield view.finding("CB2531", "warning", what, f"RCCL's warning; {active}", remedy)


def rccl_settings(view: LogView) -> Iterator[Finding]:
    """CB2532 and CB2533: RCCL reports that HSA_FORCE_FINE_GRAIN_PCIE is missing, or warns of automatic NUMA balancing."""
    fine_grain = "HSA_FORCE_FINE_GRAIN_PCIE=1 is not set: RCCL may be slow or hang between GPUs that PCIe joins"
    balancing, sysctl = "automatic NUMA balancing is on: the times of RCCL vary", "sudo sysctl kernel.numa_balancing=0"
    for code, problem, what, remedy in (
        ("CB2532", HostProblem.NO_FINE_GRAIN_PCIE, fine_grain, "export HSA_FORCE_FINE_GRAIN_PCIE=1 for all ranks"),
        ("CB2533", HostProblem.NUMA_BALANCING, balancing, f"{sysctl}, and the same in /etc/sysctl.d"),
    ):
        if view.has(problem):
            yield view.finding(code, "warning", what, f"RCCL warns: {problem.value}", remedy)


def no_peer_memory(view: LogView) -> Iterator[Finding]:
    """CB2534: RCCL finds no peer-memory support, so that NICs cannot reach GPU memory. Not where GPUDirect RDMA is proven."""
    log = view.log
    needless = log.gdr_send or log.gdr_receive or log.inside_one_node or log.net in (None, "Socket")
    if view.has(HostProblem.NO_PEER_MEMORY) and not needless:
        what = "RCCL finds no peer-memory support, so that GPUDirect RDMA is off"
        evidence = "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol"
        yield view.finding("CB2534", "warning", what, evidence, _RCCL_GDR_REMEDY)


# CB2541 to CB2558, messages of failures: readers/log_messages.toml has their texts, causes and remedies.

_NO_NETWORK = "CB2547"
_VALUE = re.compile(r"\{(\w+)\}")
_MOST_SHOWN = 3  # lines of one finding
_MOST_PLACES = 4
_MOST_VALUES = 3


def failures(view: LogView) -> Iterator[Finding]:
    """CB2541 to CB2558: known messages of failures, a finding for each code by the most severe message."""
    hosts = len({host.partition(".")[0] for host in view.log.hosts})
    messages = [logged for logged in view.log.messages if hosts >= logged.message.least_hosts]
    causes = [logged for logged in messages if logged.message.severity == "severe" and logged.ended and not logged.message.consequence]
    by_code: dict[str, list[LoggedMessage]] = {}
    for logged in messages:
        by_code.setdefault(logged.message.code, []).append(logged)
    for code, group in by_code.items():
        yield _failure(view, code, group, bool(causes))


def _failure(view: LogView, code: str, group: Sequence[LoggedMessage], has_cause: bool) -> Finding:
    """Return the finding for the messages with one code. `has_cause`: the log also has a severe message that is no consequence."""
    worst = min(group, key=lambda logged: (SEVERITIES.index(_severity(logged, has_cause)), logged.message.consequence, logged.line))
    message, severity = worst.message, _severity(worst, has_cause)
    what = message.what
    values = {}
    for logged in reversed(group):
        for name, found in logged.values.items():
            values[name] = f"{max(map(int, found)) / 1e6:.3g} MB" if name == "bytes" else listed(found, _MOST_VALUES)
    if message.detail and set(_VALUE.findall(message.detail)) <= set(values):
        what += f" ({message.detail.format_map(values)})"
    if severity == "note" and message.consequence and has_cause:
        what += ": a consequence of another error"
    elif message.cause:
        what += f"; likely cause: {message.cause}"
    evidence = [_lines(logged) for logged in group[:_MOST_SHOWN]]
    if severity != message.severity and not worst.ended:
        evidence.append("the job went on afterwards")
    if code == _NO_NETWORK:
        evidence += [f"{release.name} {release.version}" for release in view.log.of_kind(nccl_facts.PluginRelease)]
    if code == _NO_NETWORK and view.log.net and severity != "severe":
        evidence.append(f"the log names the network {view.log.net}")
    finding = view.finding(code, severity, what, "; ".join(evidence), message.remedy)
    found_at = {host for logged in group for host in logged.hosts}
    return replace(finding, hostname=found_at.pop()) if len(found_at) == 1 else finding


def _severity(logged: LoggedMessage, has_cause: bool) -> Severity:
    """Return the severity in this log: lower if the job went on, or if the message is a consequence of another one."""
    if logged.message.consequence and has_cause:
        return "note"
    if logged.message.severity == "severe" and not logged.ended:
        return "warning"
    return logged.message.severity


def _lines(logged: LoggedMessage) -> str:
    """Return how many lines have the message, the first of them with its number, and the hosts and ranks that wrote them."""
    places = [f"{place.host} ({place.part})" if place.host and place.part else place.host or place.part for place in logged.places]
    where = listed([text for text in places if text], _MOST_PLACES)
    count = f"line {logged.line}" if logged.count == 1 else f"{logged.count} lines from line {logged.line} on"
    return f"{count}{f' of {where}' if where else ''}: '{logged.text}'"


RULES = (
    failures,
    *(over_tcp, staged, one_way, shared_memory, unknown_speed, warnings),
    *(mixed_rails, no_nvls, collapsed_nvlink_domain, slow_bridges, no_verbs, plugins, unused_sharp, gid_index),
    *(forced_choice, iommu, rccl_settings, no_peer_memory),
)


def examined(logs: Sequence[NcclLog], machines: Sequence[Machine]) -> list[ExaminedLog]:
    """Return the logs of a job on these machines, as far as they are known, with their findings and summaries."""
    views = [MachineView(machine) for machine in machines]
    examined_logs = []
    for log in logs:
        view, summary = LogView(log, views), summarize(log)
        findings = [finding for rule in RULES for finding in rule(view)]
        examined_logs.append(ExaminedLog(log, findings, list(summary_lines(summary)), msgspec.to_builtins(summary)))
    return examined_logs
