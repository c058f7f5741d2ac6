"""CB23xx, GPUs: links that one GPU lost against its siblings in the job, peer access, memory that shows as NUMA nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from collbench.doctor.finding import Finding, listed, plural
from collbench.doctor.view import View, gpu_name
from collbench.topology.model import Gpu

_NO_PEER = {
    "NS": "not supported",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "disabled by a registry key",
}
_BY_DESIGN = "GNS"
_Place = tuple[View, Gpu]


def lost_links(views: Sequence[View]) -> Iterator[Finding]:
    """CB2301 and CB2302: GPUs with fewer NVLink or xGMI links up than most of the same model in the job.

    Links that are off on all of them are normal: a PCIe card of H100 has 12 of its 18.
    """
    models: dict[str, list[_Place]] = {}
    for place, view in enumerate(views):
        for gpu in view.machine.gpus:
            models.setdefault(gpu.model or f"unknown, of machine {place}", []).append((view, gpu))
    for places in models.values():
        yield from _fewer(places)


def _fewer(places: Sequence[_Place]) -> Iterator[Finding]:
    counted = [(view, gpu, links) for view, gpu in places if (links := view.machine.links_of(gpu.key)) is not None]
    if not counted:
        yield from _more_off(places)
        return
    numbers = [links for _, _, links in counted]
    # On a switch all links of a model lead the same way, so the most is what it can; in a mesh boards differ.
    usual = max(numbers) if all(view.machine.switched for view, _, _ in counted) else _usual(numbers)
    many = numbers.count(usual)
    evidence_of_others = f"{plural(many, 'GPU')} of the {len(places)} in the job {'has' if many == 1 else 'have'} {usual}"
    for view, gpu, links in counted:
        if links < usual:
            yield _lost(view, gpu, links, usual, evidence_of_others)
    yield from _uncounted(places, usual, evidence_of_others)


def _lost(view: View, gpu: Gpu, links: int, usual: int, others: str) -> Finding:
    """A GPU without any link may be a card without a bridge."""
    bare = not links and not view.machine.switched
    off = f", {gpu.links_off} off" if gpu.links_off else ""
    look = "look at `nvidia-smi nvlink -s` and -e, the kernel's log (Xid 74) and the fabric manager's; reset the GPU, then have it changed"
    remedy = f"nothing, if it is a card without a bridge (or join it to another); else {look}" if bare else look
    what = f"{gpu_name(gpu)} has {links} of {usual} links to other GPUs"
    return view.finding("CB2301", "warning" if bare else "severe", what, f"{links} up{off}; {others}", remedy)


def _uncounted(places: Sequence[_Place], usual: int, others: str) -> Iterator[Finding]:
    """A source that counts the links of a switched machine's GPUs leaves out the one that has none."""
    uncounted: dict[View, list[Gpu]] = {}
    for view, gpu in places:
        if usual and view.machine.switched and view.machine.links_of(gpu.key) is None:
            uncounted.setdefault(view, []).append(gpu)
    for view, bare in uncounted.items():
        names = listed([gpu_name(gpu) for gpu in bare])
        yield view.finding(
            "CB2302", "warning", f"no links to other GPUs were counted of {names}", others,
            "look at `nvidia-smi nvlink -s -i INDEX`: either the GPU lost them all, or the source is of a part of the machine",
        )  # fmt: skip


def _more_off(places: Sequence[_Place]) -> Iterator[Finding]:
    off = [(view, gpu, gpu.links_off) for view, gpu in places if gpu.links_off is not None]
    if not off:
        return
    usual = -_usual([-number for _, _, number in off])
    many = sum(number == usual for _, _, number in off)
    for view, gpu, number in off:
        if number > usual:
            others = f"{number} off; {plural(many, 'GPU')} of the same model {'has' if many == 1 else 'have'} {usual}"
            yield view.finding(
                "CB2301", "severe", f"{gpu_name(gpu)} has {number} links to other GPUs off", others,
                "look at `nvidia-smi nvlink -s` and the kernel's log (Xid 74); reset the GPU, then have it changed",
            )  # fmt: skip


def _usual(numbers: Sequence[int]) -> int:
    """The most common number; of two the larger one."""
    return max(Counter(numbers).items(), key=lambda pair: (pair[1], pair[0]))[0]


def no_peer_access(view: View) -> Iterator[Finding]:
    """CB2303: pairs of GPUs of which the driver says that they cannot reach one another; a note where the GPU is made so."""
    found = {tuple(sorted(pair)): word for pair, word in view.machine.peer_access.items() if word in _NO_PEER and pair[0] != pair[1]}
    if found:
        names = {gpu.key: gpu_name(gpu) for gpu in view.machine.gpus}
        word, (a, b) = min((word == _BY_DESIGN, word, pair) for pair, word in found.items())[1:]
        design = word == _BY_DESIGN
        all_pairs = len({gpu for pair in found for gpu in pair})
        yield view.finding(
            "CB2303", "note" if design else "warning",
            f"{plural(len(found), 'pair')} of {all_pairs} GPUs without peer-to-peer: NCCL stages their bytes through the host's memory",
            f"peer matrix of the driver (`nvidia-smi topo -p2p r`): {names.get(a, a)} and {names.get(b, b)}: {word} ({_NO_PEER[word]})",
            "nothing: the driver withholds it from this kind of card; expect the speed of the host's memory" if design
            else "look at ACS (CB2105), the IOMMU (CB2106) and the firmware's settings of the PCIe slots",
        )  # fmt: skip


def memory_nodes(view: View) -> Iterator[Finding]:
    """CB2304: NUMA nodes without processors beside GPUs (POWER9, Grace): their memory may be the GPUs'."""
    bare = [str(node.id) for node in view.machine.numa_nodes if node.cpus == ""]
    if bare and view.machine.gpus and len(bare) < len(view.machine.numa_nodes):
        yield view.finding(
            "CB2304", "note", f"NUMA node{'' if len(bare) == 1 else 's'} {listed(bare)} without processors: perhaps the memory of GPUs",
            f"cpulist of node {bare[0]} is empty",
            "bind ranks and buffers to the others; /proc/driver/nvidia/gpus/*/numa_status names the GPUs'",
        )  # fmt: skip


RULES = (no_peer_access, memory_nodes)
JOB_RULES = (lost_links,)
