"""The commands about machines: backends, explain, peak, probe and doctor."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.cli.options import DEFAULT_TIMEOUT_S, add_some
from collbench.cli.parser import Parser, add_command, add_format, factor, not_from_elsewhere, positive
from collbench.cli.request import default_backends
from collbench.errors import FINE, RunFailed, UsageError
from collbench.plugin import hooks_of

if TYPE_CHECKING:
    from collbench.launch.explain import Explanation
    from collbench.launch.info import LaunchInfo
    from collbench.machine.doctor.examine import ExaminedLog
    from collbench.machine.doctor.finding import Finding
    from collbench.machine.model import Machine
    from collbench.machine.peak.collective import CollectiveCeilings
    from collbench.machine.peak.node import Job
    from collbench.report.html.chart import Section
    from collbench.report.html.first_screen import FirstScreen


# collbench backends: each backend, and whether it is available here; else the reason and the remedy.


def add_backends(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "backends", "each backend: available, or why not and how to get it", call_backends, _add_backends_options)


def _add_backends_options(parser: Parser) -> None:
    add_format(parser, "table")


def call_backends(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print one line per backend; return 0, also for missing backends."""
    from collbench.report.backends import backend_lines, backend_states
    from collbench.report.screen import width_of, write_line

    for line in backend_lines(backend_states(default_backends(os.environ)), arguments.format, width_of(sys.stdout)):
        write_line(sys.stdout, line.text)
    return 0


# collbench explain CODE: the meaning of a finding, how to check it by hand, and what to do.


def add_explain(commands: Any) -> None:
    """Add the command."""
    about = "explain a word that collbench prints: a column, flag, outcome, reason, exit code, term, or the code of a finding (CB2105)"
    summary = "what a column, flag, outcome, exit code or finding means"
    add_command(commands, "explain", summary, call_explain, _add_explain_options, description=about)


def _add_explain_options(parser: Parser) -> None:
    parser.add_argument(
        "word", metavar="WORD", nargs="*", help="for example busbw, drift, inconclusive, 3, CB2105 or flags (default: list the topics)"
    )


