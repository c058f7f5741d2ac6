"""Links that limit a reference rate, as values: rows store them with their text, and diagrams mark them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from collbench.reason import Fact
from collbench.units import plural

P = TypeVar("P", bound="LimitPart")
_WAYS = {"pair": " of a pair", "cpu": " to the CPU"}


class LimitPart(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """A link, or several equal links together, that limit a rate.

    gpus         the links of this many GPUs together
    nodes        the links of each of this many nodes, which one NVLink domain joins
    fabric       the fabric carries the rate divided by this (--oversubscription)
    shared_by    this many flows share the link; `sharing` is their kind
    host         the node, where the nodes of a job differ
    """

    gpus: int = 1
    nodes: int = 1
    fabric: float = 1.0
    shared_by: int = 1
    sharing: Literal["pairs", "edges of the ring", "edges of the rings", "groups", "GPUs"] = "pairs"
    host: str | None = None

    def alone(self: P) -> P:
        """Return the link itself: without host, fabric and sharing."""
        return msgspec.structs.replace(self, gpus=1, nodes=1, fabric=1.0, shared_by=1, sharing="pairs", host=None)

    def of(self: P, **changes: Any) -> P:
        """Return a copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)

    def _with_conditions(self, link: str) -> str:
        return (
            link
            + (f" of {plural(self.gpus, 'GPU')}" if self.gpus > 1 else "")
            + (f" of each of {plural(self.nodes, 'node')}" if self.nodes > 1 else "")
            + (f", fabric {self.fabric:g}:1" if self.fabric != 1 else "")
            + (f" shared by {self.shared_by:,} {self.sharing}" if self.shared_by > 1 else "")
        )


class PcieLimit(LimitPart, frozen=True):
    """The PCIe link of a GPU or NIC limits the rate."""

    generation: int
    lanes: int

    def render(self) -> str:
        """Return "PCIe Gen4 x16"."""
        return self._with_conditions(f"PCIe Gen{self.generation} x{self.lanes}")


class BridgeLimit(LimitPart, frozen=True):
    """The PCIe link above a switch limits the rate. The devices below the switch share it. others: the number of other such links."""

    address: str
    others: int = 0

    def render(self) -> str:
        """Return "the PCIe link above 0000:01:00.0", "the PCIe links above 0000:01:00.0 and 3 other bridges"."""
        if not self.others:
            return self._with_conditions(f"the PCIe link above {self.address}")
        return self._with_conditions(f"the PCIe links above {self.address} and {plural(self.others, 'other bridge')}")


class NicLimit(LimitPart, frozen=True):
    """The NICs of a node together limit the rate.

    ports        pairs of (number of ports, rate in bits per second), the fastest first
    interface    the network interface, where TCP uses only one
    slots        the PCIe links of the slots that are slower than their NICs' ports
    """

    ports: tuple[tuple[int, float], ...]
    interface: str | None = None
    slots: tuple[PcieLimit, ...] = ()

    def render(self) -> str:
        """Return "NIC 4×100 Gb/s", "NIC 8×400 + 1×200 Gb/s", "NIC eth0 10 Gb/s, TCP"."""
        is_single = self.interface is not None and len(self.ports) == 1 and self.ports[0][0] == 1
        rates = " + ".join(f"{'' if is_single else f'{count}×'}{rate / 1e9:g}" for count, rate in self.ports)
        name = f"NIC {rates} Gb/s" if self.interface is None else f"NIC {self.interface} {rates} Gb/s, TCP"
        return self._with_conditions(name + (f" in slots of {' and '.join(slot.render() for slot in self.slots)}" if self.slots else ""))


class GpuLinkLimit(LimitPart, frozen=True):
    """The NVLinks or xGMI links between GPUs limit the rate.

    count        number of links of one GPU (or of the pair); None if only their total rate is known
    bytes_per_s  rate of one link, or of all where `count` is None; one direction
    way          the links of one GPU to others, of a pair of GPUs, of a path through a third GPU, between two sets of GPUs (`sets`), or
                 of a GPU to its CPU
    nvls         whether the switches reduce data (NVLink SHARP)
    """

    link: Literal["NVLink", "xGMI"]
    bytes_per_s: float
    count: int | None = None
    way: Literal["gpu", "pair", "third_gpu", "sets", "cpu"] = "gpu"
    sets: tuple[int, int] | None = None
    nvls: bool = False

    def alone(self) -> GpuLinkLimit:
        """Return the link itself, also without NVLink SHARP."""
        return super().alone().of(nvls=False)

    def render(self) -> str:
        """Return "NVLink 12×25 GB/s", "xGMI 1×64 GB/s of a pair"."""
        rate = f"{f'{self.count}×' if self.count is not None else ''}{self.bytes_per_s / 1e9:g} GB/s"
        if self.way == "third_gpu":
            return self._with_conditions(f"{self.link} over a third GPU")
        if self.sets is not None:
            return self._with_conditions(f"{self.link} between {self.sets[0]} and {self.sets[1]} GPUs, {rate}")
        name = f"{self.link} {rate}{_WAYS.get(self.way, '')}"
        return self._with_conditions(f"{name} with NVLink SHARP" if self.nvls else name)


Limit = NicLimit | PcieLimit | BridgeLimit | GpuLinkLimit


def limit_parts(value: Any) -> tuple[Limit, ...]:
    """Return the limiting links of a stored row; () for rows of earlier versions, which have only text, and of later ones."""
    try:
        parts: tuple[Limit, ...] = msgspec.convert(value or (), tuple[Limit, ...])
    except msgspec.ValidationError:
        return ()
    return parts


def limited_by(parts: Sequence[Limit]) -> str:
    """Return "NIC 4×100 Gb/s and NVLink 12×25 GB/s of a pair", with the host where the nodes of a job differ.

    Several links are listed where only all of them together have that rate.
    """
    host = next((part.host for part in parts if part.host), None)
    return " and ".join(map(str, parts)) + (f" of {host}" if host else "")
