"""CB23xx, GPUs: lost links to other GPUs, peer access, memory that shows as NUMA nodes.

Behind switches all links of a model lead the same way, so the largest count is what each GPU has. In a mesh, designs give GPUs different
counts: there a link is lost where its two ends differ, where one pair differs from all others, or where most machines have more at the
same position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from collbench.machine.doctor.finding import Finding, Severity, listed, plural
from collbench.machine.doctor.view import View, gpu_name
from collbench.machine.model import Gpu, Machine

_NO_PEER = {
    "NS": "not supported",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "disabled by a registry key",
}
_BY_DESIGN = "GNS"
_LOOK: Mapping[str | None, str] = {
    "nvidia": "check `nvidia-smi nvlink -s` and -e, the kernel log (Xid 74) and the fabric manager's log; reset the GPU, then replace it",
    "amd": "check `rocm-smi --showxgmierr`, `amd-smi xgmi` and the kernel log (amdgpu, xgmi); reset the GPUs, then replace the module",
    "intel": "check `xpu-smi topology -m` and the kernel log (xe or i915, iaf); reset the GPU, then replace it",
}
_LOOK_ANY = "check the driver's tool and the kernel log for errors of the links; reset the GPU, then replace it"
_FEWEST_MACHINES = 3  # of which the odd one can be named
_FEWEST_IN_MESH = 4  # GPUs; of three, two links may be the design


@dataclass(frozen=True, slots=True)
class _Place:
    """A GPU of the job, how many links of it are up (None: not counted), and its place among the GPUs of its machine."""

    view: View
    gpu: Gpu
    links: int | None
    position: int

    @property
    def alike(self) -> tuple[int, int]:
        """What GPUs of other machines must share to have the same links by design."""
        return len(self.view.machine.gpus), self.position


def lost_links(views: Sequence[View]) -> Iterator[Finding]:
    """CB2301 and CB2302: GPUs with fewer NVLink or xGMI links up than their siblings of the same model in the job.

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
        switched = [place for place in places if _on_switch(place, places)]
        yield from _behind_switches(switched)
        yield from _in_meshes([place for place in places if place not in switched])


def _on_switch(place: _Place, places: Sequence[_Place]) -> bool:
    """Whether its machine has a switch, or no link at all while other machines of the model have a switch."""
    if place.view.machine.switched:
        return True
    bare = not any(link.count for link in place.view.machine.gpu_links)
    return bare and any(each.view.machine.switched for each in places)


def _behind_switches(places: Sequence[_Place]) -> Iterator[Finding]:
    numbers = [place.links for place in places if place.links is not None]
    usual = max(numbers, default=0)
    evidence = _have(numbers.count(usual), len(places), usual)
    for place in places:
        if place.links is not None and place.links < usual:
            yield _lost(place, usual, evidence, "severe" if place.view.machine.switched else "warning")
    yield from _uncounted(places, usual, evidence)


def _in_meshes(places: Sequence[_Place]) -> Iterator[Finding]:
    """A finding per pair of GPUs that lost links; where pairs show none, per GPU with fewer links than at its position elsewhere."""
    views = list(dict.fromkeys(place.view for place in places))
    damaged: set[View] = set()
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


def _one_sided(view: View) -> Iterator[Finding]:
    """Pairs of which one end counts fewer links than the other."""
    ways = _ways(view.machine)
    ends = {a for a, _ in ways}
    for (a, b), count in ways.items():
        back = ways.get((b, a), 0)
        if b in ends and back < count:
            names = _names(view.machine)
            evidence = f"{names[a]} counts {plural(count, 'link')} to {names[b]}, which counts {back} back"
            what = f"{plural(count - back, 'link')} between {names[a]} and {names[b]} down at one end"
            yield view.finding("CB2301", "severe", what, evidence, _look(view, b))


def _odd_pairs(view: View) -> Iterator[Finding]:
    """Pairs with fewer links than most pairs: one alone, or of a minority of GPUs. Where all GPUs lack a pair, the design has none."""
    ways = _ways(view.machine)
    keys = [gpu.key for gpu in view.machine.gpus]
    if {end for pair in ways for end in pair} != set(keys) or len(keys) < _FEWEST_IN_MESH:
        return
    counts = {pair: min(ways.get(pair, 0), ways.get(pair[::-1], 0)) for pair in combinations(keys, 2)}
    usual, many = Counter(counts.values()).most_common(1)[0]
    fewer = {pair: count for pair, count in counts.items() if count < usual}
    touched = {key for pair in fewer for key in pair}
    minority = len(fewer) == 1 or 2 * len(touched) < len(keys)
    if not minority or 2 * many <= len(counts) or len(fewer) + many != len(counts):
        return
    names = _names(view.machine)
    for (a, b), count in fewer.items():
        if ways.get((a, b), 0) == ways.get((b, a), 0):  # else one end is down: said of that
            what = f"{names[a]} and {names[b]} have {count} of {usual} links to each other"
            yield view.finding("CB2301", "severe", what, f"{many} of {len(counts)} pairs have {usual}", _look(view, a))


