"""How launches that measure begin and end: the run folder, and whatever breaks them off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from collbench.launch import signals, software
from collbench.measure.describe import describe_run, software_of_hosts
from collbench.measure.launch import Launch, at_rank_0
from collbench.measure.opening import Opened
from collbench.results.folder import RunFolder


class Ending(Protocol):
    """Who is told, at rank 0, that nothing more will come."""

    def end(self) -> None:
        """Nothing more will come."""
        ...


@dataclass(frozen=True)
class Playing:
    """launch    with its folder
    opened    the backends, which are left at the end
    listener  rank 0's; ended: told the exit code before the libraries are left, one of which may crash there
    let_go    what is to be done first where it ends early: as soon as others know of the error, a launcher may kill this process
    """

    launch: Launch
    opened: list[Opened]
    listener: Ending | None
    ended: Callable[[int], None]
    let_go: Callable[[], None] = lambda: None


def guarded(playing: Playing, play: Callable[[], int]) -> int:
    """Plays on all ranks, and leaves; returns play's exit code. What ends it early is kept in the folder, and raised with its reason."""
    launch, world = playing.launch, playing.launch.world
    world.watchdog.witness = launch.hang
    try:
        code = play()
    except BaseException as error:
        signals.settle()
        why = world.explained(error)
        playing.let_go()
        launch.break_off(why)
        if why is error:
            raise
        raise why from error
    if playing.listener:
        playing.listener.end()
    launch.leave(playing.opened, code, playing.ended)
    return code


def create_folder(launch: Launch, opened: list[Opened], facts: Mapping[str, Any], planned: int) -> RunFolder | None:
    """The run folder at rank 0; what goes wrong there ends every rank the same way.

    facts: for run.json; planned: how many rounds or rows, for sentences.
    """
    request, world = launch.request, launch.world
    of_hosts = software_of_hosts(world, opened)

    def create() -> RunFolder:
        described = {**describe_run(request, world, opened, of_hosts), "order_seed": launch.order_seed, **facts}
        return RunFolder.create(request.out, request.command, described)

    folder = at_rank_0(world, create, "creating the run folder")
    if folder:
        launch.keeps(folder, planned)
    for sentence in different_software(of_hosts):
        launch.note(sentence)
    return folder


def different_software(of_hosts: list[dict[str, Any]]) -> list[str]:
    """A sentence for each piece of software whose version is not the same on all hosts."""
    return [software.sentence(name, versions) for name, versions in software.differing(of_hosts).items()]
