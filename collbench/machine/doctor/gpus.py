"""CB23xx, GPUs: lost links to other GPUs, peer access, memory that appears as NUMA nodes. CB25xx: paths between GPUs and NICs.

Behind switches all links of a model lead to the same switches, so each GPU has the largest count. In a mesh, designs give GPUs different
counts. There a link is lost where its two ends differ, where one pair differs from all others, or where most machines have more at the
same position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from collbench.machine.distance import CLOSE, STATES, Capability, best_of, capability, may_use_c2c, not_used
from collbench.machine.doctor.finding import Finding, MachineView, Severity, gpu_name, same_host
from collbench.machine.model import Gpu, Machine, Nic
from collbench.machine.peak.rates import gpu_model
from collbench.machine.readers.nccl_log import NcclLog
from collbench.machine.readers.pci import has_built_in_links
from collbench.units import listed, plural

# GPUDirect RDMA of each GPU with its nearest NICs: one line per state, with the count and the exceptions by name. No findings.

_MOST_NAMES = 4


def states(machines: Sequence[Machine], logs: Sequence[NcclLog] = ()) -> list[str]:
    """Return lines such as "GPUDirect RDMA capable; use not checked: 8 of 8 GPUs (nvidia_peermem is loaded, PIX apart)".

    GPUs with another reason than the most common one are named. Machines without an active RDMA device are skipped.
    """
    gpus: dict[Capability, list[str]] = {}
    for number, machine in enumerate(machines, 1):
        host = f"{machine.hostname or f'machine {number}'} " if len(machines) > 1 else ""
        view = MachineView(machine)
        logs_of_machine = [log for log in logs if _is_of(log, machine, len(machines))]
        for gpu in machine.gpus if view.usable else ():
            nics = view.nearest(gpu).nics or view.usable[:1]
            best = best_of(_capability(view, gpu, nic, logs_of_machine) for nic in nics)
            gpus.setdefault(best, []).append(host + gpu_name(gpu))
    total = plural(sum(map(len, gpus.values())), "GPU")
    most_first = sorted(gpus, key=lambda state: -len(gpus[state]))
    lines = []
    for name in STATES:
        states_of_name = [state for state in most_first if state.state == name]
        if states_of_name:
            count = sum(len(gpus[state]) for state in states_of_name)
            reasons = [
                state.why if state == most_first[0] else f"{listed(gpus[state], _MOST_NAMES)}: {state.why}" for state in states_of_name
            ]
            lines.append(f"GPUDirect RDMA {name}: {count} of {total} ({'; '.join(reasons)})")
    return lines


def _capability(view: MachineView, gpu: Gpu, nic: Nic, logs: Sequence[NcclLog]) -> Capability:
    proofs = [f"{log.name} has its [send] and [receive] lines via GDRDMA" for log in logs if _is_in(log.gdr_gpus, view, gpu)]
    refusals = [f"{log.name}: GPU Direct RDMA Disabled for {nic.name}" for log in logs if nic.name in log.gdr_refused]
    state = capability(view.machine, gpu, nic, proof=next(iter(proofs), None), refusal=next(iter(refusals), None), distances=view.distances)
    for log in logs:
        if _is_in(log.staged_gpus, view, gpu):
            unused = not_used(state, f"{log.name} shows its connections staged through the host")
            return unused if unused.state != state.state else state
    return state


def _is_in(gpus: Sequence[tuple[str, str]], view: MachineView, gpu: Gpu) -> bool:
    """Return whether a log's pairs of host and GPU (index or address) have this GPU."""
    names = {str(gpu.index), gpu.address}
    return any(name in names and same_host(host, view.machine.hostname) for host, name in gpus)


def _is_of(log: NcclLog, machine: Machine, machines: int) -> bool:
    """Return whether the log is of this machine. A log of several hosts or none is not, if the machine has no name or is one of several."""
    if machine.hostname is None or not log.hosts:
        return machines == 1 and len(log.hosts) <= 1
    return any(same_host(host, machine.hostname) for host in log.hosts)


# CB2501 to CB2504, paths between GPUs and NICs: distant NICs, GPUs without a near one, GPUDirect RDMA that is not possible.

