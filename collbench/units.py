"""Sizes, times and rates as text, and their parsers. Inside collbench all values are SI floats and bytes; only this module renders them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from collbench.errors import UsageError

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*$", re.IGNORECASE | re.ASCII)
_SECONDS = {
    "": 1.0, "us": 1e-6, "\N{MICRO SIGN}s": 1e-6, "\N{GREEK SMALL LETTER MU}s": 1e-6, "ms": 1e-3, "s": 1.0,
    "min": 60.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_NUMBER = r"(\d+(?:\.\d*)?(?:e[-+]?\d+)?|\.\d+)"
_DURATION = re.compile(rf"\s*{_NUMBER}\s*({'|'.join(filter(None, _SECONDS))})?\s*", re.IGNORECASE | re.ASCII)
_MAX_SIZES = 100_000


_TOO_LARGE = 2.0**63  # bytes: what a process can address
_TOO_LONG_S = 3.6e9


def parse_size(text: str) -> int:
    """Return the bytes of "8", "1K", "1.5M", "64MiB" (K, M, G and T are powers of 1024, either case).

    Raises UsageError for anything else, and for 0 bytes.
    """
    match = _SIZE.match(text)
    if not match:
        ends = text.split("..")
        if len(ends) == 2 and all(map(_SIZE.match, ends)):
            raise UsageError(f"'{text}' is not a valid range of sizes: write {ends[0]}-{ends[1]}")
        raise UsageError(f"size '{text}' is not a valid number of bytes{_other_letters(text)}: use e.g. 8, 1K, 64M or 1G (K, M, G = 1024)")
    value = float(match[1]) * 1024 ** _POWERS[match[2].upper()]
    if value < 1 or value != int(value):
        raise UsageError(f"size '{text}' is not a whole, positive number of bytes: the smallest size is 1")
    if value >= _TOO_LARGE:
        raise UsageError(f"size '{text}' is too large: the largest size is below 8 EiB")
    return int(value)


def _other_letters(text: str) -> str:
    """Return the names of the first letters that only look like those of sizes, such as a Cyrillic К: " (…)"; "" without any."""
    import unicodedata

    names = [unicodedata.name(letter, "") for letter in dict.fromkeys(text) if not letter.isascii()]
    return f" (it contains {listed([name for name in names if name], 2)})" if any(names) else ""


def parse_duration(text: str) -> float:
    """Return the seconds of "5", "0.18", "5s", "180ms", "900us", "2m" or "1h". Raises UsageError for anything else, and for 0."""
    match = _DURATION.fullmatch(text)
    value = float(match[1]) * _SECONDS[(match[2] or "").lower()] if match else 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"'{text}' is not a valid time: use seconds, e.g. 5 or 0.5, or a unit, e.g. 500ms, 5s, 2m or 1h")
    if value > _TOO_LONG_S:
        raise UsageError(f"'{text}' is too long: use at most 1,000,000 h")
    return value


def parse_sizes(text: str) -> list[int]:
    """Return message sizes in bytes, ascending and unique, of "1K-1G", "1K-1G:x4", "1K-64K:+1K", "8,1K,1M", or several by comma.

    Raises UsageError naming the part that cannot be read and its remedy.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        sizes.update(_range(part.strip(), text) if "-" in part else [parse_size(part)])
        if len(sizes) > _MAX_SIZES:
            raise UsageError(f"'{text}' has more than {_MAX_SIZES} sizes: use a larger step")
    return sorted(sizes)


def _range(part: str, whole: str) -> list[int]:
    span, _, step = part.partition(":")
    low, _, high = span.partition("-")
    if not low or not high:
        raise UsageError(f"size range '{part}' in '{whole}' lacks an end: use e.g. 1K-1G (sizes are positive)")
    first, last = parse_size(low), parse_size(high)
    if first > last:
        raise UsageError(f"size range '{part}' is reversed: write the smaller size first, {high}-{low}")
    return size_steps(first, last, step or "x2")


def size_steps(first: int, last: int, step: str) -> list[int]:
    """Return sizes from `first` to `last` bytes by factor ("x4") or increment ("+1K"). Raises UsageError for a step without growth."""
    kind, amount = step[:1].lower(), step[1:]
    if kind == "x" and re.fullmatch(r"\d+(\.\d+)?", amount, re.ASCII) and float(amount) > 1:
        return _by_factor(first, last, float(amount))
    if kind == "+" and amount:
        increment = parse_size(amount)
        if (last - first) // increment > _MAX_SIZES:
            raise UsageError(f"step '{step}' gives more than {_MAX_SIZES} sizes: use a larger one")
        return list(range(first, last + 1, increment))
    raise UsageError(f"size step '{step}' is not a valid step: use a factor above 1 such as x2, or an increment such as +1K")


