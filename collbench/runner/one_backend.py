"""What launches that measure on one backend have in common: which one that is, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from collbench.backends.registry import backend_class
from collbench.errors import RunFailed, UsageError
from collbench.launch import signals
from collbench.results.folder import RunFolder
from collbench.runner.describe import describe_run
from collbench.runner.launch import Launch, at_rank_0
from collbench.runner.opening import Opened, missing_anywhere, open_backends
from collbench.runner.request import Request
from collbench.world.world import World


class Ending(Protocol):
    """Who is told, at rank 0, that nothing more will come."""

    def end(self) -> None:
        """Nothing more will come."""
        ...


def guarded(launch: Launch, opened: list[Opened], listener: Ending | None, ended: Callable[[int], None], play: Callable[[], int]) -> int:
    """Plays on all ranks, and leaves; returns play's exit code. What ends it early is kept in the folder, and raised with its reason."""
    world = launch.world
    world.watchdog.witness = launch.hang
    try:
        code = play()
    except BaseException as error:
        signals.settle()
        why = world.explained(error)
        launch.break_off(why)
        if why is error:
            raise
        raise why from error
    if listener:
        listener.end()
    launch.leave(opened, code, ended)
    return code


def first_at_hand(request: Request, world: World, note: Callable[[str], None]) -> Opened:
    """The first of the request's backends that all ranks can open. Raises UsageError or RunFailed where there is none."""
    why: list[str] = []
    for name in request.backends:
        missing = None if name in request.asked else missing_anywhere(name, backend_class(name), world)
        if missing:
            note(f"without {name}: {missing}")
            continue
        (one,) = open_backends(replace(request, backends=(name,)), world, note)
        if one.backend:
            return one
        why.append(f"{one.reason}")
        note(f"{name} is not measured: {one.reason}")
    if why:
        raise RunFailed(why[0])
    raise UsageError("no backend is at hand: pip install 'collbench[mpich]' or 'collbench[torch]' ('collbench backends' tells more)")


def create_folder(launch: Launch, opened: Opened, facts: Mapping[str, Any], planned: int) -> RunFolder | None:
    """The run folder at rank 0; what goes wrong there ends every rank the same way. facts: for run.json; planned: rounds, for sentences."""
    request, world = launch.request, launch.world

    def create() -> RunFolder:
        described = {**describe_run(request, world, [opened]), "order_seed": launch.order_seed, **facts}
        return RunFolder.create(request.out, request.command, described)

    folder = at_rank_0(world, create, "creating the run folder")
    if folder:
        launch.keeps(folder, planned)
    return folder
