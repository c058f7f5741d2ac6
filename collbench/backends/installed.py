"""Whether jax can be had here, and in which way its CPU ranks connect; jax is imported by `load_jax` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from collbench.errors import UsageError

_INSTALL = "pip install -c constraints.txt 'collbench[jax]'"
_OLDEST, _NEXT = (0, 7), (1,)  # jax.shard_map with check_vma came with 0.7; jax is not at 1 yet
# What the environment may say, and what it has to say if it does: the backend is jax on CPUs over Gloo, and nothing else.
_ASKED = {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}


def trouble(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Why jax cannot be used here, and the remedy; None where it seems that it can. Imports nothing."""
    return next(_troubles(environment), None)


def _troubles(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for package in ("jax", "jaxlib"):
        if installed(package) is None:
            yield f"{package} is not installed", _INSTALL
            return
    found = installed("jax") or ""
    numbers = tuple(int(word) for word in found.split(".")[:2] if word.isdecimal())
    if not _OLDEST <= numbers < _NEXT:
        yield f"jax {found} is a version that collbench does not know (it knows 0.7 and newer, below 1)", _INSTALL
    for name, value in _ASKED.items():
        if environment.get(name, value) not in ("", value):
            yield f"{name} is {environment[name]}, and collbench measures jax on CPUs over Gloo", f"unset {name}, or set it to {value}"


def installed(package: str) -> str | None:
    """The version of a package, or None."""
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def load_jax() -> Any:
    """jax, imported. Raises UsageError, one sentence, where it is installed and broken, whatever its import raises."""
    try:
        return import_module("jax")
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"jax {installed('jax')} is installed, but its import fails ({type(error).__name__}: {said}): "
            f"pip install --force-reinstall jax jaxlib, in an environment of its own if something else is in its way"
        ) from error
