"""What a command line means where there are GPUs: which backends, how many processes, and which options only some backends have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from collbench.device.present import visible_gpus
from collbench.errors import UsageError
from collbench.operations.sweep import Sweeps

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measure.request import Request

_ONE_EACH = {"srun": "each task of srun is alone on its node and", "kubernetes": "each pod"}


def default_backends(env: Mapping[str, str]) -> tuple[str, ...]:
    """nccl alone where there are GPUs and it can run, else the CPU backends; with GPUs but without NCCL both, so that it is said why."""
    from collbench.backends.registry import DEFAULTS, backend_class

    if not visible_gpus(env):
        return DEFAULTS
    from collbench.backends.backend import Unavailable

    missing = isinstance(backend_class("nccl").probe(), Unavailable)
    return ("nccl", *DEFAULTS) if missing else ("nccl",)


def agreed(request: Request, world: World) -> Request:
    """The request with the same default backends on all hosts: where only some have GPUs, all ranks look for nccl and say why not."""
    usual = request.sweep.usual if isinstance(request.sweep, Sweeps) else () if request.asked else request.backends
    if not usual or world.info.launcher == "local":
        return request
    views = world.agree(list(usual), "choosing the backends")
    names = tuple(dict.fromkeys(name for view in sorted(views, key=len, reverse=True) for name in view))
    backends = tuple(dict.fromkeys((*names, *(name for name in request.backends if name in request.asked))))
    sweep = replace(request.sweep, usual=names) if isinstance(request.sweep, Sweeps) else request.sweep
    return replace(request, sweep=sweep, backends=backends)


def check_options(request: Request, gdr_check: bool) -> None:
    """Raises UsageError for options that only nccl, or only socket, has where nothing of the kind is measured."""
    sweep = request.sweep
    asked = {"--algorithms": sweep.algorithms, "--protocols": sweep.protocols, "--registration": sweep.registrations,
             "-g": request.gpus_per_process > 1}  # fmt: skip
    typed = next((option for option, given in asked.items() if given), None)
    if typed and not any(sweep.habits(name).tuned for name in request.backends):
        raise UsageError(_not_there(typed, request))
    if gdr_check and not any(sweep.habits(name).device == "cuda" for name in request.backends):
        raise UsageError(_not_there("--gdr-check", request))
    several = any((one.streams or 1) > 1 for one in sweep.each)
    if several and not any(sweep.habits(name).streamed for name in request.backends):
        raise UsageError(_not_there("--streams", request, "socket"))


def _not_there(option: str, request: Request, whose: str = "nccl") -> str:
    backends = ", ".join(request.backends)
    return f"{option} concerns {whose}, which is not among the backends ({backends}): add --backend {whose}, or drop {option}"


def per_process(request: Request) -> int | None:
    """How many GPUs each process drives; None where no backend needs GPUs of its own.

    nccl may stand among the default backends only to say why it is missing; then it needs none.
    """
    devices = {request.sweep.habits(name).device for name in request.backends}
    needed = "cuda" in devices and (bool(request.asked) or devices == {"cuda"})
    return request.gpus_per_process if needed else None


def local_ranks(request: Request, env: Mapping[str, str]) -> int:
    """How many processes to start on this host. Raises UsageError where the GPUs cannot be dealt out."""
    from collbench.launch.spawn import default_ranks

    if request.ranks:
        return request.ranks
    gpus = visible_gpus(env)
    return default_ranks(gpus, per_process(request) if gpus else None)


def node_ranks(request: Request, info: LaunchInfo, env: Mapping[str, str]) -> int:
    """How many processes a task that is alone on its node (of srun), or a pod, becomes, so that all its GPUs take part; 1: it stays."""
    from collbench.launch.spawn import default_ranks

    if info.launcher not in _ONE_EACH or info.local_ranks != 1 or "worker" in info.facts:
        return 1
    gpus = visible_gpus(env)
    each = per_process(request) if gpus else None
    return default_ranks(gpus, each) if each else 1


def said(info: LaunchInfo, ranks: int) -> LaunchInfo:
    """The launch with a sentence about the processes that this task becomes, which rank 0 will say."""
    one = _ONE_EACH.get(info.launcher, "each task")
    why = f"{one} becomes {ranks} processes, so that all its GPUs take part (else: --ranks-per-node 1)"
    kept = [info.advice] if info.advice and info.ranks > 1 else []  # with one task srun's own advice is to start more
    return replace(info, advice="; ".join([why, *kept]))
