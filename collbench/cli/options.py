"""The options of the measuring commands, and the requests made from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_defaults
from collbench.backends.slowing import parse_slowing
from collbench.cli.other_tools import add_other_options
from collbench.cli.parser import Parser, add_format, duration, factor, hertz, natural, percent, positive, rate, skew, streams, words
from collbench.device.present import visible_gpus
from collbench.errors import UsageError
from collbench.measure.request import Budget, Request
from collbench.operations.case import parse_split
from collbench.operations.dtypes import BITWISE, DTYPES, REDOPS, dtype_named, redop_named
from collbench.operations.operation import Operation
from collbench.operations.sweep import ALGORITHMS, CPU, MODES, PROTOCOLS, REGISTRATIONS, SMALLEST, Sweep, Sweeps
from collbench.operations.traffic import Traffic, skewed
from collbench.units import parse_size, parse_sizes, size_steps

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measure.tasks.step import Training
    from collbench.workloads.step import Regime


# The effect of GPUs on a command line: the default backends, the number of processes, and the options of some backends.

_ONE_EACH = ("srun", "kubernetes")


def default_backends(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return nccl with GPUs where it can run, else the CPU backends; with GPUs but without NCCL both, so that the reason is shown."""
    from collbench.backends.registry import DEFAULTS, backend_class

    if not visible_gpus(env):
        return DEFAULTS
    from collbench.backends.backend import Unavailable

    missing = isinstance(backend_class("nccl").probe(), Unavailable)
    return ("nccl", *DEFAULTS) if missing else ("nccl",)


def agree_on_backends(request: Request, world: World) -> Request:
    """Return the request with the same default backends on all hosts: where only some have GPUs, all ranks report why nccl is missing."""
    unnamed = () if request.requested else request.backends
    default_names = request.sweep.default_backends if isinstance(request.sweep, Sweeps) else unnamed
    if not default_names or world.info.launcher == "local":
        return request
    views = world.allgather(list(default_names), "choosing the backends")
    names = tuple(dict.fromkeys(name for view in sorted(views, key=len, reverse=True) for name in view))
    backends = tuple(dict.fromkeys((*names, *(name for name in request.backends if name in request.requested))))
    sweep = replace(request.sweep, default_backends=names) if isinstance(request.sweep, Sweeps) else request.sweep
    return replace(request, sweep=sweep, backends=backends)


def check_options(request: Request, gdr_check: bool) -> None:
    """Raise UsageError for options of nccl or socket if that backend is not measured."""
    sweep = request.sweep
    values_by_option = {"--algorithms": sweep.algorithms, "--protocols": sweep.protocols, "--registration": sweep.registrations,
             "-g": request.gpus_per_process > 1}  # fmt: skip
    typed = next((option for option, value in values_by_option.items() if value), None)
    if typed and not any(sweep.defaults(name).tuned for name in request.backends):
        raise UsageError(_not_there(typed, request))
    if gdr_check and not any(sweep.defaults(name).device == "cuda" for name in request.backends):
        raise UsageError(_not_there("--gdr-check", request))
    several = any((one.streams or 1) > 1 for one in sweep.each)
    if several and not any(sweep.defaults(name).streamed for name in request.backends):
        raise UsageError(_not_there("--streams", request, "socket"))


def _not_there(option: str, request: Request, backend: str = "nccl") -> str:
    backends = ", ".join(request.backends)
    return f"{option} concerns {backend}, which is not among the backends ({backends}): add --backend {backend}, or remove {option}"


def per_process(request: Request) -> int | None:
    """Return how many GPUs each process drives; None if no backend needs GPUs of its own.

    nccl may be a default backend only to report why it is missing. Then it needs none.
    """
    devices = {request.sweep.defaults(name).device for name in request.backends}
    needed = "cuda" in devices and (bool(request.requested) or devices == {"cuda"})
    return request.gpus_per_process if needed else None


def local_ranks(request: Request, env: Mapping[str, str]) -> int:
    """Return how many processes to start on this host. Raises UsageError if the GPUs cannot be divided evenly."""
    from collbench.launch.spawn import default_ranks

    if request.ranks:
        return request.ranks
    gpus = visible_gpus(env)
    return default_ranks(gpus, per_process(request) if gpus else None)


def node_ranks(request: Request, info: LaunchInfo, env: Mapping[str, str]) -> int:
    """Return how many processes a single task on a node (of srun), or a pod, starts to use all GPUs; 1: no others."""
    from collbench.launch.spawn import default_ranks

    if info.launcher not in _ONE_EACH or info.local_ranks != 1 or "worker" in info.facts:
        return 1
    gpus = visible_gpus(env)
    each = per_process(request) if gpus else None
    return default_ranks(gpus, each) if each else 1


