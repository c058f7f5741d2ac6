"""Finds the backends: the project's own by file, others by the entry points "collbench.backends"."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from collbench.errors import UsageError

_OWN = {"mpi": "collbench.backends.mpi:MpiBackend", "gloo": "collbench.backends.gloo:GlooBackend"}
_OWN |= {"nccl": "collbench.backends.nccl.backend:NcclBackend", "torch-nccl": "collbench.backends.torch_nccl:TorchNcclBackend"}
_OWN |= {"simulated": "collbench.backends.simulated:SimulatedBackend", "socket": "collbench.backends.socket_tcp:SocketBackend"}
_OWN |= {"slowed": "collbench.backends.slowed:SlowedBackend"}
# Tried without being asked for: real ones only, cheap to start first.
DEFAULTS = ("mpi", "gloo")


def _load(place: str) -> type[Any]:
    module, _, name = place.partition(":")
    found: type[Any] = getattr(import_module(module), name)
    return found


@cache
def _plugins() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="collbench.backends")}


def backend_names() -> list[str]:
    """Every backend that can be asked for, available or not."""
    return [*_OWN, *(name for name in _plugins() if name not in _OWN)]


def backend_class(name: str) -> type[Any]:
    """The class behind a name; its module is imported, the library is not. Raises UsageError that lists the known ones."""
    if name in _OWN:
        return _load(_OWN[name])
    if name not in _plugins():
        raise UsageError(f"backend '{name}' is unknown: choose from {', '.join(backend_names())} ('collbench backends' tells more)")
    try:
        found: type[Any] = _plugins()[name].load()
    except Exception as error:
        raise UsageError(f"backend plug-in '{name}' does not load: {error}; mend or uninstall it") from error
    return found
