"""Probe each host of this process's launch, or this host alone. Rank 0 gets the machines and reports for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collbench.control.world import World
from collbench.errors import FINE, CollbenchError, RunFailed, UsageError
from collbench.launch.detect import LocalRequest, detect
from collbench.launch.info import LaunchInfo
from collbench.launch.supervise import report_error

if TYPE_CHECKING:
    from collbench.machine.model import Machine


def together(env: Mapping[str, str], timeout_s: float, report: Callable[[list[Machine]], int]) -> int:
    """Call `report` at rank 0 with the machines of the launch's hosts, and return its exit code on all ranks.

    Without a launcher there is only this machine. All ranks must call it; every wait ends after `timeout_s`. Raises
    CollbenchError, on all ranks.
    """
    info = _launch(env)
    if info is None:
        return report([_this_machine()])
    with _joined(info, timeout_s) as world:
        machines = probed(world)
        code = report(machines) if machines is not None else FINE
        return world.broadcast(code, "reporting the probed hosts")


def at_rank_0(env: Mapping[str, str], timeout_s: float, call: Callable[[], int]) -> int:
    """Call `call` at rank 0 alone, or here without a launcher, and return its exit code on all ranks.

    So files are read and written once. All ranks must call it. Raises CollbenchError, on all ranks.
    """
    info = _launch(env)
    if info is None:
        return call()
    with _joined(info, timeout_s) as world:
        return world.broadcast(call() if world.rank == 0 else FINE, "what rank 0 reads")


def launched(env: Mapping[str, str]) -> bool:
    """Return whether a launcher started this process. Raises UsageError if its variables are invalid."""
    return _launch(env) is not None


def _launch(env: Mapping[str, str]) -> LaunchInfo | None:
    """Return the launch, or None. In a Slurm allocation without srun there is none, and only this node can be probed."""
    try:
        return detect(env, LocalRequest(None, ("collbench", "probe")))
    except UsageError:
        if detect(env, LocalRequest(1)) is None:
            return None
        raise


@contextmanager
def together_or_alone(env: Mapping[str, str], timeout_s: float) -> Iterator[World]:
    """Yield the ranks of this launch, or this process alone without a launcher. Raises CollbenchError, on all ranks."""
    with _joined(_launch(env) or LaunchInfo("local", 0, 1, 0, 1, "ipc://alone", ""), timeout_s) as world:
        yield world


@contextmanager
def _joined(info: LaunchInfo, timeout_s: float) -> Iterator[World]:
    """Yield the ranks together, until all of them leave. An error of one rank ends all with the same message and code."""
    world = World(info, timeout_s)
    try:
        yield world
    except BaseException as error:
        why = error if isinstance(error, CollbenchError) else RunFailed(f"{type(error).__name__}: {error}")
        if world.rank == 0 and why is error:
            report_error(str(why))  # first: a launcher may end rank 0 as soon as another rank has ended
        why.reported = world.abort(why)  # type: ignore[attr-defined]
        raise
    finally:
        world.close()


def probed(world: World) -> list[Machine] | None:
    """Return the machines of the hosts at rank 0, in the order of their first ranks; None elsewhere.

    The first rank of each host probes it. All ranks must call it.
    """
    machine_here = None
    if world.on_host()[0].rank == world.rank:
        with world.watchdog.phase("probing this host"):
            machine_here = _this_machine()
    if len(world.hosts) == 1:
        return [machine_here] if machine_here else None
    from collbench.machine.snapshot import from_json, to_json

    machines = world.gather(to_json(machine_here) if machine_here else None, "probing the hosts")
    return None if machines is None else [from_json(machine) for machine in machines if machine is not None]


def _this_machine() -> Machine:
    from collbench.machine.here import this_machine  # only ranks that read the machine import it

    return this_machine()
