"""What `collbench probe --measure` prints: one row per channel, or one JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TextIO

from collbench.errors import UsageError
from collbench.report.columns import NOTHING
from collbench.report.flags import DOUBTFUL, explain, printable
from collbench.report.probe_wrap import width_of, wrapped
from collbench.report.screen import PlainScreen, wants_color
from collbench.report.table import Line
from collbench.results.steps import WRONG, Channel, document
from collbench.units import format_percent, format_rate

FORMATS = ("table", "json")
_NAMES = {
    "host_memory": "host memory, copy",
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "h2d_d2h": "host and GPU, both ways",
    "gpu_peer": "GPU to GPU",
    "nic_host_memory_perftest": "NIC from host memory (perftest)",
    "nic_host_memory_mpi": "NIC from host memory (MPI)",
    "nic_gpu_memory_mpi": "NIC from GPU memory (MPI)",
    "nic_gpu_memory_gdr_on": "NIC from GPU memory, GPUDirect RDMA on",
    "iperf3": "TCP, 1 stream (iperf3)",
    "fi_pingpong": "libfabric, 1 message at a time (fi_pingpong)",
    "ucx_perftest": "UCX (ucx_perftest)",
    "nic_gpu_memory_gdr_off": "NIC from GPU memory, GPUDirect RDMA off",
}
_TITLES = ("channel", "from", "to", "GB/s", "95 % interval", "limited by")
_UNIT = "GB/s: 1e9 bytes per second in one direction; medians of one launch, and intervals of the median"


def channels_text(channels: Sequence[Channel], format: str, stream: TextIO, color: str = "auto") -> None:
    """Prints the channels in one of FORMATS on `stream`; `color` is auto, always or never. Raises UsageError for another format."""
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    screen = PlainScreen(stream, stream, wants_color(stream, color))
    if format == "json":
        screen.data(Line(json.dumps(document(channels), indent=2, allow_nan=False)))
        return
    for line in wrapped(table_lines(channels), width_of(stream)):
        screen.data(line)


def table_lines(channels: Sequence[Channel]) -> Iterator[Line]:
    """The table, and what its flags mean. Hosts are named where there are several."""
    hosts = {place.partition("/")[0] for each in channels for place in (each.source, each.target)}
    rows = [_cells(each, only=len(hosts) < 2) for each in channels]
    widths = [max(len(row[place]) for row in [_TITLES, *rows]) for place in range(3)]
    figures = [max(len(row[place]) for row in [_TITLES, *(row for row in rows if len(row) > 4)]) for place in (3, 4)]
    yield Line(_joined(_TITLES, widths, figures), "head")
    for each, row in zip(channels, rows, strict=True):
        yield Line(_joined(row, widths, figures), _style(each))
    yield Line(_UNIT, "foot")
    yield from (Line(line, "foot") for line in explain(flag for each in channels for flag in each.flags))


def rate(channel: Channel) -> str:
    """How fast against how fast it could be: "42.0 of 50.0 (84 %)", or the figure alone where no percentage is honest."""
    if channel.bytes_per_s is None:
        return NOTHING
    measured = format_rate(channel.bytes_per_s)
    if channel.of_bytes_per_s is None:
        return measured
    of = f"{measured} of {format_rate(channel.of_bytes_per_s)}"
    return of if channel.percent is None else f"{of} ({format_percent(channel.percent)})"


def interval(channel: Channel) -> str:
    """The interval of the median in GB/s: "41.8–42.3"; "? 41.8–42.3" where a flag says that it cannot be taken at its word."""
    if channel.ci_low is None or channel.ci_high is None:
        return NOTHING
    doubt = "? " if DOUBTFUL & set(channel.flags) else ""
    return f"{doubt}{format_rate(channel.ci_low)}–{format_rate(channel.ci_high)}"


def name(channel: Channel) -> str:
    """The channel in words."""
    kind, _, streams = channel.channel.partition("_")
    if kind == "tcp":
        return f"TCP, {streams} stream{'' if streams == '1' else 's'}"
    return _NAMES.get(channel.channel, channel.channel)


def _cells(channel: Channel, only: bool) -> list[str]:
    where = [printable(_place(place, only)) for place in (channel.source, channel.target)]
    if channel.bytes_per_s is None:
        why = channel.na or "not measured"
        return [name(channel), *where, why if WRONG in channel.flags else f"n/a ({printable(why)})"]
    flags = f" · {', '.join(channel.flags)}" if channel.flags else ""
    return [name(channel), *where, rate(channel), interval(channel), printable(f"{channel.limited_by or NOTHING}{flags}")]


def _place(place: str, only: bool) -> str:
    """Where something lies, without the name of an only host."""
    host, _, part = place.partition("/")
    return part.replace("/", " ") if only and part else f"{host} {part}".strip().replace("/", " ")


def _joined(cells: Sequence[str], widths: Sequence[int], figures: Sequence[int]) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells[:3], widths, strict=True)]
    if len(cells) == 4:
        return "  ".join([*left, cells[3]])
    right = [cell.rjust(width) for cell, width in zip(cells[3:5], figures, strict=True)]
    return "  ".join([*left, *right, cells[5]])


def _style(channel: Channel) -> str:
    if WRONG in channel.flags:
        return "wrong"
    if channel.bytes_per_s is None:
        return "na"
    return "doubtful" if (DOUBTFUL | {"above_bound"}) & set(channel.flags) else ""
