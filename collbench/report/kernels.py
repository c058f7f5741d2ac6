"""What `collbench kernels` prints: a line per kernel, as it is measured, or one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.device.bandwidth import Figure
from collbench.machine.peak.ceiling import TOLERANCE
from collbench.report.screen import Screen
from collbench.report.table import Line
from collbench.stats.median import Median, median
from collbench.units import format_percent, format_rate, format_size, format_time

if TYPE_CHECKING:
    from collbench.device.gpu import Gpu

FORMATS = ("table", "json")
ABOVE = "above_bound"
_WIDTHS = (5, 13, 8, 27, 15, 5)
_TITLES = ("GPU", "kernel", "size", "GB/s, or µs", "95 % interval", "wrong")


class KernelsWriter:
    """Takes figures and writes lines; `format` is one of FORMATS."""

    def __init__(self, format: str, screen: Screen) -> None:
        self._format, self._screen = format, screen
        self._above = False
        self._names: dict[int, str] = {}

    def start(self, gpus: Sequence[Gpu], size: int) -> None:
        """The GPUs and the titles."""
        self._names = {gpu.index: gpu.name for gpu in gpus}
        if self._format == "json":
            return
        for gpu in gpus:
            rate = "" if gpu.memory_rate is None else f", memory {format_rate(gpu.memory_rate)} GB/s"
            self._screen.data(Line(f"GPU {gpu.index}: {gpu.name} ({gpu.arch}{rate}, level-2 cache {format_size(gpu.l2_bytes)})"))
        self._screen.data(Line(f"arrays of {format_size(size)}"))
        self._screen.data(Line(f"{_padded(_TITLES)}  floor", "head"))

    def figure(self, figure: Figure) -> None:
        """A line."""
        if self._format == "json":
            self._screen.data(
                Line(
                    json.dumps(
                        {**record(figure), "gpu_names": [self._names[gpu] for gpu in figure.gpus]}, ensure_ascii=False, allow_nan=False
                    )
                )
            )
            return
        known = median(np.array(figure.seconds))
        above = _above(figure, known)
        self._above |= above
        style = "na" if figure.why else "wrong" if figure.wrong else "doubtful" if above else ""
        self._screen.data(Line(line(figure), style))

    def end(self) -> None:
        """What the words mean."""
        if self._format == "json":
            return
        self._screen.data(
            Line("GB/s: 1e9 bytes per second; copies count what they read and what they write; medians of one launch", "foot")
        )
        if self._above:
            said = "faster than the floor allows: a cache took part, or the rate was read wrongly; no percentage"
            self._screen.data(Line(f"{ABOVE}: {said}", "foot"))


def line(figure: Figure) -> str:
    """ "0      copy           512 MiB   4380 of 4800 GB/s (91 %)     4371–4390       0      memory clock × width × 2"."""
    size = format_size(figure.size_bytes) if figure.size_bytes else ""
    where = "→".join(map(str, figure.gpus))
    if figure.why:
        return f"{_padded((where, figure.kernel, size))}  n/a ({figure.why})"
    known = median(np.array(figure.seconds))
    low, high = _interval(figure, known)
    interval = "–" if low is None or high is None else f"{_shown(figure, low)}–{_shown(figure, high)}"
    wrong = "–" if figure.wrong is None else str(figure.wrong)
    return f"{_padded((where, figure.kernel, size, _value(figure, known), interval, wrong))}  {figure.floor}".rstrip()


def _padded(cells: Sequence[str]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False))


def _value(figure: Figure, known: Median) -> str:
    if not figure.moved_bytes:
        return f"{format_time(known.value)} µs"
    rate = figure.moved_bytes / known.value if known.value else 0.0
    if figure.floor_bytes_per_s is None or not rate:
        return f"{format_rate(rate)} GB/s"
    of = f"{format_rate(rate)} of {format_rate(figure.floor_bytes_per_s)} GB/s"
    return f"{of} {ABOVE}" if _above(figure, known) else f"{of} ({format_percent(100 * rate / figure.floor_bytes_per_s)})"


def _above(figure: Figure, known: Median) -> bool:
    limit = figure.floor_bytes_per_s
    return bool(limit and known.value and figure.moved_bytes / known.value > TOLERANCE * limit)


def _interval(figure: Figure, known: Median) -> tuple[float | None, float | None]:
    """The interval in the unit of the figure: bytes per second, or seconds."""
    if not known.ci_low or not known.ci_high or not figure.moved_bytes:
        return known.ci_low, known.ci_high
    return figure.moved_bytes / known.ci_high, figure.moved_bytes / known.ci_low


def _shown(figure: Figure, value: float) -> str:
    return format_rate(value) if figure.moved_bytes else format_time(value)


def record(figure: Figure) -> dict[str, Any]:
    """The figure for programs: rates in bytes per second, times in seconds of one run; what is unknown is null."""
    known = median(np.array(figure.seconds))
    low, high = _interval(figure, known)
    rate = figure.moved_bytes / known.value if figure.moved_bytes and known.value else None
    percent = 100 * rate / figure.floor_bytes_per_s if rate and figure.floor_bytes_per_s and not _above(figure, known) else None
    time_s = {"p50": known.value, "ci_low": known.ci_low, "ci_high": known.ci_high} if known.n else None
    return {
        "kernel": figure.kernel, "gpus": list(figure.gpus), "size_bytes": figure.size_bytes, "moved_bytes": figure.moved_bytes,
        "n": known.n, "n_eff": known.n_eff, "time_s": time_s, "samples_s": list(figure.seconds),
        "bytes_per_s": rate, "bytes_per_s_ci": [low, high] if rate else None,
        "floor_bytes_per_s": figure.floor_bytes_per_s, "floor": figure.floor, "percent_of_floor": percent,
        "flags": [ABOVE] if _above(figure, known) else [], "wrong": figure.wrong, "why": figure.why,
    }  # fmt: skip
