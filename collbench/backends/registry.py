"""The registry of backends: those of the core and of plug-ins by module, single ones by the entry points "collbench.backends"."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from collbench.errors import UsageError, nearest
from collbench.operations.operation import Operation
from collbench.operations.sweep import CPU, CUDA, BackendDefaults
from collbench.plugin import BUILTIN as PLUGINS
from collbench.plugin import BrokenEntry, EntryPoint, entries, loaded, plugins

# Entry points of this package may be stale in a checkout, since pip writes them only when it installs.
BUILTIN = {
    "mpi": "collbench.backends.mpi:MpiBackend",
    "gloo": "collbench.backends.torch_distributed:GlooBackend",
    "nccl": "collbench.backends.nccl.backend:NcclBackend",
    "torch-nccl": "collbench.backends.torch_distributed:TorchNcclBackend",
    "simulated": "collbench.backends.simulated:SimulatedBackend",
    "socket": "collbench.backends.socket:SocketBackend",
    "slowed": "collbench.backends.slowed:SlowedBackend",
}
# Used if the user names no backend: real ones only, the fastest to open first.
DEFAULTS = ("mpi", "gloo")


def _places() -> dict[str, str]:
    """Return the places of the core's and the plug-ins' backends by name; slowed, which wraps others, is last."""
    places = dict(BUILTIN)
    slowed = places.pop("slowed")
    for name in PLUGINS:
        if name in plugins():
            places |= plugins()[name].backends
    return places | {"slowed": slowed}


@cache
def _entries() -> Mapping[str, EntryPoint]:
    return entries("collbench.backends", _places())


def backend_names() -> list[str]:
    """Return the names of all backends, available or not."""
    return [*_places(), *_entries()]


def backend_class(name: str) -> type[Any]:
    """Return the class of a backend. Its module is imported, the library is not. A broken plug-in gives an unavailable backend.

    Raises UsageError that lists the known names.
    """
    place = BUILTIN.get(name) or _places().get(name)  # those of the core without the plug-ins
    if place:
        kind: type[Any] = loaded(place)
        return kind
    check_name(name)
    return _of_entry(name)


def missing_backend(name: str) -> str | None:
    """Return why a backend is not installed, None if it is."""
    from collbench.backends.backend import Unavailable

    answer = backend_class(name).probe()
    return str(answer) if isinstance(answer, Unavailable) else None


def check_name(name: str) -> None:
    """Raise UsageError with a similar name, or all of them, if this one is unknown. Imports no backend."""
    if name not in BUILTIN and name not in _places() and name not in _entries():
        raise UsageError(f"backend '{name}' is unknown: {nearest(name, backend_names())} (see 'collbench backends')")


@cache
def _of_entry(name: str) -> type[Any]:
    """Return a plug-in's class, checked once against the contract; for a broken plug-in a class that is never available."""
    from collbench.backends.backend import BackendBase, Unavailable
    from collbench.backends.unavailable import BrokenPlugin

    try:
        return _checked(_entries()[name])
    except BrokenEntry as error:
        answer = Unavailable.because(BrokenPlugin(error.plugin, error.place, error.defect, error.remedy))
        members = {"name": name, "api": name, "devices": frozenset({"cpu"}), "probe": classmethod(lambda kind: answer)}
        return type("BrokenPlugin", (BackendBase,), members)


def _checked(entry: EntryPoint) -> type[Any]:
    """Return a plug-in's class. Raises BrokenEntry if it violates the contract."""
    from collbench.backends.backend import Available, Backend, Unavailable

    kind = entry.load()
    if not isinstance(kind, type):
        raise entry.broken(f"is not a class, but of type {type(kind).__name__}")
    required = {name for name in (*vars(Backend), *Backend.__annotations__) if not name.startswith("_")}
    missing = {name for name in required if not hasattr(kind, name)} | set(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise entry.broken(f"is not a Backend: missing {', '.join(sorted(missing))}")
    answer = entry.tried("probe", getattr(kind, "probe"))  # noqa: B009
    if not isinstance(answer, Available | Unavailable):
        raise entry.broken(f"returns {type(answer).__name__} from probe instead of Available or Unavailable")
    return kind


# Default options of a backend's test cases, from its class, before it is opened.


def backend_defaults(name: str) -> BackendDefaults:
    """Return nccl-tests' defaults for a backend of GPUs only, else those of CPU benchmarks. Raises UsageError for an unknown name."""
    kind: Any = backend_class(name)  # the class, since its steps are known before it is opened

    def only_in_place(operation: Operation) -> bool:
        from collbench.backends.backend import in_place_only  # here, since `--help` needs no defaults

        return in_place_only(kind, operation)

    defaults = CPU if "cpu" in kind.devices else CUDA
    return replace(defaults, tuned=kind.takes_tuning, streamed=kind.takes_streams, in_place_only=only_in_place)