_FAR = "SYS"
_HOST = ("PHB", "NODE")
_AMD_REMEDY = "AMD: install amdgpu of ROCm's DKMS package in addition to the NIC vendor's driver"
_NVIDIA_REMEDY = "`modprobe nvidia_peermem`, or NVIDIA's open kernel module with kernel 5.12 or later"


def far(view: MachineView) -> Iterator[Finding]:
    """CB2501: GPUs with the nearest NIC on another socket; only a note where NVLink leads to a GPU near a NIC (PXN)."""
    remote = []
    certain = True  # whether the sockets of all NICs nearest to these GPUs are known
    for gpu in _with_nearest(view, (_FAR,)):
        across_sockets = {view.distances.are_across_sockets(gpu.key, nic.key) for nic in view.nearest(gpu).nics}
        if False not in across_sockets and not may_use_c2c(view.machine.system, gpu):
            remote.append(gpu)
            certain = certain and None not in across_sockets
    if not remote:
        return
    near = _with_nearest(view, CLOSE)
    joined = all(any((view.distances.path(gpu.key, near_gpu.key) or "").startswith("NV") for near_gpu in near) for gpu in remote)
    numa_nodes = {view.distances.numa_of(nic.key) for nic in view.usable} - {None}
    where = f"; all usable NICs are at NUMA node {numa_nodes.pop()}" if len(numa_nodes) == 1 else ""
    what = f"{plural(len(remote), 'GPU')} reach a NIC only across {'sockets' if certain else 'NUMA nodes'}: {_names(remote)}"
    evidence = f"the nearest RDMA device of {gpu_name(remote[0])} is {_FAR} away{where}"
    remedy = "place a NIC at each socket; with NVLink let NCCL send through a GPU near the NIC (NCCL_PXN_DISABLE=0, the default)"
    yield view.finding("CB2501", "note" if joined else "warning", what, evidence, remedy)


def beyond_switch(view: MachineView) -> Iterator[Finding]:
    """CB2502 and CB2504: GPUs without a NIC below their PCIe switch while others have one; or no GPU has one, so that NCCL stages all data.

    Not GPUs that may reach the NIC over C2C (Grace).
    """
    without = [gpu for gpu in _with_nearest(view, _HOST) if not may_use_c2c(view.machine.system, gpu)]
    if not without:
        return
    near = _with_nearest(view, CLOSE)
    path = view.nearest(without[0]).path
    if near:
        what = f"{plural(len(without), 'GPU')} without a NIC below the same PCIe switch: {_names(without)}"
        evidence = f"{gpu_name(without[0])}: nearest NIC {path} away; {gpu_name(near[0])}: {view.nearest(near[0]).path}"
        remedy = "nothing, if NVLink joins them: NCCL sends through a GPU near the NIC (PXN); check that NCCL_PXN_DISABLE is not 1"
        yield view.finding("CB2502", "note", what, evidence, remedy)
    else:
        what = "NCCL does not use GPUDirect RDMA here by default: GPUs and NICs meet only at a host bridge"
        evidence = f"the nearest RDMA device of {gpu_name(without[0])} is {path} away"
        remedy = f"measure with NCCL_NET_GDR_LEVEL={path}: on some processors it is faster, on others slower"
        yield view.finding("CB2504", "note", what, evidence, remedy)


def not_capable(view: MachineView) -> Iterator[Finding]:
    """CB2503: GPUs and NICs that are close enough for GPUDirect RDMA but lack another requirement."""
    gpus_by_reason: dict[str, list[str]] = {}
    for gpu in _with_nearest(view, CLOSE):
        states = [capability(view.machine, gpu, nic, distances=view.distances) for nic in view.nearest(gpu).nics]
        if all(state.state == "not capable" for state in states):
            gpus_by_reason.setdefault(states[0].why, []).append(gpu_name(gpu))
    amd = any(gpu.vendor == "amd" for gpu in view.machine.gpus)
    for reason, names in gpus_by_reason.items():
        what = f"NICs cannot reach the memory of {listed(names)}: bytes are staged through the host"
        yield view.finding("CB2503", "severe", what, reason, _AMD_REMEDY if amd else _NVIDIA_REMEDY)


