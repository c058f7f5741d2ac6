"""CB26xx, between the nodes of a job: one that has less than the others, and software that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from collbench.machine.doctor.finding import Finding, Severity, listed, plural
from collbench.machine.doctor.view import View, is_down

_SAME = "install the same on all nodes; until then compare no run of one group of nodes with one of another"


def gpus(views: Sequence[View]) -> Iterator[Finding]:
    """CB2601: nodes with another number of GPUs."""

    def shown(view: View) -> str | None:
        return plural(len(view.machine.gpus), "GPU") if view.machine.gpus or view.machine.pci else None

    remedy = "a GPU that is missing fell off its bus: look at the kernel's log (Xid 79) and drain the node; else ask for equal nodes"
    yield from _odd(views, "CB2601", "severe", what="GPUs", shown=shown, remedy=remedy)


def models(views: Sequence[View]) -> Iterator[Finding]:
    """CB2607: nodes with other models of GPUs."""

    def shown(view: View) -> str | None:
        found = {(gpu.model or "").removeprefix("NVIDIA ") for gpu in view.machine.gpus}  # only the driver says NVIDIA
        return listed(sorted(found)) if found and "" not in found else None

    yield from _odd(
        views, "CB2607", "warning", what="GPU models", shown=shown, remedy="ask for equal nodes: the slowest decides the job's speed"
    )


def nics(views: Sequence[View]) -> Iterator[Finding]:
    """CB2602: nodes with other numbers of RDMA ports that are up."""

    def shown(view: View) -> str | None:
        ports = [port for nic in view.rdma for port in nic.ports]
        looked = ports or (view.machine.pci and not view.machine.nics)
        return plural(sum(not is_down(port) for port in ports), "RDMA port") + " up" if looked else None

    remedy = "the node with the fewest decides the job's speed: look at its links, or leave it out"
    yield from _odd(views, "CB2602", "severe", what="RDMA ports", shown=shown, remedy=remedy)


def drivers(views: Sequence[View]) -> Iterator[Finding]:
    """CB2603: different GPU drivers."""
    yield from _odd(views, "CB2603", "warning", what="GPU drivers", shown=lambda view: view.machine.system.driver, remedy=_SAME)


def kernels(views: Sequence[View]) -> Iterator[Finding]:
    """CB2604: different kernels."""
    yield from _odd(views, "CB2604", "note", what="kernels", shown=lambda view: view.machine.system.kernel, remedy=_SAME)


def firmware(views: Sequence[View]) -> Iterator[Finding]:
    """CB2605: RDMA devices of one model with different firmware, within a node or between nodes."""
    found: dict[str, dict[str, list[str]]] = {}
    for view in views:
        for nic in view.rdma:
            if nic.firmware and nic.model:
                host = f"{view.machine.hostname} " if view.machine.hostname and len(views) > 1 else ""
                found.setdefault(nic.model, {}).setdefault(nic.firmware, []).append(f"{host}{nic.name}")
    for model, versions in sorted(found.items()):
        if len(versions) > 1:
            texts = [f"{version} on {listed(where, 4)}" for version, where in sorted(versions.items(), key=lambda item: -len(item[1]))]
            what = f"{model} runs with {len(versions)} versions of firmware"
            yield Finding("CB2605", "warning", _only_host(views), what, "; ".join(texts), f"flash one version (`mlxfwmanager`): {_SAME}")


def mtus(views: Sequence[View]) -> Iterator[Finding]:
    """CB2606: nodes whose RDMA ports use another MTU."""

    def shown(view: View) -> str | None:
        found = {port.mtu_bytes for nic in view.rdma for port in nic.ports if not is_down(port)}
        return f"MTU {', '.join(str(mtu) for mtu in sorted(mtu for mtu in found if mtu))}" if found and None not in found else None

    remedy = "set one MTU on all hosts and switches: the smaller one is used, or packets are lost"
    yield from _odd(views, "CB2606", "warning", what="MTUs", shown=shown, remedy=remedy)


def _odd(
    views: Sequence[View], code: str, severity: Severity, *, what: str, shown: Callable[[View], str | None], remedy: str
) -> Iterator[Finding]:
    """One finding per minority: the nodes that differ from what most have. Nodes of which nothing is known are left out."""
    groups: dict[str, list[str]] = {}
    for place, view in enumerate(views):
        if (value := shown(view)) is not None:
            groups.setdefault(value, []).append(view.machine.hostname or f"machine {place + 1}")
    (usual, most), *others = sorted(groups.items(), key=lambda item: -len(item[1])) or [("", [])]
    for value, hosts in others:
        evidence = f"{listed(hosts)}: {value}; {listed(most, 4)}: {usual}"
        verb = "differs" if len(hosts) == 1 else "differ"
        yield Finding(code, severity, None, f"{what}: {listed(hosts)} {verb} from {plural(len(most), 'other node')}", evidence, remedy)


def _only_host(views: Sequence[View]) -> str | None:
    return views[0].machine.hostname if len(views) == 1 else None


JOB_RULES = (gpus, nics, drivers, kernels, firmware, mtus, models)
