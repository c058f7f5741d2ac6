"""The measured rate of a channel in a node, or between two hosts: a row of `collbench probe --measure`, and its table and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

from msgspec import field

from collbench.columns import FLAGS, NOTHING, PERCENT, RATE, column, figure, value_columns
from collbench.records import Record
from collbench.report.frame import Column, Frame, Line, table_lines
from collbench.report.screen import check_format, print_lines, wants_color, width_of
from collbench.results.flags import DOUBTFUL, explain, flag_names
from collbench.units import format_percent, format_rate

SCHEMA = 1
WRONG = "wrong_data"


class Channel(Record, frozen=True, kw_only=False):
    """A row of `collbench probe --measure`; rates in bytes per second of one direction.

    channel is "host_memory", "h2d", "d2h", "h2d_d2h", "gpu_peer", "nic_host_memory_perftest", "nic_host_memory_mpi", "nic_gpu_memory_mpi",
    "nic_gpu_memory_gdr_on", "nic_gpu_memory_gdr_off", "tcp_1", "tcp_8" (number of streams), "iperf3", "fi_pingpong", "ucx_perftest"
    (external tools), "storage_1m", "storage_128k", "storage_4k_random", "storage_gpu_cufile" or "storage_gpu_staged". With the flag WRONG
    received data differs from sent data, `na` has the place, and there is no rate.
    """

    channel: Annotated[str, column("What was measured.", title="channel")]
    source: Annotated[
        str,
        column("The place that the bytes leave: node1/numa0, node1/gpu3, node1/mlx5_0 or node1.", key="from", title="from"),
    ]
    target: Annotated[str, column("The place that they reach.", key="to", title="to")]
    bytes_per_s: Annotated[float | None, column("The median rate.", title="GB/s")] = None
    ci_low: Annotated[
        float | None,
        column("The lower end of its 95 % confidence interval.", unit=RATE, title="95 % interval", drop=2),
    ] = None
    ci_high: Annotated[float | None, column("The upper end.", unit=RATE)] = None
    of_bytes_per_s: Annotated[float | None, column("The rate of the limiting link; missing where no such figure is valid.")] = None
    limited_by: Annotated[
        str,
        column(
            "That link with the source of its rate; without a rate, the kind of figure.",
            value=lambda channel: channel.limited_by or None,
            title="limited by",
            drop=1,
        ),
    ] = ""
    na: Annotated[str | None, column("Why nothing was measured.")] = None
    flags: Annotated[tuple[str, ...], column("Words that `collbench explain` explains.", unit=FLAGS)] = ()
    tool: Annotated[dict[str, Any], column("Of an external tool: its request, version, commands and statistic.")] = field(
        default_factory=dict
    )
    details: Annotated[
        dict[str, Any],
        column("Of storage: the file system, the device, the sizes of file and block, reads at once, and what the page cache had."),
    ] = field(default_factory=dict)

    @property
    @figure("The rate as a share of that of the limiting link.", after="of_bytes_per_s", unit=PERCENT)
    def percent(self) -> float | None:
        """Return the percentage of the link's rate; None if the measured rate exceeds it."""
        if not self.bytes_per_s or not self.of_bytes_per_s or "above_bound" in self.flags:
            return None
        return 100 * self.bytes_per_s / self.of_bytes_per_s

    def to_json(self) -> dict[str, Any]:
        """Return it as in `--format json`: its columns, without empty objects; NaN and infinities are null."""
        values = {value.name: value.value(self) for value in value_columns(Channel)}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items() if value != {}
        }


