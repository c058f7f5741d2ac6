"""What NCCL says of the paths it takes: its log on each rank, what it chose for a cell in an untimed call, RAS when nothing moves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.machine.model import Machine
from collbench.measure import infiniband_counters, nccl_ras
from collbench.measure.gpudirect import state_of_run
from collbench.measure.nccl_debug import DebugLog, prepare, resetter
from collbench.measure.nccl_summary import together
from collbench.operations.cell import Cell

_SHOWN = ("sentence", "transports", "nics", "gdr", "hosts_without_gdr", "why")
_WHAT = "reading NCCL's log"
_MEETING = ("allreduce", 4)  # the backend's own synchronisation
Choices = list[dict[str, Any]]


@dataclass
class NcclPaths:
    """One backend's log on this rank. `facts`: of all ranks together after the last cell, at rank 0.

    tuning   whether NCCL writes a line per call all the time, as `--evidence tuning` asks
    """

    log: DebugLog
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, tuning: bool) -> NcclPaths:
        """Asks NCCL for its log; before it is loaded. To be closed."""
        return cls(prepare(os.environ, tuning=tuning))

    @contextmanager
    def witness(self, backend: Backend, cell: Cell) -> Iterator[Choices]:
        """Around untimed calls of a cell: the list holds afterwards which algorithms and protocols NCCL chose for them.

        What it chose for the synchronisation before them is left out, unless the cell is just such a one.
        """
        reset = resetter(*backend.nccl) if backend.nccl else None
        with self.log.witness(reset) as choices:
            yield choices
        if (cell.operation, cell.size_bytes) != _MEETING:
            choices[:] = [each for each in choices if (str(each["collective"]).lower(), each["bytes"]) != _MEETING]

    def evidence(self, world: World, choices: Choices, machines: Sequence[Machine], moved: dict[str, Any]) -> dict[str, Any]:
        """For the row, at rank 0: the paths of all ranks so far, what was chosen for this cell, the state of GPUDirect. All ranks call."""
        mine: dict[str, Any] = {"facts": self.log.facts(), "choices": choices}
        everyone = world.gather(mine, _WHAT)
        if everyone is None:
            return {}
        self.facts = together([said["facts"] for said in everyone])
        first: Choices = next((said["choices"] for said in everyone if said["choices"]), [])
        state = state_of_run(self.facts, machines, rdma_bytes(moved))
        return {"nccl": {name: self.facts[name] for name in _SHOWN} | {"choices": first}, "gpudirect": asdict(state)}

    def close(self) -> None:
        """Removes the log, and takes back what was set."""
        self.log.close()


def rdma_bytes(moved: dict[str, Any]) -> int | None:
    """Bytes that the RDMA ports sent, by a row's evidence "moved"; None where no port counts them, or one lost count."""
    hosts = moved.get("hosts", {}).values()
    sent = [infiniband_counters.moved(counts, "tx") for told in hosts for counts in told.get("ports", {}).values()]
    if None in sent:
        return None
    total = sum(count for count in sent if count)
    return total if total or any(told.get("idle_ports") for told in hosts) else None


def ask_ras() -> str:
    """What NCCL's RAS says about ranks that lag or are gone, or why it does not."""
    answer = nccl_ras.ask(os.environ)
    return answer.sentence or answer.why or "NCCL's RAS says nothing"
