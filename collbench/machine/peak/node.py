"""What a job's ceilings need of one node: what a GPU can send to others, what the node can send, and the cuts inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from collbench.errors import UsageError
from collbench.machine.model import Gpu, Machine
from collbench.machine.peak.cut import Side
from collbench.machine.peak.gpu_links import Wires, uncounted, wires_of
from collbench.machine.peak.inside import Partition, box_cuts, mesh_cuts
from collbench.machine.peak.link import NCCL, RCCL, Link, unknown
from collbench.machine.peak.nics import Egress, NicRate, egress_of
from collbench.machine.peak.pcie import PcieTree, narrowest
from collbench.machine.peak.rates import gpu_model

NOT_GIVEN = unknown("the GPUs' PCIe links are not given")
_NVLS_FROM = 90  # sm_90: the third NVSwitch is the first that adds


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a job; rates in bytes per second of one direction.

    gpus            ranks on it, one per GPU
    injection       what the slowest GPU can send to others of the node: its NVLinks, or its PCIe link where these do not reach all.
                    With one GPU: its PCIe link
    apart           injection and the way to the NICs are different links (NVLink inside, PCIe to the NICs)
    pcie            the slowest GPU's PCIe link
    pair            the fastest direct way from one GPU to another; `neighbours` the slowest between GPUs i and i+1
    nics            each slot with its NIC; `egress` all of them, no faster than the PCIe links of the job's GPUs
    nvls            its NVSwitches add (NVLink SHARP)
    cuts            partitions of its GPUs, single GPUs first
    host, doubts    its name, if known, and what is not to be relied on
    machines        the nodes of a job that are joined to this one by a multi-node NVLink domain, itself counted
    clique          the id of that domain, where a source has it
    """

    gpus: int
    injection: Link
    egress: Link
    pcie: Link = NOT_GIVEN
    pair: Link = NOT_GIVEN
    neighbours: Link = NOT_GIVEN
    apart: bool = True
    nics: tuple[NicRate, ...] = ()
    nvls: bool = False
    cuts: tuple[Partition, ...] = ()
    host: str | None = None
    doubts: tuple[str, ...] = ()
    machines: int = 1
    clique: str | None = None

    @property
    def singles(self) -> Partition:
        """Each GPU for itself."""
        return self.cuts[0] if self.cuts else (Side(1, self.injection.known, self.injection.name, self.gpus),)

    def as_nccl_takes_it(self) -> Node:
        """The same node with NCCL's constants for its links; its cuts are those of a ring alone."""
        changed = {name: getattr(self, name).as_nccl_takes_it() for name in ("injection", "egress", "pcie", "pair", "neighbours")}
        return replace(self, **changed, cuts=(), nvls=False)


def node_of(
    machine: Machine,
    gpus: int | Sequence[str] | None = None,
    *,
    pcie: Link | None = None,
    nics: Link | None = None,
    domain_known: bool = False,
) -> Node:
    """The node that a machine is to a job with this many of its GPUs (the first ones), these (keys), or all.

    pcie: the link of each GPU, and nics: all NICs together, if they are not to be taken from the machine. domain_known: which nodes an
    NVLink domain joins is given elsewhere, so that NICs are the way between the others. A machine without GPUs
    takes `gpus` ranks of which nothing is known. Raises UsageError when the sources tell of fewer GPUs than asked for.
    """
    chosen = _chosen(machine, gpus)
    tree = PcieTree(machine)
    clique = _clique(chosen)
    beyond = None if domain_known or clique else _beyond(machine, chosen)
    egress = Egress(nics) if nics else beyond or egress_of(machine, tree)
    if not chosen:
        count = gpus if isinstance(gpus, int) else 1
        none = unknown("none of the sources tells of a GPU; give --nvlink or --pcie")
        return Node(count, none, egress.link, none, none, none, nics=egress.nics, host=machine.hostname, doubts=egress.doubts)
    own = {gpu.key: pcie or tree.of_gpu(gpu) for gpu in chosen}
    keys = list(own)
    wires, silent = wires_of(machine, keys), None if pcie else uncounted(machine, keys)
    inside = _silent(silent, own) if silent and len(keys) > 1 else _inside(chosen, wires, tree, own, egress.nics)
    return replace(
        inside,
        injection=replace(inside.injection, library=_library(chosen)),
        egress=capped(egress.link, list(own.values())),
        nics=egress.nics,
        host=machine.hostname,
        clique=clique,
        doubts=tuple(dict.fromkeys([*inside.doubts, *wires.doubts, *tree.doubts, *egress.doubts, *machine.doubts])),
    )


