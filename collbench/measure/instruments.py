"""What is read around a cell on each host, by the first of its ranks: counters of interfaces, ports and GPUs, and telemetry meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from collbench.control.world import World
from collbench.measure import counter_readings as counters
from collbench.measure.counter_readings import Counters
from collbench.measure.moved import Ran, evidence
from collbench.measure.nvml_counters import Gpus
from collbench.measure.one_cell import Ready
from collbench.measure.telemetry import Telemetry
from collbench.operations.cell import Cell

_SMALL_BYTES = 1 << 20  # a cell of smaller messages says nothing of clocks, and is the one that a second process would disturb


@dataclass
class Instruments:
    """This process's: NVML and telemetry only where it is its host's first rank, and the cells are of GPUs.

    reads   whether this process reads its host's counters
    """

    reads: bool
    gpus: Gpus | None = None
    telemetry: Telemetry | None = None
    _before: Counters = field(default_factory=Counters)
    _iterations: int = 0

    @classmethod
    def ready(cls, world: World, cuda: bool, telemetry_hz: float) -> Instruments:
        """Opened for a launch; `cuda`: whether any of its cells is of GPUs."""
        first = world.on_host()[0].rank == world.rank
        gpus = Gpus.open() if first and cuda else None
        return cls(first, gpus, Telemetry(telemetry_hz) if gpus and telemetry_hz > 0 else None)

    def begin(self, ready: Ready, world: World) -> None:
        """Reads, on all ranks; nobody begins to send before every host has read."""
        if self.telemetry:
            self.telemetry.taken()
            self.telemetry.switch(ready.cell.size_bytes >= _SMALL_BYTES)
        self._iterations = ready.loop.iterations_run
        if self.reads:
            self._before = counters.read(gpus=self._of(ready.cell))
        if len(world.hosts) > 1:  # on one host rank 0 is the only one that reads
            world.gather(None, f"{ready.cell.title()}: reading counters")  # the ranks wait for rank 0's word, and that for this

    def end(self, ready: Ready) -> dict[str, Any]:
        """What this process has to say at rank 0, JSON-ready."""
        moved = counters.moved(self._before, counters.read(gpus=self._of(ready.cell))) if self.reads else None
        if self.telemetry:
            self.telemetry.switch(False)
        return {
            "moved": moved, "iterations": ready.loop.iterations_run - self._iterations,
            "driven": [group.ranks[rank] for group in ready.mine for rank in group.driven],
            "telemetry": self.telemetry.taken() if self.telemetry else [],
        }  # fmt: skip

    def close(self) -> None:
        """Ends telemetry and leaves NVML."""
        if self.telemetry:
            self.telemetry.close()
        if self.gpus:
            self.gpus.close()

    def _of(self, cell: Cell) -> Gpus | None:
        return self.gpus if cell.device == "cuda" else None


def told(ready: Ready, world: World, everyone: list[dict[str, Any]]) -> dict[str, Any]:
    """At rank 0, from what every process said at the `end`: the row's evidence "moved"."""
    hosts = [member.host for member in world.members]
    host_of = {rank: host for host, one in zip(hosts, everyone, strict=True) for rank in one["driven"]}
    by_host = {host: one["moved"] for host, one in zip(hosts, everyone, strict=True) if one["moved"] is not None}
    must = ready.must(host_of) if ready.must else None
    return evidence(Ran(ready.operation, ready.cell, ready.groups, host_of, everyone[0]["iterations"], must), by_host)
