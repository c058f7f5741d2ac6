"""What several backends of libraries share."""

from __future__ import annotations

import os
from collections.abc import Mapping

from collbench.operations.case import Case


def user_settings(*prefixes: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables with one of these prefixes, sorted, by lower-case name."""
    return {name.lower(): value for name, value in sorted(env.items()) if name.startswith(prefixes)}


def reorders_ranks(case: Case, n: int) -> bool:
    """Return whether a group of the case has its ranks in another order than that of their numbers."""
    return case.split is not None and any(sorted(group) != list(group) for group in case.split.groups(n))