def neighbours_of(machine: Machine, keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> Link:
    """The slowest way along these edges between GPUs of a job; unknown where there is none, or no source counts the links.

    machine: as for `node_of`, and keys: its GPUs in the job. Raises UsageError for a GPU that the sources do not tell of.
    """
    if not edges:
        return unknown("no edge of the ring stays inside")
    chosen, silent = _chosen(machine, keys), uncounted(machine, keys)
    if silent:
        return unknown(silent)
    tree = PcieTree(machine)
    own = {gpu.key: tree.of_gpu(gpu) for gpu in chosen}
    wires = wires_of(machine, keys)
    return narrowest([_way(wires, a, b, own) for a, b in edges])


def _chosen(machine: Machine, gpus: int | Sequence[str] | None) -> list[Gpu]:
    if gpus is None or (isinstance(gpus, int) and not machine.gpus):
        return list(machine.gpus)
    if isinstance(gpus, int):
        if not 0 < gpus <= len(machine.gpus):
            told = ", ".join(machine.sources) or "the sources"
            raise UsageError(f"{told} tells of {len(machine.gpus)} GPUs, and {gpus} per node are asked for: ask for fewer, or add a source")
        return list(machine.gpus[:gpus])
    by_key = {gpu.key: gpu for gpu in machine.gpus}
    missing = [key for key in gpus if key not in by_key]
    if missing:
        raise UsageError(f"no GPU {missing[0]} on {machine.hostname or 'this machine'}: it has {', '.join(by_key) or 'none'}")
    return [by_key[key] for key in gpus]


def _library(chosen: Sequence[Gpu]) -> str:
    """Return the library that runs on these GPUs, over PCIe as well."""
    return RCCL if any(gpu.vendor == "amd" or (gpu.architecture or "").startswith("gfx") for gpu in chosen) else NCCL


def _clique(chosen: Sequence[Gpu]) -> str | None:
    """Return the NVLink domain that all of these GPUs have joined; None where one has not, or they are in several."""
    cliques = {gpu.clique for gpu in chosen}
    return cliques.pop() if len(cliques) == 1 else None


def _beyond(machine: Machine, chosen: Sequence[Gpu]) -> Egress | None:
    """Where NVLink may join nodes (NVL72), the NICs are no bound of what leaves one."""
    name = next((gpu.model for gpu in chosen if (row := gpu_model(gpu.model)) and row.c2c), None)
    if not name or not machine.switched:
        return None
    why = (
        f"the NVLinks of {name} may lead to other nodes (NVL72), and no source shows whether: give --nvlink-domain GPUS, "
        "or --nic where NICs are the way"
    )
    return Egress(unknown(why))


def _silent(why: str, own: dict[str, Link]) -> Node:
    """Without knowing the links between GPUs, PCIe is no ceiling: there may be NVLinks."""
    none = unknown(why)
    return Node(len(own), none, none, narrowest(own.values()), none, none)


def _inside(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, own: dict[str, Link], nics: Sequence[NicRate]) -> Node:
    keys = [gpu.key for gpu in gpus]
    slowest = narrowest(own.values())
    if len(gpus) == 1:
        return Node(1, slowest, unknown(""), slowest, apart=False)
    if len(wires.groups(keys)) > 1:
        return _box(gpus, wires, tree, own, nics)
    out = [wires.out_of(key) for key in keys]
    silent = next((link for link in out if link.bytes_per_s is None), None)
    injection = silent or narrowest(out)
    single = tuple(Side(1, link.known, link.name) for link in out)
    ways = _ways(wires, keys, own)
    cuts = (single, *mesh_cuts(wires, keys)) if silent is None else (single,)
    return Node(len(gpus), injection, unknown(""), slowest, *ways, nvls=_adds(gpus, wires), cuts=cuts)


def _box(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, own: dict[str, Link], nics: Sequence[NicRate]) -> Node:
    """PCIe carries what NVLink does not reach; a ring has to use it somewhere."""
    keys = [gpu.key for gpu in gpus]
    cuts = box_cuts(gpus, wires, tree, own, nics)
    slowest = narrowest(own.values())
    shared = min((side for cut in cuts[1:] for side in cut), key=lambda side: side.bytes_per_s, default=None)
    if shared and shared.bytes_per_s < slowest.known:
        slowest = Link(shared.bytes_per_s, shared.name, slowest.source)
    doubts = ("the links between sockets are not counted: no source tells their rate",) if len({gpu.numa for gpu in gpus}) > 1 else ()
    pair, neighbours = _ways(wires, keys, own)
    return Node(len(gpus), slowest, unknown(""), narrowest(own.values()), pair, neighbours, apart=False, cuts=tuple(cuts), doubts=doubts)


def _ways(wires: Wires, keys: Sequence[str], own: dict[str, Link]) -> tuple[Link, Link]:
    """The fastest direct way between two GPUs, and the slowest between neighbours in their order."""
    hops = [_way(wires, a, b, own) for a, b in pairwise(keys)]
    switched = sorted((key for key in keys if key in wires.switch), key=lambda key: -wires.switch[key])[:2]
    fastest = [_way(wires, switched[0], switched[1], own)] if len(switched) == 2 else []
    fastest += [_way(wires, a, max(peers, key=peers.__getitem__), own) for a, peers in wires.mesh.items() if peers]
    return max([*fastest, *hops], key=lambda link: link.bytes_per_s or 0.0), narrowest(hops)


def _way(wires: Wires, a: str, b: str, own: dict[str, Link]) -> Link:
    """From GPU to GPU: over the switch, their own links, or PCIe; over a third GPU where that is faster than PCIe."""
    if a in wires.switch and b in wires.switch:
        return narrowest([wires.out_of(a), wires.out_of(b)])
    rate, one = wires.between(a, b), wires.one.get(a)
    if one and b in wires.mesh.get(a, {}):
        return _of_pair(wires, rate, one)
    direct, around = narrowest([own[a], own[b]]), wires.around(a, b)
    return Link(around, f"{wires.kind} over a third GPU", one.source) if one and around > direct.known else direct


def _of_pair(wires: Wires, rate: float, one: Link) -> Link:
    if not rate or not one.bytes_per_s:
        return unknown(one.name)
    count = round(rate / one.bytes_per_s)
    nccl = None if one.nccl_bytes_per_s is None else count * one.nccl_bytes_per_s
    return Link(rate, f"{wires.kind} {count}×{one.bytes_per_s / 1e9:g} GB/s of a pair", one.source, nccl, one.library)


def _adds(gpus: Sequence[Gpu], wires: Wires) -> bool:
    versions = [(gpu.architecture or "").removeprefix("sm_") for gpu in gpus]
    return bool(wires.switch) and all(version.isdecimal() and int(version) >= _NVLS_FROM for version in versions)


def capped(egress: Link, own: Sequence[Link]) -> Link:
    """What the NICs carry comes out of the job's GPUs over PCIe."""
    total = sum(link.known for link in own)
    if egress.bytes_per_s is None or total >= egress.bytes_per_s:
        return egress
    nccl = sum(link.nccl_bytes_per_s or link.known for link in own)
    name = f"{own[0].name} of {len(own)} GPUs" if len(own) > 1 else own[0].name
    return Link(total, name, own[0].source, nccl)
