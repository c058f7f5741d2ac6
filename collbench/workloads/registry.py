"""Finds the regimes: every Regime in a module of collbench.workloads."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from collbench import workloads
from collbench.errors import UsageError
from collbench.workloads.exchange import Regime
from collbench.workloads.laying import printable

_ORDER = ("data-parallel", "hierarchical", "parameter-server", "pipeline", "tensor-parallel", "expert-parallel", "fsdp")


@cache
def regimes() -> dict[str, Regime]:
    """All regimes by name, from data-parallel on."""
    modules = (import_module(f"{workloads.__name__}.{module.name}") for module in iter_modules(workloads.__path__))
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Regime)]
    found.sort(key=lambda regime: _ORDER.index(regime.name) if regime.name in _ORDER else len(_ORDER))
    return {regime.name: regime for regime in found}


def regime_named(name: str) -> Regime:
    """The regime called `name` ("_" for "-" will do). Raises UsageError that lists the known ones."""
    found = regimes().get(name.strip().lower().replace("_", "-"))
    if found is None:
        shown = printable(name)
        raise UsageError(f"workload '{shown}' is unknown: choose from {', '.join(regimes())}")
    return found
