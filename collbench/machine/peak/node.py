"""One node of a job for the reference rates: what a GPU can send, what the node can send, and the cuts inside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf, isclose, isinf
from typing import Literal

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.model import Gpu, Machine
from collbench.machine.peak.limits import BridgeLimit, GpuLinkLimit, LimitPart, NicLimit
from collbench.machine.peak.links import (
    NCCL,
    RCCL,
    Egress,
    Link,
    NicRate,
    PcieTree,
    Wires,
    egress_of,
    gen,
    narrowest,
    nccl_of_nics,
    reachable,
    uncounted,
    unknown,
    wires_of,
)
from collbench.machine.peak.rates import gpu_model, links_of_rate, nvlink, nvlink_of_rate, rates

# Cuts: sets of ranks, the rate out of each set, and the least time of an operation across the cut.
#
# All links are full duplex: a set receives at the rate at which it sends. Times are seconds per byte of the operation's size S as
# nccl-tests counts it (per rank; for allgather, reducescatter, gather and scatter the total). The sets have g_i of N ranks, and C_i
# bytes per second out of each:
#     allreduce                  max(1/min C_i, 2(m-1)/sum C_i): each set sends its sum and gets the others'; m sums take 2(m-1) moves
#     allgather, reducescatter   (1-g_i/N)/C_i: the others' data must come in, or the sums for the others must go out
#     broadcast, reduce, scan    1/C_i: the data of rank 0 must reach each set without it, and leave the set that has it
#     alltoall                   g_i(N-g_i)/N/C_i
#     gather, scatter            g_i/N/C_i of sets without the root, (1-g/N)/C of the root's
# The rate of all sets together is less than the sum of C_i if sets share NICs.


class Side(msgspec.Struct, frozen=True):
    """A set of ranks: their number, the rate at which data can leave it (bytes per second, infinite when unknown), and its outgoing links.

    times      the number of equal sets
    at_once    the rate of each when all sets send at once and share links; None: the same
    """

    ranks: int
    bytes_per_s: float
    links: tuple[Link, ...] = ()
    times: int = 1
    at_once: float | None = None

    @property
    def all_at_once(self) -> float:
        """The total rate of these sets when all of them send."""
        return self.times * (self.bytes_per_s if self.at_once is None else self.at_once)

    def as_nccl_takes_it(self) -> Side:
        """Return the same set, its rate lowered to the share of its links that NCCL's constants reach."""
        wires = sum(link.rate for link in self.links)
        if not self.links or isinf(wires) or not wires:
            return self
        links = tuple(link.as_nccl_takes_it() for link in self.links)
        share = sum(link.rate for link in links) / wires
        return replace(self, bytes_per_s=share * self.bytes_per_s, links=links)


class LeastTime(msgspec.Struct, frozen=True):
    """The least time of an operation, in seconds per byte of S, and the set that needs it; 0 when no known link limits it."""

    seconds_per_byte: float
    side: Side | None


_SHARE: Mapping[str, Callable[[int, int], float]] = {
    **dict.fromkeys(("allreduce", "broadcast", "reduce", "scan"), lambda g, n: 1.0),
    **dict.fromkeys(("allgather", "reducescatter", "hypercube"), lambda g, n: 1 - g / n),
    **dict.fromkeys(("alltoall", "alltoallv"), lambda g, n: g * (n - g) / n),
    "gather": lambda g, n: g / n,
    "scatter": lambda g, n: g / n,
}
BUS_FACTOR: Mapping[str, Callable[[int], float]] = {
    **dict.fromkeys(("allgather", "reducescatter", "hypercube", "alltoall", "alltoallv", "gather", "scatter"), lambda n: (n - 1) / n),
    **dict.fromkeys(("broadcast", "reduce", "scan"), lambda n: 1.0),
    "allreduce": lambda n: 2 * (n - 1) / n,
}
ROOTED = ("gather", "scatter")
_TO_ALL = ("allgather", "reducescatter", "hypercube", "broadcast", "reduce", "scan")


def least_time(operation: str, sides: Sequence[Side], sums_in_the_network: bool = False) -> LeastTime:
    """Return the least time for this partition of the ranks. The root of gather and scatter is in the first set.

    sums_in_the_network: switches reduce (SHARP, NVLS), so that each set sends and receives once for any number of sets.
    """
    total = sum(side.ranks * side.times for side in sides)
    if sum(side.times for side in sides) < 2 or total < 2:
        return LeastTime(0.0, None)
    root = sides[0]
    without_root = sides
    needs = []  # the least time of each set by itself
    if operation in ROOTED:
        needs.append((_seconds(1 - root.ranks / total, root), root))
        without_root = sides if root.times > 1 else sides[1:]
    needs += [(_seconds(_SHARE[operation](side.ranks, total), side), side) for side in without_root]
    time, side = max(needs, key=lambda need: need[0])
    together = sum(side.all_at_once for side in sides)
    time = max(time, _bytes_across(operation, sides, total, sums_in_the_network) / together if together else inf)
    return LeastTime(time, side if time > 0 else None)


