"""Finds the regimes: every Regime of the modules listed here."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from collbench.errors import UsageError
from collbench.workloads.shape import printable
from collbench.workloads.step import Regime

# The modules of the regimes, in the order of `--help`.
_MODULES = ("data_parallel", "hierarchical", "parameter_server", "pipeline", "tensor_parallel", "expert_parallel", "fsdp")


@cache
def regimes() -> dict[str, Regime]:
    """All regimes by name, from data-parallel on."""
    modules = [import_module(f"collbench.workloads.{name}") for name in _MODULES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Regime)]
    return {regime.name: regime for regime in found}


def regime_named(name: str) -> Regime:
    """The regime called `name` ("_" for "-" will do). Raises UsageError that lists the known ones."""
    found = regimes().get(name.strip().lower().replace("_", "-"))
    if found is None:
        shown = printable(name)
        raise UsageError(f"workload '{shown}' is unknown: choose from {', '.join(regimes())}")
    return found
