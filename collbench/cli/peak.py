"""collbench peak: what an operation could reach, from probed files or from typed figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.hardware import read_machines, repeated
from collbench.cli.parser import factor, positive
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.machine.peak.collective import Ceilings
    from collbench.machine.peak.job import Job
    from collbench.machine.peak.node import Node

_MOST_NODES = 1_000_000
_MOST_GPUS = 1024


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("peak", help="what an operation could reach on hardware that is probed, read from files or typed")
    parser.add_argument("operation", metavar="OPERATION", help="allreduce, broadcast, alltoall, …")
    parser.add_argument(
        "--from", dest="sources", nargs="+", type=Path, metavar="PATH", help="read the nodes from these: one machine for all, or one each"
    )
    parser.add_argument("--nodes", type=positive, metavar="N", help="nodes (default: 1, or as many as --from has)")
    parser.add_argument("--gpus-per-node", type=positive, metavar="G", help="GPUs that take part on each node (default: all)")
    parser.add_argument("--nic", metavar="KxRATE", help="NICs of a node, like 4x100Gb or 8x400Gb")
    parser.add_argument("--nvlink", metavar="GB/s", help="NVLink or xGMI of one GPU, one direction")
    parser.add_argument("--pcie", metavar="GENxLANES", help="PCIe link of one GPU, like gen4x16")
    parser.add_argument(
        "--nvlink-domain",
        type=positive,
        metavar="GPUS",
        help="GPUs that one NVLink fabric joins across nodes, 72 on GB200 NVL72 (default: by the nodes' clique ids, else one node)",
    )
    parser.add_argument("--nvls", action="store_true", help="the NVSwitches add (NVLink SHARP)")
    parser.add_argument("--sharp", action="store_true", help="the switches between the nodes add (InfiniBand SHARP)")
    parser.add_argument(
        "--oversubscription", metavar="X", type=factor, default=1.0, help="the fabric carries a node's rate divided by X (default: 1)"
    )
    parser.add_argument("--ceiling", metavar="GB/s", help="take this as the ceiling")
    parser.add_argument("--measured", metavar="GB/s", help="a busbw to set beside the ceilings")
    parser.add_argument(
        "--ring-edges", type=positive, default=1, metavar="N", help="sendrecv: edges that leave the busiest node (default: 1)"
    )
    parser.add_argument("--pairs", type=positive, default=1, metavar="N", help="p2p: pairs at once between nodes (default: 1)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="(default: text)")
    parser.set_defaults(call=call)
    return {"peak": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the ceilings; 0. Raises UsageError for what cannot be hardware, or cannot be read."""
    from collbench.machine.peak.collective import ceilings
    from collbench.machine.peak.given import parse_gigabytes
    from collbench.machine.peak.line import lines

    job = _job(arguments)
    measured = parse_gigabytes("--measured", arguments.measured) if arguments.measured is not None else None
    found = ceilings(arguments.operation, job)
    if arguments.format == "json":
        print(_json(arguments.operation, measured, found, job))
    else:
        print("\n".join(lines(arguments.operation, measured, found, job)))
    return 0


def _job(arguments: argparse.Namespace) -> Job:
    from collbench.machine.peak.given import parse_gigabytes
    from collbench.machine.peak.job import Job

    return Job(
        _nodes(arguments),
        oversubscription=arguments.oversubscription,
        sharp=arguments.sharp,
        ring_edges=arguments.ring_edges,
        pairs=arguments.pairs,
        given=parse_gigabytes("--ceiling", arguments.ceiling) if arguments.ceiling is not None else None,
    )


def _nodes(arguments: argparse.Namespace) -> tuple[Node, ...]:
    from collbench.machine.peak.domain import joined, joined_by_clique
    from collbench.machine.peak.given import Given, given_node, parse_gigabytes, parse_nic, parse_pcie, with_given
    from collbench.machine.peak.node import node_of

    if (arguments.nodes or 1) > _MOST_NODES or (arguments.gpus_per_node or 1) > _MOST_GPUS:
        raise UsageError(f"at most {_MOST_NODES} --nodes of {_MOST_GPUS} --gpus-per-node: ask for fewer")
    given = Given(
        nic=parse_nic(arguments.nic) if arguments.nic is not None else None,
        nvlink=parse_gigabytes("--nvlink", arguments.nvlink) if arguments.nvlink is not None else None,
        pcie=parse_pcie(arguments.pcie) if arguments.pcie is not None else None,
        nvls=arguments.nvls,
    )
    domain = arguments.nvlink_domain
    if not arguments.sources:
        nodes: tuple[Node, ...] = (given_node(arguments.gpus_per_node or 1, given),) * (arguments.nodes or 1)
    else:
        read = [
            node_of(machine, arguments.gpus_per_node, pcie=given.pcie, nics=given.nics, domain_known=domain is not None)
            for machine in read_machines(arguments.sources)
        ]
        nodes = repeated([with_given(node, given) for node in read], arguments.nodes)
    return joined(nodes, domain) if domain is not None else joined_by_clique(nodes)


def _json(operation: str, measured: float | None, found: Ceilings, job: Job) -> str:
    import json
    from dataclasses import asdict

    from collbench.machine.peak.collective import doubtful_input
    from collbench.machine.peak.line import assumed, chosen, doubts, percents
    from collbench.machine.peak.published import published

    model, ceiling = chosen(measured, found)
    rate = ceiling.bytes_per_s if ceiling else None
    ring, bound = percents(measured, found)
    return json.dumps({
        "operation": operation, "nodes": job.machines, "ranks": job.ranks, "nvlink_domains": len(job.nodes),
        **{name: asdict(value) if (value := getattr(found, name)) else None for name in ("ring", "bound", "achievable")},
        "library": found.library,
        "measured_bytes_per_s": measured, "model": model if rate else None, "percent_of_ceiling": ring if model == "ring" else bound,
        "percent_of_ring": ring, "percent_of_bound": bound,
        "published": [asdict(figure) for figure in published(operation, job)],
        "doubtful_input": doubtful_input(operation, job) if model == "doubtful" else None,
        "assumed": assumed(operation, job), "doubts": doubts(job),
    }, ensure_ascii=False)  # fmt: skip
