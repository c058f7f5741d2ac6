"""The test case (`Case`): one combination of operation, backend, size etc. to measure; and the split of ranks into groups."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.dtypes import DType
from collbench.operations.traffic import Traffic
from collbench.units import format_size, plural

# The division of a job's ranks into groups that run the same operation at the same time, in the syntax of nccl-tests' NCCL_TESTS_SPLIT.

_SYMBOLS = {"&": "AND", "|": "OR", "%": "MOD", "/": "DIV"}
_NUMBER = r"(0x[0-9a-f]{1,15}|0b[01]{1,60}|0|[1-9][0-9]{0,17})"
_WORDED = re.compile(rf"(and|or|mod|div|[&|%/])[ \t]*{_NUMBER}", re.IGNORECASE | re.ASCII)
_MASK = re.compile(r"0x[0-9a-f]{1,15}|0b[01]{1,60}", re.IGNORECASE | re.ASCII)
Groups = tuple[tuple[int, ...], ...]
CALLS = ("blocking", "nonblocking", "persistent")


class Split(msgspec.Struct, frozen=True):
    """A division of the ranks into groups: ranks with the same color form a group, as in nccl-tests' NCCL_TESTS_SPLIT.

    word    "AND" (color: rank & number), "OR" (rank | number), "MOD" (rank % number), "DIV" (rank // number)
    """

    word: str
    number: int

    def __str__(self) -> str:
        """Return the split in the user's syntax: "MOD 8", "AND 0x7"."""
        return f"{self.word} {self.number if self.word in ('MOD', 'DIV') else hex(self.number)}"

    def colour(self, rank: int) -> int:
        """Return the number that all ranks of a group share."""
        if self.word in ("AND", "OR"):
            return rank & self.number if self.word == "AND" else rank | self.number
        return rank % self.number if self.word == "MOD" else rank // self.number

    def groups(self, n: int) -> Groups:
        """Return the groups of n ranks, by color. Raises UsageError for a group of no or one rank, or different sizes."""
        return _groups(self, n)

    def _defect(self, n: int, sizes: list[int]) -> str | None:
        """Return why these groups cannot be measured, and the remedy."""
        colours = {"MOD": self.number, "AND": 1 << self.number.bit_count()}.get(self.word)  # None: as many as the ranks give
        if colours is not None and colours > len(sizes):
            return f"leaves {colours - len(sizes)} of {colours} groups empty: {self._remedy(n)}"
        if len(set(sizes)) > 1:
            return f"makes groups of {min(sizes)} to {max(sizes)} ranks, which cannot be compared: {self._remedy(n)}"
        return f"makes groups of one rank, which move nothing: {self._remedy(n)}" if len(sizes) > 1 and sizes[0] == 1 else None

    def _remedy(self, n: int) -> str:
        """Return splits of this kind that fit n ranks."""
        is_mask = self.word in ("AND", "OR")
        divisors = [k for k in range(2, n // 2 + 1) if n % k == 0 and not (is_mask and k & (k - 1))]
        if not divisors:
            return f"{plural(n, 'rank')} cannot be split evenly like this; leave --split out, or start more ranks"
        splits = [str(Split(self.word, k - 1 if is_mask else k)) for k in (divisors[0], divisors[-1])]
        return f"choose {' or '.join(dict.fromkeys(splits))}{', for example' if len(divisors) > 2 else ''}"


def parse_split(text: str) -> Split:
    """Return the split of "MOD 8", "and0x7", "% 8", or a bare mask "0x7" (AND). Raises UsageError."""
    typed = text.strip(" \t")
    worded = _WORDED.fullmatch(typed)
    if not worded and not _MASK.fullmatch(typed):
        shown = "".join(letter if letter.isprintable() else "?" for letter in text[:40])
        raise UsageError(
            f"--split '{shown}' is not a valid split: use AND, OR, MOD or DIV and a number, like 'MOD 8' or 'AND 0x7', or a mask like 0x7"
        )
    word, number = worded.groups() if worded else ("&", typed)
    split = Split(_SYMBOLS.get(word, word.upper()), int(number, 0))
    if split.number == 0 and split.word in ("MOD", "DIV"):
        counted = "groups" if split.word == "MOD" else "ranks in each group"
        raise UsageError(f"--split '{split}' asks for 0 {counted}: write a number from 1 on, like '{split.word} 2'")
    return split


@lru_cache(maxsize=64)
def _groups(split: Split, n: int) -> Groups:
    ranks_by_colour: dict[int, list[int]] = {}
    for rank in range(n):
        ranks_by_colour.setdefault(split.colour(rank), []).append(rank)
    defect = split._defect(n, [len(ranks) for ranks in ranks_by_colour.values()])
    if defect:
        raise UsageError(f"--split '{split}' of {plural(n, 'rank')} {defect}")
    return tuple(tuple(ranks) for _, ranks in sorted(ranks_by_colour.items()))


class Case(msgspec.Struct, frozen=True):
    """A test case: operation × backend × device × dtype × redop × mode × placement × root × buffers × window × size.

    size_bytes   the requested size, rounded down to whole elements (nccl-tests' size)
    redop, root  None if the operation has none
    in_place     None: out of place if the library supports it, else in place (shown in the row)
    buffers      "fixed" or "rotating"; window: messages in flight (p2p bandwidth), else None
    registration how buffers are registered: "none", "registered", "window", "symmetric", "device", "gin"; None if the library has no
                 registration
    algorithm, protocol   required of the library; None: its own choice
    split        how the ranks are divided into groups that run at the same time; None: one group of all
    traffic      the uneven parts of alltoallv, allgatherv etc., else None; streams: TCP connections per pair (socket), else None
    call         "nonblocking": start the operation, then wait for it; "persistent": the same with a request that is made once; None: one
                 blocking call
    pairs        how many pairs send at the same time (multipair), else None
    flags        flags known before the measurement, such as "size_rounded"
    """

    operation: str
    backend: str
    dtype: DType
    size_bytes: int
    device: str = "cpu"
    redop: str | None = None
    root: int | None = None
    mode: str = "isolated"
    in_place: bool | None = None
    buffers: str = "fixed"
    window: int | None = None
    seed: int = 0
    flags: tuple[str, ...] = msgspec.field(default=())
    registration: str | None = None
    algorithm: str | None = None
    protocol: str | None = None
    split: Split | None = None
    traffic: Traffic | None = None
    streams: int | None = None
    call: str | None = None
    pairs: int | None = None

    def placed(self, in_place: bool) -> Case:
        """Return the same test case with its placement decided."""
        return replace(self, in_place=in_place)

    def title(self) -> str:
        """Return a short text for progress and errors: "allreduce 64 MiB on mpi (float32, sum)", "barrier on mpi"."""
        if not self.size_bytes:
            return f"{self.operation} on {self.backend}{f' ({self.call})' if self.call else ''}"
        root = f"root {self.root}" if self.root is not None else None
        pairs = plural(self.pairs, "pair") if self.pairs else None
        traffic = self.traffic.name if self.traffic else None
        options = [self.dtype.name, self.redop, root, self.algorithm, self.protocol, self.split, traffic, self.call, pairs]
        shown = ", ".join(str(option) for option in options if option)
        return f"{self.operation} {format_size(self.size_bytes)} on {self.backend} ({shown})"
