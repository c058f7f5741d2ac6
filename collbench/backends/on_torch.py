"""What backends through torch.distributed have in common: how ranks join, their groups, and GPU memory of torch's own allocator."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from collbench.addresses import listen_at
from collbench.backends.backend import Settings
from collbench.backends.on_gpu import HostOrGpuBackend
from collbench.errors import UsageError
from collbench.machine.interfaces import first_family

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.device.gpu import Gpu

_LATER = 2
_BACKLOG = 128


def load_torch() -> Any:
    """torch, imported without looks for garbage, of which nothing is freed while it lives, and then exempt from them.

    Every rank saves 0.7 s of 1.9 s (torch 2.13, AMD EPYC) at its start and its end, and its loops the looks in between.
    """
    looked = gc.isenabled()
    gc.disable()
    try:
        import torch
    finally:
        if looked:
            gc.enable()
    gc.freeze()
    return torch


def patience(settings: Settings) -> timedelta:
    """How long a library waits: longer than the watchdog, which can say who is missing; the library cannot."""
    return timedelta(seconds=_LATER * settings.timeout_s)


def store_of(name: str, world: World, timeout: timedelta) -> Any:
    """Return a TCPStore that rank 0 opens on a free port, at every rank; it must live as long as the groups that use it.

    It has no authentication, so it listens only at the address of rank 0 that the other ranks use: loopback within one host.
    """
    import torch

    dist: Any = torch.distributed
    host, port, store = world.members[0].address, 0, None
    if world.rank == 0:
        store = _served(dist, host, timeout, world.size)
        port = store.port
    port = world.decide(port, f"opening {name}: the store's port")
    return store or dist.TCPStore(host, port, None, is_master=False, timeout=timeout)


def _served(dist: Any, host: str, timeout: timedelta, ranks: int) -> Any:
    """Return rank 0's store, which listens at one address.

    torch listens at every address by itself; since 2.3 it takes a listening socket. Where it refuses one, with libuv and without, the
    store listens at every address as before.
    """
    common = {"is_master": True, "timeout": timeout, "wait_for_workers": False}
    for backend in ({}, {"use_libuv": False}):
        listener = listen_at(host, max(_BACKLOG, ranks))
        port = listener.getsockname()[1]
        try:
            return dist.TCPStore(host, port, None, **common, master_listen_fd=listener.detach(), **backend)
        except (TypeError, ValueError, RuntimeError):
            continue
    return dist.TCPStore(host, 0, None, **common)


def require_one_family(name: str, world: World, interface: str) -> None:
    """Raise UsageError where Gloo would listen at IPv4 on one host and at IPv6 on another: it takes an interface's IPv4 address if any."""
    family = first_family(interface)
    told: list[str | None] = world.agree(family and family.value, f"opening {name}: the family of {interface}'s address")
    first = {family: member.host for member, family in reversed(list(zip(world.members, told, strict=True))) if family}
    if len(first) > 1:
        each = ", ".join(f"{host} {family}" for family, host in sorted(first.items()))
        raise UsageError(f"{name} cannot connect hosts over different address families ({each}): give every host an IPv4 address, or none")


def join(name: str, world: World, settings: Settings, **more: Any) -> Any:
    """Forms torch's default group; its store, which must live as long as the group."""
    import torch

    dist: Any = torch.distributed
    store = store_of(name, world, patience(settings))
    dist.init_process_group(name, store=store, rank=world.rank, world_size=world.size, timeout=patience(settings), **more)
    return store


def no_cuda_build(torch: Any) -> str | None:
    """Why this torch has no CUDA, with the remedy, or None."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build for CPUs: install the one for CUDA (pytorch.org tells how)"
    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU: see python -c 'import torch; torch.cuda.init()'"


class TorchMemory:
    """GPU memory of torch's own allocator, as its users have it."""

    def __init__(self, torch: Any, index: int, n_bytes: int) -> None:
        """Raises MemoryError, one sentence."""
        try:
            self.tensor = torch.empty(n_bytes, dtype=torch.uint8, device=f"cuda:{index}")
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(f"torch allocates no {n_bytes} bytes on GPU {index}: {str(error).splitlines()[0]}") from error
        self.address, self.n_bytes = int(self.tensor.data_ptr()), n_bytes


class TorchBackend(HostOrGpuBackend):
    """A library behind torch.distributed. Opening sets `_torch`, the module."""

    api = "torch"
    passes_messages = True
    _torch: Any

    def communicator(self, ranks: Sequence[int]) -> Any:
        """The default group for all ranks, else a new one, which torch wants all ranks to make."""
        dist = self._torch.distributed
        return dist.group.WORLD if len(ranks) == self.ranks else dist.new_group(list(ranks))

    def gpu_memory(self, gpu: Gpu, n_bytes: int) -> TorchMemory:
        """torch's own. Raises MemoryError."""
        return TorchMemory(self._torch, gpu.index, n_bytes)

    def close(self) -> None:
        """Leaves the process group."""
        if self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group()