def _bytes_across(operation: str, sides: Sequence[Side], total: int, sums_in_the_network: bool) -> float:
    """Return the total bytes, per byte of S, that cross the borders of sets in one direction."""
    sets = sum(side.times for side in sides)
    if operation == "allreduce":
        return sets if sums_in_the_network else 2 * (sets - 1)
    if operation in _TO_ALL:
        return sets - 1
    if operation in ROOTED:
        return 1 - sides[0].ranks / total
    return sum(_SHARE[operation](side.ranks, total) * side.times for side in sides)


def _seconds(bytes_of_set: float, side: Side) -> float:
    return bytes_of_set / side.bytes_per_s if side.bytes_per_s else inf


# Cuts inside a node: by the links between GPUs if these connect all of them, else by NVLink groups and the PCIe tree.

_MOST_FOR_MESH_CUTS = 64  # GPUs; the search is cubic
Partition = tuple[Side, ...]


def mesh_cuts(wires: Wires, keys: Sequence[str]) -> list[Partition]:
    """Return two-set cuts of directly linked GPUs, from the minimum-cut search of Stoer and Wagner (1997).

    Empty for a switch, and for meshes in which every pair has the same rate: there single GPUs are the smallest cut.
    """
    rates = {rate for peers in wires.mesh.values() for rate in peers.values()}
    even = len(rates) == 1 and all(len(wires.mesh.get(key, {})) == len(keys) - 1 for key in keys)
    if wires.switch or even or not 3 < len(keys) <= _MOST_FOR_MESH_CUTS:
        return []
    one_link = next(iter(wires.one_link.values()), Link(None, ""))
    share = None
    if one_link.nccl_bytes_per_s and one_link.bytes_per_s:
        share = one_link.nccl_bytes_per_s / one_link.bytes_per_s
    cuts: list[Partition] = []
    for members, rate in _phase_cuts(wires.mesh, keys):
        sets = (len(members), len(keys) - len(members))
        part = GpuLinkLimit(link=wires.kind, bytes_per_s=rate, way="sets", sets=sets)
        link = Link.of(rate, part, one_link.source, None if share is None else share * rate, one_link.library)
        sides = Side(sets[0], rate, (link,)), Side(sets[1], rate, (link,))
        cuts.append(sides if keys[0] in members else sides[::-1])  # the root is on the first GPU
    return cuts


def _phase_cuts(mesh: Mapping[str, Mapping[str, float]], keys: Sequence[str]) -> list[tuple[list[str], float]]:
    """Return the cut of each phase: (GPUs of one side, bytes per second across)."""
    weights = {a: {b: rate for b, rate in mesh.get(a, {}).items() if b != a} for a in keys}
    members = {key: [key] for key in keys}
    cuts = []
    while len(weights) > 1:
        # add the most tightly connected GPU until all are included
        attached = dict.fromkeys(weights, 0.0)
        last = next(iter(weights))
        second_last = last
        rate = 0.0
        while attached:
            second_last = last
            last = max(attached, key=attached.__getitem__)
            rate = attached.pop(last)
            for neighbor, weight in weights[last].items():
                if neighbor in attached:
                    attached[neighbor] += weight
        if 1 < len(members[last]) < len(keys) - 1:
            cuts.append((members[last], rate))
        members[second_last] = members[second_last] + members.pop(last)
        for neighbor, weight in weights.pop(last).items():
            weights[neighbor].pop(last, None)
            if neighbor != second_last:
                merged = weights[second_last].get(neighbor, 0.0) + weight
                weights[second_last][neighbor] = merged
                weights[neighbor][second_last] = merged
    return cuts


