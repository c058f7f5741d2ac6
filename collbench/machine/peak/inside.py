"""Cuts inside a node: by the links between GPUs where these reach all of them, else by NVLink groups and the PCIe tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from collbench.machine.model import Gpu
from collbench.machine.peak.cut import Side
from collbench.machine.peak.gpu_links import Wires
from collbench.machine.peak.link import Link
from collbench.machine.peak.nics import NicRate
from collbench.machine.peak.pcie import PcieTree

_MOST_FOR_MESH_CUTS = 64  # GPUs; the search is cubic
Partition = tuple[Side, ...]


def mesh_cuts(wires: Wires, keys: Sequence[str]) -> list[Partition]:
    """Two-set cuts of GPUs that are wired directly: those that the search for the smallest cut meets (Stoer and Wagner 1997).

    None for a switch, and for meshes in which every pair has the same: there single GPUs are the smallest cut.
    """
    rates = {rate for peers in wires.mesh.values() for rate in peers.values()}
    even = len(rates) == 1 and all(len(wires.mesh.get(key, {})) == len(keys) - 1 for key in keys)
    if wires.switch or even or not 3 < len(keys) <= _MOST_FOR_MESH_CUTS:
        return []
    return [_halves(wires, side, keys, rate) for side, rate in _phase_cuts(wires.mesh, keys)]


def _halves(wires: Wires, side: Sequence[str], keys: Sequence[str], rate: float) -> Partition:
    name = f"{wires.kind} between {len(side)} and {len(keys) - len(side)} GPUs, {rate / 1e9:g} GB/s"
    halves = Side(len(side), rate, name), Side(len(keys) - len(side), rate, name)
    return halves if keys[0] in side else halves[::-1]  # the root is on the first GPU


def _phase_cuts(mesh: Mapping[str, Mapping[str, float]], keys: Sequence[str]) -> list[tuple[list[str], float]]:
    """The cut of each phase: (one side's GPUs, bytes per second across)."""
    weights = {a: {b: rate for b, rate in mesh.get(a, {}).items() if b != a} for a in keys}
    members = {key: [key] for key in keys}
    cuts = []
    while len(weights) > 1:
        last, before, rate = _phase(weights)
        if 1 < len(members[last]) < len(keys) - 1:
            cuts.append((members[last], rate))
        members[before] = members[before] + members.pop(last)
        for other, weight in weights.pop(last).items():
            weights[other].pop(last, None)
            if other != before:
                weights[before][other] = weights[other][before] = weights[before].get(other, 0.0) + weight
    return cuts


def _phase(weights: Mapping[str, Mapping[str, float]]) -> tuple[str, str, float]:
    """Adds the most tightly bound GPU until all are in; returns the last, the one before it, and what binds the last."""
    bound = dict.fromkeys(weights, 0.0)
    last = before = next(iter(weights))
    rate = 0.0
    while bound:
        before, last = last, max(bound, key=lambda key: bound[key])
        rate = bound.pop(last)
        for other, weight in weights[last].items():
            if other in bound:
                bound[other] += weight
    return last, before, rate


def box_cuts(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, own: Mapping[str, Link], nics: Sequence[NicRate]) -> list[Partition]:
    """Where NVLinks do not reach all GPUs: single GPUs, NVLink groups, and the GPUs below each level of PCIe switches."""
    keys = [gpu.key for gpu in gpus]
    single = tuple(Side(1, own[key].known + wires.out_of(key).known, _also(own[key].name, wires, key)) for key in keys)
    groups = tuple(_group(group, own) for group in wires.groups(keys))
    cuts = [single] if 1 < len(groups) == len(keys) else [single, groups]
    return [cut for cut in [*cuts, *_levels(gpus, wires, tree, nics)] if len(cut) > 1]


def _also(name: str, wires: Wires, key: str) -> str:
    return f"{name} and {wires.out_of(key).name}" if wires.count.get(key) else name


def _group(group: Sequence[str], own: Mapping[str, Link]) -> Side:
    name = own[group[0]].name
    return Side(len(group), sum(own[key].known for key in group), f"{name} of {len(group)} GPUs" if len(group) > 1 else name)


def _levels(gpus: Sequence[Gpu], wires: Wires, tree: PcieTree, nics: Sequence[NicRate]) -> list[Partition]:
    """For each depth of the PCI tree, the GPUs by the bridge above them: every link of the tree that splits the ranks, in linear time."""
    chains = {gpu.key: tree.above(gpu.address)[::-1] for gpu in gpus}
    roads = [(tree.above(nic.address), nic) for nic in nics]
    beside: dict[str, float] = {}
    for road, nic in roads:
        for bridge in road:
            beside[bridge] = beside.get(bridge, 0.0) + nic.link.known
    found = []
    for depth in range(max(map(len, chains.values()), default=0)):
        below: dict[str, list[str]] = {}
        for key, chain in chains.items():
            below.setdefault(chain[depth] if depth < len(chain) else key, []).append(key)
        if 1 < len(below) < len(gpus):
            found.append(tuple(_subtree(bridge, keys, wires, tree, beside) for bridge, keys in below.items()))
    return found


def _subtree(bridge: str, keys: Sequence[str], wires: Wires, tree: PcieTree, beside: Mapping[str, float]) -> Side:
    up = tree.shared(bridge) if bridge in tree.devices else inf
    inside = set(keys)
    out = sum(rate for key in keys for peer, rate in wires.mesh.get(key, {}).items() if peer not in inside)
    out += sum(wires.switch.get(key, 0.0) for key in keys)
    return Side(len(keys), up + out + beside.get(bridge, 0.0), f"the PCIe link above {bridge}")
