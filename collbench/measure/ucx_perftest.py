"""ucx_perftest of UCX (https://openucx.readthedocs.io): tag-matched messages over the way that UCX chooses."""

from __future__ import annotations

import re

from collbench.measure.tool import BANDWIDTH, LATENCY, Ask, Figure, figure_of, number

_VERSION = re.compile(r"^# (?:Library version: |Version )(\d[\w.+-]{0,20})", re.MULTILINE)
_TESTS = {LATENCY: "tag_lat", BANDWIDTH: "tag_bw"}
_TRIPS, _MOST_BYTES = 2000, 64 * 2**20
_TITLE = "overall_lat"


class UcxPerftest:
    """It goes by a number of messages. UCX_TLS and UCX_NET_DEVICES choose the way, here as in what is measured beside it."""

    name, api, package = "ucx_perftest", "ucp", "apt-get install ucx-utils, or your distribution's ucx"
    operations = (LATENCY, BANDWIDTH)
    asks_version = ("ucx_info", "-v")

    def version(self, printed: str) -> str | None:
        """From "# Version 1.13.1", or of newer ones "# Library version: 1.17.0"."""
        found = _VERSION.search(printed)
        return found[1] if found else None

    def server(self, ask: Ask, address: str, port: int) -> list[str]:
        """Waits for one client, which tells it what to do."""
        return ["ucx_perftest", "-p", str(port), *_family(address)]

    def client(self, ask: Ask, address: str, port: int) -> list[str]:
        """Begins; the figures as CSV."""
        count = _count(ask)
        words = ["-p", str(port), "-t", _TESTS[ask.operation], "-s", str(ask.size_bytes), "-n", str(count), "-w", str(_warmup(count))]
        return ["ucx_perftest", *words, "-f", "-v", *_family(address), address]

    def parse(self, ask: Ask, printed: str) -> Figure:
        """The median of a latency, the mean of a rate: of the times beside a rate the others are those of handing over."""
        told = _columns(printed)
        median = next((told[name] for name in told if name.startswith("50.0_percentile")), None)
        latency, count = ask.operation == LATENCY, _count(ask)
        time_us = median if latency else told.get(_TITLE)
        time_s = figure_of(self.name, None if time_us is None else time_us * 1e-6, printed)
        what = f"median of half the round trip over {count} (50.0 %ile)" if latency else f"mean over {count} messages (overall)"
        return Figure(time_s, count, count * ask.size_bytes, f"{what}, after {_warmup(count)} to warm up")


def _count(ask: Ask) -> int:
    return max(20, min(_TRIPS, _MOST_BYTES // ask.size_bytes)) if ask.operation == LATENCY else ask.messages


def _warmup(count: int) -> int:
    return max(1, count // 10)


def _family(address: str) -> list[str]:
    return ["-6"] if ":" in address else []


def _columns(printed: str) -> dict[str, float]:
    """Title -> figure, of the last line of figures below a line of titles that has as many; {} where there is none."""
    titles: list[str] = []
    found: dict[str, float] = {}
    for line in printed.splitlines():
        words = line.strip().split(",")
        if _TITLE in words:
            titles = words
        elif len(words) == len(titles):
            figures = [number(word) for word in words]
            found = {title: value for title, value in zip(titles, figures, strict=True) if value is not None}
    return found
