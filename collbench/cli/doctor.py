"""collbench doctor: what is wrong with this node, or with every node of the launch, before anything is measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.options import add_color_and_timeout
from collbench.errors import FINE, RunFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collbench.launch.explain import Explanation
    from collbench.launch.info import LaunchInfo
    from collbench.machine.model import Machine
    from collbench.machine.readers.nccl_log import NcclLog

_ABOUT = "what is wrong with this node, or under srun or mpirun with every node, worst first, with evidence and remedy; exit 1 if severe"

_LOG = (
    "logs of NCCL or RCCL (NCCL_DEBUG=INFO), plain or compressed: a summary and findings; "
    "without a launcher and --from, a log that other hosts wrote is examined "
    "alone, without this machine"
)

_SINCE = (
    "what `probe --format json` printed when the nodes were good: what they had then and lack now is found, too; a snapshot of one node is "
    "taken for all, of nodes that are alike"
)

_HOSTS_S = 10.0  # for the other hosts of a launch to tell their software

_LAUNCH = (
    "instead: how this shell would launch, which launchers and MPI it has, whether they fit, and what to type; exit 1 where they do not"
)


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("doctor", help="what is wrong with the nodes, worst first; exit 1 if severe", description=_ABOUT)
    parser.add_argument(
        "--from", dest="sources", nargs="+", type=Path, metavar="PATH", help="read these instead, as `collbench probe` does"
    )
    parser.add_argument("--since", type=Path, metavar="FILE", help=_SINCE)
    parser.add_argument("--launch", action="store_true", help=_LAUNCH)
    parser.add_argument("--log", nargs="+", type=Path, default=[], metavar="FILE", help=_LOG)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="text, or one JSON object (default: table)")
    add_color_and_timeout(parser)
    parser.set_defaults(call=call)
    return {"doctor": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Probes or reads, prints the findings at rank 0, and returns the exit code. Raises CollbenchError."""
    import os

    if arguments.launch:
        return _launch(arguments)
    from collbench.measure.probing import at_rank_0, launched, together

    if arguments.sources:
        return at_rank_0(os.environ, arguments.timeout, lambda: _sent(arguments))
    if arguments.log and not launched(os.environ):
        logs = _logs(arguments)
        if not _of_here(logs):
            return _tell([], logs, arguments)
    return together(os.environ, arguments.timeout, lambda machines: _tell(machines, _logs(arguments), arguments, here=True))


def _launch(arguments: argparse.Namespace) -> int:
    """How this shell would launch; of a launch rank 0 alone says it. Raises UsageError beside options that examine a machine."""
    import os
    import sys

    from collbench.report.launch import tell_launch

    others = {"--from": arguments.sources, "--log": arguments.log, "--since": arguments.since}
    beside = next((option for option, given in others.items() if given), None)
    if beside:
        raise UsageError(f"--launch looks at this shell, {beside} at what others sent: leave one of the two out")
    told = _explained(os.environ, arguments.timeout)
    return FINE if told is None else tell_launch(told, arguments.format, sys.stdout, color=arguments.color)


def _explained(env: Mapping[str, str], timeout_s: float) -> Explanation | None:
    """What this shell would do, and, in a launch on several hosts, their software; None at ranks other than 0."""
    from collbench.launch import software
    from collbench.launch import software as build
    from collbench.launch.explain import Library, explained, launch_of, library, rank_of, with_hosts

    info, _ = launch_of(env)
    if info and info.meeting == "mpi":
        info = _met_over_mpi(info)
    if info is None or info.ranks == info.local_ranks or not info.meeting.startswith("tcp://"):
        return None if rank_of(env) else explained(env)

    def about(loaded: Library) -> Mapping[str, str]:
        return {**software.installed(), "native": build.native(), **({"mpi": loaded.name} if loaded.name else {})}

    from collbench.control.builds import collect, tell_rank_0

    wait_s = min(timeout_s, _HOSTS_S)
    if info.rank:
        if info.local_rank == 0:
            tell_rank_0(info, env, about(library(env)), 2 * wait_s)
        return None
    told, hosts, silent = collect(info, env, lambda: explained(env), lambda one: about(one.library), wait_s)
    return with_hosts(told, hosts, silent)


def _met_over_mpi(info: LaunchInfo) -> LaunchInfo | None:
    """Return the launch with rank 0's address; None if MPI cannot serve this launch, which the explanation reports by itself.

    Raises UsageError if no address of rank 0's host is reachable from all hosts.
    """
    try:
        from collbench.control.addresses import finalise, with_meeting
    except ImportError:  # no mpi4py
        return None
    try:
        return with_meeting(info)
    except RunFailed:
        return None
    finally:
        finalise()


def _sent(arguments: argparse.Namespace) -> int:
    """Machines that somebody sent files of."""
    from collbench.launch.supervise import say
    from collbench.machine.sources import read_paths

    return _tell(read_paths(arguments.sources, say), _logs(arguments), arguments)


def _logs(arguments: argparse.Namespace) -> list[NcclLog]:
    """The logs that are named. Raises Unreadable for what is no file, or no log."""
    from collbench.machine.readers.nccl_log import read_file

    return [read_file(file) for file in arguments.log]


def _good(file: Path | None) -> list[Machine]:
    """The machines of a snapshot. Raises Unreadable."""
    from collbench.machine.sources import read_paths

    return read_paths([file]) if file is not None else []


def _of_here(logs: list[NcclLog]) -> bool:
    """Whether this host wrote one of the logs: beside a foreign one, its NICs would be taken for those of the job."""
    import socket

    here = socket.gethostname().partition(".")[0].lower()
    return any(host.partition(".")[0].lower() == here for log in logs for host in log.hosts)


def _tell(machines: list[Machine], logs: list[NcclLog], arguments: argparse.Namespace, here: bool = False) -> int:
    """Examines the machines and the logs, and, where this host is one of them, the software of this process; and prints."""
    import os
    import sys

    from collbench.machine.doctor.examine import examine
    from collbench.machine.doctor.finding import worst_first
    from collbench.report.doctor import tell_findings

    found = examine(machines, logs, _good(arguments.since))
    if here:
        from collbench.machine.doctor import job_settings, software

        hostname = machines[0].hostname if machines else None
        found = worst_first([*found, *software.examined(hostname, os.environ), *job_settings.examined(hostname, os.environ)])
    return tell_findings(found, machines, logs, arguments.format, sys.stdout, color=arguments.color)