def _by_factor(first: int, last: int, factor: float) -> list[int]:
    sizes, size = [], float(first)
    while size <= last:
        sizes.append(int(size))
        size = max(size * factor, int(size) + 1)
        if len(sizes) > _MAX_SIZES:
            raise UsageError(f"factor x{factor:g} gives more than {_MAX_SIZES} sizes: use a larger one")
    return sizes


def format_size(size_bytes: int) -> str:
    """Return bytes as "8 B", "1 KiB", "1.5 MiB"; sizes that are not round multiples keep their exact bytes ("1000 B")."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        value = size_bytes / 1024**power
        if value >= 1 and (value * 8).is_integer():
            return f"{value:g} {unit}"
    return f"{size_bytes} B"


def format_bytes(amount: float) -> str:
    """Return an amount of memory, rounded to three digits: "20.9 GiB"."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if amount >= 1024**power:
            return f"{amount / 1024**power:.{3 if amount < 999.5 * 1024**power else 4}g} {unit}"
    return f"{amount:.0f} B"


def format_time(seconds: float) -> str:
    """Return seconds as microseconds to four digits, without exponent: "0.2345", "12.35", "104912". Beyond 30 years: "1e+20"."""
    micros = seconds * 1e6
    if micros >= 1e15:
        return f"{micros:.4g}"
    digits = max(0, 4 - len(str(int(micros)))) if micros >= 1 else 4
    return f"{micros:.{digits}f}"


def format_span(seconds: float, low: float | None = None, high: float | None = None) -> str:
    """Return a time with its unit, to four digits: "12.35 µs", from a millisecond on "104.9 ms", from ten seconds on "12.50 s".

    With the ends of its interval these follow in the same unit: "12.35 µs [11.90, 12.70]".
    """
    unit, length_s = "µs", 1e-6
    if seconds >= 10:
        unit, length_s = "s", 1.0
    elif seconds >= 1e-3:
        unit, length_s = "ms", 1e-3
    value, *ends = (format_time(time_s / length_s * 1e-6) for time_s in (seconds, low, high) if time_s is not None)
    return f"{value} {unit} [{', '.join(ends)}]" if len(ends) == 2 else f"{value} {unit}"


def format_rate(bytes_per_s: float) -> str:
    """Return bytes per second as GB/s (1e9, one direction) to three digits: "42.0", "0.118", "0.00031", "<0.00001"."""
    rate = bytes_per_s / 1e9
    if rate >= 100:
        return f"{rate:.0f}"
    text = f"{rate:#.3g}".removesuffix(".")
    if "e" not in text:
        return text
    return f"{rate:.5f}" if rate >= 0.000005 else "<0.00001"


def format_percent(percent: float) -> str:
    """Return a percentage: whole from 10 on, one digit below: "84 %", "0.6 %"."""
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"


def format_float(value: float) -> str:
    """Return a number without a unit, to four digits: "6.857", "0.00012", "12346"."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Return a duration for people: "8 s", "2 min 05 s", "1 h 02 min"; "more than 1,000,000 h" for times without a meaning."""
    if seconds >= 3.6e9:
        return "more than 1,000,000 h"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: "1 rank", "2 ranks", "3 switches"."""
    return f"{count:,} {noun_of(count, noun)}"


def noun_of(count: int, noun: str) -> str:
    """Return the noun alone, as it follows a count: "rank" for 1, else "ranks"."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith(("s", "sh", "ch", "x")) else f"{noun}s"


def first_of(names: Iterable[str], most: int, between: str = ", ") -> str:
    """Return the first names, and how many more there are: "a, b", "a, b and 4 more"."""
    known = list(names)
    return between.join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def listed(names: Sequence[str], most: int = 8, word: str = "and") -> str:
    """Return names as a list: "a", "a and b", "a, b and 4 more"."""
    if len(names) <= 1:
        return "".join(names)
    if len(names) > most:
        return f"{', '.join(names[:most])} {word} {len(names) - most:,} more"
    return f"{', '.join(names[:-1])} {word} {names[-1]}"
