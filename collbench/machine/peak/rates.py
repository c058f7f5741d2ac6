"""The table of rates (rates.toml), each row with its source; read when first needed, strict about its keys."""

from __future__ import annotations

import tomllib
from functools import cache
from math import isclose, isfinite
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from collbench.errors import UsageError

FILE = Path(__file__).with_name("rates.toml")
_CLOSE = 0.005  # tools print raw rates with three digits
_Table = TypeVar("_Table")


class _SourcedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row with the address of its source, and whether it was checked there."""

    source: str
    verified: bool


class Algorithms(_SourcedRow, frozen=True):
    """What NCCL's algorithms reach of the rates that it takes links for; the fields are explained in rates.toml."""

    tree: float
    nvls_channels: int
    nic: float
    nic_source: str


class AlgorithmLatency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of an algorithm by protocol (LL, LL128, Simple; or Simple alone): once, and of a hop over each kind of link."""

    base: list[float]
    nvlink: list[float]
    pcie: list[float]
    network: list[float]


class TimeModel(_SourcedRow, frozen=True):
    """NCCL's constants for the time of a size; the fields are explained in rates.toml."""

    ring: AlgorithmLatency
    tree: AlgorithmLatency
    nvls: AlgorithmLatency
    nvls_tree: AlgorithmLatency
    ring_share: list[float]
    tree_share: list[float]
    tree_share_inside: float
    tree_correction: list[list[float]]
    overhead: list[float]
    plateau: list[float]
    plateau_bytes: int
    ll_gb_per_s: list[float]


class NvLink(_SourcedRow, frozen=True):
    """An NVLink generation: GB/s of one link in one direction, net; as `nvidia-smi nvlink -s` prints it; as NCCL takes it.

    ll_gb_per_s       the most that NCCL's protocol LL reaches on one node, in GB/s of bus bandwidth
    nvls_efficiency   the share of NCCL's rate that NVLink SHARP reaches by NCCL; None: the switches cannot reduce data
    """

    generation: int
    gb_per_s: float
    nccl_gb_per_s: float
    ll_gb_per_s: float
    architectures: list[str]
    nccl_source: str
    printed_gb_per_s: float | None = None
    nvls_efficiency: float | None = None
    nvls_source: str | None = None

    @property
    def nvls_share(self) -> float | None:
        """The share of NCCL's rate of these links at which data passes an all-reduce over NVLink SHARP; None: not possible."""
        channels = rates().algorithms.nvls_channels
        return None if self.nvls_efficiency is None else self.nvls_efficiency * (channels - 1) / channels

    @property
    def most_links(self) -> int:
        """The links of the GPU model of this generation that has the most."""
        return max((gpu.links for gpu in rates().gpu if gpu.architecture in self.architectures), default=0)

    @property
    def most_gb_per_s(self) -> float:
        """GB/s of all links of that GPU model together."""
        return self.most_links * self.gb_per_s


class GpuModel(_SourcedRow, frozen=True):
    """A GPU model: its maximum number of NVLinks, the PCIe generation of its interface, and where its links lead.

    bridge    the links lead to one other card
    c2c       it is on a module with its CPU: NVLink-C2C, not PCIe, carries its traffic to NICs, and a switch may join several nodes
    """

    model: str
    architecture: str
    links: int
    pcie_generation: int
    bridge: bool = False
    c2c: bool = False


class Xgmi(_SourcedRow, frozen=True):
    """AMD's link between GPUs: GB/s of one link in one direction, and RCCL's constant for it.

    links_of_pair   the number of links between two GPUs, by model, where sources print one link for all of them
    """

    architectures: list[str]
    gb_per_s: float
    rccl_gb_per_s: float
    rccl_source: str
    links_of_pair: dict[str, int] = {}
    links_of_pair_source: str | None = None