def pcie_cuts(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, pcie: Mapping[str, Link], nics: Sequence[NicRate]) -> list[Partition]:
    """Return cuts for machines where NVLinks do not reach all GPUs: single GPUs, NVLink groups, and GPUs below each PCIe switch level.

    pcie: the link of each GPU to its CPU or switch, by the GPU's key
    """
    single = []
    for gpu in gpus:
        links = [pcie[gpu.key]]
        if wires.count.get(gpu.key):
            links.append(wires.out_of(gpu.key))
        single.append(Side(1, sum(link.rate for link in links), tuple(links)))
    groups = [
        Side(len(keys), sum(pcie[key].rate for key in keys), (pcie[keys[0]].under(gpus=len(keys)),))
        for keys in wires.groups([gpu.key for gpu in gpus])
    ]
    cuts = [tuple(single), *_levels(gpus, wires, tree, pcie, nics)]
    if len(groups) < len(gpus):
        cuts.insert(1, tuple(groups))
    return [cut for cut in cuts if len(cut) > 1]


def _levels(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, pcie: Mapping[str, Link], nics: Sequence[NicRate]) -> list[Partition]:
    """Return the GPUs grouped by the bridge above them, for each depth of the PCI tree: every tree link that splits the ranks."""
    chains = {gpu.key: tree.above_gpu(gpu.key)[::-1] for gpu in gpus}
    nic_rates: dict[str, float] = {}
    for nic in nics:
        for bridge in tree.above(nic.address):
            nic_rates[bridge] = nic_rates.get(bridge, 0.0) + nic.link.rate
    rate_of_gpu = {gpu.key: pcie[gpu.key].rate + wires.out_of(gpu.key).rate for gpu in gpus}
    levels = []
    for depth in range(max(map(len, chains.values()), default=0)):
        below: dict[str, list[str]] = {}
        for key, chain in chains.items():
            below.setdefault(chain[depth] if depth < len(chain) else key, []).append(key)
        sides = tuple(_below_bridge(bridge, keys, wires, tree, nic_rates) for bridge, keys in below.items())
        pairs = zip(sides, below.values(), strict=True)
        adds_limit = len(below) < len(gpus) or any(side.bytes_per_s < rate_of_gpu[keys[0]] for side, keys in pairs)
        if len(below) > 1 and adds_limit:
            levels.append(sides)
    return levels


def _below_bridge(bridge: str, keys: Sequence[str], wires: Wires, tree: PcieTree, nic_rates: Mapping[str, float]) -> Side:
    """Return the set of the GPUs below a bridge: data leaves it over the bridge's uplink, NVLinks, and the NICs below the bridge."""
    uplink = tree.uplink(bridge) if bridge in tree.devices else unknown("")
    inside = set(keys)
    nvlinks = sum(rate for key in keys for peer, rate in wires.mesh.get(key, {}).items() if peer not in inside)
    nvlinks += sum(wires.switch.get(key, 0.0) for key in keys)
    rate = uplink.rate + nvlinks + nic_rates.get(bridge, 0.0)
    share = uplink.as_nccl_takes_it().rate / uplink.rate if uplink.bytes_per_s else 1.0
    link = Link.of(rate, BridgeLimit(address=bridge), uplink.source, share * rate)
    return Side(len(keys), rate, (link,))


NO_PCIE_RATE = unknown("the GPUs' PCIe links are not given")
_NVLS_FROM = 90  # sm_90: the third NVSwitch is the first that sums
_NVLS_GPUS = 5  # NCCL uses NVLink SHARP from so many GPUs on; with fewer a ring is as fast
_NVLS_RATE = 450e9  # bytes per second of a GPU's NVLinks, from which on they are taken to lead to switches that sum: those of an H100


