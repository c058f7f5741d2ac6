"""What backends of others' stacks share: which version is installed, known without an import, and a broken one told in a sentence."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from collbench.errors import UsageError


def installed(package: str) -> str | None:
    """The version that pip knows of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def loaded(package: str, load: Callable[[], Any], remedy: str) -> Any:
    """What `load` imports. What it prints meanwhile is no row and goes nowhere. Raises UsageError for a package that is broken."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            return load()
    except (Exception, SystemExit) as error:  # whatever a half-built extension may raise
        why = (str(error).strip() or said.getvalue().strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"{package} {installed(package)} is installed, but does not load ({why}): {remedy}") from error
