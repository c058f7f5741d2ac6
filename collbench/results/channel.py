"""What one communication channel of a node, or between two hosts, was measured to carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
WRONG = "wrong_data"


@dataclass(frozen=True, slots=True)
class Channel:
    """One row of `collbench probe --measure`; rates in bytes per second of one direction.

    channel         "host_memory", "h2d", "d2h", "h2d_d2h", "gpu_peer", "nic_host_memory_perftest", "nic_host_memory_mpi",
                    "nic_gpu_memory_mpi", "nic_gpu_memory_gdr_on", "nic_gpu_memory_gdr_off", "tcp_1", "tcp_8" (so many streams),
                    "iperf3", "fi_pingpong", "ucx_perftest" (of another tool)
    source, target  where the bytes lie and where they go: "node1/numa0", "node1/gpu3", "node1/mlx5_0", "node1"
    bytes_per_s     the median, with its 95 % interval; None where nothing was measured, and then `na` says why
    of_bytes_per_s  what the limiting link could carry, None where no such figure means anything
    limited_by      that link with the source of its rate; without a rate, what the figure is
    tool            of another tool: what it was asked, its version, its commands and which statistic it gives; else empty
    flags           words that `report.flags` explains; WRONG: what arrived was not what was sent, `na` says where, and there is no rate
    """

    channel: str
    source: str
    target: str
    bytes_per_s: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    of_bytes_per_s: float | None = None
    limited_by: str = ""
    na: str | None = None
    flags: tuple[str, ...] = ()
    tool: dict[str, Any] = field(default_factory=dict)

    @property
    def percent(self) -> float | None:
        """Of what the link could carry; None where what was measured is above it."""
        if not self.bytes_per_s or not self.of_bytes_per_s or "above_bound" in self.flags:
            return None
        return 100 * self.bytes_per_s / self.of_bytes_per_s

    def to_json(self) -> dict[str, Any]:
        """As `--format json` has it; what is no finite number is null."""
        numbers = {name: _finite(getattr(self, name)) for name in ("bytes_per_s", "ci_low", "ci_high", "of_bytes_per_s", "percent")}
        words = {"limited_by": self.limited_by or None, "na": self.na, "flags": list(self.flags)}
        theirs = {"tool": self.tool} if self.tool else {}
        return {"channel": self.channel, "from": self.source, "to": self.target, **numbers, **words, **theirs}


def document(channels: Sequence[Channel]) -> dict[str, Any]:
    """The JSON document of all channels."""
    return {"schema": SCHEMA, "channels": [channel.to_json() for channel in channels]}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
