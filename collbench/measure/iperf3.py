"""iperf3 (https://github.com/esnet/iperf): one TCP stream, its rate as the receiver counts it."""

from __future__ import annotations

import json
import re
from typing import Any

from collbench.errors import RunFailed
from collbench.measure.tool import BANDWIDTH, Ask, Figure, figure_of, last_words

_VERSION = re.compile(r"^iperf (\d[\w.+-]{0,20})", re.MULTILINE)


class Iperf3:
    """Goes by whole seconds; `end.sum_received` of its JSON is what arrived."""

    name, api, package = "iperf3", "tcp", "apt-get install iperf3, or your distribution's"
    operations = (BANDWIDTH,)
    asks_version = ("iperf3", "--version")

    def version(self, printed: str) -> str | None:
        """From "iperf 3.12 (cJSON 1.7.15)"."""
        found = _VERSION.search(printed)
        return found[1] if found else None

    def server(self, ask: Ask, address: str, port: int) -> list[str]:
        """Waits for one client."""
        return ["iperf3", "--server", "--one-off", "--bind", address, "--port", str(port)]

    def client(self, ask: Ask, address: str, port: int) -> list[str]:
        """Sends for the time that was asked, a second at least."""
        return ["iperf3", "--client", address, "--port", str(port), "--time", str(max(1, round(ask.seconds))), "--json"]

    def parse(self, ask: Ask, printed: str) -> Figure:
        """The time that so many bytes take at the mean rate of what arrived."""
        said = _object(printed)
        received = _part(said, "end", "sum_received")
        n_bytes, seconds = _number(received.get("bytes")), _number(received.get("seconds"))
        if "error" in said or not n_bytes or not seconds:
            raise RunFailed(f"iperf3 printed no figure: {last_words(str(said.get('error', '')))}")
        time_s = figure_of(self.name, ask.size_bytes * seconds / n_bytes, printed)
        again = _number(_part(said, "end", "sum_sent").get("retransmits"))
        statistic = f"mean over {seconds:.2f} s of what arrived (sum_received), as the time of {ask.size_bytes} bytes of the stream"
        return Figure(time_s, 0, int(n_bytes), statistic, {} if again is None else {"retransmits": int(again)})


def _object(printed: str) -> dict[str, Any]:
    try:
        said = json.loads(printed)
    except (ValueError, RecursionError) as error:
        raise RunFailed(f"iperf3 printed no JSON: {last_words(printed)}") from error
    if not isinstance(said, dict):
        raise RunFailed(f"iperf3 printed no JSON object: {last_words(printed)}")
    return said


def _part(said: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        found = said.get(name)
        said = found if isinstance(found, dict) else {}
    return said


def _number(value: object) -> float | None:
    """A number that can be a count or a time; NaN, infinity and what is below zero are none."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if known and isinstance(value, int | float) else None