class Node(msgspec.Struct, frozen=True):
    """One node of a job; rates in bytes per second of one direction.

    gpus            ranks on it, one per GPU
    injection       what the slowest GPU can send to others of the node: its NVLinks, or its PCIe link where these do not reach all.
                    With one GPU: its PCIe link
    apart           whether injection and the path to the NICs are different links (NVLink inside, PCIe to the NICs)
    pcie            the slowest GPU's PCIe link
    pair            the fastest direct path from one GPU to another; neighbors: the slowest between GPUs i and i+1
    nics            each slot with its NIC; egress: all of them, limited by the PCIe links of the job's GPUs
    own_nic         each GPU's part of all NICs where the machine has as many NICs as GPUs; else None
    nvls            whether its NVSwitches reduce data (NVLink SHARP): "counted" from hardware, "given" by the user, "likely" by the rate
                    of the links
    nvls_share      the share of NCCL's rate of injection at which data passes an all-reduce over NVLink SHARP
    cuts            partitions of its GPUs, single GPUs first
    host, doubts    its name, if known, and unreliable values
    model           of its GPUs, where a source has it
    machines        the number of nodes that a multi-node NVLink domain joins to this one, including itself
    clique          the id of that domain, where a source has it
    """

    gpus: int
    injection: Link
    egress: Link
    pcie: Link = NO_PCIE_RATE
    pair: Link = NO_PCIE_RATE
    neighbours: Link = NO_PCIE_RATE
    apart: bool = True
    nics: tuple[NicRate, ...] = ()
    own_nic: Link | None = None
    nvls: Literal["no", "counted", "given", "likely"] = "no"
    nvls_share: float = 0.0
    cuts: tuple[Partition, ...] = ()
    host: str | None = None
    doubts: tuple[str, ...] = ()
    machines: int = 1
    clique: str | None = None
    model: str | None = None

    @property
    def singles(self) -> Partition:
        """The partition with each GPU as its own set."""
        return self.cuts[0] if self.cuts else (Side(1, self.injection.rate, (self.injection,), self.gpus),)

    @property
    def reduces(self) -> bool:
        """Whether its switches may reduce data, so that the hard limit counts it."""
        return self.nvls in ("counted", "given") or self.uses_nvls

    @property
    def uses_nvls(self) -> bool:
        """Whether NCCL is expected to let its switches reduce data."""
        return self.nvls == "given" or (self.nvls != "no" and self.gpus >= _NVLS_GPUS)

    def as_nccl_takes_it(self) -> Node:
        """Return the node with NCCL's constants as the rates of its links."""
        changed = {name: getattr(self, name).as_nccl_takes_it() for name in ("injection", "egress", "pcie", "pair", "neighbours")}
        return replace(self, **changed, cuts=tuple(tuple(side.as_nccl_takes_it() for side in cut) for cut in self.cuts))


def node_of(
    machine: Machine,
    gpus: int | Sequence[str] | None = None,
    *,
    pcie: Link | None = None,
    nics: Link | None = None,
    domain_known: bool = False,
) -> Node:
    """Return the node of a job for a machine with all of its GPUs, the first `gpus` of them, or those with the given keys.

    pcie: the link of each GPU, and nics: all NICs together, in place of those of the machine.
    domain_known: the nodes of an NVLink domain are known from elsewhere, so that NICs connect the other nodes.
    A machine without GPUs takes `gpus` ranks with unknown links. Raises UsageError when the sources list fewer GPUs than requested.
    """
    chosen = _chosen(machine, gpus)
    tree = PcieTree(machine)
    cliques = {gpu.clique for gpu in chosen}
    clique = cliques.pop() if len(cliques) == 1 else None
    models_with_c2c = [gpu.model for gpu in chosen if _has_c2c(gpu)]
    if nics:
        egress = Egress(nics)
    elif models_with_c2c and machine.switched and not domain_known and not clique:  # NICs do not limit what leaves such a node (NVL72)
        why = f"the NVLinks of {models_with_c2c[0]} may lead to other nodes (NVL72), and no source shows whether"
        egress = Egress(unknown(f"{why}: give --nvlink-domain GPUS, or --nic where NICs are the way"))
    else:
        egress = egress_of(machine, tree)
    if not chosen:
        count = gpus if isinstance(gpus, int) else 1
        no_gpu = unknown("no source lists a GPU; add --nvlink or --pcie")
        return Node(count, no_gpu, egress.link, no_gpu, no_gpu, no_gpu, nics=egress.nics, host=machine.hostname, doubts=egress.doubts)
    pcie_of = {gpu.key: pcie or tree.of_gpu(gpu) for gpu in chosen}
    keys = list(pcie_of)
    wires = wires_of(machine, keys)
    why_uncounted = None if pcie else uncounted(machine, keys)
    if why_uncounted and len(keys) > 1:  # PCIe is then not a limit, because there may be NVLinks
        link = unknown(why_uncounted)
        inside = Node(len(keys), link, link, narrowest(pcie_of.values()), link, link)
    else:
        inside = _inside(chosen, wires, tree, pcie_of, egress.nics)
    amd = any(gpu.vendor == "amd" or (gpu.architecture or "").startswith("gfx") for gpu in chosen)
    return replace(
        inside,
        injection=replace(inside.injection, library=RCCL if amd else NCCL),  # over PCIe as well
        egress=capped(egress.link, list(pcie_of.values())) if nics else reachable(egress, tree, pcie_of),
        own_nic=own_nic(egress.link, len(machine.gpus)),
        nics=egress.nics,
        host=machine.hostname,
        clique=clique,
        model=chosen[0].model,
        doubts=tuple(dict.fromkeys([*inside.doubts, *wires.doubts, *tree.doubts, *egress.doubts, *machine.doubts])),
    )


def _has_c2c(gpu: Gpu) -> bool:
    row = gpu_model(gpu.model)
    return row is not None and row.c2c


