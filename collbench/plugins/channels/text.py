"""Output of `collbench kernels` (a line per kernel) and of `collbench probe --measure` (a row per channel, or a JSON document)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from collbench.machine.peak.ceiling import TOLERANCE
from collbench.plugins.channels.bandwidth import KernelFigure
from collbench.plugins.channels.records import WRONG, Channel, document
from collbench.report.cases import NOTHING
from collbench.report.frame import Column, Frame, Line, TextLayout, table_lines
from collbench.report.screen import PlainScreen, check_format, print_lines, wants_color, width_of, wrapped
from collbench.results.flags import DOUBTFUL, explain, flag_names
from collbench.stats.median import Median, median
from collbench.units import format_percent, format_rate, format_size, format_time

if TYPE_CHECKING:
    from collbench.device.gpu import OpenGpu


# `collbench kernels`: a line per kernel as soon as it is measured, or one JSON object per line.

FORMATS = ("table", "json")
ABOVE = "above_bound"


class KernelsWriter:
    """Writes the figures of `collbench kernels` to a screen; `format` is one of FORMATS."""

    def __init__(self, format: str, screen: PlainScreen, width: int | None = None) -> None:
        self._format, self._screen = format, screen
        self._above = False
        self._names: dict[int, str] = {}
        self._layout = TextLayout(kernel_frame([]), width)

    def start(self, gpus: Sequence[OpenGpu], size: int) -> None:
        """Write the GPUs and the titles."""
        self._names = {gpu.index: gpu.name for gpu in gpus}
        if self._format == "json":
            return
        rates = {gpu.index: "" if gpu.memory_rate is None else f", memory {format_rate(gpu.memory_rate)} GB/s" for gpu in gpus}
        self._write(*(
            f"GPU {gpu.index}: {gpu.name} ({gpu.arch}{rates[gpu.index]}, level-2 cache {format_size(gpu.l2_bytes)})" for gpu in gpus
        ), f"arrays of {format_size(size)}")  # fmt: skip
        self._screen.data(Line(self._layout.heading(), "head"))

    def figure(self, figure: KernelFigure) -> None:
        """Write the line of a figure."""
        if self._format == "json":
            found = {**record(figure), "gpu_names": [self._names[gpu] for gpu in figure.gpus]}
            self._screen.data(Line(json.dumps(found, ensure_ascii=False, allow_nan=False)))
            return
        self._above |= _is_above(figure)
        for line in self._layout.lines(figure):
            self._screen.data(line)

    def end(self) -> None:
        """Write what the words mean."""
        if self._format == "json":
            return
        self._write("GB/s: 1e9 bytes per second; copies count what they read and what they write; medians of one launch", style="foot")
        if self._above:
            self._write(
                f"{ABOVE}: faster than the floor allows: a cache took part, or the rate was read wrongly; no percentage", style="foot"
            )

    def _write(self, *texts: str, style: str = "") -> None:
        for line in wrapped([Line(text, style) for text in texts], self._layout.width):
            self._screen.data(line)


def kernel_frame(figures: Sequence[KernelFigure]) -> Frame[KernelFigure]:
    """Return the table of kernels. An n/a line has the reason in place of the last four columns."""
    return Frame(_KERNELS, figures, style=_kernel_style, instead=lambda figure: f"n/a ({figure.why})" if figure.why else None)


def _kernel_style(figure: KernelFigure) -> str:
    return "na" if figure.why else "wrong" if figure.wrong else "doubtful" if _is_above(figure) else ""


def _median(figure: KernelFigure) -> Median:
    return median(np.array(figure.seconds))


def _rate(figure: KernelFigure) -> float | None:
    """Return the median rate in bytes per second; None for a kernel that moves nothing, or without samples."""
    seconds = _median(figure).value
    return figure.moved_bytes / seconds if figure.moved_bytes and seconds else None


def _is_above(figure: KernelFigure) -> bool:
    """Return whether the kernel is faster than the floor allows."""
    rate, limit = _rate(figure), figure.floor_bytes_per_s
    return bool(rate and limit and rate > TOLERANCE * limit)


def _interval(figure: KernelFigure) -> tuple[float | None, float | None]:
    """Return the interval in the unit of the figure: bytes per second, or seconds."""
    known = _median(figure)
    if not known.ci_low or not known.ci_high or not figure.moved_bytes:
        return known.ci_low, known.ci_high
    return figure.moved_bytes / known.ci_high, figure.moved_bytes / known.ci_low


def _kernel_value(figure: KernelFigure) -> str:
    """Return "4380 of 4800 GB/s (91 %)", or the time in µs of a kernel that moves nothing."""
    if not figure.moved_bytes:
        return f"{format_time(_median(figure).value)} µs"
    rate = _rate(figure)
    if figure.floor_bytes_per_s is None or rate is None:
        return f"{format_rate(rate or 0.0)} GB/s"
    of = f"{format_rate(rate)} of {format_rate(figure.floor_bytes_per_s)} GB/s"
    return f"{of} {ABOVE}" if _is_above(figure) else f"{of} ({format_percent(100 * rate / figure.floor_bytes_per_s)})"


def _kernel_interval(figure: KernelFigure) -> str:
    shown = format_rate if figure.moved_bytes else format_time
    low, high = _interval(figure)
    return NOTHING if low is None or high is None else f"{shown(low)}–{shown(high)}"


# Each line is printed as soon as it is measured, so the widths are fixed.
_KERNELS: tuple[Column[KernelFigure], ...] = (
    Column("", "GPU", lambda figure: "→".join(map(str, figure.gpus)), least=5),
    Column("", "kernel", lambda figure: figure.kernel, least=13),
    Column("", "size", lambda figure: format_size(figure.size_bytes) if figure.size_bytes else "", least=8),
    Column("", "GB/s, or µs", _kernel_value, drop=1, least=27),
    Column("", "95 % interval", _kernel_interval, drop=3, least=15),
    Column("", "wrong", lambda figure: NOTHING if figure.wrong is None else str(figure.wrong), drop=2, least=5),
    Column("", "floor", lambda figure: figure.floor, drop=4),
)


def record(figure: KernelFigure) -> dict[str, Any]:
    """Return the figure for programs: rates in bytes per second, times in seconds of one run; unknown values are null."""
    known, rate, above = _median(figure), _rate(figure), _is_above(figure)
    percent = 100 * rate / figure.floor_bytes_per_s if rate and figure.floor_bytes_per_s and not above else None
    time_s = {"p50": known.value, "ci_low": known.ci_low, "ci_high": known.ci_high} if known.n else None
    return {
        "kernel": figure.kernel, "gpus": list(figure.gpus), "size_bytes": figure.size_bytes, "moved_bytes": figure.moved_bytes,
        "n": known.n, "n_eff": known.n_eff, "time_s": time_s, "samples_s": list(figure.seconds),
        "bytes_per_s": rate, "bytes_per_s_ci": list(_interval(figure)) if rate else None,
        "floor_bytes_per_s": figure.floor_bytes_per_s, "floor": figure.floor, "percent_of_floor": percent,
        "flags": [ABOVE] if above else [], "wrong": figure.wrong, "why": figure.why,
    }  # fmt: skip


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
    hosts = {place.partition("/")[0] for each in channels for place in (each.source, each.target)}
    columns: list[Column[Channel]] = [
        Column("", "channel", name),
        Column("", "from", lambda each: _place(each.source, len(hosts) < 2), cut=True),
        Column("", "to", lambda each: _place(each.target, len(hosts) < 2), cut=True),
        Column("", "GB/s", rate, right=True),
        Column("", "95 % interval", interval, right=True, drop=2),
        Column("", "limited by", _limit, drop=1, cut=True),
    ]
    return Frame(columns, channels, foot=[_UNIT, *explain(flag for each in channels for flag in each.flags)], style=_style, instead=_why)


def _why(channel: Channel) -> str | None:
    """Return why the rate is missing; None if it is known."""
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
    of = f"{measured} of {format_rate(channel.of_bytes_per_s)}"
    return of if channel.percent is None else f"{of} ({format_percent(channel.percent)})"


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


def _limit(channel: Channel) -> str:
    return " · ".join([channel.limited_by or NOTHING, *([", ".join(flag_names(channel.flags))] if channel.flags else [])])


def _style(channel: Channel) -> str:
    if WRONG in channel.flags or channel.bytes_per_s is None:
        return "wrong" if WRONG in channel.flags else "na"
    return "doubtful" if (DOUBTFUL | {"above_bound"}) & set(channel.flags) else ""
