"""Opening NCCL: every rank finds its library and its GPUs, all ranks look whether they fit together, then each claims its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Unavailable
from collbench.backends.nccl.library import NcclLibrary, load_nccl
from collbench.backends.nccl.table import dotted
from collbench.backends.places import Place, chosen_gpus, may_share, shared, trouble
from collbench.errors import CollbenchError, UsageError

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.device.gpu import Event, Gpu, Memory, Stream

_SCRATCH_BYTES = 256


@dataclass(frozen=True)
class Driven:
    """One rank that this process drives: its GPU, the stream of its calls, the events around a sample, a little memory there."""

    gpu: Gpu
    stream: Stream
    start: Event
    end: Event
    scratch: Memory


@dataclass(frozen=True)
class Opened:
    """What opening found: the library, this process's ranks, every rank's GPU by its PCI address, and how many ranks drive each of ours.

    shared: whether any two ranks drive one GPU.
    """

    library: NcclLibrary
    driven: tuple[Driven, ...]
    gpus: tuple[str, ...]
    drivers: Mapping[str, int]
    shared: bool


def probe(env: Mapping[str, str]) -> Available | Unavailable:
    """Whether CUDA shows a GPU here and NCCL loads, the cheaper question first."""
    from collbench.device.present import why_unavailable

    missing = why_unavailable(env)
    if missing:
        return Unavailable(*missing)
    try:
        return Available(f"NCCL {dotted(load_nccl(env).version)}")
    except CollbenchError as error:
        why, _, remedy = str(error).partition(": ")
        return Unavailable(why, remedy)


def open_nccl(world: World, k: int) -> Opened:
    """Each process's k GPUs, claimed and with a proven checker; all ranks call. Raises UsageError where what they found does not fit."""
    library, indices, mine = _look(world, k)
    everyone = world.agree(mine, "opening nccl: which GPUs")
    wrong = next((said["wrong"] for said in everyone if said.get("wrong")), None) or _versions_differ(everyone)
    if wrong or library is None:
        raise UsageError(wrong or "no NCCL library is found")
    places = [Place.from_json(said["place"]) for said in everyone]
    if misfit := trouble(places, k):
        raise UsageError(misfit)
    here = [gpu for place in places if place.host == world.me.host for gpu in place.driven]
    gpus = tuple(gpu for place in places for gpu in place.driven)
    return Opened(library, _claimed(indices, world), gpus, {gpu: here.count(gpu) for gpu in here}, shared(places))


def _look(world: World, k: int) -> tuple[NcclLibrary | None, list[int], dict[str, Any]]:
    """The library, the numbers of our GPUs, and what to tell the others; never raises: they would wait for our answer."""
    try:
        library = load_nccl(os.environ)
        indices, place = _our_place(world, k)
    except Exception as error:
        why = str(error) if isinstance(error, CollbenchError) else f"CUDA does not start ({type(error).__name__}: {error})"
        return None, [], {"wrong": f"{world.me}: {why}" if world.size > 1 else why}
    return library, indices, {"place": asdict(place), "version": dotted(library.version), "who": str(world.me), "path": library.path}


def _our_place(world: World, k: int) -> tuple[list[int], Place]:
    from collbench.device.present import identities

    found, (shares, host_id) = identities(), may_share(os.environ)
    info = world.info
    indices = chosen_gpus(info.local_rank, info.local_ranks, k, len(found), shares or bool(host_id))
    driven = [found[index] for index in indices]
    alone = tuple(gpu.bus_id for gpu in driven if gpu.exclusive)
    visible = tuple(gpu.bus_id for gpu in found)
    return indices, Place(world.me.host, visible, tuple(gpu.bus_id for gpu in driven), alone, shares, host_id)


def _versions_differ(everyone: Sequence[Mapping[str, Any]]) -> str | None:
    """NCCL of one version does not talk to another's: said here, since some versions only hang."""
    first = everyone[0]
    other = next((said for said in everyone if said["version"] != first["version"]), None)
    if other is None:
        return None
    return (
        f"{first['who']} loads NCCL {first['version']} ({first['path']}) and {other['who']} {other['version']} ({other['path']}): "
        "install the same one on all hosts, or set COLLBENCH_NCCL"
    )


def _claimed(indices: Sequence[int], world: World) -> tuple[Driven, ...]:
    try:
        return tuple(_claim(index) for index in indices)
    except (CollbenchError, MemoryError) as error:
        raise UsageError(f"{world.me}: {error}") from error


def _claim(index: int) -> Driven:
    from collbench.device.buffers import prove
    from collbench.device.gpu import Gpu

    gpu = Gpu(index)
    driven = Driven(gpu, gpu.stream(), gpu.event(), gpu.event(), gpu.allocate(_SCRATCH_BYTES))
    prove(gpu, driven.stream)
    return driven
