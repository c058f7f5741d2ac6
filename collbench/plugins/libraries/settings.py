"""The user's settings of a library: environment variables."""

from __future__ import annotations

import os


def user_settings(*prefixes: str) -> dict[str, str]:
    """Return the environment variables with one of these prefixes, sorted, by lower-case name."""
    return {name.lower(): value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}