def neighbours_of(machine: Machine, keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> Link:
    """Return the slowest path along these edges between GPUs of a job; unknown without edges, or where no source counts the links.

    machine: as for `node_of`; keys: its GPUs in the job. Raises UsageError for a GPU that the sources do not list.
    """
    if not edges:
        return unknown("no edge of the ring stays inside")
    gpus = _chosen(machine, keys)
    why_uncounted = uncounted(machine, keys)
    if why_uncounted:
        return unknown(why_uncounted)
    tree = PcieTree(machine)
    pcie = {gpu.key: tree.of_gpu(gpu) for gpu in gpus}
    wires = wires_of(machine, keys)
    return narrowest([_path(wires, a, b, pcie, tree) for a, b in edges])


def _chosen(machine: Machine, gpus: int | Sequence[str] | None) -> list[Gpu]:
    if gpus is None or (isinstance(gpus, int) and not machine.gpus):
        return list(machine.gpus)
    if isinstance(gpus, int):
        if not 0 < gpus <= len(machine.gpus):
            sources = ", ".join(machine.sources) or "the sources"
            raise UsageError(f"{sources}: {len(machine.gpus)} GPUs, but {gpus} per node were requested; request fewer, or add a source")
        return list(machine.gpus[:gpus])
    by_key = {gpu.key: gpu for gpu in machine.gpus}
    missing = [key for key in gpus if key not in by_key]
    if missing:
        raise UsageError(f"no GPU {missing[0]} on {machine.hostname or 'this machine'}: it has {', '.join(by_key) or 'none'}")
    return [by_key[key] for key in gpus]


def _inside(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, pcie: Mapping[str, Link], nics: Sequence[NicRate]) -> Node:
    """Return the node without its egress. pcie: the link of each GPU to its CPU or switch, by the GPU's key."""
    keys = [gpu.key for gpu in gpus]
    slowest_pcie = narrowest(pcie.values())
    if len(gpus) == 1:
        return Node(1, slowest_pcie, unknown(""), slowest_pcie, apart=False)
    if len(wires.groups(keys)) > 1:
        return _inside_over_pcie(gpus, wires, tree, pcie, nics)
    links = [wires.out_of(key) for key in keys]
    single = tuple(Side(1, link.rate, (link,)) for link in links)
    unknown_link = next((link for link in links if link.bytes_per_s is None), None)
    injection = unknown_link or narrowest(links)
    cuts = (single,) if unknown_link else (single, *mesh_cuts(wires, keys))
    pair, neighbours = _pair_and_neighbours(wires, keys, pcie, tree)
    node = Node(len(gpus), injection, unknown(""), slowest_pcie, pair, neighbours, cuts=cuts)
    versions = [(gpu.architecture or "").removeprefix("sm_") for gpu in gpus]
    if not wires.switch or not all(version.isdecimal() and int(version) >= _NVLS_FROM for version in versions):
        return node
    generation = nvlink(gpus[0].architecture, None, 0) or nvlink_of_rate(injection.rate / 1e9, reduces=True)
    return replace(node, nvls="counted", nvls_share=generation.nvls_share or 0.0)


def _inside_over_pcie(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, pcie: Mapping[str, Link], nics: Sequence[NicRate]) -> Node:
    """Return the node where PCIe carries what NVLink does not reach: a ring has to use PCIe somewhere."""
    cuts = pcie_cuts(gpus, wires, tree, pcie, nics)
    slowest_pcie = narrowest(pcie.values())
    injection = slowest_pcie
    # a path over NICs and back is possible, but not what a ring of one node takes
    sides = [side for cut in [*cuts[1:], *_levels(gpus, wires, tree, pcie, ())] for side in cut]
    slowest = min(sides, key=lambda side: side.bytes_per_s, default=None)
    if slowest and slowest.bytes_per_s < slowest_pcie.rate:
        nccl = slowest.as_nccl_takes_it().bytes_per_s
        injection = replace(slowest.links[0], bytes_per_s=slowest.bytes_per_s, source=slowest_pcie.source, nccl_bytes_per_s=nccl)
    doubts: tuple[str, ...] = ()
    if len({gpu.numa for gpu in gpus}) > 1:
        doubts = ("the links between sockets are not counted: no source has their rate",)
    pair, neighbours = _pair_and_neighbours(wires, list(pcie), pcie, tree)
    return Node(len(gpus), injection, unknown(""), slowest_pcie, pair, neighbours, apart=False, cuts=tuple(cuts), doubts=doubts)


def _pair_and_neighbours(wires: Wires, keys: Sequence[str], pcie: Mapping[str, Link], tree: PcieTree) -> tuple[Link, Link]:
    """Return the fastest direct path between two GPUs, and the slowest between consecutive GPUs."""
    neighbours = [_path(wires, a, b, pcie, tree) for a, b in pairwise(keys)]
    switched = sorted((key for key in keys if key in wires.switch), key=lambda key: -wires.switch[key])
    paths = [_path(wires, switched[0], switched[1], pcie, tree)] if len(switched) > 1 else []
    paths += [_path(wires, a, max(peers, key=peers.__getitem__), pcie, tree) for a, peers in wires.mesh.items() if peers]
    return max([*paths, *neighbours], key=lambda link: link.bytes_per_s or 0.0), narrowest(neighbours)


def _path(wires: Wires, a: str, b: str, pcie: Mapping[str, Link], tree: PcieTree) -> Link:
    """Return the path from GPU a to b: the switch, direct links, or PCIe; over a third GPU where that is faster than PCIe."""
    if a in wires.switch and b in wires.switch:
        return narrowest([wires.out_of(a), wires.out_of(b)])
    one_link = wires.one_link.get(a)
    if one_link and b in wires.mesh.get(a, {}):
        rate = wires.mesh[a][b]
        if not rate or not one_link.bytes_per_s:
            return unknown(one_link.name)
        return replace(wires.together(one_link, round(rate / one_link.bytes_per_s), "pair"), bytes_per_s=rate)
    over_pcie = narrowest([pcie[a], pcie[b], *tree.between(a, b)])
    rate = wires.through_third_gpu(a, b)
    if one_link is None or rate <= over_pcie.rate:
        return over_pcie
    return Link.of(rate, GpuLinkLimit(link=wires.kind, bytes_per_s=rate, way="third_gpu"), one_link.source)


def capped(egress: Link, pcie: Sequence[Link]) -> Link:
    """Return the NICs' link, limited by the PCIe links of the job's GPUs."""
    if egress.bytes_per_s is None:
        return egress
    total = sum(link.rate for link in pcie)
    nccl = sum(link.as_nccl_takes_it().rate for link in pcie)
    if total >= egress.bytes_per_s:
        return replace(egress, nccl_bytes_per_s=None if egress.nccl_bytes_per_s is None else min(egress.nccl_bytes_per_s, nccl))
    return replace(pcie[0].under(gpus=len(pcie)), bytes_per_s=total, nccl_bytes_per_s=nccl)


def own_nic(nics: Link, gpus: int) -> Link | None:
    """Return each GPU's part of the NICs of a machine; None if there are fewer NICs than GPUs."""
    count = sum(count for count, _ in nics.part.ports) if isinstance(nics.part, NicLimit) else 0
    return nics.divided(gpus, shared_by=gpus, sharing="GPUs") if 0 < gpus <= count else None


# Nodes given with options instead of probed: `--nic 4x100Gb --nvlink 150 --pcie gen4x16`.

_NIC = re.compile(r"(?:(\d{1,4})\s*[xX×*]\s*)?(\d{1,6}(?:\.\d{1,3})?)\s*(?:(Gb|[Gg]bit)|GB)(?:/s|ps)?")  # bits or bytes
_PCIE = re.compile(r"(?:pcie\s*)?gen\s*([1-6])\s*x\s*(1|2|4|8|16)", re.IGNORECASE)
_MOST_GBIT = 10_000
_MOST_GB = 100_000


class UserOverride(msgspec.Struct, frozen=True):
    """The hardware of a node as the user gave it with options; None if an option was not used.

    nic         (number, bits per second of each)
    nvlink      bytes per second of one GPU, one direction
    pcie        the link of one GPU
    nvls        whether its NVSwitches reduce data (NVLink SHARP); None: not given
    """

    nic: tuple[int, float] | None = None
    nvlink: float | None = None
    pcie: Link | None = None
    nvls: bool | None = None

    @property
    def nics(self) -> Link | None:
        """All NICs together, as one link."""
        if self.nic is None:
            return None
        count, bits_per_s = self.nic
        total = count * bits_per_s / 8
        return Link.of(total, NicLimit(ports=((count, bits_per_s),)), "--nic", nccl_of_nics(total))


def parse_nic(text: str) -> tuple[int, float]:
    """Return number and bits per second of "4x100Gb", "8x400Gb/s", "4x50GB/s" (bytes). Raises UsageError, also without a unit."""
    match = _NIC.fullmatch(text.strip())
    count = int(match[1] or 1) if match else 0
    rate = float(match[2]) if match else 0.0
    gbit = rate if match and match[3] else 8 * rate
    if not 0 < count <= 1024 or not 0 < gbit <= _MOST_GBIT:
        raise UsageError(
            f"--nic '{_short(text)}' is not a valid number of NICs and rate: use e.g. 4x100Gb/s (bits) or 4x12.5GB/s (bytes), "
            "at most 10000 Gb/s"
        )
    return count, gbit * 1e9


def parse_pcie(text: str) -> Link:
    """Return the link of "gen4x16". Raises UsageError."""
    match = _PCIE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"--pcie '{_short(text)}' is not a valid PCIe link: use generation (1 to 6) and lanes, such as gen4x16")
    return gen(int(match[1]), int(match[2]), "--pcie")


