"""Reads who sends how many bytes to whom from a file: a square of numbers, one row per sending rank."""

from __future__ import annotations

import codecs
import csv
import errno
import hashlib
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from collbench.errors import UsageError
from collbench.operations.traffic import Traffic
from collbench.untrusted import read_file

_LARGEST_BYTES = 256 * 2**20  # 4,096 ranks with 16 characters a number
_MOST_NUMBERS = 1 << 24  # 4,096 ranks
_LONGEST_LINE = 1 << 20  # bytes: 4,096 numbers are some 100 kB
_MOST = 2**53  # a float64 holds every whole number up to here
_NUMBER = re.compile(r"\+?\d+(\.\d*)?(e\+?\d+)?", re.IGNORECASE | re.ASCII)
_LIKE = "write one row per sending rank and one number of bytes per receiving rank, separated by commas or spaces"


def read_traffic(path: Path) -> Traffic:
    """The traffic of a file: CSV, or numbers between white space; what follows a `#` is a comment.

    Raises UsageError, one sentence, for a file that cannot be read or is no such square.
    """
    raw = _bytes_of(path)
    try:
        rows = list(_rows(raw, path))
    except UnicodeDecodeError as error:
        raise UsageError(f"traffic file '{path}' is not text: {_LIKE}") from error
    _check(rows, path)
    return Traffic(f"{path.name}:{hashlib.sha256(raw).hexdigest()[:8]}", matrix=tuple(numbers for _, numbers in rows))


def _bytes_of(path: Path) -> bytes:
    try:
        return read_file(path, _LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(
                f"traffic file '{path}' has more than {_LARGEST_BYTES >> 20} MiB, which is no matrix of any job: {_LIKE}"
            ) from error
        why = error.strerror or error
        raise UsageError(f"traffic file '{path}' cannot be read ({why}): name a file of numbers, one row per sending rank") from error


def _rows(raw: bytes, path: Path) -> Iterator[tuple[int, tuple[float, ...]]]:
    """(line, its numbers) of every line that has some."""
    commas, left = any("," in line.partition("#")[0] for line in _lines(raw, path)), _MOST_NUMBERS
    for line, whole in enumerate(_lines(raw, path), 1):
        kept = whole.partition("#")[0].strip()
        if kept:
            words = _fields(kept) if commas else kept.split()
            left -= len(words)
            if left < 0:
                raise UsageError(f"traffic file '{path}', line {line}: there are more than {_MOST_NUMBERS:,} numbers: {_LIKE}")
            yield line, tuple(_number(word, line, path) for word in words)


def _lines(raw: bytes, path: Path) -> Iterator[str]:
    """One after another: all at once they would take many times the memory."""
    for number, piece in enumerate(io.BytesIO(raw.removeprefix(codecs.BOM_UTF8)), 1):
        if len(piece) > _LONGEST_LINE:
            raise UsageError(f"traffic file '{path}', line {number}: it has more than {_LONGEST_LINE >> 20} MiB: {_LIKE}")
        yield from piece.decode("utf-8").splitlines()


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
