"""Reads who sends how many bytes to whom from a file: a square of numbers, one row per sending rank."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from collbench.errors import UsageError
from collbench.operations.traffic import Traffic

_LARGEST_BYTES = 256 * 2**20  # 4,096 ranks with 16 characters a number
_MOST = 2**53  # a float64 holds every whole number up to here
_NUMBER = re.compile(r"\+?\d+(\.\d*)?(e\+?\d+)?", re.IGNORECASE | re.ASCII)
_LIKE = "write one row per sending rank and one number of bytes per receiving rank, separated by commas or spaces"


def read_traffic(path: Path) -> Traffic:
    """The traffic of a file: CSV, or numbers between white space; what follows a `#` is a comment.

    Raises UsageError, one sentence, for a file that cannot be read or is no such square.
    """
    raw = _bytes_of(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"traffic file '{path}' is not text: {_LIKE}") from error
    rows = list(_rows(text, path))
    _check(rows, path)
    return Traffic(f"{path.name}:{hashlib.sha256(raw).hexdigest()[:8]}", matrix=tuple(numbers for _, numbers in rows))


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"traffic file '{path}' cannot be read ({why}): name a file of numbers, one row per sending rank") from error
    if len(raw) > _LARGEST_BYTES:
        raise UsageError(f"traffic file '{path}' has more than {_LARGEST_BYTES >> 20} MiB, which is no matrix of any job: {_LIKE}")
    return raw


def _rows(text: str, path: Path) -> Iterator[tuple[int, tuple[float, ...]]]:
    """(line, its numbers) of every line that has some."""
    commas = "," in re.sub("#.*", "", text)
    for line, whole in enumerate(text.splitlines(), 1):
        kept = whole.partition("#")[0].strip()
        if kept:
            yield line, tuple(_number(word, line, path) for word in (_fields(kept) if commas else kept.split()))


def _fields(line: str) -> Sequence[str]:
    """Those of a line of CSV; a comma at its end begins none."""
    try:
        fields = [field.strip() for field in next(csv.reader([line]))]
    except csv.Error:  # a field longer than any number
        return [line]
    return fields[:-1] if len(fields) > 1 and not fields[-1] else fields


def _number(word: str, line: int, path: Path) -> float:
    if not _NUMBER.fullmatch(word):
        raise UsageError(f"traffic file '{path}', line {line}: {word[:40]!r} is no number of bytes: write whole numbers from 0 on")
    value = float(word)
    if not value.is_integer() or value > _MOST:
        raise UsageError(f"traffic file '{path}', line {line}: {word[:40]!r} is no number of bytes: write whole numbers from 0 to 2^53")
    return value


def _check(rows: Sequence[tuple[int, tuple[float, ...]]], path: Path) -> None:
    """Raises UsageError unless the rows are a square with something in it."""
    if not rows:
        raise UsageError(f"traffic file '{path}' holds no numbers: {_LIKE}")
    for line, numbers in rows:
        if len(numbers) != len(rows):
            raise UsageError(f"traffic file '{path}', line {line}: {len(numbers)} numbers in one of {len(rows)} rows: {_LIKE}")
    total = sum(sum(numbers) for _, numbers in rows)
    if total == 0:
        raise UsageError(f"traffic file '{path}' says that no rank sends anything: give at least one number above 0")
    if total > _MOST:
        raise UsageError(f"traffic file '{path}' says that {total:.3g} bytes are sent, more than any job could: give the bytes of one call")
