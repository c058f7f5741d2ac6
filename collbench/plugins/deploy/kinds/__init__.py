"""The kinds by name: each module here defines one as KIND."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from collbench.plugins.deploy.job import JobSetting, LauncherKind


@cache
def kinds() -> dict[str, LauncherKind]:
    """Return all kinds by name, sorted."""
    found = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    own = [module.KIND for module in found if hasattr(module, "KIND")]
    return {kind.name: kind for kind in sorted(own, key=lambda kind: kind.name)}


def settings() -> dict[str, JobSetting]:
    """Return all settings of all kinds by name; kinds share the objects."""
    return {setting.name: setting for kind in kinds().values() for setting in kind.settings}


def knowing(setting: JobSetting) -> list[str]:
    """Return the names of the kinds that have the setting."""
    return [kind.name for kind in kinds().values() if setting in kind.settings]
