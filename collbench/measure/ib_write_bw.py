"""ib_write_bw of perftest (https://github.com/linux-rdma/perftest): RDMA writes between the first devices of two hosts."""

from __future__ import annotations

import re

from collbench.measure.perftest import rate_in
from collbench.measure.tool import BANDWIDTH, Ask, Figure, figure_of

_VERSION = re.compile(r"^\s*(?:\w+ )?[Vv]ersion ?: (\d[\w.+-]{0,20})", re.MULTILINE)
_DEVICE = re.compile(r"^\s*Device\s*:\s*(\w{1,40})\s*$|\bDevice\s*:\s*(\w{1,40})\s", re.MULTILINE)


class IbWriteBw:
    """It goes by a number of writes, and takes the first RDMA device, as perftest does by itself."""

    name, api, package = "ib_write_bw", "verbs", "apt-get install perftest, or your distribution's"
    operations = (BANDWIDTH,)
    asks_version = ("ib_write_bw", "--version")

    def version(self, printed: str) -> str | None:
        """From "Version: 6.06"."""
        found = _VERSION.search(printed)
        return found[1] if found else None

    def server(self, ask: Ask, address: str, port: int) -> list[str]:
        """Waits for one client."""
        return [*_same(ask), "-p", str(port)]

    def client(self, ask: Ask, address: str, port: int) -> list[str]:
        """Writes."""
        return [*_same(ask), "-p", str(port), address]

    def parse(self, ask: Ask, printed: str) -> Figure:
        """The column BW average."""
        rate = rate_in(printed)
        time_s = figure_of(self.name, ask.size_bytes / rate if rate else None, printed)
        found = _DEVICE.search(printed)
        facts = {"device": found[1] or found[2]} if found else {}
        return Figure(time_s, ask.messages, ask.messages * ask.size_bytes, f"mean over {ask.messages} writes (BW average)", facts)


def _same(ask: Ask) -> list[str]:
    return ["ib_write_bw", "-s", str(ask.size_bytes), "-n", str(ask.messages), "-F", "--report_gbits"]