def call_explain(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the pages of a word, the words of a topic, or all topics; return 0. Raises UsageError for an unknown word."""
    from collbench.report.explain import lines_about, topic_lines
    from collbench.report.screen import width_of, write_line

    width = width_of(sys.stdout)
    for line in lines_about(" ".join(arguments.word), width) if arguments.word else topic_lines(width):
        write_line(sys.stdout, line.text)
    return 0


# Machines known from files; shared by `peak`, `import`, `probe` and `doctor`.


def read_machines(sources: Sequence[Path]) -> list[Machine]:
    """Return the machines in the files of --from; print files of an unknown kind to stderr. Raises UsageError."""
    from collbench.launch.supervise import report_error
    from collbench.machine.sources import read_paths

    return read_paths(sources, report_error)


# collbench peak: the ceilings of an operation, from probed files or from given rates.

FLOOR_FORMS = ("nhc", "nvcre", "reframe", "json")


def add_peak(commands: Any) -> None:
    """Add the command."""
    summary = "what an operation could reach on this or on other hardware"
    about = "What an operation could reach on hardware that is probed, read from files or typed."
    add_command(commands, "peak", summary, call_peak, _add_peak_options, description=about)


def _add_peak_options(parser: Parser) -> None:
    parser.add_argument("operation", metavar="OPERATION", help="allreduce, broadcast, alltoall, …")
    parser.add_argument(
        "--from", dest="sources", nargs="+", type=Path, metavar="PATH", help="read the nodes from these: one machine for all, or one each"
    )
    parser.add_argument("--nodes", type=positive, metavar="N", help="nodes (default: 1, or as many as --from has)")
    parser.add_argument("--gpus-per-node", type=positive, metavar="G", help="GPUs that take part on each node (default: all)")
    parser.add_argument("--nic", metavar="KxRATE", help="NICs of a node, like 4x100Gb/s (bits) or 8x50GB/s (bytes)")
    parser.add_argument("--nvlink", metavar="GB/s", help="NVLink or xGMI of one GPU, one direction")
    parser.add_argument("--pcie", metavar="GENxLANES", help="PCIe link of one GPU, like gen4x16")
    parser.add_argument(
        "--nvlink-domain",
        type=positive,
        metavar="GPUS",
        help="GPUs that one NVLink fabric joins across nodes, 72 on GB200 NVL72 (default: by the nodes' clique ids, else one node)",
    )
    parser.add_argument(
        "--nvls", nargs="?", const="yes", choices=("yes", "no"),
        help="whether the NVSwitches add (NVLink SHARP; without a value: yes; default: yes for 5 GPUs or more on 450 GB/s or more each)",
    )  # fmt: skip
    parser.add_argument("--sharp", action="store_true", help="the switches between the nodes add (InfiniBand SHARP)")
    parser.add_argument(
        "--oversubscription", metavar="X", type=factor, default=1.0, help="the fabric carries a node's rate divided by X (default: 1)"
    )
    parser.add_argument("--ceiling", metavar="GB/s", help="take this as the ceiling")
    parser.add_argument("--measured", metavar="GB/s", help="a busbw to compare with the expected bandwidth (of the size in --sizes)")
    sizes = "expected time and busbw of each size, by NCCL's latencies: 1K-1G, 8M or 1K,1M"
    not_from_elsewhere(parser.add_argument("--sizes", metavar="SIZES", help=sizes))  # COLLBENCH_SIZES is for measuring commands
    parser.add_argument("--floor", metavar="PERCENT", help="minimum busbw for a health check, as a share of the expected one: 85%%")
    parser.add_argument("--emit", choices=FLOOR_FORMS, help="with --floor: write it for Azure's node health checks, NVIDIA's Cluster "
                        "Readiness Engine, ReFrame, or as JSON (default: json)")  # fmt: skip
    parser.add_argument(
        "--ring-edges", type=positive, default=1, metavar="N", help="sendrecv: edges that leave the busiest node (default: 1)"
    )
    pairs = "p2p: pairs at once between nodes (default: 1); multipair: pairs in all (default: half of the ranks)"
    parser.add_argument("--pairs", type=positive, metavar="N", help=pairs)
    add_some(parser, "html")
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="csv: the rows of --sizes (default: text)")


def call_peak(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the ceilings; return 0. Raises UsageError for invalid hardware figures or files."""
    from msgspec.structs import replace

    from collbench.machine.peak.collective import ceilings
    from collbench.machine.peak.comparison import csv_lines, lines, lines_of_sizes
    from collbench.machine.peak.job import check_ranks, nodes_of
    from collbench.machine.peak.node import Job, UserOverride, parse_nic, parse_pcie
    from collbench.machine.peak.time_model import expected_times
    from collbench.report.frame import Line
    from collbench.report.screen import width_of, wrapped
    from collbench.units import parse_sizes

    _check_peak_options(arguments)
    machines = read_machines(arguments.sources) if arguments.sources else []
    override = UserOverride(
        nic=parse_nic(arguments.nic) if arguments.nic is not None else None,
        nvlink=given_rate("--nvlink", arguments.nvlink),
        pcie=parse_pcie(arguments.pcie) if arguments.pcie is not None else None,
        nvls=None if arguments.nvls is None else arguments.nvls == "yes",
    )
    job = Job(
        nodes_of(machines, override, arguments.nodes, arguments.gpus_per_node, arguments.nvlink_domain),
        oversubscription=arguments.oversubscription,
        sharp=arguments.sharp,
        ring_edges=arguments.ring_edges,
        pairs=arguments.pairs,
        ceiling_from_user=given_rate("--ceiling", arguments.ceiling),
    )
    measured = given_rate("--measured", arguments.measured)
    reachable = ceilings(arguments.operation, job)
    check_ranks(arguments.operation, job)
    if reachable.expected is not None and reachable.expected.bytes_per_s is None:
        raise UsageError(f"peak {arguments.operation}: {reachable.expected.limited_by}")
    sizes = parse_sizes(arguments.sizes) if arguments.sizes else None
    if arguments.floor is not None:
        from collbench.machine.peak.floors import floors_of, parse_share, render

        floors = floors_of(arguments.operation, job, reachable, parse_share(arguments.floor), sizes)
        print(render(floors, arguments.operation, job, arguments.emit or "json"))
        return 0
    times = expected_times(arguments.operation, job, sizes) if sizes else []
    reachable = replace(reachable, sizes=tuple(times))
    if measured is not None and len(times) > 1:
        raise UsageError("--measured with several --sizes: use one size, the one that was measured")
    if arguments.html:
        from collbench.report.html.first_screen import of_peak
        from collbench.report.html.machine import peak_sections

        screen = of_peak(arguments.operation, measured, reachable, job)
        _write_page(arguments.html, screen, lambda: peak_sections(arguments.operation, measured, reachable, job, machines))
    if arguments.format == "json":
        print(_json(arguments.operation, measured, reachable, job))
    elif arguments.format == "csv":
        print("\n".join(csv_lines(reachable.sizes)))
    else:
        text = [*lines(arguments.operation, measured, reachable, job), *lines_of_sizes(reachable.sizes, job.ranks, measured)]
        for line in wrapped(map(Line, text), width_of(sys.stdout)):
            print(line.text)
    return 0


def _check_peak_options(arguments: argparse.Namespace) -> None:
    if arguments.emit is not None and arguments.floor is None:
        raise UsageError(f"--emit {arguments.emit} needs the share of the expected rate: add --floor 85%")
    if arguments.format == "csv" and not arguments.sizes:
        raise UsageError("--format csv needs --sizes: it has one row for each size")
    if arguments.floor is not None and (arguments.measured or arguments.html or arguments.format != "text"):
        raise UsageError("--floor does not go with --measured, --html or --format: use --emit to select what is written")


def _write_page(where: Path, screen: FirstScreen, make: Callable[[], Sequence[Section]]) -> None:
    from collbench.report.html.page import write_page
    from collbench.report.writers import Outputs, confirm_written

    Outputs(html=where).check()
    write_page(where, screen, make)
    confirm_written((where,), sys.stderr)


def given_rate(option: str, text: str | None) -> float | None:
    """Return the bytes per second of an option in GB/s; None if it was not given. Raises UsageError."""
    from collbench.machine.peak.node import parse_gigabytes

    return None if text is None else parse_gigabytes(option, text)


def _json(operation: str, measured: float | None, reachable: CollectiveCeilings, job: Job) -> str:
    from collbench.machine.peak.ceiling import percent_of
    from collbench.machine.peak.comparison import assumed, doubtful_input, doubts, exceeds_bound, percents
    from collbench.machine.peak.published import published

    share_of_ceiling, share_of_bound = percents(measured, reachable)
    percent_of_size = 100 * measured / reachable.sizes[0].busbw_bytes_per_s if measured is not None and reachable.sizes else None
    doubtful = exceeds_bound(measured, reachable)
    ceilings = {"expected": reachable.expected, "ring": reachable.ring, "bound": reachable.bound}
    return json.dumps({
        "operation": operation, "nodes": job.machines, "ranks": job.ranks, "nvlink_domains": len(job.nodes),
        **{name: ceiling.as_json(complete=True) if ceiling else None for name, ceiling in ceilings.items()},
        "measured_bytes_per_s": measured, "percent_of_ceiling": share_of_ceiling,
        "percent_of_ring": None if doubtful else percent_of(measured, reachable.ring), "percent_of_bound": share_of_bound,
        "published": [msgspec.to_builtins(figure) for figure in published(operation, job)],
        "doubtful_input": doubtful_input(operation, job) if doubtful else None,
        "assumed": assumed(operation, job), "doubts": doubts(job),
        "sizes": [msgspec.to_builtins(row) for row in reachable.sizes],
        "percent_of_size": percent_of_size,
    }, ensure_ascii=False)  # fmt: skip


def _add_color_and_timeout(parser: argparse.ArgumentParser) -> None:
    deadline = f"deadline of each wait for other nodes (default: {DEFAULT_TIMEOUT_S:g})"
    add_some(parser, "color timeout", timeout={"help": deadline})


# collbench probe: this node's hardware, that of every node of the launch, or that of a machine known from files.

_PROBE_ABOUT = (
    "what this node is: GPUs, their links, the PCIe tree, NICs, GPUDirect RDMA; under srun or mpirun every node, and how they differ"
)
_FROM = (
    "read these instead and merge what belongs to one host: NCCL topology XML, hwloc XML, the text of `nvidia-smi topo -m`, "
    "`nvidia-smi nvlink -s`, `rocm-smi --showtopo`, `amd-smi topology`, `lspci -vvv`, `lspci -vvv | grep ACSCtl`, `ibstat`, `ibv_devinfo`, "
    "`rdma link`, `ibportstate` or `iblinkinfo`, what `probe --format json` printed, a folder of such "
    "files, a folder with sys and proc, a tarball of one"
)


def add_probe(commands: Any) -> None:
    """Add the command."""
    summary = "what this node is, or every node of the launch, and how they differ"
    add_command(commands, "probe", summary, call_probe, _add_probe_options, description=_PROBE_ABOUT)


def _add_probe_options(parser: Parser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--from", dest="sources", nargs="+", type=Path, metavar="PATH", help=_FROM)
    source.add_argument(
        "--gather", type=Path, metavar="FILE", help="write what is read of this node (of rank 0's) into a tarball, names masked"
    )
    for add in hooks_of("probe_options"):
        add(parser, source)
    parser.add_argument("--format", choices=("table", "matrix", "json"), default="table", help="tree, distances, JSON (default: table)")
    for add in hooks_of("probe_views"):
        add(parser)
    add_some(parser, "html")
    _add_color_and_timeout(parser)


def call_probe(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Probe or read machines, print at rank 0, and return the exit code. Raises CollbenchError."""
    from collbench.machine.gather import gather
    from collbench.measuring.probing import at_rank_0, together

    for probe in hooks_of("probe"):
        code: int | None = probe(arguments)
        if code is not None:
            return code
    if arguments.gather:
        if arguments.html:
            raise UsageError("--gather only reads the node: use `collbench probe --from FILE --html PAGE` afterwards")
        return at_rank_0(os.environ, arguments.timeout, lambda: gather(arguments.gather))
    if arguments.sources:
        return at_rank_0(os.environ, arguments.timeout, lambda: _print_probe(read_machines(arguments.sources), arguments))
    return together(os.environ, arguments.timeout, lambda machines: _print_probe(machines, arguments))


def _print_probe(machines: list[Machine], arguments: argparse.Namespace) -> int:
    from collbench.machine.cluster import differences
    from collbench.report.machine import probe_text

    differing = differences(machines)
    if arguments.html:
        from collbench.machine.doctor.examine import examine
        from collbench.report.html.first_screen import of_probe
        from collbench.report.html.machine import probe_sections

        findings = examine(machines)
        _write_page(arguments.html, of_probe(machines, differing, findings), lambda: probe_sections(machines, differing, findings))
    probe_text(machines, differing, arguments.format, sys.stdout, arguments.color)
    for show in hooks_of("probed"):
        show(machines, arguments)
    return 0


_ABOUT = "what is wrong with this node, or under srun or mpirun with every node, worst first, with evidence and remedy; exit 1 if severe"

_SINCE = (
    "what `probe --format json` printed when the nodes were good: what they had then and lack now is found, too; a snapshot of one node is "
    "taken for all, of nodes that are alike"
)

_HOSTS_S = 10.0  # time for the other hosts of a launch to report their software

_LAUNCH = (
    "instead: how this shell would launch, which launchers and MPI it has, whether they fit, and what to type; exit 1 where they do not"
)


def add_doctor(commands: Any) -> None:
    """Add the command."""
    summary = "what is wrong with the nodes, worst first; exit 1 if severe"
    add_command(commands, "doctor", summary, call_doctor, _add_doctor_options, description=_ABOUT)


def _add_doctor_options(parser: Parser) -> None:
    parser.add_argument(
        "--from", dest="sources", nargs="+", type=Path, metavar="PATH", help="read these instead, as `collbench probe` does"
    )
    parser.add_argument("--since", type=Path, metavar="FILE", help=_SINCE)
    parser.add_argument("--launch", action="store_true", help=_LAUNCH)
    for add in hooks_of("doctor_options"):
        add(parser)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="text, or one JSON object (default: table)")
    add_some(parser, "html verbose", verbose={"help": "print what each finding means and how to check it by hand, and name all hosts"})
    _add_color_and_timeout(parser)


def call_doctor(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Probe or read machines, print the findings at rank 0, and return the exit code. Raises CollbenchError."""
    if arguments.launch:
        return _launch(arguments)
    for answer in hooks_of("doctor"):
        code: int | None = answer(arguments)
        if code is not None:
            return code
    return examine_nodes(arguments, lambda machines, has_this_host: show_findings(machines, (), arguments, has_this_host))


def examine_nodes(arguments: argparse.Namespace, show: Callable[[list[Machine], bool], int]) -> int:
    """Probe or read machines, and return the exit code of `show(machines, has_this_host)` at rank 0.

    Raises CollbenchError.
    """
    from collbench.measuring.probing import at_rank_0, together

    if arguments.sources:
        return at_rank_0(os.environ, arguments.timeout, lambda: show(read_machines(arguments.sources), False))
    return together(os.environ, arguments.timeout, lambda machines: show(machines, True))


def _launch(arguments: argparse.Namespace) -> int:
    """Print how a launch from this shell would work; in a launch only at rank 0.

    Raises UsageError for options that examine a machine.
    """
    from collbench.report.doctor import write_launch

    log = getattr(arguments, "log", None)
    examining = {"--from": arguments.sources, "--log": log, "--since": arguments.since, "--html": arguments.html}
    conflicting = next((option for option, value in examining.items() if value), None)
    if conflicting:
        raise UsageError(f"--launch looks at this shell, {conflicting} at what others sent: leave one of the two out")
    explanation = _explained(os.environ, arguments.timeout)
    return FINE if explanation is None else write_launch(explanation, arguments.format, sys.stdout, color=arguments.color)


def _explained(env: Mapping[str, str], timeout_s: float) -> Explanation | None:
    """Return how a launch from this shell would work, with the software of a launch on several hosts; None at ranks other than 0."""
    from collbench.launch import software
    from collbench.launch.explain import MpiLibrary, explained, launch_of, library, rank_of, with_hosts

    info, _ = launch_of(env)
    if info and info.meeting == "mpi":
        info = _met_over_mpi(info)
    if info is None or info.ranks == info.local_ranks or not info.meeting.startswith("tcp://"):
        return None if rank_of(env) else explained(env)

    def software_with(loaded: MpiLibrary) -> Mapping[str, str]:
        versions = {**software.installed(), "native": software.native()}
        if loaded.name:
            versions["mpi"] = loaded.name
        return versions

    from collbench.control.builds import collect, send_build

    wait_s = min(timeout_s, _HOSTS_S)
    if info.rank:
        if info.local_rank == 0:
            send_build(info, env, software_with(library(env)), 2 * wait_s)
        return None
    explanation, hosts, silent = collect(info, env, lambda: explained(env), lambda own: software_with(own.library), wait_s)
    return with_hosts(explanation, hosts, silent)


def _met_over_mpi(info: LaunchInfo) -> LaunchInfo | None:
    """Return the launch with rank 0's address; None if MPI cannot serve this launch, which the explanation reports by itself.

    Raises UsageError if no address of rank 0's host is reachable from all hosts.
    """
    from collbench.launch import mpi

    try:
        return mpi.with_meeting(info)
    except (mpi.MeetingWithoutMpi, RunFailed):
        return None
    finally:
        if "mpi4py.MPI" in sys.modules:
            mpi.finalise(sys.modules["mpi4py.MPI"])


def with_own_findings(findings: Sequence[Finding], hostname: str | None) -> list[Finding]:
    """Return the findings and those about the software and settings of this host, worst first."""
    from collbench.machine.doctor import host
    from collbench.machine.doctor.finding import worst_first

    software = list(host.examined_software(hostname, os.environ))
    for examined in hooks_of("software_findings"):
        software += examined(hostname, os.environ)
    return worst_first([*findings, *software, *host.examined(hostname, os.environ)])


def show_findings(machines: Sequence[Machine], logs: Sequence[ExaminedLog], arguments: argparse.Namespace, has_this_host: bool) -> int:
    """Print the findings of the machines and logs; return the exit code. has_this_host: include the software of this host."""
    from collbench.machine.doctor.examine import examine
    from collbench.machine.sources import read_paths
    from collbench.report.doctor import print_findings

    good = [] if arguments.since is None else read_paths([arguments.since])
    findings = examine(machines, logs, good)
    if has_this_host:
        findings = with_own_findings(findings, machines[0].hostname if machines else None)
    if arguments.html:
        from collbench.report.html.first_screen import of_doctor
        from collbench.report.html.machine import doctor_sections

        _write_page(arguments.html, of_doctor(findings, machines, logs), lambda: doctor_sections(findings, machines, logs))
    return print_findings(findings, machines, logs, arguments.format, sys.stdout, color=arguments.color, verbose=arguments.verbose)
