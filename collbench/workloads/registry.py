"""Finds the regimes: every module of this room that defines one as `REGIME`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from collbench.errors import UsageError
from collbench.workloads.exchange import Regime
from collbench.workloads.laying import printable

# The room's own furniture. Everything else in this folder is a regime.
FURNITURE = frozenset({"__init__", "buckets", "bytes", "exchange", "laying", "models", "moved", "registry", "shaping"})
_ORDER = ("data-parallel", "hierarchical", "parameter-server", "pipeline", "tensor-parallel", "expert-parallel", "fsdp")


@cache
def regimes() -> dict[str, Regime]:
    """All regimes by name, from data-parallel on."""
    stems = sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem not in FURNITURE)
    found = [import_module(f"collbench.workloads.{stem}").REGIME for stem in stems]
    found.sort(key=lambda regime: _ORDER.index(regime.name) if regime.name in _ORDER else len(_ORDER))
    return {regime.name: regime for regime in found}


def regime_named(name: str) -> Regime:
    """The regime called `name` ("_" for "-" will do). Raises UsageError that lists the known ones."""
    found = regimes().get(name.strip().lower().replace("_", "-"))
    if found is None:
        shown = printable(name)
        raise UsageError(f"workload '{shown}' is unknown: choose from {', '.join(regimes())}")
    return found