def with_ranks(info: LaunchInfo, ranks: int) -> LaunchInfo:
    """Return the launch with a fact about the processes that this task starts, which rank 0 prints."""
    from collbench.launch.advice import ProcessPerGpu

    kept = info.advice if info.ranks > 1 else ()  # with one task srun's own advice is to start more
    return replace(info, advice=(ProcessPerGpu(info.launcher, ranks), *kept))


DEFAULT_TIMEOUT_S = 120.0
_CASE_MAX_TIME_S = 5.0
BRIEF_S = 8.0  # of samples for each operation of a command without options; with start-up and references it answers within 15 s
# Options that a barrier does not have.
NOTHING_MOVED = {
    "sizes": None, "minimum": None, "maximum": None, "factor": None, "increment": None, "dtype": ["uint8"],
    "buffers": None, "in_place": False, "out_of_place": False,
}  # fmt: skip


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose between a fast answer, all sizes, and only the plan."""
    parser.add_argument("--full", action="store_true",
                        help=f"measure every size by factor 2, up to {_CASE_MAX_TIME_S:g} s per case (default: about 8 sizes in "
                             f"{BRIEF_S:g} s per operation)")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print the cases and the estimated time, and exit")


def add_options(parser: argparse.ArgumentParser, operations: list[Operation]) -> None:
    """Add the options that these operations have."""
    _add_what(parser.add_argument_group("what to measure"), operations)
    _add_how(parser.add_argument_group("how to measure"), operations)
    _add_where(parser.add_argument_group("launch and output"))
    add_other_options(parser)


def add_view(group: Any) -> None:
    """Add the options of the table of cases: which columns, and whether to show flags."""
    group.add_argument("--columns", metavar="NAMES", type=_known_columns,
                       help="columns of the table, such as size,time,p99; +p95,max adds to the usual ones")  # fmt: skip
    add_verbose(group)


def _known_columns(names: str) -> str:
    """Return names of columns, before any rank starts. Raises UsageError for an unknown one."""
    from collbench.report.blocks import parse_columns

    parse_columns(names)
    return names


def add_verbose(group: Any) -> None:
    """Add the option for more detail in tables."""
    group.add_argument("-v", "--verbose", action="store_true", help="show the flags of each row, and what they mean")


def add_color_and_timeout(parser: argparse.ArgumentParser) -> None:
    """Add the common options of the commands that examine nodes without measuring."""
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colored output (default: auto)")
    parser.add_argument("--timeout", metavar="SECONDS", type=duration, default=DEFAULT_TIMEOUT_S,
                        help=f"deadline of each wait for other nodes (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip


def add_ranks(group: argparse._ArgumentGroup) -> None:
    """Add the options for the number of ranks of a measuring command, and how they are started."""
    group.add_argument(
        "--ranks",
        metavar="N",
        type=positive,
        help="processes to start on this host without a launcher (default: one per GPU, or one per K GPUs of -g; on CPUs at least 2)",
    )
    group.add_argument("--oversubscribe", action="store_true",
                       help="allow more than 16 ranks per core on this host (default: refuse to start)")  # fmt: skip
    group.add_argument("-g", "--gpus-per-process", metavar="K", type=positive, default=1,
                       help="NCCL: number of GPUs (and ranks) that each process uses, as in nccl-tests (default: 1)")  # fmt: skip
    group.add_argument("--ranks-per-node", metavar="K", type=positive,
                       help="with one task per node: ranks that each task starts (default: 1; NCCL under srun: one per GPU)")  # fmt: skip


def add_slowed(group: argparse._ArgumentGroup) -> None:
    """Add the option that slows cases on purpose."""
    group.add_argument("--slowed", metavar="SPEC", action="append", default=[],
                       help="slow cases down on purpose, to test a gate: by=10%%, by=5-15%% or by=10±3%%; select cases by operations=, "
                            "backends=, sizes= and ranks by ranks= (default: all); separate several with ';'")  # fmt: skip


def add_stop_on_wrong(group: argparse._ArgumentGroup) -> None:
    """Add the option that ends the run at wrong data."""
    words = "end the run at the first wrong data and keep the rows measured so far (default: continue, and exit with code 4)"
    group.add_argument("--stop-on-wrong", action="store_true", help=words)


def _add_sizes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--sizes",
        metavar="SIZES",
        help="1K-1G, 1K-1G:x4, 1K-64K:+1K or 8,1K,1M; K = 1024 (default: 8 sizes from 8 to 64M, on NCCL 9 to 1G)",
    )
    group.add_argument("-b", dest="minimum", metavar="MIN", help="smallest size, as in nccl-tests")
    group.add_argument("-e", dest="maximum", metavar="MAX", help="largest size")
    step = group.add_mutually_exclusive_group()
    step.add_argument("-f", dest="factor", metavar="FACTOR", help="factor between sizes (default: 2)")
    step.add_argument("-i", dest="increment", metavar="STEP", help="increment between sizes")


def _add_what(group: argparse._ArgumentGroup, operations: list[Operation]) -> None:
    moves = not all(operation.is_barrier for operation in operations)
    if moves:
        _add_sizes(group)
    else:
        group.set_defaults(**NOTHING_MOVED)
    group.add_argument(
        "--backend",
        metavar="NAMES",
        type=words,
        help="nccl, torch-nccl, mpi, gloo, socket (p2p), simulated … (default: nccl with GPUs, else every installed CPU backend)",
    )
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                       help="memory of the buffers (default: auto: cuda for nccl and torch-nccl, cpu for the others)")  # fmt: skip
    if moves:
        group.add_argument("-d", "--dtype", metavar="TYPES", type=words, default=["float32"],
                           help="float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int32, int64, uint8, uint32, "
                                "uint64 (default: float32)")  # fmt: skip
    if any(operation.reduces for operation in operations):
        group.add_argument("-o", "--redop", metavar="OPS", type=words, default=["sum"],
                           help="sum, prod, min, max, avg, band, bor, bxor (default: sum)")  # fmt: skip
    if any(operation.rooted for operation in operations):
        group.add_argument("-r", "--root", metavar="RANKS", type=words, default=["0"], help="root rank, or several (default: 0)")
    if any(not operation.pair for operation in operations):
        group.add_argument("--split", metavar="SPLIT",
                           help="groups of ranks that run at the same time, as in nccl-tests: 'MOD 8' (rank modulo 8), 'DIV 8', 'AND 0x7' "
                                "or 'OR 0x7' (default: one group of all)")  # fmt: skip
    if any(operation.uneven for operation in operations):
        traffic = group.add_mutually_exclusive_group()
        traffic.add_argument("--skew", metavar="X", type=skew, help="rank 0 receives X times the average (default: 1: all parts are equal)")
        traffic.add_argument("--traffic", metavar="FILE", type=Path,
                             help="matrix of bytes from rank (row) to rank (column), as CSV or separated by spaces; scaled to --sizes if "
                                  "set")  # fmt: skip


def _add_how(group: argparse._ArgumentGroup, operations: list[Operation]) -> None:
    group.add_argument("--mode", choices=MODES,
                       help="isolated: synchronize before each call; pipelined: back to back; batched: synchronize before each "
                            "20 calls; graph: a CUDA graph (default: isolated on CPUs, pipelined on NCCL)")  # fmt: skip
    if not all(operation.is_barrier for operation in operations):
        _add_placing(group)
    if any(operation.windowed for operation in operations):
        group.add_argument("--window", metavar="W", type=positive, help="messages in flight (default: 64, at most 256 MiB in all)")
    if any(operation.pair and not operation.one_sided for operation in operations):
        group.add_argument("--streams", metavar="K", type=streams,
                           help="socket: TCP connections between two ranks, which share each message (default: 1)")  # fmt: skip
    if any(not operation.pair for operation in operations):
        group.add_argument("--algorithms", metavar="NAMES", type=words, default=[],
                           help=f"NCCL: algorithms to force, besides NCCL's own choice: {', '.join(ALGORITHMS)}")  # fmt: skip
        group.add_argument("--protocols", metavar="NAMES", type=words, default=[],
                           help=f"NCCL: protocols to force, with each algorithm: {', '.join(PROTOCOLS)}")  # fmt: skip
    group.add_argument("--registration", metavar="WORDS", type=words, default=[],
                       help=f"NCCL: registration of the buffers: {', '.join(REGISTRATIONS)}, or several (default: none)")  # fmt: skip
    group.add_argument(
        "-n",
        "--iterations",
        metavar="N",
        type=positive,
        help="exactly N samples, unless --max-time ends first (default: until --precision is reached)",
    )
    group.add_argument("-w", "--warmup", metavar="N", type=natural, help="exactly N warm-up calls (default: until times are stable)")
    group.add_argument(
        "--precision", metavar="PCT", type=percent, help="target half-width of the 95 %% confidence interval, in percent (default: by size)"
    )
    group.add_argument(
        "--max-time", metavar="SECONDS", type=duration, help=f"time limit per case, before all counts (default: {_CASE_MAX_TIME_S:g})"
    )
    group.add_argument("--total-time", metavar="SECONDS", type=duration,
                       help=f"time limit of all cases together, divided among them (default: {BRIEF_S:g} per operation without --full, "
                            "sizes, -n, --precision and --max-time, else none)")  # fmt: skip
    group.add_argument(
        "-c", "--check", metavar="N", type=natural, default=1, help="calls per case that verify the data; 0: off (default: 1)"
    )
    add_stop_on_wrong(group)
    group.add_argument("--ceiling", metavar="GB/s", type=rate, help="expected bus bandwidth (default: from the probed hardware)")
    group.add_argument(
        "--oversubscription",
        metavar="X",
        type=factor,
        default=1.0,
        help="oversubscription of the fabric: it carries the rate of a host divided by X (default: 1)",
    )
    group.add_argument(
        "--seed", metavar="N", type=natural, help="seed of the inputs and of the order of the cases (default: 0, and a random order)"
    )
    group.add_argument("--evidence", choices=("on", "off", "tuning"), default="on",
                       help="record counters and logs that show the path of the bytes; tuning: also the choices of NCCL before 2.27, "
                            "which logs a line per call (default: on)")  # fmt: skip
    group.add_argument("--telemetry", metavar="N", type=hertz, default=1.0,
                       help="read clocks, power and temperature of the GPUs N times a second (at most 5), for sizes from 1 MiB "
                            "(default: 1; 0: never)")  # fmt: skip
    add_slowed(group)


def _add_placing(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--buffers", choices=("fixed", "rotating"),
                       help="fixed: the same buffers for each call; rotating: 64 MiB of buffers in turn, on GPUs 256 MiB (default: "
                            "fixed on CPUs, rotating on NCCL)")  # fmt: skip
    place = group.add_mutually_exclusive_group()
    place.add_argument("--in-place", action="store_true", help="use one buffer to send and to receive")
    place.add_argument("--out-of-place", action="store_true", help="use two buffers (default, if the library supports it)")


def _add_where(group: argparse._ArgumentGroup) -> None:
    add_ranks(group)
    group.add_argument("--launches", metavar="N", type=positive, default=1,
                       help="number of launches on this host; intervals are over their medians (default: 1)")  # fmt: skip
    group.add_argument("--gdr-check", action="store_true",
                       help="NCCL: compare launches with and without GPUDirect RDMA, interleaved; --launches of each, at least "
                            "2")  # fmt: skip
    group.add_argument("--timeout", metavar="SECONDS", type=duration, default=DEFAULT_TIMEOUT_S,
                       help=f"deadline of each wait for other ranks (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    group.add_argument("--allocation", metavar="NAME", help="name of the allocation (default: the scheduler's job)")
    group.add_argument("--out", metavar="DIR", type=Path, help="run folder (default: runs/<time>-<operation>-<id>)")
    group.add_argument(
        "--resume", metavar="RUN", type=Path, help="continue an incomplete run: measure only the cases that its folder lacks"
    )
    group.add_argument("--resume-if-exists", action="store_true",
                       help="continue the run in --out DIR if there is one, for jobs that may be requeued")  # fmt: skip
    add_format(group, "table", "nccl-tests", "csv")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colored output (default: auto)")
    group.add_argument("--quiet", action="store_true", help="print only data and errors")
    add_view(group)


def make_request(arguments: argparse.Namespace, operations: list[Operation], backends: tuple[str, ...], argv: list[str]) -> Request:
    """Return the request of a command of these operations. Raises UsageError for invalid options."""
    brief = _is_brief(arguments)
    sweep = make_sweep(arguments, operations)
    return request_of(arguments, replace(sweep, sparse=brief), backends, argv, BRIEF_S * len(operations) if brief else None)


def _is_brief(arguments: argparse.Namespace) -> bool:
    """Return whether to answer fast: the user set neither --full, nor sizes, nor the duration of a case, nor another experiment."""
    sizes = (arguments.sizes, arguments.minimum, arguments.maximum, arguments.factor, arguments.increment)
    durations = (arguments.max_time, arguments.iterations, arguments.precision)
    return not (arguments.full or arguments.gdr_check or any(value is not None for value in (*sizes, *durations)))


def make_sweep(arguments: argparse.Namespace, operations: Sequence[Operation]) -> Sweep:
    """Return the sweep, which makes the cases. Raises UsageError for invalid options."""
    sizes, step = _sizes(arguments)
    traffic = _traffic(arguments)
    if traffic and traffic.own_bytes() and sizes is None and arguments.factor is None and arguments.increment is None:
        sizes = (traffic.own_bytes() or 0,)
    return Sweep(
        operations=tuple(operations),
        sizes=sizes,
        dtypes=tuple(dict.fromkeys(dtype_named(name) for name in _every(arguments.dtype, DTYPES))),
        redops=tuple(dict.fromkeys(redop_named(name) for name in _every(getattr(arguments, "redop", ["sum"]), _ARITHMETIC))),
        roots=tuple(_root(text) for text in getattr(arguments, "root", ["0"])),
        device=arguments.device,
        mode=arguments.mode,
        in_place=True if arguments.in_place else False if arguments.out_of_place else None,
        buffers=arguments.buffers,
        window=getattr(arguments, "window", None),
        streams=getattr(arguments, "streams", None),
        seed=arguments.seed or 0,
        step=step,
        algorithms=_known("algorithm", getattr(arguments, "algorithms", []), ALGORITHMS),
        protocols=_known("protocol", getattr(arguments, "protocols", []), PROTOCOLS),
        registrations=_known("registration", arguments.registration, REGISTRATIONS),
        split=parse_split(arguments.split) if getattr(arguments, "split", None) is not None else None,
        traffic=traffic,
        defaults=backend_defaults,
    )


def request_of(
    arguments: argparse.Namespace, sweep: Sweep | Sweeps, backends: tuple[str, ...], argv: Sequence[str], total_s: float | None = None
) -> Request:
    """Return the request: the sweep, and the options of the whole launch. `total_s`: the time of all cases without --total-time."""
    max_time_s, total_s = arguments.max_time or _CASE_MAX_TIME_S, arguments.total_time or total_s
    precision = arguments.precision / 100 if arguments.precision else None
    return Request(
        command=arguments.command, sweep=sweep, backends=backends, requested=frozenset(arguments.backend or ()),
        budget=Budget(max_time_s, arguments.iterations, arguments.warmup, precision, total_s), ranks=arguments.ranks,
        check=arguments.check, ceiling=arguments.ceiling, oversubscription=arguments.oversubscription, timeout_s=arguments.timeout,
        seed=arguments.seed or 0, order_seed=arguments.seed, out=arguments.out, resume=_resumed(arguments),
        resume_if_exists=_resumed_if_exists(arguments), allocation=arguments.allocation,
        launches=arguments.launches, gpus_per_process=arguments.gpus_per_process, evidence=arguments.evidence,
        telemetry_hz=arguments.telemetry, slowed=parse_slowing(arguments.slowed), stop_on_wrong=arguments.stop_on_wrong,
        argv=tuple(argv), configuration=arguments.configuration,
    )  # fmt: skip


def _traffic(arguments: argparse.Namespace) -> Traffic | None:
    """Return the traffic of --skew and --traffic; None without both."""
    if getattr(arguments, "traffic", None):
        from collbench.operations.traffic import read_traffic

        return read_traffic(arguments.traffic)
    return skewed(arguments.skew) if getattr(arguments, "skew", None) else None


def _resumed(arguments: argparse.Namespace) -> Path | None:
    """Return the run to resume, or None. Raises UsageError together with options that need other folders."""
    resume: Path | None = getattr(arguments, "resume", None)
    others = {"--out": arguments.out, "--gdr-check": getattr(arguments, "gdr_check", False), "--launches": arguments.launches > 1}
    for name, value in others.items():
        if value and resume:
            raise UsageError(f"--resume and {name} exclude each other: remove one of them")
    return resume


def _resumed_if_exists(arguments: argparse.Namespace) -> bool:
    """Return whether to continue a run in --out. Raises UsageError without a folder, or with options that need other folders."""
    if not getattr(arguments, "resume_if_exists", False):
        return False
    if arguments.out is None:
        raise UsageError("--resume-if-exists needs a run folder: add --out DIR")
    others = {"--resume": arguments.resume, "--gdr-check": getattr(arguments, "gdr_check", False), "--launches": arguments.launches > 1}
    other = next((name for name, value in others.items() if value), None)
    if other:
        raise UsageError(f"--resume-if-exists and {other} exclude each other: remove one of them")
    return True


_ARITHMETIC = tuple(name for name in REDOPS if name not in BITWISE)


def _every(names: Sequence[str], known: Iterable[str]) -> Iterable[str]:
    """Return the names, or what nccl-tests means by "all"."""
    return known if list(names) == ["all"] else names


def _known(what: str, names: list[str], known: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name.lower() not in known:
            raise UsageError(f"{what} '{name}' is unknown: choose from {', '.join(known)}")
    return tuple(dict.fromkeys(name.lower() for name in names))


def _root(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"root '{text}' is not a valid rank: use whole numbers from 0, e.g. 0 or 0,1")
    return int(text)


def _sizes(arguments: argparse.Namespace) -> tuple[tuple[int, ...] | None, str]:
    """Return the sizes (None: each backend has its own), and the step between the defaults."""
    short = (arguments.minimum, arguments.maximum, arguments.factor, arguments.increment)
    if arguments.sizes is not None and any(value is not None for value in short):
        raise UsageError("--sizes and -b/-e/-f/-i both set sizes: use one of them")
    if arguments.sizes is not None:
        return tuple(parse_sizes(arguments.sizes)), "x2"
    step = f"x{2 if arguments.factor is None else arguments.factor}" if arguments.increment is None else f"+{arguments.increment}"
    if arguments.minimum is None and arguments.maximum is None:
        size_steps(SMALLEST, CPU.largest, step)  # rejects a bad step before ranks start
        return None, step
    least = str(SMALLEST) if arguments.minimum is None else arguments.minimum
    most = least if arguments.maximum is None else arguments.maximum
    first, last = parse_size(least), parse_size(most)
    if first > last:
        raise UsageError(f"-b {least} is larger than -e {most}: swap them")
    return tuple(size_steps(first, last, step)), step


# Shared by the commands that measure pairs of ranks or nodes: their options, and their request.

_MAX_TIME_S = 0.5
_WINDOW = 16  # a sample must be so short that six fit into half a second on a link of 2 Gb/s


def add_messages(group: argparse._ArgumentGroup, subject: str) -> None:
    """Add the options for the pairs (the help text begins with `subject`), and for the messages."""
    group.add_argument("--by", choices=("rank", "node"),
                       help=f"{subject}; a pair of nodes uses all their ranks at the same time (default: node if there are several, else "
                            "rank)")  # fmt: skip
    group.add_argument("--size", metavar="SIZE", default="1M", help="size of the bandwidth messages (default: 1M)")
    group.add_argument("--latency-size", metavar="SIZE", default="8", help="size of the latency messages (default: 8)")
    group.add_argument("--window", metavar="W", type=positive, default=_WINDOW, help=f"messages in flight (default: {_WINDOW})")


def add_backend(group: argparse._ArgumentGroup) -> None:
    """Add the options for the backend that carries the messages, and the place of the buffers."""
    group.add_argument(
        "--backend", metavar="NAME", type=words, help="a backend of `collbench backends` (default: the first that is installed)"
    )
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                       help="memory of the buffers (default: auto: cuda for nccl and torch-nccl, cpu for the others)")  # fmt: skip


def add_tools(group: argparse._ActionsContainer, which: str) -> None:
    """Add the external tools; `which` describes their use."""
    group.add_argument("--tools", metavar="NAME", type=words,
                       help=f"external tools (iperf3, fi_pingpong, ucx_perftest, ib_write_bw) {which} (default: none)")  # fmt: skip


def requested_tools(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the requested tools. Raises UsageError for an unknown name."""
    if not arguments.tools:
        return ()
    from collbench.measure.wire_tools import tools_named

    return tuple(tool.name for tool in tools_named(arguments.tools))


