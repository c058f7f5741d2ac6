"""Machines made by hand from facts, for the tests of ceilings."""

from collections.abc import Iterable

from collbench.cli.machine import add_peak
from collbench.cli.parser import Parser
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, PciDevice, PcieLink, Port
from collbench.machine.peak.node import Node, UserOverride, node_from_user, parse_nic, parse_pcie

GEN3, GEN4, GEN5 = PcieLink(8.0, 16), PcieLink(16.0, 16), PcieLink(32.0, 16)


def gpus(count: int, architecture: str | None = "sm_80", model: str | None = None) -> tuple[Gpu, ...]:
    """GPUs 0000:10:00.0, 0000:11:00.0, …"""
    places = [f"0000:{16 + i:02x}:00.0" for i in range(count)]
    return tuple(Gpu(key=place, index=i, address=place, architecture=architecture, model=model) for i, place in enumerate(places))


def endpoints(some: Iterable[Gpu], link: PcieLink = GEN4, parent: str | None = None) -> tuple[PciDevice, ...]:
    return tuple(PciDevice(gpu.key, "gpu", parent, link=link) for gpu in some)


def switched(count: int, links: int, architecture: str | None = "sm_80", pcie: PcieLink = GEN4, nics: tuple[Nic, ...] = ()) -> Machine:
    some = gpus(count, architecture)
    wires = tuple(GpuLink(gpu.key, SWITCH, links) for gpu in some)
    slots = tuple(PciDevice(nic.address, "nic", link=pcie) for nic in nics if nic.address)
    return Machine(sources=("test",), gpus=some, gpu_links=wires, nics=nics, pci=(*endpoints(some, pcie), *slots))


def wired(some: tuple[Gpu, ...], pairs: dict[tuple[int, int], int], kind: str = "nvlink", pcie: PcieLink = GEN4) -> Machine:
    """GPUs with direct links: (i, j) -> how many."""
    wires = [GpuLink(some[a].key, some[b].key, count, kind) for (i, j), count in pairs.items() for a, b in ((i, j), (j, i))]
    return Machine(sources=("test",), gpus=some, gpu_links=tuple(wires), pci=endpoints(some, pcie))


def infiniband(count: int, gbit: float, state: str = "active", start: int = 0) -> tuple[Nic, ...]:
    """NICs mlx5_0, … with one port each, on PCI functions of their own."""
    port = Port(1, gbit * 1e9 if state == "active" else None, state=state, link_layer="infiniband")
    return tuple(Nic(f"mlx5_{i}", f"0000:{128 + i:02x}:00.0", rdma=True, ports=(port,)) for i in range(start, start + count))


def typed(
    nic: str | None = "4x100Gb", nvlink: float | None = 300.0, pcie: str | None = None, each: int = 8, nvls: bool | None = None
) -> Node:
    """A node of `each` GPUs as a user types it, `nvlink` in GB/s."""
    given = UserOverride(parse_nic(nic) if nic else None, nvlink and nvlink * 1e9, parse_pcie(pcie) if pcie else None, nvls)
    return node_from_user(each, given)


def call_peak(*argv: str) -> int:
    """Run `collbench peak argv…` with its parser alone, in less time than whole command lines take."""
    parser = Parser(prog="collbench")
    add_peak(parser.add_subparsers(parser_class=Parser))
    arguments = parser.parse_args(["peak", *argv])
    code: int = arguments.call(arguments, ["peak", *argv])
    return code
