"""Machines that somebody sent files of, as the nodes of a job: what `peak` and `import` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.machine.model import Machine
    from collbench.machine.peak.job import Job
    from collbench.machine.peak.node import Node


def read_machines(sources: Sequence[Path]) -> list[Machine]:
    """The machines in the files of --from; which files are of no kind that is read goes to stderr. Raises UsageError."""
    from collbench.launch.supervise import say
    from collbench.machine.sources import read_paths

    return read_paths(sources, say)


def repeated(nodes: Sequence[Node], asked: int | None) -> tuple[Node, ...]:
    """One machine's node as often as asked for, or one each. Raises UsageError where --from tells of another number of machines."""
    if len(nodes) == 1:
        return (nodes[0],) * (asked or 1)
    if asked not in (None, len(nodes)):
        raise UsageError(
            f"--from tells of {len(nodes)} machines and --nodes asks for {asked}: give one machine for all nodes, or one for each"
        )
    return tuple(nodes)


def job_on(machines: Sequence[Machine], ranks: int, nodes: int | None, device: str) -> Job:
    """A job of so many ranks on these machines, one rank per GPU, or on host memory (device "cpu").

    Raises UsageError where nobody says how many nodes there were, the ranks do not spread evenly over them, or a machine has fewer GPUs.
    """
    from collbench.machine.peak.job import Job

    if nodes is None:
        raise UsageError("the number of nodes is not told: say --nodes N")
    if ranks % nodes:
        raise UsageError(f"{ranks} ranks do not spread evenly over {nodes} nodes: which links they share is not known")
    make = _on_host if device == "cpu" else _on_gpus
    return Job(repeated([make(machine, ranks // nodes) for machine in machines], nodes))


def _on_gpus(machine: Machine, ranks: int) -> Node:
    from collbench.machine.peak.node import node_of

    return node_of(machine, ranks)


def _on_host(machine: Machine, ranks: int) -> Node:
    """Only what leaves the host is known from files: its memory would have to be measured."""
    from collbench.machine.peak.link import unknown
    from collbench.machine.peak.nics import egress_of
    from collbench.machine.peak.node import Node
    from collbench.machine.peak.pcie import PcieTree

    inside = unknown("what memory carries between ranks of a host is measured, and in no file")
    return Node(ranks, inside, egress_of(machine, PcieTree(machine)).link, neighbours=inside, host=machine.hostname)