def add_samples(group: argparse._ArgumentGroup) -> None:
    """Add the options for the duration of one measurement."""
    group.add_argument(
        "-n",
        "--iterations",
        metavar="N",
        type=positive,
        help="exactly N samples, unless --max-time ends first (default: until --precision is reached)",
    )
    group.add_argument("-w", "--warmup", metavar="N", type=natural, help="exactly N warm-up calls (default: 10 ping-pongs, 1 window)")
    group.add_argument(
        "--precision", metavar="PCT", type=percent, help="target half-width of the 95 %% confidence interval, in percent (default: by size)"
    )
    group.add_argument("--max-time", metavar="SECONDS", type=duration, default=_MAX_TIME_S,
                       help=f"time limit per measurement; a round has three (default: {_MAX_TIME_S:g})")  # fmt: skip


def add_check(group: argparse._ArgumentGroup) -> None:
    """Add the option for the number of data checks."""
    group.add_argument(
        "-c", "--check", metavar="N", type=natural, default=1, help="calls per measurement that verify the data; 0: off (default: 1)"
    )


def add_where(group: argparse._ArgumentGroup, command: str) -> None:
    """Add the options for the start of the ranks, and the place of the results."""
    add_ranks(group)
    group.add_argument("--timeout", metavar="SECONDS", type=duration, default=DEFAULT_TIMEOUT_S,
                       help=f"deadline of each wait for other ranks (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    group.add_argument("--allocation", metavar="NAME", help="name of the allocation (default: the scheduler's job)")
    group.add_argument("--out", metavar="DIR", type=Path, help=f"run folder (default: runs/<time>-{command}-<id>)")
    group.add_argument("--resume", metavar="RUN", help=argparse.SUPPRESS)
    add_format(group, "table", "csv")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colored output (default: auto)")
    group.add_argument("--quiet", action="store_true", help="print only data and errors")
    add_verbose(group)


def pairs_request(arguments: argparse.Namespace, argv: list[str]) -> Request:
    """Return the request of the launch. Raises UsageError for invalid options."""
    from collbench.backends.registry import backend_defaults
    from collbench.backends.slowing import parse_slowing
    from collbench.measure.request import Budget, Request
    from collbench.operations.dtypes import dtype_named
    from collbench.operations.sweep import Sweep

    seed = arguments.seed or 0
    precision = arguments.precision / 100 if arguments.precision else None
    # Bytes, of any number, and fixed buffers, since every round creates new ones.
    sweep = Sweep((), None, (dtype_named("uint8"),), device=arguments.device, buffers="fixed", window=arguments.window, seed=seed,
                  streams=getattr(arguments, "streams", None), defaults=backend_defaults)  # fmt: skip
    return Request(
        command=arguments.command, sweep=sweep, backends=_backends(arguments), requested=frozenset(arguments.backend or ()),
        budget=Budget(arguments.max_time, arguments.iterations, arguments.warmup, precision), ranks=arguments.ranks,
        check=arguments.check, timeout_s=arguments.timeout, seed=seed, order_seed=arguments.seed, out=arguments.out,
        allocation=arguments.allocation, gpus_per_process=arguments.gpus_per_process, evidence="off",
        slowed=parse_slowing(arguments.slowed), stop_on_wrong=arguments.stop_on_wrong, argv=tuple(argv),
        configuration=arguments.configuration,
    )  # fmt: skip


def _backends(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the requested backend, or those that are tried one after the other."""
    from collbench.backends.registry import backend_class

    names = tuple(dict.fromkeys(arguments.backend or ()))
    if len(names) > 1:
        raise UsageError(f"{arguments.command} measures one backend, but --backend has {' and '.join(names)}: use one")
    for name in names:
        backend_class(name)
    return names or default_backends(os.environ)


# The options of `collbench workload`, which depend on the training, and the requested trainings.

ALL = "all"
_WORKLOAD_MAX_TIME_S = 10.0
_METAVARS = {"model": "MODEL", "dtype": "TYPE", "bucket": "SIZE", "update": "HOW", "imbalance": "X"}


def add_workload_options(parser: Parser) -> None:
    """Add all options of `collbench workload`."""
    _add_training_options(parser.add_argument_group("what to train"))
    _add_step_options(parser.add_argument_group("how to measure"))
    _add_workload_output_options(parser.add_argument_group("launch and output"))


def trainings_of(arguments: argparse.Namespace) -> tuple[Training, ...]:
    """Return the requested trainings. Raises UsageError for invalid names or values, and for options that do not apply."""
    from collbench.measure.tasks.step import Training
    from collbench.workloads.shape import DEFAULT, shape_of

    chosen, typed = _chosen(arguments.names), _typed(arguments)
    everything = arguments.names.strip().lower() == ALL
    _check_known(typed, chosen)
    found = []
    for regime in chosen:
        own = {name: text for name, text in typed.items() if len(chosen) == 1 or name in _words(regime)}
        shape_of(regime, own, (0,))  # invalid text is rejected before any rank is started
        found.append(Training(regime, partial(shape_of, regime, own), typed.get("model", DEFAULT), optional=everything))
    return tuple(found)


def _add_training_options(group: argparse._ArgumentGroup) -> None:
    from collbench.workloads.registry import regimes
    from collbench.workloads.shape import DEFAULTS, help_of

    group.add_argument("names", metavar="NAME", help=f"{', '.join(regimes())}; several separated by commas, or {ALL}")
    for name, knowing in _known_by().items():
        if name == "seed":
            continue  # every command has this option, with its own meaning
        text, default_value = help_of(knowing[0])[name], _default_text(name, knowing)
        default = f" (default: {default_value})" if default_value else ""
        only_for = "" if name in DEFAULTS else f"; only {', '.join(regime.name for regime in knowing)}"
        short = ["-d"] if name == "dtype" else []
        group.add_argument(*short, _option(name), metavar=_METAVARS.get(name, "N"), help=f"{text}{default}{only_for}".replace("%", "%%"))
    group.add_argument("--step-time", metavar="SECONDS", type=duration,
                       help="computing time of a step without exchanges, e.g. 180ms; adds the scaling efficiency that the network "
                            "allows")  # fmt: skip


def _default_text(name: str, knowing: Sequence[Regime]) -> str:
    """Return the default of an option, by training where they differ; "" where the model sets it."""
    values: dict[str, list[str]] = {}
    for regime in knowing:
        values.setdefault(_words(regime)[name], []).append(regime.name)
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} for {' and '.join(names)}" for value, names in values.items())


def _add_step_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--backend", metavar="NAMES", type=words,
                       help="nccl, torch-nccl, mpi, gloo, simulated … (default: nccl with GPUs, else every installed CPU "
                            "backend)")  # fmt: skip
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                       help="memory of the buffers (default: auto: cuda for nccl and torch-nccl, cpu for the others)")  # fmt: skip
    group.add_argument("-n", "--steps", metavar="N", type=positive,
                       help="exactly N steps, unless --max-time ends first; asynchronous training: N rounds of each worker (default: "
                            "until --precision is reached)")  # fmt: skip
    group.add_argument("-w", "--warmup", metavar="N", type=natural, help="exactly N warm-up steps (default: until times are stable)")
    group.add_argument(
        "--precision", metavar="PCT", type=percent, help="target half-width of the 95 %% confidence interval, in percent (default: by size)"
    )
    group.add_argument("--max-time", metavar="SECONDS", type=duration, default=_WORKLOAD_MAX_TIME_S,
                       help=f"time limit per training and backend (default: {_WORKLOAD_MAX_TIME_S:g})")  # fmt: skip
    group.add_argument("--no-parts", action="store_true",
                       help="measure only the whole step; without it each exchange is measured too, in a fifth of the time")  # fmt: skip
    group.add_argument("-c", "--check", metavar="N", type=natural, default=1, help="steps that verify the data; 0: off (default: 1)")
    add_stop_on_wrong(group)
    group.add_argument("--ceiling", metavar="GB/s", type=rate, help="expected bus bandwidth (default: from the probed hardware)")
    group.add_argument("--oversubscription", metavar="X", type=factor, default=1.0,
                       help="oversubscription of the fabric: it carries the rate of a host divided by X (default: 1)")  # fmt: skip
    group.add_argument(
        "--seed", metavar="N", type=natural, help="seed of the inputs; expert-parallel: also of which expert is the busiest (default: 0)"
    )
    add_slowed(group)


def _add_workload_output_options(group: argparse._ArgumentGroup) -> None:
    add_ranks(group)
    group.add_argument("--dry-run", action="store_true", help="print the exchanges of a step and their bytes, and exit")
    group.add_argument("--timeout", metavar="SECONDS", type=duration, default=DEFAULT_TIMEOUT_S,
                       help=f"deadline of each wait for other ranks (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    group.add_argument("--allocation", metavar="NAME", help="name of the allocation (default: the scheduler's job)")
    group.add_argument("--out", metavar="DIR", type=Path, help="run folder (default: runs/<time>-workload-<id>)")
    group.add_argument("--resume", metavar="RUN", help=argparse.SUPPRESS)
    add_format(group, "table", "csv")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colored output (default: auto)")
    group.add_argument("--quiet", action="store_true", help="print only data and errors")
    add_verbose(group)


def _chosen(text: str) -> tuple[Regime, ...]:
    from collbench.workloads.registry import regime_named, regimes

    if text.strip().lower() == ALL:
        return tuple(regimes().values())
    names = [name for name in text.split(",") if name.strip()]
    return tuple({regime.name: regime for regime in map(regime_named, names or [text])}.values())


def _typed(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the trainings' options that were set, as text. --seed belongs to the launch, too: skip it without a training that has it."""
    values = {name: getattr(arguments, name) for name in _known_by()}
    heard = any("seed" in _words(regime) for regime in _chosen(arguments.names))
    return {name: str(value) for name, value in values.items() if value is not None and (name != "seed" or heard)}


def _check_known(typed: Mapping[str, str], chosen: tuple[Regime, ...]) -> None:
    """Raise UsageError for an option that none of several trainings has; for one training `shape_of` does."""
    for name in typed if len(chosen) > 1 else ():
        if not any(name in _words(regime) for regime in chosen):
            owners, names = (", ".join(regime.name for regime in those) for those in (_known_by()[name], chosen))
            raise UsageError(f"{_option(name)} does not apply to {names}, only to {owners}: remove it")


def _words(regime: Regime) -> Mapping[str, str]:
    """Return the options of a training, with their defaults."""
    from collbench.workloads.shape import words as words_of

    return words_of(regime)


def _known_by() -> dict[str, list[Regime]]:
    """Return by option the trainings that have it."""
    from collbench.workloads.registry import regimes

    every = list(regimes().values())
    return {name: [regime for regime in every if name in _words(regime)] for name in dict.fromkeys(n for r in every for n in _words(r))}


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
