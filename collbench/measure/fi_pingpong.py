"""fi_pingpong of libfabric (https://ofiwg.github.io/libfabric/main/man/fi_pingpong.1.html): half the round trip of a message."""

from __future__ import annotations

import re

from collbench.measure.tool import LATENCY, Ask, Figure, figure_of, number

_VERSION = re.compile(r"^libfabric: (\d[\w.+-]{0,20})", re.MULTILINE)
_BYTES, _FEWEST, _MOST = 16 * 2**20, 16, 2000  # it goes by a number, the same at both ends, and cannot be asked for a time


class FiPingpong:
    """Reliable datagrams over the provider that libfabric takes first; FI_PROVIDER chooses another."""

    name, api, package = "fi_pingpong", "libfabric", "apt-get install libfabric-bin, or your distribution's libfabric"
    operations = (LATENCY,)
    asks_version = ("fi_info", "--version")

    def version(self, printed: str) -> str | None:
        """Of the library: the program has none of its own."""
        found = _VERSION.search(printed)
        return found[1] if found else None

    def server(self, ask: Ask, address: str, port: int) -> list[str]:
        """Waits for one client."""
        return ["fi_pingpong", "-B", str(port), *_same(ask, address)]

    def client(self, ask: Ask, address: str, port: int) -> list[str]:
        """Begins."""
        return ["fi_pingpong", "-P", str(port), *_same(ask, address), address]

    def parse(self, ask: Ask, printed: str) -> Figure:
        """The column usec/xfer of the only line of figures."""
        found = [value for line in printed.splitlines() if (value := _microseconds(line)) is not None]
        time_s = figure_of(self.name, found[0] * 1e-6 if len(found) == 1 else None, printed)
        trips = _trips(ask)
        return Figure(time_s, 2 * trips, trips * ask.size_bytes, f"mean of half the round trip over {trips} (usec/xfer), without a warm-up")


def _same(ask: Ask, address: str) -> list[str]:
    return ["-I", str(_trips(ask)), "-S", str(ask.size_bytes), "-e", "rdm", *(["-6"] if ":" in address else [])]


def _trips(ask: Ask) -> int:
    return max(_FEWEST, min(_MOST, _BYTES // ask.size_bytes))


def _microseconds(line: str) -> float | None:
    """The seventh of "8  2k  =2k  31k  0.05s  0.69  11.61  0.09"; the size in front is rounded, and cannot be held against ours."""
    words = line.split()
    return number(words[6]) if len(words) == 8 and words[4].endswith("s") and number(words[4][:-1]) is not None else None
