"""Sets of CPUs and NUMA nodes as kernel, hwloc and NCCL write them: lists ("0-3,8") and masks in words of 32 bits ("00000000,0000ff01")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count, groupby

_MOST = 1 << 16
_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6}))?$")
_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}|")
_LONGEST_WORD = 11  # with 0x and a comma


def cpu_list(text: str | None) -> frozenset[int]:
    """The numbers of "0-3,8"; empty for other text and for numbers no machine has."""
    found: set[int] = set()
    for part in (text or "").strip().split(","):
        match = _RANGE.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last >= _MOST:
            return frozenset()
        found.update(range(first, last + 1))
    return frozenset(found)


def cpu_mask(text: str | None) -> frozenset[int] | None:
    """The numbers of "00000000,0000ff01" (the kernel, NCCL) and "0x1,,0x00ff00ff" (hwloc), the last word first; None for other text."""
    stripped = (text or "").strip()
    if not stripped or len(stripped) > _MOST // 32 * _LONGEST_WORD:
        return None
    words = stripped.split(",")
    if len(words) * 32 > _MOST or not all(_WORD.fullmatch(word.strip()) for word in words):
        return None
    value = int("".join(word.strip().removeprefix("0x").zfill(8) for word in words), 16)
    return frozenset(place for place, bit in enumerate(reversed(f"{value:b}")) if bit == "1")


def written(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes lists: "0-3,8"; "" for none."""
    counter = count()
    runs = [list(run) for _, run in groupby(sorted(numbers), key=lambda number: number - next(counter))]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
