"""What an attacker, a full disk or a bad sector may do to a file: each mutation is drawn from a seed and can be repeated."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_NUMBERS = (
    b"-1", b"0", b"1e999", b"-1e-999", b"NaN", b"Infinity", b"9" * 30, b"9" * 5000, b"1e308", b"4e-324", b"9223372036854775807", b"1.5",
)  # fmt: skip
TEXTS = (
    "", " ", "\x1b]0;x\x07\x1b[2J", "\u202eevil\u2066", "\ud800", "\x00", "a\nb\rc\x0bd\u2028e", "=cmd|' /C calc'!A0", "＝1", "@SUM(A1)",
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "javascript:alert(1)", "../../../etc/passwd", "/dev/zero", "\\",
    "{{ 7*7 }}{% x %}", "[x](javascript:y) ![y](z) | `c` *d* @team www.e.example", "]]>&lt;&amp;\"'", "::error::x%0A", "é" * 3000, "NaN",
    "$\\frac{1}{0}$", "_$_^{", "1" * 400, "2026-13-45T99:99:99Z", "0001-01-01T00:00:00-23:59", "e\u0301" * 50, "\uffff", "-1", "None",
)  # fmt: skip
_TOKENS = tuple(text.encode("utf-8", "surrogatepass") for text in TEXTS) + _NUMBERS + (
    b"[", b"]", b"{", b"}", b",", b":", b'"', b"\n", b"\r\n", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"null", b"true", b"[[[[", b'{"a":',
    b"\\u0000", b"\\ud83d", b"#", b"=", b"[[sweeps]]", b"&a;", b"<!DOCTYPE x [<!ENTITY a 'b'>]>", b"--", b"e+99999",
)  # fmt: skip


def _nested(depth: int) -> Any:
    value: Any = 1
    for place in range(depth):
        value = [value] if place % 2 else {"a": value}
    return value


_VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: None,
    lambda draw: draw.random() < 0.5,
    lambda draw: draw.choice((-1, 0, 1, 2**31, 2**53, 2**62, 2**63, -(2**63), 10**30)),
    lambda draw: draw.choice((-1.0, 0.0, 1e-320, 1e-12, 0.5, 1e18, 1e99, 9e99, 1e308)),
    lambda draw: draw.choice(TEXTS),
    lambda draw: [],
    lambda draw: {},
    lambda draw: [[None]],
    lambda draw: [draw.choice(TEXTS), draw.randrange(-5, 9)],
    lambda draw: {draw.choice(TEXTS): draw.choice(TEXTS)},
    lambda draw: _nested(draw.choice((5, 63, 66, 200, 480, 900))),
    lambda draw: list(range(draw.choice((3, 300, 20_000)))),
    lambda draw: "x" * draw.choice((300, 70_000)),
    lambda draw: {str(number): number for number in range(draw.choice((3, 2_000)))},
)


_Span = tuple[int, int]
_OF_BYTES: tuple[Callable[[bytes, _Span, random.Random], bytes], ...] = (
    lambda data, at, draw: data[: at[0]] + bytes(byte ^ 1 << draw.randrange(8) for byte in data[slice(*at)]) + data[at[1] :],
    lambda data, at, draw: data[: at[0]],
    lambda data, at, draw: data[: at[0]] + data[at[1] :],
    lambda data, at, draw: data[: at[1]] + data[slice(*at)] * draw.choice((1, 2, 50, 2000 if at[1] - at[0] < 65 else 3)) + data[at[1] :],
    lambda data, at, draw: data[: at[0]] + draw.randbytes(draw.choice((1, 16, 200))) + data[at[1] :],
    lambda data, at, draw: data[: at[0]] + bytes(at[1] - at[0]) + data[at[1] :],
    lambda data, at, draw: _NUMBER.sub(lambda found: draw.choice(_NUMBERS) if draw.random() < 0.02 else found[0], data),
    lambda data, at, draw: data[: at[0]] + draw.choice(_TOKENS) * draw.choice((1, 1, 1, 40, 1000)) + data[at[0] :],
    lambda data, at, draw: data[at[1] :] + data[slice(*at)] + data[: at[0]],
)


def of_bytes(data: bytes, draw: random.Random) -> bytes:
    """Other bytes: flipped, cut, repeated, exchanged, or with special characters inserted."""
    begin = draw.randrange(len(data) + 1)
    return draw.choice(_OF_BYTES)(data, (begin, min(len(data), begin + draw.choice((1, 2, 8, 64, 1000)))), draw)


def of_json(data: bytes, draw: random.Random) -> bytes:
    """Of a page of JSON, or of one of its lines, other values in some places; bytes that are not JSON are changed as bytes."""
    lines = data.splitlines(keepends=True)
    try:
        json.loads(data)
        at, kept = 0, [data]
    except (ValueError, RecursionError):
        at, kept = draw.randrange(len(lines) or 1), lines
    try:
        value = json.loads(kept[at])
    except (ValueError, IndexError, RecursionError):
        return of_bytes(data, draw)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        value = _changed(value, draw)
    line = json.dumps(value, ensure_ascii=draw.random() < 0.8).encode("utf-8", "surrogatepass")
    return b"".join([*kept[:at], line, b"\n" if kept[at].endswith(b"\n") else b"", *kept[at + 1 :]])


def _changed(value: Any, draw: random.Random) -> Any:
    """The value with something else in one place, mostly deep inside."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        return _of_object(value, draw)
    if isinstance(value, list) and value and draw.random() < 0.8:
        return _of_list(value, draw)
    if isinstance(value, str) and draw.random() < 0.3:
        return value + draw.choice(TEXTS)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and draw.random() < 0.3:
        return draw.choice((-value, value * 1e9, value / 1e9, str(value), [value], value + 0.5))
    return draw.choice(_VALUES)(draw)


