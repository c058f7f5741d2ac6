"""JSON as a run's folder holds it: one object per line, no NaN, no infinity, nothing that only Python understands."""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collbench.untrusted import read_file, values_in

LARGEST_BYTES = 64 << 20  # of a file with one object: of 100,000 ranks run.json says some 20 MB
_DEEPEST = 64
_MOST_VALUES = 1 << 22  # in one object: an empty list takes two characters, and 64 bytes of memory
# Beyond these a number comes from a broken or hostile file; arithmetic on it would overflow far away from here.
_LARGEST_FLOAT, _LARGEST_INT = 1e100, 2**63
# A text's bytes without its words: digits are 0, exponents e, points stay, all else is a blank.
_SHAPES = bytes(48 if 48 <= one < 58 else 101 if one in b"eE" else 46 if one == 46 else 32 for one in range(256))
_MANY_DIGITS, _LONG_EXPONENT = b" " + b"0" * 19, b"e000"


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


def read_object(path: Path) -> dict[str, Any]:
    """The object that a file holds, as `parse_object` takes it. Raises OSError, and ValueError for what holds more than any of ours."""
    try:
        text = read_file(path, LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ValueError(f"larger than {LARGEST_BYTES >> 20} MiB") from error
        raise
    return parse_object(text)


def parse_object(text: bytes, unknown: list[str] | None = None) -> dict[str, Any]:
    """The object in `text`; NaN, infinities and numbers beyond any measurement are None. Raises ValueError for all else.

    Each such number is added to `unknown`, as it stands there.
    """
    left_out: list[str] = [] if unknown is None else unknown
    if len(text) > _MOST_VALUES and values_in(text) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    try:
        if _may_hold_strange_numbers(text):
            value = json.loads(text, parse_constant=left_out.append, parse_float=_float(left_out), parse_int=_int(left_out))
        else:  # twice as fast, and nothing in it can be left out
            value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if text.count(b"[") + text.count(b"{") > _DEEPEST and _is_deep(value):
        raise ValueError(f"more than {_DEEPEST} levels deep")
    return value


def _may_hold_strange_numbers(text: bytes) -> bool:
    """Whether a number might be too large, or none: by its many digits or its long exponent; in the texts there may be such, too."""
    shapes = text.translate(_SHAPES, b"+-")
    return _MANY_DIGITS in shapes or _LONG_EXPONENT in shapes or b"NaN" in text or b"Infinity" in text


def _is_deep(value: Any) -> bool:
    """Whether something lies so deep in it that whoever goes through it by recursion might not come back."""
    level = [value]
    for _ in range(_DEEPEST):
        inside = (inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
        level = [inner for inner in inside if isinstance(inner, dict | list)]
    return bool(level)


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
