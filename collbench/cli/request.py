"""Make the request of a launch from options, with the backends and the number of ranks that GPUs mean for it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends import registry
from collbench.backends.registry import backend_defaults, check_name
from collbench.backends.slowing import parse_slowing
from collbench.cli.options import BRIEF_OVERHEAD_S, BRIEF_S, CHECK_OVERHEAD_S, OPTIONS
from collbench.device.present import visible_gpus
from collbench.errors import UsageError
from collbench.measuring.request import Budget, Request
from collbench.operations.case import CALLS, parse_split
from collbench.operations.dtypes import BITWISE, DTYPES, REDOPS, dtype_named, redop_named
from collbench.operations.operation import Operation
from collbench.operations.registry import operations as known_operations
from collbench.operations.sweep import ALGORITHMS, CPU, PROTOCOLS, REGISTRATIONS, SMALLEST, Sweep, Sweeps
from collbench.operations.traffic import read_traffic, skewed
from collbench.units import parse_size, parse_sizes, size_steps

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo


def request_of(arguments: argparse.Namespace, sweep: Sweep | Sweeps, argv: Sequence[str], **more: Any) -> Request:
    """Return the request: the options fill the fields that their table names, and `more` are other fields. Raises UsageError."""
    named = tuple(dict.fromkeys(getattr(arguments, "backend", None) or ()))
    for name in named:
        check_name(name)
    _check_resume(arguments)
    values = {option.fills: getattr(arguments, name, None) for name, option in OPTIONS.items() if option.fills}
    typed = {field: value for field, value in values.items() if value is not None}
    budget = {field.removeprefix("budget."): typed.pop(field) for field in list(typed) if field.startswith("budget.")}
    fields = {
        "command": arguments.command, "backends": named or default_backends(os.environ), "requested": frozenset(named),
        "seed": typed.get("order_seed", 0), "slowed": parse_slowing(arguments.slowed), "configuration": arguments.configuration,
    }  # fmt: skip
    return Request(sweep=sweep, argv=tuple(argv), budget=Budget(**budget), **(fields | typed | more))


def collective_request(arguments: argparse.Namespace, operations: Sequence[Operation], argv: Sequence[str]) -> Request:
    """Return the request of a command of these operations. Raises UsageError for invalid options.

    It is answered fast if the user set neither --full, nor sizes, nor the duration of a case, nor another experiment.
    """
    slow = ("sizes", "minimum", "maximum", "factor", "increment", "max_time", "iterations", "precision")
    brief = not (arguments.full or arguments.gdr_check or any(getattr(arguments, name) is not None for name in slow))
    request = request_of(arguments, replace(make_sweep(arguments, operations), sparse=brief), argv)
    if not brief or request.budget.total_s is not None:
        return request
    total_s = BRIEF_S * len(operations)
    return replace(request, budget=replace(request.budget, total_s=total_s, wall_s=total_s + BRIEF_OVERHEAD_S))


def make_sweep(arguments: argparse.Namespace, operations: Sequence[Operation]) -> Sweep:
    """Return the sweep, which makes the cases. Raises UsageError for invalid options."""
    sizes, step, span = _sizes(arguments)
    traffic = read_traffic(arguments.traffic) if arguments.traffic else skewed(arguments.skew) if arguments.skew else None
    if traffic and traffic.own_bytes() and sizes is None and arguments.factor is None and arguments.increment is None:
        sizes = (traffic.own_bytes() or 0,)
    mode, calls = "overlap" if arguments.overlap else arguments.mode, _known("call form", arguments.calls, CALLS)
    if mode == "overlap" and calls != CALLS[:1]:
        raise UsageError("--overlap and --calls exclude each other: --overlap starts each operation and waits for it later; remove --calls")
    arithmetic = [name for name in REDOPS if name not in BITWISE]
    return Sweep(
        operations=tuple(operations),
        sizes=sizes,
        dtypes=tuple(dict.fromkeys(dtype_named(name) for name in _every(arguments.dtype, DTYPES))),
        redops=tuple(dict.fromkeys(redop_named(name) for name in _every(arguments.redop, arithmetic))),
        roots=tuple(map(_root, arguments.root)),
        device=arguments.device,
        mode=mode,
        in_place=True if arguments.in_place else False if arguments.out_of_place else None,
        buffers=arguments.buffers,
        window=arguments.window,
        streams=arguments.streams,
        pairs=arguments.pairs,
        span=span,
        seed=arguments.seed or 0,
        step=step,
        algorithms=_known("algorithm", arguments.algorithms, ALGORITHMS),
        protocols=_known("protocol", arguments.protocols, PROTOCOLS),
        registrations=_known("registration", arguments.registration, REGISTRATIONS),
        calls=calls,
        split=None if arguments.split is None else parse_split(arguments.split),
        traffic=traffic,
        defaults=backend_defaults,
    )


def _check_resume(arguments: argparse.Namespace) -> None:
    """Raise UsageError for --resume and --resume-if-exists together with options that need other folders."""
    others = {"--gdr-check": arguments.gdr_check, "--launches": getattr(arguments, "launches", 1) > 1}
    for name, value in {"--out": arguments.out, **others}.items():
        if value and arguments.resume:
            raise UsageError(f"--resume and {name} exclude each other: remove one of them")
    if not getattr(arguments, "resume_if_exists", False):
        return
    if arguments.out is None:
        raise UsageError("--resume-if-exists needs a run folder: add --out DIR")
    for name, value in others.items():
        if value:
            raise UsageError(f"--resume-if-exists and {name} exclude each other: remove one of them")


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


def _sizes(arguments: argparse.Namespace) -> tuple[tuple[int, ...] | None, str, tuple[int, int] | None]:
    """Return the sizes (None: each backend has its own), the step between the defaults, and the requested smallest and largest size."""
    short = (arguments.minimum, arguments.maximum, arguments.factor, arguments.increment)
    if arguments.sizes is not None and any(value is not None for value in short):
        raise UsageError("--sizes and -b/-e/-f/-i both set sizes: use one of them")
    if arguments.sizes is not None:
        sizes = tuple(parse_sizes(arguments.sizes))
        ends = [parse_size(end) for part in arguments.sizes.split(",") for end in part.partition(":")[0].split("-")]
        return sizes, "x2", (min(ends), max(ends))
    step = f"x{2 if arguments.factor is None else arguments.factor}" if arguments.increment is None else f"+{arguments.increment}"
    if arguments.minimum is None and arguments.maximum is None:
        size_steps(SMALLEST, CPU.largest, step)  # rejects a bad step before ranks start
        return None, step, None
    least = str(SMALLEST) if arguments.minimum is None else arguments.minimum
    most = least if arguments.maximum is None else arguments.maximum
    first, last = parse_size(least), parse_size(most)
    if first > last:
        raise UsageError(f"-b {least} is larger than -e {most}: swap them")
    return tuple(size_steps(first, last, step)), step, (first, last)


# The requests of check, pairs, hunt and workload.

_CHECK_MAX_TIME_S = 3.0  # per case
CHECK_SIZES = {"allreduce": (8, 4 << 20, 16 << 20, 64 << 20), "p2p_latency": (8,), "p2p_bandwidth": (4 << 20, 16 << 20)}  # bytes
_CHECK_WINDOW = 4  # messages in flight: the usual 256 MiB take seconds on a link of 1 Gb/s, and a few messages fill any link


def check_request(arguments: argparse.Namespace, argv: Sequence[str]) -> Request:
    """Return the request of `collbench check`. Sizes that do not fit the memory are left out. Raises UsageError."""
    kept = Sweep((), None, (dtype_named("float32"),), sparse=True, defaults=backend_defaults, window=_CHECK_WINDOW)
    sweeps = [replace(kept, operations=(known_operations()[name],), sizes=sizes, where=name) for name, sizes in CHECK_SIZES.items()]
    budget = Budget(_CHECK_MAX_TIME_S, total_s=arguments.total_time, wall_s=arguments.total_time + CHECK_OVERHEAD_S)
    request = request_of(arguments, Sweeps(tuple(sweeps)), argv)
    if not request.requested and not any(find_spec(name) for name in ("mpi4py", "torch", "cupy")):  # plain TCP needs no library
        request = replace(request, backends=(*request.backends, "socket"))
    return replace(request, budget=budget)


# What GPUs mean for a request: the default backends, the number of processes, and the options of some backends.

_ONE_EACH = ("srun", "kubernetes")


def default_backends(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return nccl with GPUs where it can run, else the CPU backends; with GPUs but without NCCL both, so that the reason is shown."""
    if not visible_gpus(env):
        return registry.DEFAULTS
    from collbench.backends.backend import Unavailable

    missing = isinstance(registry.backend_class("nccl").probe(), Unavailable)
    return ("nccl", *registry.DEFAULTS) if missing else ("nccl",)


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
    """Return the launch with a sentence about the processes that this task starts, which rank 0 prints."""
    kept = info.advice if info.ranks > 1 else ()  # with one task srun's own advice is to start more
    task = {"srun": "each task of srun is the only one of its node and", "kubernetes": "each pod"}.get(info.launcher, "each task")
    advice = f"{task} starts {ranks} processes, one for each of its GPUs (to avoid this: --ranks-per-node 1)"
    return replace(info, advice=(advice, *kept))
