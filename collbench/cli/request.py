"""Make the request of a launch from options, with the backends and the number of ranks that GPUs mean for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.backends import registry
from collbench.backends.registry import backend_defaults, check_name, missing_backend
from collbench.backends.slowing import parse_slowing
from collbench.cli.options import BRIEF_OVERHEAD_S, BRIEF_S, CHECK_OVERHEAD_S, OPTIONS, MeasuringOptions, OperationOptions
from collbench.cli.other_tools import check_least_processes
from collbench.device.present import visible_gpus
from collbench.errors import UsageError
from collbench.measuring.request import Budget, Placement, Request, TaskRequest
from collbench.operations.case import CALLS, parse_split
from collbench.operations.dtypes import BITWISE, DTYPES, REDOPS, dtype_named, redop_named
from collbench.operations.operation import Operation
from collbench.operations.registry import commands as operation_commands
from collbench.operations.registry import operations as known_operations
from collbench.operations.sweep import ALGORITHMS, CPU, PROTOCOLS, REGISTRATIONS, SMALLEST, Sweep, Sweeps
from collbench.operations.traffic import read_traffic, skewed
from collbench.units import parse_size, parse_sizes, size_steps

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo


def request_of(
    options: MeasuringOptions, sweep: Sweep | Sweeps, argv: Sequence[str], info: LaunchInfo | None, *,
    limits: Mapping[str, float] | None = None, **more: Any,
) -> Request:  # fmt: skip
    """Return the request of the launch of this process (None: none yet). Raises UsageError.

    The options fill the fields that they name; `limits` are other limits of a case, and `more` other fields.
    """
    named = tuple(dict.fromkeys(options.backend or ()))
    for name in named:
        check_name(name)
    _check_resume(options)
    values = {declared.fills: getattr(options, name) for name, declared in OPTIONS.items() if declared.fills}
    typed = {field: value for field, value in values.items() if value is not None}
    budget = {field.removeprefix("budget."): typed.pop(field) for field in list(typed) if field.startswith("budget.")}
    settings = {field.removeprefix("settings."): typed.pop(field) for field in list(typed) if field.startswith("settings.")}
    fields = {
        "command": options.command, "backends": named or default_backends(os.environ), "requested": frozenset(named),
        "seed": typed.get("order_seed", 0), "slowed": parse_slowing(options.slowed), "configuration": options.configuration,
        "launch_index": _launch_index(more.get("launches", options.launches), info, os.environ), "settings": settings,
    }  # fmt: skip
    return Request(sweep=sweep, argv=tuple(argv), budget=Budget(**(budget | dict(limits or {}))), **(fields | typed | more))


def collective_request(options: OperationOptions, argv: Sequence[str], info: LaunchInfo | None) -> TaskRequest:
    """Return the request of a command of operations. Raises UsageError for invalid options.

    It is answered fast if the user set neither --full, nor sizes, nor the duration of a case, nor another experiment.
    """
    starts = pairs_of_launches(options.launches, os.environ) if options.gdr_check else options.launches
    measured = [operation for operation in operation_commands()[options.command] if options.only in (None, short_name(operation))]
    slow = ("sizes", "minimum", "maximum", "factor", "increment", "max_time", "iterations", "precision")
    brief = not (options.full or options.gdr_check or any(getattr(options, name) is not None for name in slow))
    limits = {}
    if brief and options.total_time is None:
        total_s = BRIEF_S * len(measured)
        limits = {"total_s": total_s, "wall_s": total_s + BRIEF_OVERHEAD_S}
    request = request_of(options, replace(make_sweep(options, measured), sparse=brief), argv, info, limits=limits, launches=starts)
    if options.npmin is not None:
        check_least_processes(options.npmin, info.ranks if info else local_ranks(request, os.environ))
    return TaskRequest(request)


def short_name(operation: Operation) -> str:
    """Return the name of one of several operations of a command: "latency" for p2p_latency."""
    return operation.name.removeprefix(f"{operation.command}_")


def make_sweep(options: MeasuringOptions, operations: Sequence[Operation]) -> Sweep:
    """Return the sweep, which makes the cases. Raises UsageError for invalid options."""
    sizes, step, span = _sizes(options)
    traffic = None
    if options.traffic:
        traffic = read_traffic(options.traffic)
    elif options.skew:
        traffic = skewed(options.skew)
    if traffic and traffic.own_bytes() and sizes is None and options.factor is None and options.increment is None:
        sizes = (traffic.own_bytes() or 0,)
    mode = "overlap" if options.overlap else options.mode
    calls = _known("call form", options.calls, CALLS)
    in_place = None
    if options.in_place or options.out_of_place:
        in_place = options.in_place
    if mode == "overlap" and calls != CALLS[:1]:
        raise UsageError("--overlap and --calls exclude each other: --overlap starts each operation and waits for it later; remove --calls")
    arithmetic = [name for name in REDOPS if name not in BITWISE]
    return Sweep(
        operations=tuple(operations),
        sizes=sizes,
        dtypes=tuple(dict.fromkeys(dtype_named(name) for name in _every(options.dtype, DTYPES))),
        redops=tuple(dict.fromkeys(redop_named(name) for name in _every(options.redop, arithmetic))),
        roots=tuple(map(_root, options.root)),
        device=options.device,
        mode=mode,
        in_place=in_place,
        buffers=options.buffers,
        window=options.window,
        streams=options.streams,
        pairs=options.pairs,
        span=span,
        seed=options.seed or 0,
        step=step,
        algorithms=_known("algorithm", options.algorithms, ALGORITHMS),
        protocols=_known("protocol", options.protocols, PROTOCOLS),
        registrations=_known("registration", options.registration, REGISTRATIONS),
        calls=calls,
        split=None if options.split is None else parse_split(options.split),
        traffic=traffic,
        defaults=backend_defaults,
    )


def _check_resume(options: MeasuringOptions) -> None:
    """Raise UsageError for --resume and --resume-if-exists together with options that need other folders."""
    others = {"--gdr-check": options.gdr_check, "--launches": options.launches > 1}
    for name, value in {"--out": options.out, **others}.items():
        if value and options.resume:
            raise UsageError(f"--resume and {name} exclude each other: remove one of them")
    if not options.resume_if_exists:
        return
    if options.out is None:
        raise UsageError("--resume-if-exists needs a run folder: add --out DIR")
    for name, value in others.items():
        if value:
            raise UsageError(f"--resume-if-exists and {name} exclude each other: remove one of them")


def _every(names: Sequence[str], all_names: Iterable[str]) -> Iterable[str]:
    """Return the names, or what nccl-tests means by "all"."""
    return all_names if list(names) == ["all"] else names


def _known(noun: str, names: list[str], choices: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name.lower() not in choices:
            raise UsageError(f"{noun} '{name}' is unknown: choose from {', '.join(choices)}")
    return tuple(dict.fromkeys(name.lower() for name in names))


def _root(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"root '{text}' is not a valid rank: use whole numbers from 0, e.g. 0 or 0,1")
    return int(text)


def _sizes(options: MeasuringOptions) -> tuple[tuple[int, ...] | None, str, tuple[int, int] | None]:
    """Return the sizes (None: each backend has its own), the step between the defaults, and the requested smallest and largest size."""
    short = (options.minimum, options.maximum, options.factor, options.increment)
    if options.sizes is not None and any(value is not None for value in short):
        raise UsageError("--sizes and -b/-e/-f/-i both set sizes: use one of them")
    if options.sizes is not None:
        sizes = tuple(parse_sizes(options.sizes))
        ends = [parse_size(end) for part in options.sizes.split(",") for end in part.partition(":")[0].split("-")]
        return sizes, "x2", (min(ends), max(ends))
    step = "x2" if options.factor is None else f"x{options.factor}"
    if options.increment is not None:
        step = f"+{options.increment}"
    if options.minimum is None and options.maximum is None:
        size_steps(SMALLEST, CPU.largest, step)  # rejects a bad step before ranks start
        return None, step, None
    least = str(SMALLEST) if options.minimum is None else options.minimum
    most = least if options.maximum is None else options.maximum
    first = parse_size(least)
    last = parse_size(most)
    if first > last:
        raise UsageError(f"-b {least} is larger than -e {most}: swap them")
    return tuple(size_steps(first, last, step)), step, (first, last)


# The request of check.

_CHECK_MAX_TIME_S = 3.0  # per case
CHECK_SIZES = {"allreduce": (8, 4 << 20, 16 << 20, 64 << 20), "p2p_latency": (8,), "p2p_bandwidth": (4 << 20, 16 << 20)}  # bytes
_CHECK_WINDOW = 4  # messages in flight: the usual 256 MiB take seconds on a link of 1 Gb/s, and a few messages fill any link


def check_request(options: MeasuringOptions, argv: Sequence[str], info: LaunchInfo | None) -> TaskRequest:
    """Return the request of `collbench check`. Sizes that do not fit the memory are left out. Raises UsageError."""
    common = Sweep((), None, (dtype_named("float32"),), sparse=True, defaults=backend_defaults, window=_CHECK_WINDOW)
    sweeps = [replace(common, operations=(known_operations()[name],), sizes=sizes, where=name) for name, sizes in CHECK_SIZES.items()]
    total_s = options.total_time or 0.0
    limits = {"max_time_s": _CHECK_MAX_TIME_S, "wall_s": total_s + CHECK_OVERHEAD_S}
    more: dict[str, Any] = {}
    if not options.backend and not any(find_spec(name) for name in ("mpi4py", "torch", "cupy")):  # plain TCP needs no library
        more["backends"] = (*default_backends(os.environ), "socket")
    return TaskRequest(request_of(options, Sweeps(tuple(sweeps)), argv, info, limits=limits, **more))


# Several launches of a command on this host: by --launches, or of --gdr-check with and without GPUDirect RDMA.

LAUNCH_INDEX = "COLLBENCH_LAUNCH_INDEX"  # from 0; set only for the ranks that `launches` starts
GDR_LEVEL = "NCCL_NET_GDR_LEVEL"
GDR_NEVER = "LOC"  # NCCL user guide: LOC never uses GPUDirect RDMA
_BY_HAND = (
    "--gdr-check starts the ranks itself, but {launcher} has already started them: "
    f"run the command twice in the allocation without it, the second time with {GDR_LEVEL}={GDR_NEVER} exported, "
    "each with its own --out, then `collbench compare A B`"
)


def _launch_index(launches: int, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Return the number of this launch, from 0, among several that collbench starts on this host."""
    if launches == 1 or info is None or info.launcher != "local" or LAUNCH_INDEX not in env:
        return 0
    from collbench.launch.info import number

    return number(env, LAUNCH_INDEX)


