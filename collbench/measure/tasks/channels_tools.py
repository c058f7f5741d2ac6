"""The channels as other tools measure them: one run from each host to the next, as rows marked as theirs."""

from __future__ import annotations

from dataclasses import replace

from collbench.control.world import World
from collbench.machine.peak.link import Link
from collbench.measure.channels_between import Pair, pairs
from collbench.measure.registry import PERFTEST
from collbench.measure.tasks.channel_figures import against
from collbench.measure.tool import BANDWIDTH, LATENCY, Ask, WireTool
from collbench.measure.wire import FLAGS, Course, Ran, Tools, run_tool
from collbench.results.steps import Channel

_SIZE_BYTES = 2**20
_TCP = "tcp"
_INSIDE = "loopback: no link in it, the CPUs limit it"
_UNKNOWN = "which link it takes, {} decides"


def tool_channels(world: World, tools: Tools, links: dict[str, Link], seconds: float) -> list[Channel]:
    """The rows, at all ranks. All ranks call; `links` are those of `links_of`. One after the other, so that none shares a link.

    ib_write_bw has its rows among the NICs', for each device.
    """
    return [_measured(world, tools, tool, pair, (links, seconds)) for pair in pairs(world) for tool in tools.tools if tool.name != PERFTEST]


def _measured(world: World, tools: Tools, tool: WireTool, pair: Pair, how: tuple[dict[str, Link], float]) -> Channel:
    links, seconds = how
    operation = BANDWIDTH if BANDWIDTH in tool.operations else LATENCY  # of one message at a time, then
    ask = Ask(operation, _SIZE_BYTES, seconds)
    (ran,) = run_tool(world, tool, ask, [Course(pair.source, pair.target)], tools.versions[tool.name])
    row = replace(_row(tool, pair, links), tool={"operation": operation, "size_bytes": ask.size_bytes, **ran.evidence(tool)})
    return _told(row, ask, ran)


def _row(tool: WireTool, pair: Pair, links: dict[str, Link]) -> Channel:
    """Without figures: TCP goes over the interface between the hosts, the other libraries choose."""
    row = Channel(tool.name, pair.source.host, pair.target.host, flags=FLAGS)
    if pair.inside or tool.api != _TCP:
        return replace(row, limited_by=_INSIDE if pair.inside else _UNKNOWN.format(tool.api))
    ends = [links[pair.source.host], links[pair.target.host]]
    unclear = next((link for link in ends if link.bytes_per_s is None), None)
    return against(row, unclear or min(ends, key=lambda link: link.known))


def _told(row: Channel, ask: Ask, ran: Ran) -> Channel:
    if ran.figure is None:
        return replace(row, na=ran.why, flags=FLAGS[:1])
    flags = [*row.flags, *(["other_path"] if ran.other_path else [])]
    of = None if ran.other_path else row.of_bytes_per_s
    return replace(row, bytes_per_s=ask.size_bytes / ran.figure.time_s, of_bytes_per_s=of, flags=tuple(flags))
