"""NVLink and xGMI between the GPUs of a job: counted links times the rate of one, by where they lead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine
from collbench.machine.peak.link import NCCL, RCCL, Link, unknown
from collbench.machine.peak.pcie import source_of
from collbench.machine.peak.rates import gpu_model, net_of_printed, nvlink, xgmi

_MOST_LINKS = 18  # of any GPU so far; more in a row of a matrix means a switch, seen once per peer
_WORDS = {"nvlink": "NVLink", "xgmi": "xGMI"}


@dataclass
class Wires:
    """Bytes per second of one direction: `mesh[a][b]` between GPUs of the job, `switch[a]` into a switch that all of them are on.

    one         of one link, for each GPU that has any; `Link` with NCCL's constant beside it
    count       links of each GPU that lead to others of the job; `into_switch` those of them that lead to the switch
    doubts      what was read and not believed
    """

    mesh: dict[str, dict[str, float]] = field(default_factory=dict)
    switch: dict[str, float] = field(default_factory=dict)
    one: dict[str, Link] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    into_switch: dict[str, int] = field(default_factory=dict)
    kind: str = "NVLink"
    doubts: list[str] = field(default_factory=list)

    def out_of(self, gpu: str) -> Link:
        """All links of a GPU to others of the job."""
        one, count = self.one.get(gpu), self.count.get(gpu, 0)
        if one is None or not count:
            return Link(0.0, "no link between GPUs")
        if one.bytes_per_s is None:
            return one
        name = f"{self.kind} {count}×{one.bytes_per_s / 1e9:g} GB/s"
        nccl = None if one.nccl_bytes_per_s is None else count * one.nccl_bytes_per_s
        return Link(count * one.bytes_per_s, name, one.source, nccl, one.library)

    def between(self, a: str, b: str) -> float:
        """From a to b, without passing through another GPU."""
        if a in self.switch and b in self.switch:
            return min(self.switch[a], self.switch[b])
        return self.mesh.get(a, {}).get(b, 0.0)

    def around(self, a: str, b: str) -> float:
        """From a to b through any one GPU that both have links to, all such ways together."""
        return sum(min(rate, self.mesh[c].get(b, 0.0)) for c, rate in self.mesh.get(a, {}).items() if c in self.mesh)

    def groups(self, keys: Sequence[str]) -> list[list[str]]:
        """The GPUs that reach each other over these links, in the order of `keys`."""
        group = {key: key for key in keys}

        def top(key: str) -> str:
            while group[key] != key:
                group[key] = key = group[group[key]]
            return key

        on_switch = [key for key in keys if key in self.switch]
        for key in on_switch[1:]:
            group[top(key)] = top(on_switch[0])
        for a, peers in self.mesh.items():
            for b in peers:
                group[top(a)] = top(b)
        found: dict[str, list[str]] = {}
        for key in keys:
            found.setdefault(top(key), []).append(key)
        return list(found.values())


def links_per_gpu(machine: Machine) -> dict[str, Link]:
    """For each GPU, all its NVLink or xGMI links wherever they lead: what a data sheet calls its bandwidth, one direction."""
    found = {}
    rows = _rows(machine)
    for gpu in machine.gpus:
        wires = Wires(kind=_kind(rows.get(gpu.key, [])))
        row = rows.get(gpu.key, [])
        count = _distinct(row)
        wires.one[gpu.key], wires.count[gpu.key] = _one(machine, gpu, row, count), count
        found[gpu.key] = wires.out_of(gpu.key)
    return found


def uncounted(machine: Machine, keys: Sequence[str]) -> str | None:
    """Why nobody knows whether these GPUs have links among them; None when a source that would have counted them was read."""
    chosen = set(keys)
    between = any(a in chosen and b in chosen and a != b for a, b in machine.paths)
    if machine.gpu_links:
        missing = [] if between else _left_out(machine, keys)
        return f"no source counts the links of {missing[0]}, and those of others lead to a switch; give --nvlink" if missing else None
    looked = all(gpu.architecture for gpu in machine.gpus if gpu.key in chosen)
    if "gpu_links" in machine.unknown or not (between or looked):
        why = machine.unknown.get("gpu_links", "none of the sources counts the links between the GPUs")
        return f"{why}; add the output of `nvidia-smi topo -m`, or give --nvlink or --pcie"
    return None


def _left_out(machine: Machine, keys: Sequence[str]) -> list[str]:
    """The GPUs that no source counts links of, when others have a switch or far ends that nobody told."""
    told = {end for link in machine.gpu_links for end in (link.a, link.b)}
    elsewhere = any(link.count > 0 and link.b in (SWITCH, None) and link.a in keys for link in machine.gpu_links)
    return [key for key in keys if key not in told] if elsewhere else []


def wires_of(machine: Machine, keys: Sequence[str]) -> Wires:
    """The links among the GPUs with these keys; links to others do not count."""
    rows, gpus, chosen = _rows(machine), {gpu.key: gpu for gpu in machine.gpus}, set(keys)
    wires = Wires(kind=next((_kind(row) for row in rows.values()), "NVLink"))
    for key in keys:
        row = rows.get(key, [])
        if row:
            wires.one[key] = _one(machine, gpus[key], row, _distinct(row))
            _place(wires, machine, gpus[key], row, chosen)
    _mirror(wires)
    if len(wires.switch) == 1:
        _alone(wires, *wires.switch)
    return wires


def _rows(machine: Machine) -> dict[str, list[GpuLink]]:
    rows: dict[str, list[GpuLink]] = {}
    for link in machine.gpu_links:
        if link.count > 0:
            rows.setdefault(link.a, []).append(link)
    return rows


def _kind(row: Sequence[GpuLink]) -> str:
    return _WORDS[row[0].kind] if row else "NVLink"


def _distinct(row: Sequence[GpuLink]) -> int:
    """Links of one GPU: a matrix shows a switch's links once per peer."""
    total = sum(link.count for link in row)
    return total if total <= _MOST_LINKS else max(link.count for link in row)


