"""Reads a verdict.json once more. It may be a stranger's: it has to fit verdict.schema.json to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError
from collbench.gate.verdict import CONFIRMED, PASSED, SCHEMA, SUSPECTED, UNDECIDED, Verdict, from_json
from collbench.results.store import read_object

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

SCHEMA_FILE = Path(__file__).parent / "verdict.schema.json"
_LONGEST = 80  # letters of a value that a sentence shows
_REMEDY = "name what `collbench gate --out` wrote"


def read_verdict(path: Path) -> Verdict:
    """The verdict in a file. Raises UsageError where it cannot be read, does not fit the schema, or contradicts itself."""
    try:
        told = read_object(path)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"--verdict {path} cannot be read ({why}): {_REMEDY}") from error
    version = told.get("schema")
    if isinstance(version, int) and version > SCHEMA:
        raise UsageError(f"--verdict {path} has schema {version}, and this collbench knows up to {SCHEMA}: update collbench")
    misfit = _misfit(told)
    if misfit is not None:
        raise UsageError(f"--verdict {path} does not fit verdict.schema.json: {misfit}; {_REMEDY}")
    verdict = from_json(told)
    if verdict.result == PASSED and (verdict.reasons or verdict.count(CONFIRMED) or verdict.count(SUSPECTED) or verdict.count(UNDECIDED)):
        raise UsageError(f"--verdict {path} says that it passed, and names what does not pass: {_REMEDY}")
    return verdict


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a verdict, as shipped."""
    found: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return found


def _misfit(told: dict[str, Any]) -> str | None:
    """The first thing that does not fit, with its place; None: all does."""
    from jsonschema import Draft202012Validator

    checks = Draft202012Validator(schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)
    error = next(iter(checks.iter_errors(told)), None)
    return None if error is None else _sentence(_innermost(error))


def _innermost(error: ValidationError) -> ValidationError:
    """Of a value that fits none of several forms what it lacks of the first, the last of which is null."""
    return next((inner for inner in error.context or () if list(inner.schema_path)[:1] == [0]), error)


def _sentence(error: ValidationError) -> str:
    """ "groups[3].limit is -1, where exclusiveMinimum 0 is wanted"."""
    place = _place(error.absolute_path)
    if error.validator == "required":
        lacking = next(name for name in error.validator_value if name not in error.instance)  # type: ignore[union-attr,operator]
        return f"{place} lacks {lacking}"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = error.schema.get("properties", {})  # type: ignore[union-attr]
        return f"{place} has {_shown(next(name for name in error.instance if name not in known))}, which is unknown"
    return f"{place} is {_shown(error.instance)}, where {error.validator} {_shown(error.validator_value)} is wanted"


def _place(path: Iterable[Any]) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return _shown(place.removeprefix("."))[1:-1] or "it"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
