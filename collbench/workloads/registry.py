"""The registry of workloads: every Regime in the modules listed here."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from collbench.errors import UsageError
from collbench.workloads.shape import printable
from collbench.workloads.step import Regime

_MODULES = ("data_parallel", "model_parallel", "parameter_server")
# the order in `--help`
_ORDER = ("data-parallel", "hierarchical", "parameter-server", "pipeline", "tensor-parallel", "expert-parallel", "fsdp")


@cache
def regimes() -> dict[str, Regime]:
    """Return all workloads by name, data-parallel first."""
    modules = [import_module(f"collbench.workloads.{name}") for name in _MODULES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Regime)]
    return {regime.name: regime for regime in sorted(found, key=lambda regime: _ORDER.index(regime.name))}


def regime_named(name: str) -> Regime:
    """Return the workload `name` ("_" is accepted for "-"). Raises UsageError that lists the known ones."""
    found = regimes().get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise UsageError(f"workload '{printable(name)}' is unknown: choose from {', '.join(regimes())}")
    return found