def _against_machines(place: _Place, counts: Sequence[int]) -> Iterator[Finding]:
    """The same position on other machines; `counts` are those there and here. Of two machines that differ either may be right."""
    links = place.links or 0
    usual, many = Counter(counts).most_common(1)[0]
    if len(counts) < _FEWEST_MACHINES:
        usual, many = max(counts), counts.count(max(counts))
    fewer = sum(number < usual for number in counts)
    if links < usual and (2 * fewer < len(counts) or len(counts) < _FEWEST_MACHINES):
        evidence = f"at the same position on {many} of {len(counts)} machines: {plural(usual, 'link')}"
        yield _lost(place, usual, evidence, "severe" if len(counts) >= _FEWEST_MACHINES else "warning")


def _against_siblings(place: _Place, numbers: Sequence[int]) -> Iterator[Finding]:
    """The other GPUs of the machine, most of which have the same count. A warning where far ends are known: the design may explain it."""
    links = place.links or 0
    usual, many = Counter(numbers).most_common(1)[0]
    if links < usual and 2 * many > len(numbers):
        counted = all(link.b is None for link in place.view.machine.gpu_links)
        yield _lost(place, usual, _have(many, len(numbers), usual), "severe" if counted and links else "warning")


def _ways(machine: Machine) -> dict[tuple[str, str], int]:
    """Links by pair of GPUs, from the first to the second; none of a machine with links to anything else, or to unknown ends."""
    keys = {gpu.key for gpu in machine.gpus}
    if any(link.count and not keys >= {link.a, link.b} for link in machine.gpu_links):
        return {}
    found: Counter[tuple[str, str]] = Counter()
    for link in machine.gpu_links:
        if link.b in keys:
            found[link.a, str(link.b)] += link.count
    return dict(found)


def _names(machine: Machine) -> dict[str, str]:
    return {gpu.key: gpu_name(gpu) for gpu in machine.gpus}


def _look(view: View, key: str) -> str:
    vendor = next((gpu.vendor for gpu in view.machine.gpus if gpu.key == key), None)
    return _LOOK.get(vendor, _LOOK_ANY)


def _have(many: int, of: int, usual: int) -> str:
    return f"{many} of {plural(of, 'GPU')} compared {'has' if many == 1 else 'have'} {usual}"


def _lost(place: _Place, usual: int, others: str, severity: Severity) -> Finding:
    """A GPU without any link may be a card without a bridge."""
    gpu, look = place.gpu, _LOOK.get(place.gpu.vendor, _LOOK_ANY)
    bare = not place.links and not place.view.machine.switched
    off = f", {gpu.links_off} off" if gpu.links_off else ""
    remedy = f"nothing, if it is a card without a bridge (or join it to another); else {look}" if bare else look
    if severity == "warning" and not bare:
        remedy = f"compare with a node that is known to be healthy (`--since`): designs of meshes differ; if links are lost, {look}"
    what = f"{gpu_name(gpu)} has {place.links} of {usual} links to other GPUs"
    return place.view.finding("CB2301", severity, what, f"{place.links} up{off}; {others}", remedy)


def _uncounted(places: Sequence[_Place], usual: int, others: str) -> Iterator[Finding]:
    """A source that counts the links of a switched machine's GPUs leaves out the one that has none."""
    uncounted: dict[View, list[Gpu]] = {}
    for place in places:
        if usual and place.view.machine.switched and place.links is None:
            uncounted.setdefault(place.view, []).append(place.gpu)
    for view, bare in uncounted.items():
        names = listed([gpu_name(gpu) for gpu in bare])
        yield view.finding(
            "CB2302", "warning", f"no links to other GPUs were counted of {names}", others,
            f"the GPU lost all its links, or the source is of a part of the machine: {_look(view, bare[0].key)}",
        )  # fmt: skip


def _more_off(places: Sequence[_Place]) -> Iterator[Finding]:
    """A minority with more links off than the others, from sources that do not count links that are up."""
    off = [(place, place.gpu.links_off) for place in places if place.gpu.links_off is not None]
    if not off:
        return
    usual, many = Counter(number for _, number in off).most_common(1)[0]
    for place, number in off:
        if number > usual and 2 * many > len(off):
            others = f"{number} off; {plural(many, 'GPU')} of the same model {'has' if many == 1 else 'have'} {usual}"
            what = f"{gpu_name(place.gpu)} has {number} links to other GPUs off"
            yield place.view.finding("CB2301", "severe", what, others, _look(place.view, place.gpu.key))


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
    """CB2304: NUMA nodes without processors next to GPUs (POWER9, Grace): their memory may be the GPUs'."""
    bare = [str(node.id) for node in view.machine.numa_nodes if node.cpus == ""]
    if bare and view.machine.gpus and len(bare) < len(view.machine.numa_nodes):
        yield view.finding(
            "CB2304", "note", f"NUMA node{'' if len(bare) == 1 else 's'} {listed(bare)} without processors: perhaps the memory of GPUs",
            f"cpulist of node {bare[0]} is empty",
            "bind ranks and buffers to the others; /proc/driver/nvidia/gpus/*/numa_status names the GPUs'",
        )  # fmt: skip


RULES = (no_peer_access, memory_nodes)
JOB_RULES = (lost_links,)
