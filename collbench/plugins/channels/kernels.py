"""`collbench kernels`: run kernels on each GPU and between neighboring GPUs, and compare the rates with the links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from collbench.control.world import World
from collbench.device.gpu import OpenGpu, gpu_count
from collbench.device.unavailable import gpu_obstacle
from collbench.errors import FINE, RunFailed, UsageError
from collbench.measuring.link_ceilings import link_between
from collbench.measuring.probing import together_or_alone
from collbench.plugins.channels.bandwidth import (
    Arrays,
    KernelFigure,
    fitting_size,
    memory_figures,
    peer_figures,
    pingpong,
    without_peer,
)

if TYPE_CHECKING:
    from collbench.machine.peak.links import Link

_TIMEOUT_S = 300.0  # how long the other ranks of a launch wait for one kernel of rank 0
_GOING_ON = -1
_WHAT = "the kernels of rank 0"
_NOT_OVER_LINKS = frozenset({"pingpong", "pointer_chase"})


class Show(Protocol):
    """A receiver of the figures during the measurement."""

    def start(self, gpus: Sequence[OpenGpu], size: int) -> None:
        """Receive the GPUs and the size of each array in bytes, before the first figure."""
        ...

    def figure(self, figure: KernelFigure) -> None:
        """Receive the figure of one kernel."""
        ...

    def end(self) -> None:
        """Finish, after the last figure."""
        ...


def measure_kernels(env: Mapping[str, str], size: int | None, show: Show) -> int:
    """Measure this host's GPUs at rank 0. Return exit code 0; all ranks return at the same time.

    size: bytes of each array; None: chosen by the free memory. Raises UsageError without a GPU, or if the size does not fit;
    RunFailed if the result of a kernel is wrong.
    """
    with together_or_alone(env, _TIMEOUT_S) as world:
        if world.rank:
            return _wait(world)
        try:
            wrong = _measured(_open(env), size, show, world)
        except MemoryError as error:
            raise UsageError(f"{error}: use a smaller --size, or free memory of the GPU") from error
        if wrong:
            raise RunFailed(_wrong(wrong[0]))
        return world.broadcast(FINE, _WHAT)


def _measured(gpus: Sequence[OpenGpu], size: int | None, show: Show, world: World) -> list[KernelFigure]:
    """Show all figures; return the ones with wrong results."""
    wrong, fitting = [], fitting_size(gpus, size)
    show.start(gpus, fitting)
    for figure in figures(gpus, fitting):
        show.figure(figure)
        wrong += [figure] if figure.wrong else []
        world.broadcast(_GOING_ON, _WHAT)
    show.end()
    return wrong


def _wait(world: World) -> int:
    """Wait for rank 0. The other ranks call it, since they must not disturb the GPUs."""
    while (code := world.broadcast(FINE, _WHAT)) == _GOING_ON:
        pass
    return code


def _open(env: Mapping[str, str]) -> list[OpenGpu]:
    if (reason := gpu_obstacle(env)) is not None:
        raise UsageError(f"no GPU to run kernels on: {reason.render()}")
    return [OpenGpu(index) for index in range(gpu_count())]


def figures(gpus: Sequence[OpenGpu], size: int) -> Iterator[KernelFigure]:
    """Yield the figure of every kernel on every GPU, then between each GPU and the next one, the last to the first."""
    arrays = [Arrays(gpu, size) for gpu in gpus]
    for each in arrays:
        yield from memory_figures(each)
        yield pingpong(each, each)
    if len(arrays) < 2:
        yield from without_peer("needs a second GPU, but one is visible", (gpus[0].index,))
        return
    link = _links()
    for x, y in zip(arrays, arrays[1:] + arrays[:1] * (len(arrays) > 2), strict=False):
        between = link(x.gpu, y.gpu)
        for figure in peer_figures(x, y):
            yield figure if figure.kernel in _NOT_OVER_LINKS else _against(figure, between)


def _links() -> Callable[[OpenGpu, OpenGpu], Link]:
    """Return a function for the link between two GPUs of this machine, which is probed only once."""
    from collbench.machine.here import this_machine

    machine = this_machine()
    return lambda x, y: link_between(machine, x.bus_id, y.bus_id)


def _against(figure: KernelFigure, link: Link) -> KernelFigure:
    words = f"{link.name} ({link.source})" if link.source else link.name
    return replace(figure, floor_bytes_per_s=link.bytes_per_s, floor=words)


def _wrong(figure: KernelFigure) -> str:
    where = " and ".join(map(str, figure.gpus))
    return (
        f"{figure.kernel} on GPU {where}: {figure.wrong} elements are wrong: the GPU, its memory or the link is faulty "
        "(see 'nvidia-smi -q' for ECC errors, 'dmesg' for Xid errors)"
    )