def refuse_launcher(request: Request, info: LaunchInfo, env: Mapping[str, str]) -> None:
    """Raise UsageError for several launches under a launcher, which starts only one."""
    if request.launches == 1 or (info.launcher == "local" and LAUNCH_INDEX in env):
        return
    refusal = UsageError(
        _BY_HAND.format(launcher=info.launcher)
        if request.gdr_check
        else f"--launches {request.launches} is for a start without a launcher, but {info.launcher} has started the ranks: run the "
        f"command {request.launches} times in the allocation, with the same --allocation NAME, then `collbench report RUN…`"
    )
    refusal.reported = info.rank > 0  # type: ignore[attr-defined]  # rank 0 reports for all
    raise refusal


def pairs_of_launches(launches: int, env: Mapping[str, str]) -> int:
    """Return the number of pairs of --gdr-check, at least two for an interval. Raises UsageError if both sides would be equal."""
    if env.get(GDR_LEVEL, "").strip().upper() in (GDR_NEVER, "0") and "COLLBENCH_LOCAL" not in env:
        raise UsageError(
            f"--gdr-check sets {GDR_LEVEL} itself, but {GDR_LEVEL}={env[GDR_LEVEL]} is exported: unset it, or neither side uses GPUDirect "
            "RDMA"
        )
    return max(2, launches)


