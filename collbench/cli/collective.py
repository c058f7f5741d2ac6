"""collbench allreduce, broadcast, p2p …: one command per operation, found through the registry."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collbench.cli import gdr_check
from collbench.cli.gpus import agreed, check_options, default_backends, local_ranks, node_ranks, said
from collbench.cli.launches import placed, repeat
from collbench.cli.options import add_options, make_request
from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.operations.registry import commands as operation_commands

if TYPE_CHECKING:
    from collbench.cli.listening import Listening
    from collbench.launch.info import LaunchInfo
    from collbench.runner.request import Request


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds one command per operation (the point-to-point ones share `p2p`)."""
    added = {}
    for name, operations in sorted(operation_commands().items()):
        summary = operations[0].summary if len(operations) == 1 else "latency, one-way and two-way bandwidth between pairs of ranks"
        parser = commands.add_parser(name, help=summary, description=summary)
        add_options(parser, operations)
        parser.set_defaults(call=call)
        added[name] = parser
    return added


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measures in the launch this process belongs to, or starts ranks on this host. Returns the exit code."""
    from collbench.backends.registry import backend_class
    from collbench.launch.detect import LocalRequest, detect

    for name in arguments.backend or ():
        backend_class(name)
    if arguments.gdr_check:
        arguments.launches = gdr_check.pairs(arguments.launches, os.environ)
    backends = tuple(dict.fromkeys(arguments.backend or default_backends(os.environ)))
    request = make_request(arguments, operation_commands()[arguments.command], backends, argv)
    check_options(request, arguments.gdr_check)
    info = detect(os.environ, LocalRequest(arguments.ranks, ("collbench", *argv)))
    if info is None:
        return _start_here(request, arguments, argv)
    request = placed(request, info, os.environ, gdr_check.BY_HAND if arguments.gdr_check else "")
    return _under_launcher(request, info, arguments, argv)


def _under_launcher(request: Request, info: LaunchInfo, arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    """This process is a rank, or becomes all ranks of its node."""
    from collbench.launch.spawn import node_workers

    if arguments.ranks_per_node and "worker" not in info.facts:
        return node_workers(info, arguments.ranks_per_node, argv, os.environ)
    ranks = 1 if arguments.ranks_per_node else node_ranks(request, info, os.environ)
    return node_workers(said(info, ranks), ranks, argv, os.environ) if ranks > 1 else _take_part(request, info, arguments)


def _start_here(request: Request, arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    """No launcher: checks what can be checked alone, then starts the ranks, once or --launches times."""
    ranks = local_ranks(request, os.environ)
    request.sweep.check_ranks(ranks * request.gpus_per_process)
    _check_asked(request)

    def start(argv: Sequence[str], env: Mapping[str, str]) -> int:
        return _start(request, ranks, argv, env)

    if arguments.gdr_check:
        return gdr_check.check(request, arguments, argv, os.environ, start)
    return start(argv, os.environ) if request.launches == 1 else repeat(request, arguments, argv, os.environ, start)


def _start(request: Request, ranks: int, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Starts the ranks on this host; virtual ranks need no process of their own."""
    from collbench.launch.mpiexec import find_mpiexec
    from collbench.launch.spawn import start_local

    if set(request.backends) == {"simulated"}:
        virtual = [*argv, *([] if request.ranks else ["--ranks", str(ranks)])]
        return start_local(virtual, 1, mpi=False, mpiexec=None, env=env)
    mpiexec = find_mpiexec(env) if "mpi" in request.backends and _has("mpi4py") else None
    return start_local(argv, ranks, mpi=mpiexec is not None, mpiexec=mpiexec, env=env)


def _check_asked(request: Request) -> None:
    """Raises UsageError for a backend that was asked for and is not installed, before any rank is started."""
    from collbench.backends.backend import Unavailable
    from collbench.backends.registry import backend_class

    for name in request.asked - {"mpi"} if _has("mpi4py") else request.asked:
        answer = backend_class(name).probe()
        if isinstance(answer, Unavailable):
            raise UsageError(f"backend {name} is not available: {answer}")


def _has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def _take_part(request: Request, info: LaunchInfo, arguments: argparse.Namespace) -> int:
    """This process is a rank: joins the others, measures, and leaves with the same code as they do."""
    from collbench.launch.spawn import die_with_parent, record_exit, record_start
    from collbench.launch.supervise import say
    from collbench.runner.run import run
    from collbench.world.world import World

    if info.launcher == "local":
        die_with_parent()
        record_start(os.environ)

    def ended(code: int) -> None:
        record_exit(code, os.environ)

    world = World(info, request.timeout_s)
    try:
        request = agreed(request, world)
        if world.rank:
            return run(request, world, None, ended)
        with _listening(request, arguments) as listener:
            return run(request, world, listener, ended)
    except BaseException as error:
        why = error if isinstance(error, CollbenchError) else RunFailed(f"{type(error).__name__}: {error}")
        if world.rank == 0 and why is error:
            say(str(why))  # before the others learn of it: mpiexec kills rank 0 as soon as one of them has ended
        # Rank 0 speaks for all; another rank only when rank 0 does not answer, or when it has a traceback to show.
        why.said = world.abort(why)  # type: ignore[attr-defined]
        raise
    finally:
        world.close()
        sys.stdout.flush()


def _listening(request: Request, arguments: argparse.Namespace) -> Listening:
    from collbench.cli.listening import Listening
    from collbench.cli.one_of_several import OneOfSeveral

    return Listening(arguments) if request.launches == 1 else OneOfSeveral(arguments, first=request.launch_index == 0)