def _of_object(value: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    name, other = draw.choice(list(value)), draw.choice(list(value))
    kind = draw.randrange(20)
    if kind < 2:
        return {each: inner for each, inner in value.items() if each != name}
    return {**value, draw.choice(TEXTS) if kind == 2 else name: value[other] if kind < 4 else _changed(value[name], draw)}


def _of_list(value: list[Any], draw: random.Random) -> list[Any]:
    at, kind = draw.randrange(len(value)), draw.randrange(10)
    times = 2 if isinstance(value[at], list | dict) else draw.choice((2, 300))  # nested lists would soon fill the memory here
    instead = [] if kind == 0 else [value[at]] * times if kind == 1 else [_changed(value[at], draw)]
    return [*value[:at], *instead, *value[at + 1 :]]


def of_file(path: Path, draw: random.Random) -> str:
    """Replace the file by nothing, a folder, a pipe or a link; return which."""
    kinds: dict[str, Callable[[], Any]] = {
        "nothing": lambda: None,
        "an empty file": lambda: path.write_bytes(b""),
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a link to nowhere": lambda: path.symlink_to("not/there"),
        "a link to an endless device": lambda: path.symlink_to("/dev/zero"),
        "a link to a terminal": lambda: path.symlink_to("/dev/tty"),
        "a sparse file": lambda: _sparse(path, 1 << 40),
        "a long line": lambda: path.write_bytes(b"a" * (1 << 20)),
        "lines without end": lambda: path.write_bytes(b"\n" * (1 << 20)),
        "many values": lambda: path.write_bytes(b'{"a":[' + b"[]," * (1 << 20) + b"1]}\n"),
    }
    kind = draw.choices(list(kinds), weights=[4] * 8 + [1] * 4)[0]
    path.unlink()
    kinds[kind]()
    return kind


def _sparse(path: Path, size: int) -> None:
    path.write_bytes(b"")
    os.truncate(path, size)