def parse_gigabytes(option: str, text: str) -> float:
    """Return the bytes per second of a rate in GB/s. Raises UsageError for a rate that no hardware has."""
    try:
        value = float(text.strip().removesuffix("GB/s")) if text.isascii() else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value <= _MOST_GB:
        raise UsageError(f"{option} '{_short(text)}' is not a valid rate: use GB/s, a number above 0 and at most {_MOST_GB}")
    return value * 1e9


def node_from_user(gpus: int, override: UserOverride) -> Node:
    """Return a node of `gpus` GPUs with only the hardware that the user gave."""
    pcie = override.pcie
    egress = override.nics or unknown("the NICs are unknown: add --nic, such as --nic 4x100Gb/s")
    node = Node(gpus, unknown("the links between the GPUs are unknown: add --nvlink GB/s or --pcie gen4x16"), egress)
    if pcie is not None:
        node = Node(gpus, pcie, capped(egress, [pcie] * gpus), pcie, pcie, pcie, apart=False)
    return with_override(replace(node, own_nic=own_nic(egress, gpus)), override)


def with_override(node: Node, override: UserOverride) -> Node:
    """Return the node with the GPU links that the user gave in place of the probed ones."""
    if override.nvlink and node.gpus > 1:
        link, share = _between_gpus(override.nvlink, node.gpus, override.nvls is True)
        likely = link.library == NCCL and override.nvlink >= _NVLS_RATE
        node = replace(node, injection=link, pair=link, neighbours=link, apart=True, cuts=())
        node = replace(node, nvls="likely" if likely else "no", nvls_share=share)
    if override.nvls is None:
        return node
    if not override.nvls:
        return replace(node, nvls="no")
    share = node.nvls_share
    if not share and node.apart and node.injection.bytes_per_s is not None and node.injection.library == NCCL:
        share = nvlink_of_rate(node.injection.rate / 1e9, reduces=True).nvls_share or 0.0
    return replace(node, nvls="given", nvls_share=share)