def _with_nearest(view: MachineView, paths: tuple[str, ...]) -> list[Gpu]:
    return [gpu for gpu in view.machine.gpus if view.nearest(gpu).path in paths]


def _names(gpus: list[Gpu]) -> str:
    return listed([gpu_name(gpu) for gpu in gpus])


_NO_PEER = {
    "NS": "not supported",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "disabled by a registry key",
}
_BY_DESIGN = "GNS"
_IN_MESHES = ("P100", "V100")  # modules of which a pair need not be joined, and a part of a machine has fewer links
_ALONE = "GH200"  # a module that is often the only one of its machine
_CHECKS = {
    "nvidia": "check `nvidia-smi nvlink -s` and -e, the kernel log (Xid 74) and the fabric manager's log; reset the GPU, then replace it",
    "amd": "check `rocm-smi --showxgmierr`, `amd-smi xgmi` and the kernel log (amdgpu, xgmi); reset the GPUs, then replace the module",
    "intel": "check `xpu-smi topology -m` and the kernel log (xe or i915, iaf); reset the GPU, then replace it",
    None: "check the driver's tool and the kernel log for errors of the links; reset the GPU, then replace it",
}
_FEWEST_MACHINES = 3  # with fewer machines the exception cannot be named
_FEWEST_IN_MESH = 4  # GPUs; with three, two links may be intended


class _JobGpu(msgspec.Struct, frozen=True):
    """A GPU of the job, how many of its links are up (None: not counted), and its position among the GPUs of its machine."""

    view: MachineView
    gpu: Gpu
    links: int | None
    position: int

    @property
    def alike(self) -> tuple[int, int]:
        """The number of GPUs and the position: GPUs of other machines with the same values have the same links by design."""
        return len(self.view.machine.gpus), self.position


def lost_links(views: Sequence[MachineView]) -> Iterator[Finding]:
    """CB2301 and CB2302: GPUs with fewer NVLink or xGMI links up than other GPUs of the same model in the job.

    Links that are off on all of them are normal: a PCIe card of H100 has 12 of its 18.
    """
    by_model: dict[str, list[_JobGpu]] = {}
    for number, view in enumerate(views):
        for position, gpu in enumerate(view.machine.gpus):
            job_gpu = _JobGpu(view, gpu, view.machine.links_of(gpu.key), position)
            by_model.setdefault(gpu.model or f"unknown, of machine {number}", []).append(job_gpu)
    for job_gpus in by_model.values():
        if all(job_gpu.links is None for job_gpu in job_gpus):
            yield from _more_off(job_gpus)
            continue
        dark = [job_gpu for job_gpu in job_gpus if _is_dark(job_gpu)]
        yield from _all_lost(dark, job_gpus)
        # a machine without any link counts as one with a switch if other machines of the model have one
        on_switch = any(job_gpu.view.machine.switched for job_gpu in job_gpus)
        meshes = {view for view in views if not view.machine.switched and any(link.count for link in view.machine.gpu_links)}
        switched = [job_gpu for job_gpu in job_gpus if on_switch and job_gpu.view not in meshes and job_gpu not in dark]
        yield from _behind_switches(switched)
        meshed = [job_gpu for job_gpu in job_gpus if job_gpu not in switched and job_gpu not in dark]
        degraded = [job_gpu for job_gpu in meshed if _is_degraded(job_gpu)]
        yield from _some_lost(degraded, meshed)
        yield from _in_meshes([job_gpu for job_gpu in meshed if job_gpu not in degraded])


def _is_dark(job_gpu: _JobGpu) -> bool:
    """Return whether no link of a module is up. A pair of V100 or P100 need not be joined: there only a list of their links counts."""
    machine = job_gpu.view.machine
    gpu = job_gpu.gpu
    if job_gpu.links != 0 or gpu.vendor != "nvidia" or not has_built_in_links(gpu, len(machine.gpus)) or machine.switched:
        return False
    model = gpu.model or ""
    if any(name in model for name in _IN_MESHES):
        return bool(gpu.links_off) or not machine.paths
    return bool(model) and _ALONE not in model


