"""A capacity with its name: what every ceiling is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

COUNTED = "counted"
NCCL, RCCL = "NCCL", "RCCL"


@dataclass(frozen=True, slots=True)
class Link:
    """What one direction of a link, or of several together, can carry.

    bytes_per_s         None when nobody knows, and then `name` says why
    name                for people: "NVLink 12×25 GB/s", "NIC 4×100 Gb/s", "PCIe Gen4 x16"
    source              "counted" from hardware, the option that gave it ("--nic"), or the file that says so
    nccl_bytes_per_s    what NCCL (for AMD: RCCL) takes it for; None when it has no constant for it
    library             whose constant that is: "NCCL" or "RCCL"
    """

    bytes_per_s: float | None
    name: str
    source: str = COUNTED
    nccl_bytes_per_s: float | None = None
    library: str = NCCL

    @property
    def known(self) -> float:
        """The rate; infinite when unknown, so that it limits nothing."""
        return float("inf") if self.bytes_per_s is None else self.bytes_per_s

    def as_nccl_takes_it(self) -> Link:
        """The same link with NCCL's constant for its rate."""
        return replace(self, bytes_per_s=self.nccl_bytes_per_s)

    def shared(self, by: float, name: str) -> Link:
        """A part of it, under a name of its own."""
        nccl = None if self.nccl_bytes_per_s is None else self.nccl_bytes_per_s / by
        return replace(self, bytes_per_s=None if self.bytes_per_s is None else self.bytes_per_s / by, name=name, nccl_bytes_per_s=nccl)


def unknown(why: str) -> Link:
    """A capacity that nobody knows, and why."""
    return Link(None, why)
