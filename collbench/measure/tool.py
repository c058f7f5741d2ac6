"""What a wire tool is: its two command lines, and how the figure that it prints is read.

What it prints is a stranger's words: a parser takes a figure that can be true, or raises RunFailed, and quotes no more than a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from collbench.errors import RunFailed

LATENCY, BANDWIDTH = "p2p_latency", "p2p_bandwidth"
_LONGEST_QUOTE = 160
_SHORTEST_S, _LONGEST_S = 1e-9, 1e5
_WINDOW_BYTES = 256 * 2**20  # of one run that counts messages: 2 s at 1 Gb/s, 20 ms at 100
_FEWEST, _MOST = 20, 5000


@dataclass(frozen=True)
class Ask:
    """One run: LATENCY or BANDWIDTH of messages of so many bytes, for about so many seconds where the tool goes by time."""

    operation: str
    size_bytes: int
    seconds: float = 1.0

    @property
    def messages(self) -> int:
        """How many, where the tool goes by their number."""
        return max(_FEWEST, min(_MOST, _WINDOW_BYTES // self.size_bytes))


@dataclass(frozen=True)
class Figure:
    """What a tool says.

    time_s      of one message
    n           messages behind it; 0: it does not count them
    sent_bytes  what the client must have sent for it, at least
    statistic   what kind of figure it is, in words
    facts       what else it says, JSON-ready
    """

    time_s: float
    n: int
    sent_bytes: int
    statistic: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class WireTool(Protocol):
    """One tool. The command lines end by themselves after one run."""

    @property
    def name(self) -> str:
        """Of the tool's program, and of the rows' backend."""
        ...

    @property
    def api(self) -> str:
        """What it calls to move bytes: "tcp", "libfabric", "ucp", "verbs"."""
        ...

    @property
    def package(self) -> str:
        """How to get it, for a sentence: "apt-get install iperf3"."""
        ...

    @property
    def operations(self) -> Sequence[str]:
        """LATENCY, BANDWIDTH or both, in the order in which they are measured."""
        ...

    @property
    def asks_version(self) -> Sequence[str]:
        """The command that tells its version."""
        ...

    def version(self, printed: str) -> str | None:
        """The version in what `asks_version` printed; None: it is not there."""
        ...

    def server(self, ask: Ask, address: str, port: int) -> list[str]:
        """The command of the end that waits, at a TCP port of this address."""
        ...

    def client(self, ask: Ask, address: str, port: int) -> list[str]:
        """The command of the end that begins, to that port."""
        ...

    def parse(self, ask: Ask, printed: str) -> Figure:
        """The figure in what the client printed. Raises RunFailed where there is none that can be true."""
        ...


def figure_of(tool: str, seconds: float | None, printed: str) -> float:
    """The time, if a message can take so long. Raises RunFailed with the tool's last words where it cannot."""
    if seconds is None or not math.isfinite(seconds) or not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise RunFailed(f"{tool} printed no figure: {last_words(printed)}")
    return seconds


def number(word: str) -> float | None:
    """A plain decimal number, not negative; None for anything else."""
    if len(word) > 40 or not word.replace(".", "", 1).isascii() or not word.replace(".", "", 1).isdigit():
        return None
    return float(word)


def last_words(printed: str) -> str:
    """The last line that says something, printable and short; "it said nothing" where there is none."""
    lines = (line.strip(" -+|*\t\r") for line in reversed(printed.splitlines()))
    found = next((line for line in lines if line), "")
    said = "".join(letter if letter.isprintable() else "?" for letter in found[:_LONGEST_QUOTE])
    return said or "it said nothing"