def document(channels: Sequence[Channel]) -> dict[str, Any]:
    """Return the JSON document of all channels."""
    return {"schema": SCHEMA, "channels": [channel.to_json() for channel in channels]}


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
    "storage_1m": "storage, reads of 1 MiB",
    "storage_128k": "storage, reads of 128 KiB",
    "storage_4k_random": "storage, random reads of 4 KiB",
    "storage_gpu_cufile": "storage to GPU (cuFile)",
    "storage_gpu_staged": "storage to GPU through host memory",
    "nic_gpu_memory_gdr_off": "NIC from GPU memory, GPUDirect RDMA off",
}
_UNIT = "GB/s: 1e9 bytes per second in one direction; medians of one launch, and intervals of the median"


def channels_text(channels: Sequence[Channel], format: str, stream: TextIO, color: str = "auto") -> None:
    """Print the channels in one of FORMATS on `stream`; `color` is auto, always or never. Raises UsageError for another format."""
    check_format(format, FORMATS)
    as_json = [Line(json.dumps(document(channels), indent=2, allow_nan=False))] if format == "json" else None
    print_lines(as_json or table_lines(frame(channels), width_of(stream)), stream, wants_color(stream, color))


def frame(channels: Sequence[Channel]) -> Frame[Channel]:
    """Return the table, and what its flags mean. Hosts are named if there are several."""
    hosts = {place.partition("/")[0] for channel in channels for place in (channel.source, channel.target)}

    def limit(channel: Channel) -> str:
        words = [channel.limited_by or NOTHING]
        if channel.flags:
            words.append(", ".join(flag_names(channel.flags)))
        return " · ".join(words)

    declared = {column.name: column for column in value_columns(Channel)}
    columns: list[Column[Channel]] = [
        Column.of(declared["channel"], name),
        Column.of(declared["from"], lambda channel: _place(channel.source, len(hosts) < 2), cut=True),
        Column.of(declared["to"], lambda channel: _place(channel.target, len(hosts) < 2), cut=True),
        Column.of(declared["bytes_per_s"], rate),
        Column.of(declared["ci_low"], interval),
        Column.of(declared["limited_by"], limit, cut=True),
    ]
    return Frame(
        columns, channels, foot=[_UNIT, *explain(flag for channel in channels for flag in channel.flags)], style=_style, instead=_why
    )


def _why(channel: Channel) -> str | None:
    if channel.bytes_per_s is not None:
        return None
    why = channel.na or "not measured"
    return why if WRONG in channel.flags else f"n/a ({why})"


def rate(channel: Channel) -> str:
    """Return the rate and the link's rate: "42.0 of 50.0 (84 %)"; the rate alone where no percentage is valid."""
    if channel.bytes_per_s is None:
        return NOTHING
    measured = format_rate(channel.bytes_per_s)
    if channel.of_bytes_per_s is None:
        return measured
    rates = f"{measured} of {format_rate(channel.of_bytes_per_s)}"
    return rates if channel.percent is None else f"{rates} ({format_percent(channel.percent)})"


def interval(channel: Channel) -> str:
    """Return the interval of the median in GB/s: "41.8–42.3"; "? 41.8–42.3" if a flag makes it doubtful."""
    if channel.ci_low is None or channel.ci_high is None:
        return NOTHING
    doubt = "? " if DOUBTFUL & set(channel.flags) else ""
    return f"{doubt}{format_rate(channel.ci_low)}–{format_rate(channel.ci_high)}"


def name(channel: Channel) -> str:
    """Return the channel in words."""
    kind, _, streams = channel.channel.partition("_")
    if kind == "tcp":
        return f"TCP, {streams} stream{'' if streams == '1' else 's'}"
    return _NAMES.get(channel.channel, channel.channel)


def _place(place: str, only: bool) -> str:
    """Return a place, without the host's name if there is only one host."""
    host, _, part = place.partition("/")
    return part.replace("/", " ") if only and part else f"{host} {part}".strip().replace("/", " ")


def _style(channel: Channel) -> str:
    if WRONG in channel.flags:
        return "wrong"
    if channel.bytes_per_s is None:
        return "na"
    return "doubtful" if (DOUBTFUL | {"above_bound"}) & set(channel.flags) else ""
