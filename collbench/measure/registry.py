"""The wire tools by name; whatever is asked for is one of them, and is there on every host that is to run it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress

from collbench.errors import RunFailed, UsageError
from collbench.measure.fi_pingpong import FiPingpong
from collbench.measure.ib_write_bw import IbWriteBw
from collbench.measure.iperf3 import Iperf3
from collbench.measure.process import once
from collbench.measure.tool import WireTool
from collbench.measure.ucx_perftest import UcxPerftest

_OURS: tuple[WireTool, ...] = (Iperf3(), FiPingpong(), UcxPerftest(), IbWriteBw())
WIRE_TOOLS = {tool.name: tool for tool in _OURS}
PERFTEST = IbWriteBw.name
_VERSION_S = 10.0


def tools_named(names: Sequence[str]) -> tuple[WireTool, ...]:
    """The tools, each once. Raises UsageError for a name that is none."""
    unknown = next((name for name in names if name not in WIRE_TOOLS), None)
    if unknown is not None:
        raise UsageError(f"--tools '{unknown[:40]}' is unknown: choose from {', '.join(WIRE_TOOLS)}")
    return tuple(WIRE_TOOLS[name] for name in dict.fromkeys(names))


def version_here(tool: WireTool) -> str | None:
    """The version of the tool on this host, "" where it does not tell one; None: it is not installed."""
    if shutil.which(tool.name) is None:
        return None
    with suppress(RunFailed):
        done = once(tool.asks_version, _VERSION_S)
        return tool.version(f"{done.out}\n{done.err}") or ""
    return ""
