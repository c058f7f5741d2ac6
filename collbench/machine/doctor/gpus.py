"""CB23xx, GPUs: lost links to other GPUs, peer access, memory that appears as NUMA nodes. CB25xx: paths between GPUs and NICs.

Behind switches all links of a model lead to the same switches, so each GPU has the largest count. In a mesh, designs give GPUs different
counts. There a link is lost where its two ends differ, where one pair differs from all others, or where most machines have more at the
same position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
    found: dict[Capability, list[str]] = {}
    for place, machine in enumerate(machines):
        host = f"{machine.hostname or f'machine {place + 1}'} " if len(machines) > 1 else ""
        for gpu, state in _of(MachineView(machine), [log for log in logs if _is_of(log, machine, len(machines))]):
            found.setdefault(state, []).append(host + gpu_name(gpu))
    total = plural(sum(map(len, found.values())), "GPU")
    common = max(found, key=lambda each: len(found[each]), default=None)
    lines = []
    for name in STATES:
        groups = sorted(((each, names) for each, names in found.items() if each.state == name), key=lambda group: -len(group[1]))
        known = "; ".join(each.why if each == common else f"{listed(names, _MOST_NAMES)}: {each.why}" for each, names in groups)
        if groups:
            lines.append(f"GPUDirect RDMA {name}: {sum(len(names) for _, names in groups)} of {total} ({known})")
    return lines


def _of(view: MachineView, logs: Sequence[NcclLog]) -> Iterator[tuple[Gpu, Capability]]:
    for gpu in view.machine.gpus if view.usable else ():
        near = view.nearest(gpu)
        yield gpu, best_of(_state(view, gpu, nic, logs) for nic in (near[1] if near else view.usable[:1]))


def _state(view: MachineView, gpu: Gpu, nic: Nic, logs: Sequence[NcclLog]) -> Capability:
    proofs = [f"{log.name} has its [send] and [receive] lines via GDRDMA" for log in logs if _named(log.gdr_gpus, view, gpu)]
    refusals = [f"{log.name}: GPU Direct RDMA Disabled for {nic.name}" for log in logs if nic.name in log.gdr_refused]
    found = capability(view.machine, gpu, nic, proof=next(iter(proofs), None), refusal=next(iter(refusals), None), distances=view.distances)
    staged = next((log.name for log in logs if _named(log.staged_gpus, view, gpu)), None)
    unused = not_used(found, f"{staged} shows its connections staged through the host") if staged else found
    return unused if unused.state != found.state else found


def _named(gpus: Sequence[tuple[str, str]], view: MachineView, gpu: Gpu) -> bool:
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
    far_away = [gpu for gpu in _with_nearest(view, (_FAR,)) if not may_use_c2c(view.machine.system, gpu)]
    across_sockets: dict[str, bool | None] = {}  # whether all nearest NICs of a GPU are at another socket; None if that is unknown
    for gpu in far_away:
        nearest = view.nearest(gpu)
        answers = {view.distances.are_across_sockets(gpu.key, nic.key) for nic in (nearest[1] if nearest else ())}
        across = None if None in answers else True
        across_sockets[gpu.key] = False if False in answers else across
    remote = [gpu for gpu in far_away if across_sockets[gpu.key] is not False]
    if not remote:
        return
    between = "sockets" if all(across_sockets[gpu.key] for gpu in remote) else "NUMA nodes"
    near = _with_nearest(view, CLOSE)
    joined = all(any((view.distances.path(gpu.key, other.key) or "").startswith("NV") for other in near) for gpu in remote)
    nodes = sorted({numa for nic in view.usable if (numa := view.distances.numa_of(nic.key)) is not None})
    where = f"; all usable NICs are at NUMA node {nodes[0]}" if len(nodes) == 1 else ""
    what = f"{plural(len(remote), 'GPU')} reach a NIC only across {between}: {_names(remote)}"
    evidence = f"the nearest RDMA device of {gpu_name(remote[0])} is {_FAR} away{where}"
    remedy = "place a NIC at each socket; with NVLink let NCCL send through a GPU near the NIC (NCCL_PXN_DISABLE=0, the default)"
    yield view.finding("CB2501", "note" if joined else "warning", what, evidence, remedy)


def beyond_switch(view: MachineView) -> Iterator[Finding]:
    """CB2502 and CB2504: GPUs without a NIC below their PCIe switch while others have one; or no GPU has one, so that NCCL stages all data.

    Not GPUs that may reach the NIC over C2C (Grace).
    """
    without, near = [gpu for gpu in _with_nearest(view, _HOST) if not may_use_c2c(view.machine.system, gpu)], _with_nearest(view, CLOSE)
    if without and near:
        what = f"{plural(len(without), 'GPU')} without a NIC below the same PCIe switch: {_names(without)}"
        evidence = f"{gpu_name(without[0])}: nearest NIC {_path(view, without[0])} away; {gpu_name(near[0])}: {_path(view, near[0])}"
        remedy = "nothing, if NVLink joins them: NCCL sends through a GPU near the NIC (PXN); check that NCCL_PXN_DISABLE is not 1"
        yield view.finding("CB2502", "note", what, evidence, remedy)
    elif without:
        path = _path(view, without[0])
        what = "NCCL does not use GPUDirect RDMA here by default: GPUs and NICs meet only at a host bridge"
        evidence = f"the nearest RDMA device of {gpu_name(without[0])} is {path} away"
        remedy = f"measure with NCCL_NET_GDR_LEVEL={path}: on some processors it is faster, on others slower"
        yield view.finding("CB2504", "note", what, evidence, remedy)


def not_capable(view: MachineView) -> Iterator[Finding]:
    """CB2503: GPUs and NICs that are close enough for GPUDirect RDMA but lack another requirement."""
    why: dict[str, list[str]] = {}
    for gpu in view.machine.gpus:
        best = view.nearest(gpu)
        if best is None or best[0] not in CLOSE:
            continue
        answers = [capability(view.machine, gpu, nic, distances=view.distances) for nic in best[1]]
        if all(answer.state == "not capable" for answer in answers):
            why.setdefault(answers[0].why, []).append(gpu_name(gpu))
    amd = any(gpu.vendor == "amd" for gpu in view.machine.gpus)
    for reason, names in why.items():
        what = f"NICs cannot reach the memory of {listed(names)}: bytes are staged through the host"
        yield view.finding("CB2503", "severe", what, reason, _AMD_REMEDY if amd else _NVIDIA_REMEDY)


def _with_nearest(view: MachineView, paths: tuple[str, ...]) -> list[Gpu]:
    return [gpu for gpu in view.machine.gpus if _path(view, gpu) in paths]


def _path(view: MachineView, gpu: Gpu) -> str | None:
    best = view.nearest(gpu)
    return best[0] if best else None


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
_LOOK = {
    "nvidia": "check `nvidia-smi nvlink -s` and -e, the kernel log (Xid 74) and the fabric manager's log; reset the GPU, then replace it",
    "amd": "check `rocm-smi --showxgmierr`, `amd-smi xgmi` and the kernel log (amdgpu, xgmi); reset the GPUs, then replace the module",
    "intel": "check `xpu-smi topology -m` and the kernel log (xe or i915, iaf); reset the GPU, then replace it",
    None: "check the driver's tool and the kernel log for errors of the links; reset the GPU, then replace it",
}
_FEWEST_MACHINES = 3  # with fewer machines the exception cannot be named
_FEWEST_IN_MESH = 4  # GPUs; with three, two links may be intended


class _Place(msgspec.Struct, frozen=True):
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
    models: dict[str, list[_Place]] = {}
    for number, view in enumerate(views):
        for position, gpu in enumerate(view.machine.gpus):
            place = _Place(view, gpu, view.machine.links_of(gpu.key), position)
            models.setdefault(gpu.model or f"unknown, of machine {number}", []).append(place)
    for places in models.values():
        if all(place.links is None for place in places):
            yield from _more_off(places)
            continue
        dark = [place for place in places if _is_dark(place)]
        yield from _all_lost(dark, places)
        # a machine without any link counts as one with a switch if other machines of the model have one
        on_switch = any(place.view.machine.switched for place in places)
        meshes = {view for view in views if not view.machine.switched and any(link.count for link in view.machine.gpu_links)}
        switched = [place for place in places if on_switch and place.view not in meshes and place not in dark]
        yield from _behind_switches(switched)
        meshed = [place for place in places if place not in switched and place not in dark]
        degraded = [place for place in meshed if _is_degraded(place)]
        yield from _some_lost(degraded, meshed)
        yield from _in_meshes([place for place in meshed if place not in degraded])


def _is_dark(place: _Place) -> bool:
    """Return whether no link of a module is up. A pair of V100 or P100 need not be joined: there only a list of their links counts."""
    machine, gpu = place.view.machine, place.gpu
    if place.links != 0 or gpu.vendor != "nvidia" or not has_built_in_links(gpu, len(machine.gpus)) or machine.switched:
        return False
    model = gpu.model or ""
    if any(name in model for name in _IN_MESHES):
        return bool(gpu.links_off) or not machine.paths
    return bool(model) and _ALONE not in model


def _all_lost(dark: Sequence[_Place], places: Sequence[_Place]) -> Iterator[Finding]:
    """Yield a finding for each machine with modules without a link. A warning for the only GPU of what may be a virtual machine."""
    numbers = [place.links for place in places if place.links is not None]
    for view in dict.fromkeys(place.view for place in dark):
        gpus = [place.gpu for place in dark if place.view is view]
        alone = len(view.machine.gpus) == 1 and not gpus[0].index
        remedy = _LOOK[gpus[0].vendor]
        if alone:
            remedy = f"nothing, if it is the only GPU of a virtual machine, which has no use for links; else {remedy}"
        what = f"all links to other GPUs of {_names(gpus)} are inactive"
        evidence = f"{gpus[0].model}, a module with built-in links: 0 up{_others(numbers)}"
        yield view.finding("CB2301", "warning" if alone else "severe", what, evidence, remedy)


def _is_degraded(place: _Place) -> bool:
    """Return whether a module that has all its links by design lists some as inactive."""
    row = gpu_model(place.gpu.model)
    if not row or not place.gpu.links_off or not place.links or any(name in row.model for name in _IN_MESHES):
        return False
    return has_built_in_links(place.gpu, 1) and place.links < row.links


def _some_lost(degraded: Sequence[_Place], places: Sequence[_Place]) -> Iterator[Finding]:
    """Yield a finding for each module with inactive links. A warning if several modules have lost the same number."""
    counts = [place.links for place in places if place.links is not None]
    uniform = len(counts) > 1 and len(set(counts)) == 1
    for place in degraded:
        gpu = place.gpu
        row = gpu_model(gpu.model)
        most = row.links if row else 0
        what = f"{gpu_name(gpu)} has {place.links} of {most} links to other GPUs"
        evidence = f"{place.links} up, {gpu.links_off} off{_others(counts)}"
        yield place.view.finding("CB2301", "warning" if uniform else "severe", what, evidence, _LOOK[gpu.vendor])


def _behind_switches(places: Sequence[_Place]) -> Iterator[Finding]:
    numbers = [place.links for place in places if place.links is not None]
    common = max(numbers, default=0)
    evidence = _have(numbers.count(common), len(places), common)
    uncounted: dict[MachineView, list[Gpu]] = {}  # that a source leaves out while it counts the links of other GPUs on the switch
    for place in places:
        if place.links is not None and place.links < common:
            yield _lost(place, common, evidence, "severe" if place.view.machine.switched else "warning")
        elif common and place.view.machine.switched and place.links is None:
            uncounted.setdefault(place.view, []).append(place.gpu)
    for view, gpus in uncounted.items():
        remedy = f"the GPU lost all its links, or the source is of a part of the machine: {_LOOK[gpus[0].vendor]}"
        yield view.finding("CB2302", "warning", f"no links to other GPUs were counted of {_names(gpus)}", evidence, remedy)


def _in_meshes(places: Sequence[_Place]) -> Iterator[Finding]:
    """Yield a finding per pair of GPUs that lost links; without such pairs, per GPU with fewer links than at its position elsewhere."""
    views = list(dict.fromkeys(place.view for place in places))
    damaged: set[MachineView] = set()
    for view in views:
        found = [*_one_sided(view), *_odd_pairs(view)]
        damaged.update([view] if found else [])
        yield from found
    for place in places:
        if place.links is None or place.view in damaged:
            continue
        counts = [each.links for each in places if each.alike == place.alike and each.links is not None]
        if len({each.view for each in places}) > 1 and len(counts) > 1:
            yield from _against_machines(place, counts)
        else:
            yield from _against_siblings(place, [each.links for each in places if each.view is place.view and each.links is not None])


def _one_sided(view: MachineView) -> Iterator[Finding]:
    """Yield findings for pairs of GPUs of which one end counts fewer links than the other."""
    ways = _ways(view.machine)
    ends = {a for a, _ in ways}
    for (a, b), count in ways.items():
        back = ways.get((b, a), 0)
        if b in ends and back < count:
            names = view.gpu_names
            evidence = f"{names[a]} counts {plural(count, 'link')} to {names[b]}, which counts {back} back"
            what = f"{plural(count - back, 'link')} between {names[a]} and {names[b]} down at one end"
            yield view.finding("CB2301", "severe", what, evidence, _LOOK[_gpu(view, b).vendor])


def _odd_pairs(view: MachineView) -> Iterator[Finding]:
    """Yield findings for pairs with fewer links than most pairs. Where all GPUs lack a pair, the design has none."""
    ways = _ways(view.machine)
    keys = [gpu.key for gpu in view.machine.gpus]
    if {end for pair in ways for end in pair} != set(keys) or len(keys) < _FEWEST_IN_MESH:
        return
    counts = {pair: min(ways.get(pair, 0), ways.get(pair[::-1], 0)) for pair in combinations(keys, 2)}
    common, many = Counter(counts.values()).most_common(1)[0]
    fewer = {pair: count for pair, count in counts.items() if count < common}
    touched = {key for pair in fewer for key in pair}
    minority = len(fewer) == 1 or 2 * len(touched) < len(keys)
    if not minority or 2 * many <= len(counts) or len(fewer) + many != len(counts):
        return
    names = view.gpu_names
    for (a, b), count in fewer.items():
        if ways.get((a, b), 0) == ways.get((b, a), 0):  # otherwise one end is down, which is another finding
            what = f"{names[a]} and {names[b]} have {count} of {common} links to each other"
            yield view.finding("CB2301", "severe", what, f"{many} of {len(counts)} pairs have {common}", _LOOK[_gpu(view, a).vendor])


def _against_machines(place: _Place, counts: Sequence[int]) -> Iterator[Finding]:
    """Yield a finding if most machines have more links at this position. `counts`: those of all machines. Two machines cannot decide."""
    links = place.links or 0
    common, many = Counter(counts).most_common(1)[0]
    if len(counts) < _FEWEST_MACHINES:
        common, many = max(counts), counts.count(max(counts))
    fewer = sum(number < common for number in counts)
    if links < common and (2 * fewer < len(counts) or len(counts) < _FEWEST_MACHINES):
        evidence = f"at the same position on {many} of {len(counts)} machines: {plural(common, 'link')}"
        yield _lost(place, common, evidence, "severe" if len(counts) >= _FEWEST_MACHINES else "warning")


def _against_siblings(place: _Place, numbers: Sequence[int]) -> Iterator[Finding]:
    """Yield a finding if most GPUs of the machine have more links. A warning where far ends are known: the design may explain it."""
    links = place.links or 0
    common, many = Counter(numbers).most_common(1)[0]
    if links < common and 2 * many > len(numbers):
        counted = all(link.b is None for link in place.view.machine.gpu_links)
        yield _lost(place, common, _have(many, len(numbers), common), "severe" if counted and links else "warning")


def _ways(machine: Machine) -> dict[tuple[str, str], int]:
    """Return the number of links by pair of GPUs, from first to second; {} for a machine with links to other ends."""
    keys = {gpu.key for gpu in machine.gpus}
    if any(link.count and not keys >= {link.a, link.b} for link in machine.gpu_links):
        return {}
    found: Counter[tuple[str, str]] = Counter()
    for link in machine.gpu_links:
        if link.b in keys:
            found[link.a, str(link.b)] += link.count
    return dict(found)


def _gpu(view: MachineView, key: str) -> Gpu:
    return next(gpu for gpu in view.machine.gpus if gpu.key == key)


def _have(many: int, of: int, common: int) -> str:
    return f"{many} of {plural(of, 'GPU')} compared {'has' if many == 1 else 'have'} {common}"


def _others(counts: Sequence[int]) -> str:
    """Return how many GPUs have the most links, as the rest of a sentence; "" for one GPU alone."""
    most = max(counts)
    return f"; {_have(counts.count(most), len(counts), most)}" if len(counts) > 1 else ""


def _lost(place: _Place, common: int, others: str, severity: Severity) -> Finding:
    """Return the finding for lost links. A GPU without any link may be a card without a bridge."""
    gpu, look = place.gpu, _LOOK[place.gpu.vendor]
    bare = not place.links and not place.view.machine.switched
    off = f", {gpu.links_off} off" if gpu.links_off else ""
    remedy = f"nothing, if it is a card without a bridge (or join it to another); else {look}" if bare else look
    if severity == "warning" and not bare:
        remedy = f"compare with a node that is known to be healthy (`--since`): designs of meshes differ; if links are lost, {look}"
    what = f"{gpu_name(gpu)} has {place.links} of {common} links to other GPUs"
    return place.view.finding("CB2301", severity, what, f"{place.links} up{off}; {others}", remedy)


def _more_off(places: Sequence[_Place]) -> Iterator[Finding]:
    """Yield findings for a minority with more links off than the others, from sources that do not count links that are up."""
    off = [(place, place.gpu.links_off) for place in places if place.gpu.links_off is not None]
    if not off:
        return
    common, many = Counter(number for _, number in off).most_common(1)[0]
    for place, number in off:
        if number > common and 2 * many > len(off):
            others = f"{number} off; {plural(many, 'GPU')} of the same model {'has' if many == 1 else 'have'} {common}"
            what = f"{gpu_name(place.gpu)} has {number} links to other GPUs off"
            yield place.view.finding("CB2301", "severe", what, others, _LOOK[place.gpu.vendor])


def no_peer_access(view: MachineView) -> Iterator[Finding]:
    """CB2303: pairs of GPUs without peer access according to the driver; a note where the GPU model does not support it."""
    found = {tuple(sorted(pair)): word for pair, word in view.machine.peer_access.items() if word in _NO_PEER and pair[0] != pair[1]}
    if found:
        names = view.gpu_names
        design, word, (a, b) = min((word == _BY_DESIGN, word, pair) for pair, word in found.items())
        gpus = len({gpu for pair in found for gpu in pair})
        what = f"{plural(len(found), 'pair')} of {gpus} GPUs without peer-to-peer: NCCL stages their bytes through the host's memory"
        pair = f"{names.get(a, a)} and {names.get(b, b)}: {word} ({_NO_PEER[word]})"
        evidence = f"peer matrix of the driver (`nvidia-smi topo -p2p r`): {pair}"
        remedy = "look at ACS (CB2105), the IOMMU (CB2106) and the firmware's settings of the PCIe slots"
        if design:
            remedy = "nothing: the driver withholds it from this kind of card; expect the speed of the host's memory"
        yield view.finding("CB2303", "note" if design else "warning", what, evidence, remedy)


def memory_nodes(view: MachineView) -> Iterator[Finding]:
    """CB2304: NUMA nodes without processors on machines with GPUs (POWER9, Grace): their memory may be GPU memory."""
    bare = [str(node.id) for node in view.machine.numa_nodes if node.cpus == ""]
    if bare and view.machine.gpus and len(bare) < len(view.machine.numa_nodes):
        what = f"NUMA node{'' if len(bare) == 1 else 's'} {listed(bare)} without processors: perhaps the memory of GPUs"
        remedy = "bind ranks and buffers to the others; /proc/driver/nvidia/gpus/*/numa_status names the GPUs'"
        yield view.finding("CB2304", "note", what, f"cpulist of node {bare[0]} is empty", remedy)


RULES = (no_peer_access, memory_nodes, far, beyond_switch, not_capable)
JOB_RULES = (lost_links,)
