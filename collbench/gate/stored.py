"""Reads a verdict.json once more."""

from __future__ import annotations

from pathlib import Path

from collbench.errors import UsageError
from collbench.gate.verdict import Verdict, from_json
from collbench.results.jsonl import parse_object


def read_verdict(path: Path) -> Verdict:
    """The verdict in a file. Raises UsageError where it cannot be read, or does not fit the schema."""
    try:
        return from_json(parse_object(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"--verdict {path} cannot be read ({why}): name what `collbench gate --out` wrote") from error