def _all_lost(dark: Sequence[_JobGpu], job_gpus: Sequence[_JobGpu]) -> Iterator[Finding]:
    """Yield a finding for each machine with modules without a link. A warning for the only GPU of what may be a virtual machine."""
    for view in dict.fromkeys(job_gpu.view for job_gpu in dark):
        gpus = [job_gpu.gpu for job_gpu in dark if job_gpu.view is view]
        alone = len(view.machine.gpus) == 1 and not gpus[0].index
        remedy = _CHECKS[gpus[0].vendor]
        if alone:
            remedy = f"nothing, if it is the only GPU of a virtual machine, which has no use for links; else {remedy}"
        what = f"all links to other GPUs of {_names(gpus)} are inactive"
        evidence = f"{gpus[0].model}, a module with built-in links: 0 up{_others(_counts(job_gpus))}"
        yield view.finding("CB2301", "warning" if alone else "severe", what, evidence, remedy)


def _is_degraded(job_gpu: _JobGpu) -> bool:
    """Return whether a module that has all its links by design lists some as inactive."""
    row = gpu_model(job_gpu.gpu.model)
    if not row or not job_gpu.gpu.links_off or not job_gpu.links or any(name in row.model for name in _IN_MESHES):
        return False
    return has_built_in_links(job_gpu.gpu, 1) and job_gpu.links < row.links


def _some_lost(degraded: Sequence[_JobGpu], job_gpus: Sequence[_JobGpu]) -> Iterator[Finding]:
    """Yield a finding for each module with inactive links. A warning if several modules have lost the same number."""
    counts = _counts(job_gpus)
    uniform = len(counts) > 1 and len(set(counts)) == 1
    for job_gpu in degraded:
        gpu = job_gpu.gpu
        row = gpu_model(gpu.model)
        most = row.links if row else 0
        what = f"{gpu_name(gpu)} has {job_gpu.links} of {most} links to other GPUs"
        evidence = f"{job_gpu.links} up, {gpu.links_off} off{_others(counts)}"
        yield job_gpu.view.finding("CB2301", "warning" if uniform else "severe", what, evidence, _CHECKS[gpu.vendor])


def _behind_switches(job_gpus: Sequence[_JobGpu]) -> Iterator[Finding]:
    counts = _counts(job_gpus)
    most = max(counts, default=0)
    evidence = _have(counts.count(most), len(job_gpus), most)
    uncounted: dict[MachineView, list[Gpu]] = {}  # that a source leaves out while it counts the links of other GPUs on the switch
    for job_gpu in job_gpus:
        if job_gpu.links is not None and job_gpu.links < most:
            yield _lost(job_gpu, most, evidence, "severe" if job_gpu.view.machine.switched else "warning")
        elif most and job_gpu.view.machine.switched and job_gpu.links is None:
            uncounted.setdefault(job_gpu.view, []).append(job_gpu.gpu)
    for view, gpus in uncounted.items():
        remedy = f"the GPU lost all its links, or the source is of a part of the machine: {_CHECKS[gpus[0].vendor]}"
        yield view.finding("CB2302", "warning", f"no links to other GPUs were counted of {_names(gpus)}", evidence, remedy)


def _in_meshes(job_gpus: Sequence[_JobGpu]) -> Iterator[Finding]:
    """Yield a finding per pair of GPUs that lost links; without such pairs, per GPU with fewer links than at its position elsewhere."""
    views = list(dict.fromkeys(job_gpu.view for job_gpu in job_gpus))
    damaged: set[MachineView] = set()
    for view in views:
        for finding in [*_one_sided(view), *_odd_pairs(view)]:
            damaged.add(view)
            yield finding
    for job_gpu in job_gpus:
        if job_gpu.links is None or job_gpu.view in damaged:
            continue
        counts = _counts(sibling for sibling in job_gpus if sibling.alike == job_gpu.alike)
        if len(views) > 1 and len(counts) > 1:
            yield from _against_machines(job_gpu, counts)
        else:
            yield from _against_siblings(job_gpu, _counts(sibling for sibling in job_gpus if sibling.view is job_gpu.view))