def _one(machine: Machine, gpu: Gpu, row: Sequence[GpuLink], count: int) -> Link:
    """The rate of one link: as printed where a source prints it, else by architecture, model or count."""
    if not row:
        return Link(0.0, "no link between GPUs")
    source = source_of(machine, f"gpu_links/{row[0].key}")
    known = nvlink(gpu.architecture, gpu.model, count) if row[0].kind == "nvlink" else None
    amd = xgmi(gpu.architecture) if row[0].kind == "xgmi" else None
    printed = min((link.bytes_per_s for link in row if link.bytes_per_s), default=None)
    rate = net_of_printed(printed) if printed else known.gb_per_s * 1e9 if known else amd.gb_per_s * 1e9 if amd else None
    nccl = known.nccl_gb_per_s if known else amd.rccl_gb_per_s if amd else None
    if rate is None:
        what = f"{_kind(row)} ×{count}"
        return unknown(f"{what}: no source tells the GPU's model, so the rate of a link is unknown; give --nvlink")
    return Link(rate, _kind(row), source, nccl * 1e9 if nccl else None, RCCL if amd else NCCL)


def _place(wires: Wires, machine: Machine, gpu: Gpu, row: Sequence[GpuLink], chosen: set[str]) -> None:
    rate = wires.one[gpu.key].bytes_per_s or 0.0
    peers = [link for link in row if link.b is not None and link.b not in (SWITCH, gpu.key)]
    to_switch = sum(link.count for link in row if link.b == SWITCH)
    nowhere = sum(link.count for link in row if link.b is None or link.b == gpu.key)
    if sum(link.count for link in peers) > _MOST_LINKS:
        to_switch, peers = max(link.count for link in peers), []
    if nowhere:
        own = any(link.b == gpu.key for link in row)
        to_switch += nowhere if _reaches_all(wires, gpu, nowhere, own, max(len(machine.gpus), len(chosen))) else 0
    if to_switch:
        wires.switch[gpu.key] = to_switch * rate
        wires.count[gpu.key] = wires.into_switch[gpu.key] = to_switch
    for link in peers:
        if link.b in chosen:
            to = wires.mesh.setdefault(gpu.key, {})
            to[str(link.b)] = to.get(str(link.b), 0.0) + link.count * rate
            wires.count[gpu.key] = wires.count.get(gpu.key, 0) + link.count


def _reaches_all(wires: Wires, gpu: Gpu, count: int, own: bool, gpus: int) -> bool:
    """Links whose far end no source tells: taken as a switch's, but not those of cards that have bridges to one other card."""
    model = gpu_model(gpu.model)
    if (own or (model and model.bridge)) and gpus > 2:
        why = (
            "they are said to lead back to the GPU" if own else f"those of {gpu.model} lead to one other card, and no source tells to which"
        )
        wires.doubts.append(f"{wires.kind}s are not counted ({count} of each GPU): {why}")
        return False
    wires.doubts.append(f"no source tells where the {wires.kind}s lead: taken as reaching every GPU")
    return True


def _alone(wires: Wires, gpu: str) -> None:
    """Links into a switch that no other GPU of the job is on lead nowhere."""
    del wires.switch[gpu]
    wires.count[gpu] -= wires.into_switch.pop(gpu)


def _mirror(wires: Wires) -> None:
    """A link that only one end tells of (a matrix with a row missing) has two ends all the same."""
    for a, peers in list(wires.mesh.items()):
        for b, rate in peers.items():
            back = wires.mesh.setdefault(b, {})
            if a not in back:
                back[a] = rate
                wires.one.setdefault(b, wires.one[a])
                one = wires.one[b].bytes_per_s
                wires.count[b] = wires.count.get(b, 0) + (round(rate / one) if one else 1)