class Pcie(_SourcedRow, frozen=True):
    """A PCIe generation: GT/s of a lane, its coding (payload bits, line bits), and NCCL's GB/s for sixteen lanes."""

    generation: int
    gt_per_s: float
    coding: list[int]
    nccl_gb_per_s: float
    nccl_source: str

    def bytes_per_s(self, lanes: int) -> float:
        """Return the bytes per second of one direction after line coding."""
        return self.gt_per_s * 1e9 * lanes / 8 * self.coding[0] / self.coding[1]

    def nccl_bytes_per_s(self, lanes: int) -> float:
        """Return the bytes per second that NCCL assumes."""
        return self.nccl_gb_per_s * 1e9 * lanes / 16


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole table of hardware rates."""

    schema: Literal[1]
    algorithms: Algorithms
    time: TimeModel
    nvlink: tuple[NvLink, ...]
    gpu: tuple[GpuModel, ...]
    xgmi: tuple[Xgmi, ...]
    pcie: tuple[Pcie, ...]


def parse(text: str, kind: type[_Table]) -> _Table:
    """Return a table of this package. Raises UsageError for other keys, values of other types, and broken TOML."""
    try:
        return msgspec.convert(tomllib.loads(text), kind)
    except (msgspec.ValidationError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the table {kind.__name__} is not valid: {error}") from None


@cache
def rates() -> Rates:
    """Return the table in the package."""
    return parse(FILE.read_text(encoding="utf-8"), Rates)


@cache
def gpu_model(name: str | None) -> GpuModel | None:
    """Return the row with the longest model name that the GPU's name contains; None without one."""
    rows = [row for row in rates().gpu if row.model in (name or "")]
    return max(rows, key=lambda row: len(row.model), default=None)


@cache
def nvlink(architecture: str | None, model: str | None, count: int) -> NvLink | None:
    """Return the NVLink of a GPU by its architecture, else its model, else its number of links where only one rate has that many."""
    row = gpu_model(model)
    name = architecture or (row.architecture if row else None)
    if name:
        return next((link for link in rates().nvlink if name in link.architectures), None)
    architectures = {gpu.architecture for gpu in rates().gpu if gpu.links == count}
    candidates = [link for link in rates().nvlink if architectures & set(link.architectures)]
    return min(candidates, key=lambda link: link.nccl_gb_per_s) if len({link.gb_per_s for link in candidates}) == 1 else None


@cache
def xgmi(architecture: str | None) -> Xgmi | None:
    """Return the link between AMD GPUs of this architecture; None when unknown."""
    return next((row for row in rates().xgmi if architecture in row.architectures), None)


@cache
def nvlink_of_rate(gb_per_s: float, reduces: bool = False) -> NvLink:
    """Return the oldest generation with a whole number of links of this rate together; else the oldest that is fast enough, or the newest.

    reduces   only generations with switches that reduce data
    """
    usable = (row for row in rates().nvlink if row.most_links and (row.nvls_efficiency or not reduces))
    slowest_first = sorted(usable, key=lambda row: row.most_gb_per_s)
    fast_enough = next((row for row in slowest_first if row.most_gb_per_s >= gb_per_s), slowest_first[-1])
    return next((row for row in slowest_first if links_of_rate(row, gb_per_s)), fast_enough)


def links_of_rate(row: NvLink, gb_per_s: float) -> int | None:
    """Return how many links of a generation have this rate together; None if no GPU has that many, or it is not a whole number."""
    if not isfinite(gb_per_s):
        return None
    count = round(gb_per_s / row.gb_per_s)
    return count if 0 < count <= row.most_links and isclose(count * row.gb_per_s, gb_per_s, rel_tol=1e-6) else None


@cache
def pcie(gt_per_s: float | None) -> Pcie | None:
    """Return the PCIe generation with this many GT/s per lane; None when unknown."""
    return next((row for row in rates().pcie if row.gt_per_s == gt_per_s), None)


@cache
def net_of_printed(bytes_per_s: float) -> float:
    """Return the net rate of an NVLink for a rate that a tool printed: 26.562 GB/s is a raw 25."""
    for row in rates().nvlink:
        if row.printed_gb_per_s and abs(bytes_per_s / 1e9 / row.printed_gb_per_s - 1) < _CLOSE:
            return row.gb_per_s * 1e9
    return bytes_per_s
