"""The registry of workloads: every Regime in the modules listed here; those that real frameworks run are apart."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from collbench.errors import UsageError, nearest
from collbench.plugins.training.workloads.shape import printable
from collbench.plugins.training.workloads.step import Regime

_MODULES = ("data_parallel", "model_parallel", "expert_parallel", "parameter_server")
# the order in `--help`
_ORDER = ("data-parallel", "hierarchical", "parameter-server", "pipeline", "tensor-parallel", "expert-parallel", "fsdp")


@cache
def regimes() -> dict[str, Regime]:
    """Return all workloads by name, data-parallel first."""
    modules = [import_module(f"collbench.plugins.training.workloads.{name}") for name in _MODULES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Regime)]
    return {regime.name: regime for regime in sorted(found, key=lambda regime: _ORDER.index(regime.name))}


def frameworks() -> dict[str, Regime]:
    """Return the workloads that a real framework runs, by name. `all` does not include them: they measure no network alone."""
    from collbench.plugins.training.workloads.frameworks import DDP, FSDP2

    return {regime.name: regime for regime in (DDP, FSDP2)}


def every_regime() -> dict[str, Regime]:
    """Return all workloads by name: the modelled ones, then the real frameworks."""
    return regimes() | frameworks()


def regime_named(name: str) -> Regime:
    """Return the workload `name` ("_" is accepted for "-"). Raises UsageError that lists the known ones."""
    found = every_regime().get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise UsageError(f"workload '{printable(name)}' is unknown: {nearest(name, every_regime())}")
    return found