def _one_sided(view: MachineView) -> Iterator[Finding]:
    """Yield findings for pairs of GPUs of which one end counts fewer links than the other."""
    links = _links_between(view.machine)
    listed_gpus = {a for a, _ in links}
    for (a, b), count in links.items():
        back = links.get((b, a), 0)
        if b in listed_gpus and back < count:
            names = view.gpu_names
            evidence = f"{names[a]} counts {plural(count, 'link')} to {names[b]}, which counts {back} back"
            what = f"{plural(count - back, 'link')} between {names[a]} and {names[b]} down at one end"
            yield view.finding("CB2301", "severe", what, evidence, _CHECKS[_gpu(view, b).vendor])


def _odd_pairs(view: MachineView) -> Iterator[Finding]:
    """Yield findings for pairs with fewer links than most pairs. Where all GPUs lack a pair, the design has none."""
    links = _links_between(view.machine)
    keys = [gpu.key for gpu in view.machine.gpus]
    if {end for pair in links for end in pair} != set(keys) or len(keys) < _FEWEST_IN_MESH:
        return
    counts = {pair: min(links.get(pair, 0), links.get(pair[::-1], 0)) for pair in combinations(keys, 2)}
    common, pairs_with_common = Counter(counts.values()).most_common(1)[0]
    fewer = {pair: count for pair, count in counts.items() if count < common}
    affected_gpus = {key for pair in fewer for key in pair}
    is_minority = len(fewer) == 1 or 2 * len(affected_gpus) < len(keys)
    if not is_minority or 2 * pairs_with_common <= len(counts) or len(fewer) + pairs_with_common != len(counts):
        return
    names = view.gpu_names
    evidence = f"{pairs_with_common} of {len(counts)} pairs have {common}"
    for (a, b), count in fewer.items():
        if links.get((a, b), 0) == links.get((b, a), 0):  # otherwise one end is down, which is another finding
            what = f"{names[a]} and {names[b]} have {count} of {common} links to each other"
            yield view.finding("CB2301", "severe", what, evidence, _CHECKS[_gpu(view, a).vendor])


def _against_machines(job_gpu: _JobGpu, counts: Sequence[int]) -> Iterator[Finding]:
    """Yield a finding if most machines have more links at this position. `counts`: those of all machines. Two machines cannot decide."""
    links = job_gpu.links or 0
    decisive = len(counts) >= _FEWEST_MACHINES
    common = Counter(counts).most_common(1)[0][0] if decisive else max(counts)
    fewer = sum(count < common for count in counts)
    if links < common and (2 * fewer < len(counts) or not decisive):
        evidence = f"at the same position on {counts.count(common)} of {len(counts)} machines: {plural(common, 'link')}"
        yield _lost(job_gpu, common, evidence, "severe" if decisive else "warning")


def _against_siblings(job_gpu: _JobGpu, counts: Sequence[int]) -> Iterator[Finding]:
    """Yield a finding if most GPUs of the machine have more links. A warning where far ends are known: the design may explain it."""
    links = job_gpu.links or 0
    common, gpus_with_common = Counter(counts).most_common(1)[0]
    if links < common and 2 * gpus_with_common > len(counts):
        only_counted = all(link.b is None for link in job_gpu.view.machine.gpu_links)
        yield _lost(job_gpu, common, _have(gpus_with_common, len(counts), common), "severe" if only_counted and links else "warning")


def _counts(job_gpus: Iterable[_JobGpu]) -> list[int]:
    return [job_gpu.links for job_gpu in job_gpus if job_gpu.links is not None]


def _links_between(machine: Machine) -> Mapping[tuple[str, str], int]:
    """Return the number of links by pair of GPUs, from first to second; {} for a machine with links to other ends."""
    keys = {gpu.key for gpu in machine.gpus}
    if any(link.count and not keys >= {link.a, link.b} for link in machine.gpu_links):
        return {}
    links: Counter[tuple[str, str]] = Counter()
    for link in machine.gpu_links:
        if link.b in keys:
            links[link.a, str(link.b)] += link.count
    return links


def _gpu(view: MachineView, key: str) -> Gpu:
    return next(gpu for gpu in view.machine.gpus if gpu.key == key)


def _have(gpus: int, total: int, links: int) -> str:
    return f"{gpus} of {plural(total, 'GPU')} compared {'has' if gpus == 1 else 'have'} {links}"


