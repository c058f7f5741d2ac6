"""The lines of a log of NCCL or RCCL: the writer, the level and the text of each.

"[1,3]<stdout>:node7:4711:4720 [3] NCCL INFO Using network IB" has a writer, a level and a text. What follows the level is for `nccl_facts`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

LONGEST = 4096  # bytes of a line that are examined; ring listings of thousands of ranks are cut
_CACHE_SIZE = 8192  # what is before a message is constant for a thread of a rank
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")
_LEVEL = re.compile(rb"[NR]CCL (INFO|WARN|TRACE|version)\b ?")

INFO, WARN, TRACE, VERSION = b"INFO", b"WARN", b"TRACE", b"version"


class LogLine(NamedTuple):
    """A line of the library. head: what is before its text; text of a VERSION: "NCCL version 2.27.3"."""

    head: bytes
    level: bytes
    text: bytes


class LogWriter(msgspec.Struct, frozen=True):
    """The writer of a line, as far as its prefixes name it; device: the index of its GPU."""

    host: str = ""
    pid: int | None = None
    device: int | None = None
    rank: int | None = None

    @property
    def process(self) -> str:
        """The process among those of all hosts: "node7:4711"; "" if it is unknown."""
        return "" if self.pid is None else f"{self.host}:{self.pid}"

    @property
    def part(self) -> str:
        """The rank or GPU, for messages: "rank 3", "GPU 0", ""."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return "" if self.device is None else f"GPU {self.device}"


def split_line(line: bytes) -> LogLine | None:
    """Return the parts of a line of NCCL or RCCL; None for other lines: those of the program, and of other libraries."""
    match = _LEVEL.search(line) if b"CCL " in line else None
    if match is None:
        return None
    end = match.start() if match[1] == VERSION else match.end()
    return LogLine(line[:end], match[1], line[end:])


def is_nccl_log(text: str) -> bool:
    """Return whether the text has a message of NCCL or RCCL."""
    logged_lines = (split_line(line.encode("utf-8", "replace")) for line in text.splitlines())
    return any(logged and logged.level != VERSION for logged in logged_lines)


def cleaned(line: bytes) -> bytes:
    """Return the line without colours, and cut if it is longer than any that is examined."""
    plain = _COLOUR.sub(b"", line) if b"\x1b" in line else line
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 64].rpartition(b" ")[0] + b" ..."


# The beginnings of lines. Possessive, so that no text can cause backtracking.
_ADDRESS = rb"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}"  # of IPv6, where it is the name of a host
_NCCL = re.compile(rb"(?:^|[\s>:\"|\])}])(" + _ADDRESS + rb"|[A-Za-z0-9][\w.-]{0,252}+):(\d{1,10}+):\d{1,10}+ \[(-?\d{1,4}+)\] ")
_UCX = re.compile(rb"\[\d{1,12}+\.\d{1,9}+\] \[([A-Za-z0-9][\w.-]{0,252}+):(\d{1,10}+):")
_KERNEL = re.compile(rb"(?:^|\s)([A-Za-z][\w.-]{0,252}+) kernel: ")
_RANK = re.compile(rb"\[(?:PG [\w ().-]{0,80})?[Rr]ank ?(\d{1,7}+)\]|^\[\d{1,9}+,(\d{1,7}+)\]|^\s{0,6}(\d{1,7}+): ")


@lru_cache(maxsize=_CACHE_SIZE)
def writer_of(line: bytes) -> LogWriter:
    """Return the writer of a line from its prefixes: those of NCCL, UCX and the kernel, and the ranks of srun -l, mpirun and torchrun."""
    head = line[:400]
    ranked = _RANK.search(head)
    rank = int(next(filter(None, ranked.groups()))) if ranked else None
    nccl = _NCCL.search(head)
    if nccl:
        return LogWriter(nccl[1].decode(), int(nccl[2]), int(nccl[3]), rank)
    ucx = _UCX.search(head)
    if ucx:
        return LogWriter(ucx[1].decode(), int(ucx[2]), rank=rank)
    kernel = _KERNEL.search(head)
    return LogWriter(kernel[1].decode()) if kernel else LogWriter(rank=rank)