# What GPUs mean for a request: the default backends, and the number of processes.

_ONE_EACH = ("srun", "kubernetes")


def default_backends(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return nccl with GPUs where it can run, else the CPU backends; with GPUs but without NCCL both, so that the reason is shown."""
    if not visible_gpus(env):
        return registry.DEFAULTS
    return ("nccl", *registry.DEFAULTS) if missing_backend("nccl") else ("nccl",)


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
    gpus_each = per_process(request) if gpus else None
    return default_ranks(gpus, gpus_each) if gpus_each else 1


def with_ranks(info: LaunchInfo, ranks: int) -> LaunchInfo:
    """Return the launch with a sentence about the processes that this task starts, which rank 0 prints."""
    launch_advice = info.advice if info.ranks > 1 else ()  # with one task srun's own advice is to start more
    task = {"srun": "each task of srun is the only one of its node and", "kubernetes": "each pod"}.get(info.launcher, "each task")
    advice = f"{task} starts {ranks} processes, one for each of its GPUs (to avoid this: --ranks-per-node 1)"
    return replace(info, advice=(advice, *launch_advice))


def placement_of(request: Request, info: LaunchInfo | None, env: Mapping[str, str]) -> Placement:
    """Return where the ranks of a launch run, before they join. Raises UsageError if the GPUs cannot be divided evenly."""
    if info is None:
        processes = local_ranks(request, env)
        per_host = request.ranks_per_node or processes
    else:
        started = request.ranks_per_node or node_ranks(request, info, env)
        processes = info.ranks * started
        per_host = info.local_ranks * started
    gpus = request.gpus_per_process
    host_of = tuple(rank // (per_host * gpus) for rank in range(processes * gpus))
    names = info.hosts if info else (socket.gethostname(),)
    if len(names) != max(host_of) + 1:
        names = tuple(f"node {number}" for number in range(max(host_of) + 1))
    return Placement(processes, host_of, tuple(names), is_here=info is None)
