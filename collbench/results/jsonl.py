"""JSON as a run's folder holds it: one object per line, no NaN, no infinity, nothing that only Python understands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

# Beyond these a number comes from a broken or hostile file; arithmetic on it would overflow far away from here.
_LARGEST_FLOAT, _LARGEST_INT = 1e100, 2**63


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NaN and infinity become None, numpy scalars numbers, sequences lists, the rest text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


_LINE = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=plain)


def to_line(values: Mapping[str, Any]) -> str:
    """One object as one line of ASCII, without the line's end."""
    try:  # most lines have nothing that JSON cannot hold, and need not be gone through value by value
        return _LINE.encode(values)
    except (TypeError, ValueError):
        return _LINE.encode(plain(values))


def to_page(values: Mapping[str, Any]) -> str:
    """One object as an indented page, for the files that people open."""
    return json.dumps(plain(values), allow_nan=False, indent=1) + "\n"


def parse_object(text: bytes, unknown: list[str] | None = None) -> dict[str, Any]:
    """The object in `text`; NaN, infinities and numbers beyond any measurement are None. Raises ValueError for all else.

    Each such number is added to `unknown`, as it stands there.
    """
    left_out: list[str] = [] if unknown is None else unknown
    try:
        value = json.loads(text, parse_constant=left_out.append, parse_float=_float(left_out), parse_int=_int(left_out))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _float(left_out: list[str]) -> Callable[[str], float | None]:
    def parse(text: str) -> float | None:
        value = float(text)
        if abs(value) < _LARGEST_FLOAT:
            return value
        left_out.append(text)
        return None

    return parse


def _int(left_out: list[str]) -> Callable[[str], int | None]:
    def parse(text: str) -> int | None:
        value = int(text) if len(text) <= 20 else _LARGEST_INT
        if abs(value) < _LARGEST_INT:
            return value
        left_out.append(text)
        return None

    return parse
