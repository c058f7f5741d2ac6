"""The measured rate of a channel in a node, or between two hosts: a row of `collbench probe --measure`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
WRONG = "wrong_data"


@dataclass(frozen=True, slots=True)
class Channel:
    """A row of `collbench probe --measure`; rates in bytes per second of one direction.

    channel         "host_memory", "h2d", "d2h", "h2d_d2h", "gpu_peer", "nic_host_memory_perftest", "nic_host_memory_mpi",
                    "nic_gpu_memory_mpi", "nic_gpu_memory_gdr_on", "nic_gpu_memory_gdr_off", "tcp_1", "tcp_8" (number of streams),
                    "iperf3", "fi_pingpong", "ucx_perftest" (external tools), "storage_1m", "storage_128k", "storage_4k_random",
                    "storage_gpu_cufile", "storage_gpu_staged"
    source, target  the places that the bytes leave and reach: "node1/numa0", "node1/gpu3", "node1/mlx5_0", "node1"
    bytes_per_s     the median, with its 95 % interval; None if nothing was measured: `na` has the reason
    of_bytes_per_s  the rate of the limiting link, None if no such figure is valid
    limited_by      that link with the source of its rate; without a rate, the kind of figure
    tool            for an external tool: its request, version, commands and statistic; else empty
    details         for storage: file system, device, file and block size, reads at once, what the page cache had; else empty
    flags           words that `results.flags` explains; WRONG: received data differs from sent data, `na` has the place, the rate is None
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
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def percent(self) -> float | None:
        """Return the percentage of the link's rate; None if the measured rate exceeds it."""
        if not self.bytes_per_s or not self.of_bytes_per_s or "above_bound" in self.flags:
            return None
        return 100 * self.bytes_per_s / self.of_bytes_per_s

    def to_json(self) -> dict[str, Any]:
        """Return it as in `--format json`; NaN and infinities are null."""
        numbers = {name: _finite(getattr(self, name)) for name in ("bytes_per_s", "ci_low", "ci_high", "of_bytes_per_s", "percent")}
        words = {"limited_by": self.limited_by or None, "na": self.na, "flags": list(self.flags)}
        theirs = {"tool": self.tool} if self.tool else {}
        own = {"details": self.details} if self.details else {}
        return {"channel": self.channel, "from": self.source, "to": self.target, **numbers, **words, **theirs, **own}


def document(channels: Sequence[Channel]) -> dict[str, Any]:
    """Return the JSON document of all channels."""
    return {"schema": SCHEMA, "channels": [channel.to_json() for channel in channels]}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
