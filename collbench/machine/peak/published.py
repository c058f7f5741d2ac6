"""Published bus bandwidths (published.toml), each with its source, and the selection of those for machines like the one of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from math import isclose, log
from pathlib import Path
from typing import Any, Literal

import msgspec

from collbench.machine.peak.job import joined
from collbench.machine.peak.node import Job, UserOverride, node_from_user, parse_nic, parse_pcie
from collbench.machine.peak.rates import parse
from collbench.units import format_rate

FILE = Path(__file__).with_name("published.toml")
_ALIKE = 0.002  # of a rate: 448 GB/s of xGMI and 450 GB/s of NVLink differ
_MOST = 4


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of published.toml; rates in GB/s. The fields are explained in that file."""

    operation: str
    machine: str
    gpus_per_node: int
    busbw_gb_per_s: tuple[float, float]
    source: str
    nodes: int = 1
    nvlink_gb_per_s: float | None = None
    nic: str | None = None
    pcie: str | None = None
    nvls: bool = False
    algorithm: str | None = None
    nvlink_domain: int | None = None

    @property
    def gpu(self) -> str:
        """The model of its GPUs, the first word of `machine`."""
        return self.machine.partition(" ")[0]

    def job(self) -> Job:
        """Return the job of the measurement, from its given hardware."""
        nvls = True if self.nvls else None
        override = UserOverride(
            parse_nic(self.nic) if self.nic else None,
            self.nvlink_gb_per_s * 1e9 if self.nvlink_gb_per_s else None,
            parse_pcie(self.pcie) if self.pcie else None,
            False if self.algorithm else nvls,
        )
        nodes = (node_from_user(self.gpus_per_node, override),) * self.nodes
        return Job(joined(nodes, self.nvlink_domain) if self.nvlink_domain else nodes)


class PublishedFigure(msgspec.Struct, frozen=True):
    """The result of one or several sources on the same machines with the same algorithm.

    busbw_bytes_per_s   the lowest and the highest
    """

    busbw_bytes_per_s: tuple[float, float]
    machine: str
    nodes: int
    gpus_per_node: int
    nvls: bool
    algorithm: str | None
    sources: tuple[str, ...]

    def render(self) -> str:
        """Return it as text: "475–482 GB/s on 8×H200 with NVLS (https://…)"."""
        low, high = map(format_rate, self.busbw_bytes_per_s)
        rates = low if low == high else f"{low}–{high}"
        count = f"{self.nodes}×{self.gpus_per_node} " if self.nodes > 1 else f"{self.gpus_per_node}×"
        algorithm = f" with the {self.algorithm} algorithm" if self.algorithm else ""
        if self.nvls:
            algorithm = " with NVLS"
        return f"{rates} GB/s on {count}{self.machine}{algorithm} ({', '.join(self.sources)})"


class PublishedFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole table of published bus bandwidths."""

    schema: Literal[1]
    published: tuple[Published, ...]


@cache
def rows() -> tuple[Published, ...]:
    """Return the rows of the table in the package."""
    return parse(FILE.read_text(encoding="utf-8"), PublishedFigures).published


def published(operation: str, job: Job) -> list[PublishedFigure]:
    """Return what was published for machines like those of a job, the nearest numbers of nodes first; at most 4 figures.

    Machines are alike if they have the same number of GPUs of the same model and the same rate of their links; across nodes also of their
    NICs. Where no source has the model, the library that runs on the GPUs must be the same.
    """
    node = job.nodes[0]
    if not _is_uniform(job) or node.injection.bytes_per_s is None:
        return []
    words = re.split(r"[^A-Za-z0-9]+", node.model) if node.model else None
    groups: dict[tuple[Any, ...], list[Published]] = {}
    for row in rows():
        if row.operation != operation or (words is not None and row.gpu not in words):
            continue
        published_job = row.job()
        same_library = published_job.nodes[0].injection.library == node.injection.library
        if (words or same_library) and _is_uniform(published_job) and _are_alike(published_job, job):
            groups.setdefault((row.machine, row.nodes, row.gpus_per_node, row.nvls, row.algorithm), []).append(row)
    nearest_first = sorted(groups.values(), key=lambda group: abs(log(group[0].nodes / job.machines)))
    return [_figure(group) for group in nearest_first[:_MOST]]


def _is_uniform(job: Job) -> bool:
    """Return whether all nodes of a job are equal, and the rates are those of their links."""
    return len(job.kinds) == 1 and job.ceiling_from_user is None


def _are_alike(a: Job, b: Job) -> bool:
    """Return whether two jobs on equal nodes have as many GPUs per node, the same network of NVLinks, and the same rates."""
    node_a = a.nodes[0]
    node_b = b.nodes[0]
    if node_a.gpus / node_a.machines != node_b.gpus / node_b.machines or (a.machines > 1, a.several) != (b.machines > 1, b.several):
        return False
    egress_alike = not a.several or _are_close(node_a.egress.bytes_per_s, node_b.egress.bytes_per_s)
    return egress_alike and _are_close(node_a.injection.bytes_per_s, node_b.injection.bytes_per_s)


def _are_close(a: float | None, b: float | None) -> bool:
    return a is b is None or (a is not None and b is not None and isclose(a, b, rel_tol=_ALIKE))


def _figure(group: Sequence[Published]) -> PublishedFigure:
    first = group[0]
    low = 1e9 * min(row.busbw_gb_per_s[0] for row in group)
    high = 1e9 * max(row.busbw_gb_per_s[1] for row in group)
    sources = tuple(dict.fromkeys(row.source for row in group))
    return PublishedFigure((low, high), first.machine, first.nodes, first.gpus_per_node, first.nvls, first.algorithm, sources)