def _between_gpus(rate: float, gpus: int, reduces: bool) -> tuple[Link, float]:
    """Return the links of one GPU with the library's constant, and `nvls_share`.

    A whole number of NVLinks of a generation, else of xGMI links: AMD's GPUs have one link to each other one, so that 448 GB/s are
    7 links of 64 GB/s on 8 MI300X. reduces: the links lead to switches that reduce data.
    """
    row = nvlink_of_rate(rate / 1e9, reduces)
    xgmi = next((row for row in rates().xgmi if isclose((gpus - 1) * row.gb_per_s * 1e9, rate, rel_tol=1e-6)), None)
    if links_of_rate(row, rate / 1e9) or xgmi is None:
        nccl = row.nccl_gb_per_s / row.gb_per_s * rate
        return Link.of(rate, GpuLinkLimit(link="NVLink", bytes_per_s=rate), "--nvlink", nccl), row.nvls_share or 0.0
    part = GpuLinkLimit(link="xGMI", count=gpus - 1, bytes_per_s=xgmi.gb_per_s * 1e9)
    return Link.of(rate, part, "--nvlink", (gpus - 1) * xgmi.rccl_gb_per_s * 1e9, RCCL), 0.0


def _short(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:40])


class Job(msgspec.Struct, frozen=True, dict=True):
    """Nodes with their ranks, and assumptions about the fabric between them.

    nodes               one per node; rank 0 and the root are on the first. Equal nodes may be the same object
    oversubscription    the fabric carries a node's rate divided by this; 1: non-blocking
    sharp               whether the fabric's switches reduce data (InfiniBand SHARP)
    ring_edges          number of edges of the sendrecv ring that leave the busiest node
    pairs               p2p: how many pairs send over the busiest node's NICs in the same direction at once (None: 1);
                        multipair: how many pairs there are in all (None: ranks/2)
    ceiling_from_user   a rate that the user gave, bytes per second
    own_nics            whether a GPU alone sends over its own NIC only, where there are as many; else over all NICs of the node
    placement           hypercube: the index of each rank's node; None: ranks in blocks
    traffic             bytes of an uneven operation, ranks in the nodes' order; alltoallv: from rank (row) to rank (column); others: one
                        row with the part of each rank; None: even
    """

    nodes: tuple[Node, ...]
    oversubscription: float = 1.0
    sharp: bool = False
    ring_edges: int = 1
    pairs: int | None = None
    ceiling_from_user: float | None = None
    own_nics: bool = False
    placement: tuple[int, ...] | None = None
    traffic: Sequence[Sequence[float]] | None = None

    @cached_property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def machines(self) -> int:
        """The number of machines. Several of them may be one node here, joined by NVLink."""
        return sum(node.machines for node in self.nodes)

    @property
    def several(self) -> bool:
        """Whether there is more than one node; nodes joined by NVLink count as one."""
        return len(self.nodes) > 1

    @cached_property
    def kinds(self) -> tuple[tuple[Node, int], ...]:
        """Each distinct node object with its number of occurrences; the root's first."""
        counts = Counter(map(id, self.nodes))
        distinct = {id(node): node for node in self.nodes}
        return tuple((node, counts[identity]) for identity, node in distinct.items())

    def egress(self, node: Node) -> Link:
        """Return the link by which a node sends into the fabric."""
        if self.oversubscription == 1:
            return node.egress
        return node.egress.divided(self.oversubscription, fabric=self.oversubscription)

    @cached_property
    def singles(self) -> Partition:
        """The partition with each GPU as its own set."""
        return tuple(_times(self._with_nics(node, side), times) for node, times in self.kinds for side in node.singles)

    def of_gpus(self, node: Node) -> Partition:
        """Return the GPUs of one node as sets of one, in the order of its ranks."""
        return tuple(replace(self._with_nics(node, side), times=1) for side in node.singles for _ in range(side.times))

    @cached_property
    def partitions(self) -> tuple[tuple[Partition, bool], ...]:
        """The partition by nodes if there are several (True), then the cuts inside nodes (False; single GPUs are `singles`)."""
        partitions: list[tuple[Partition, bool]] = []
        if self.several:
            by_node = (Side(node.gpus, self.egress(node).rate, (self.egress(node),), times) for node, times in self.kinds)
            partitions.append((tuple(by_node), True))
        for level in range(1, max(len(node.cuts) for node, _ in self.kinds)):
            cuts = [(node, times, node.cuts[level] if level < len(node.cuts) else node.singles) for node, times in self.kinds]
            partitions.append((tuple(_times(self._with_nics(node, side), times) for node, times, cut in cuts for side in cut), False))
        return tuple(partitions)

    def _with_nics(self, node: Node, side: Side) -> Side:
        """Return the GPUs of a node with the NICs' rate added where NICs have a separate path from the links inside the node."""
        if not (self.several and node.apart) or isinf(side.bytes_per_s):
            return side
        nics = self.egress(node)
        share = 1.0
        if self.own_nics and node.own_nic:
            share = min(1.0, side.ranks * node.own_nic.rate / node.egress.rate)
        alone = side.bytes_per_s + nics.rate * share
        at_once = side.bytes_per_s + nics.rate * side.ranks / node.gpus
        return Side(side.ranks, alone, (*side.links, nics), side.times, at_once)

    def as_nccl_takes_it(self) -> Job:
        """Return the same job with NCCL's constants as the rates of its links."""
        changed = {id(node): node.as_nccl_takes_it() for node, _ in self.kinds}
        return replace(self, nodes=tuple(changed[id(node)] for node in self.nodes), own_nics=True)

    def host_of(self, limits: Sequence[LimitPart]) -> str | None:
        """Return the host of a node that has these links, where the nodes differ; else None."""
        if not limits or len({(node.injection.name, self.egress(node).name) for node, _ in self.kinds}) == 1:
            return None
        for node, _ in self.kinds:
            nics, pcie, injection = (_parts((link,)) for link in (self.egress(node), node.pcie, node.injection))
            inside = {injection, *(_parts(side.links) for cut in node.cuts for side in cut)}
            if node.host and tuple(limits) in {nics, pcie, *inside, *(parts + nics for parts in inside)}:
                return node.host
        return None


def _parts(links: Sequence[Link]) -> tuple[LimitPart, ...]:
    return tuple(link.part for link in links if link.part is not None)


def _times(side: Side, times: int) -> Side:
    return side if times == 1 else replace(side, times=side.times * times)