def _others(counts: Sequence[int]) -> str:
    """Return how many GPUs have the most links, as the rest of a sentence; "" for one GPU alone."""
    most = max(counts)
    return f"; {_have(counts.count(most), len(counts), most)}" if len(counts) > 1 else ""


def _lost(job_gpu: _JobGpu, common: int, others: str, severity: Severity) -> Finding:
    """Return the finding for lost links. A GPU without any link may be a card without a bridge."""
    gpu = job_gpu.gpu
    off = f", {gpu.links_off} off" if gpu.links_off else ""
    remedy = _CHECKS[gpu.vendor]
    if not job_gpu.links and not job_gpu.view.machine.switched:
        remedy = f"nothing, if it is a card without a bridge (or join it to another); else {remedy}"
    elif severity == "warning":
        remedy = f"compare with a node that is known to be healthy (`--since`): designs of meshes differ; if links are lost, {remedy}"
    what = f"{gpu_name(gpu)} has {job_gpu.links} of {common} links to other GPUs"
    return job_gpu.view.finding("CB2301", severity, what, f"{job_gpu.links} up{off}; {others}", remedy)


def _more_off(job_gpus: Sequence[_JobGpu]) -> Iterator[Finding]:
    """Yield findings for a minority with more links off than the others, from sources that do not count links that are up."""
    off = [(job_gpu, job_gpu.gpu.links_off) for job_gpu in job_gpus if job_gpu.gpu.links_off is not None]
    if not off:
        return
    common, gpus_with_common = Counter(links for _, links in off).most_common(1)[0]
    have = "has" if gpus_with_common == 1 else "have"
    for job_gpu, links in off:
        if links > common and 2 * gpus_with_common > len(off):
            evidence = f"{links} off; {plural(gpus_with_common, 'GPU')} of the same model {have} {common}"
            what = f"{gpu_name(job_gpu.gpu)} has {links} links to other GPUs off"
            yield job_gpu.view.finding("CB2301", "severe", what, evidence, _CHECKS[job_gpu.gpu.vendor])


def no_peer_access(view: MachineView) -> Iterator[Finding]:
    """CB2303: pairs of GPUs without peer access according to the driver; a note where the GPU model does not support it."""
    refused = {tuple(sorted(pair)): word for pair, word in view.machine.peer_access.items() if word in _NO_PEER and pair[0] != pair[1]}
    if refused:
        names = view.gpu_names
        by_design, word, (a, b) = min((word == _BY_DESIGN, word, pair) for pair, word in refused.items())
        gpus = len({gpu for pair in refused for gpu in pair})
        what = f"{plural(len(refused), 'pair')} of {gpus} GPUs without peer-to-peer: NCCL stages their bytes through the host's memory"
        pair = f"{names.get(a, a)} and {names.get(b, b)}: {word} ({_NO_PEER[word]})"
        evidence = f"peer matrix of the driver (`nvidia-smi topo -p2p r`): {pair}"
        remedy = "look at ACS (CB2105), the IOMMU (CB2106) and the firmware's settings of the PCIe slots"
        if by_design:
            remedy = "nothing: the driver withholds it from this kind of card; expect the speed of the host's memory"
        yield view.finding("CB2303", "note" if by_design else "warning", what, evidence, remedy)


def memory_nodes(view: MachineView) -> Iterator[Finding]:
    """CB2304: NUMA nodes without processors on machines with GPUs (POWER9, Grace): their memory may be GPU memory."""
    without_cpus = [str(node.id) for node in view.machine.numa_nodes if node.cpus == ""]
    if without_cpus and view.machine.gpus and len(without_cpus) < len(view.machine.numa_nodes):
        what = f"NUMA node{'' if len(without_cpus) == 1 else 's'} {listed(without_cpus)} without processors: perhaps the memory of GPUs"
        remedy = "bind ranks and buffers to the others; /proc/driver/nvidia/gpus/*/numa_status names the GPUs'"
        yield view.finding("CB2304", "note", what, f"cpulist of node {without_cpus[0]} is empty", remedy)


RULES = (no_peer_access, memory_nodes, far, beyond_switch, not_capable)
JOB_RULES = (lost_links,)
