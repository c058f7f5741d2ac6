"""Screens: data on stdout, remarks on stderr, and a live progress line on a terminal. Only rank 0 has one."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil, floor
from threading import Event, Thread
from typing import TYPE_CHECKING, TextIO

from collbench.errors import UsageError
from collbench.report.frame import Display, Line, printable
from collbench.units import format_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_CODES = {"head": "1", "foot": "2", "na": "2", "doubtful": "33", "wrong": "1;31"}
_STYLES = {"head": "bold", "foot": "dim", "na": "dim", "doubtful": "yellow", "wrong": "bold red"}
_SILENCE_S = 10.0  # rows wait for earlier ones; after so long without one, a line shows that the run continues
_SILENT_START_S = 3.0  # before the first case
_TICK_S = 1.0  # of the live line while a case runs
_ERASE_LINE = "\r\x1b[2K"
COLORS = ("auto", "always", "never")
BLOCKS = "·░▒▓█!"  # characters of pictures, from light to dark, and for what is wrong


def is_terminal(stream: TextIO, name: str = "stdout", environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the stream is a terminal. COLLBENCH_TTY of our own spawner decides first: "stdout,stderr", one of them, or "0".

    Under mpiexec a rank cannot detect it: MPICH pipes all output, and Open MPI gives each rank a pseudo-terminal even into a file.
    """
    source = os.environ if environ is None else environ
    terminals = source.get("COLLBENCH_TTY")
    if terminals is not None:
        return terminals == "1" or name in terminals.split(",")
    return "OMPI_COMM_WORLD_RANK" not in source and not stream.closed and stream.isatty()


def wants_color(stream: TextIO, color: str = "auto", environ: Mapping[str, str] | None = None) -> bool:
    """Return whether to use colors: by --color, then NO_COLOR, FORCE_COLOR, TERM=dumb, then whether it is a terminal.

    Raises UsageError for a `color` that is not in COLORS.
    """
    if color not in COLORS:
        raise UsageError(f"--color '{color}' is unknown: choose from {', '.join(COLORS)}")
    source = os.environ if environ is None else environ
    if color != "auto":
        return color == "always"
    if source.get("NO_COLOR"):
        return False
    if source.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return source.get("TERM") != "dumb" and is_terminal(stream, "stdout", source)


def make_screen(stream: TextIO, err: TextIO, color: str = "auto", quiet: bool = False) -> PlainScreen:
    """Return a live screen if stdout or stderr is a terminal, else a plain one; `quiet` keeps data and errors only."""
    painted = wants_color(stream, color)
    terminal = _live_terminal(stream, err)
    return PlainScreen(stream, err, painted, quiet) if quiet or terminal is None else LiveScreen(stream, err, terminal, painted)


def _live_terminal(stream: TextIO, err: TextIO) -> TextIO | None:
    """Return the stream that can show a live line, stdout first; None without one."""
    if os.environ.get("TERM") == "dumb":
        return None
    return next((candidate for candidate, name in ((stream, "stdout"), (err, "stderr")) if is_terminal(candidate, name)), None)


def announce(text: str, quiet: bool) -> None:
    """Show a status line on the terminal that a rank started by this process replaces. Elsewhere print nothing."""
    terminal = None if quiet else _live_terminal(sys.stdout, sys.stderr)
    if terminal:
        terminal.write(f"{_ERASE_LINE}{text}\r")  # an error that is printed first begins in the same line, and is longer
        terminal.flush()


class PlainScreen:
    """The destination of lines and progress; this one for files and pipes, `LiveScreen` for terminals.

    It writes one flushed line per call, never cut, without control characters except requested colors.
    """

    room: int | None = None

    def __init__(
        self, stream: TextIO, err: TextIO, color: bool = False, quiet: bool = False, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._err = err
        self._color = color
        self._quiet = quiet
        self._now = now
        self._last_s = now()

    def data(self, line: Line) -> None:
        """Write the line to stdout."""
        self._last_s = self._now()
        code = _CODES.get(line.style) if self._color else None
        write_line(self._stream, f"\x1b[{code}m{line.text}\x1b[0m" if code and line.text else line.text)

    def talk(self, text: str) -> None:
        """Write the text to stderr."""
        if not self._quiet:
            write_line(self._err, printable(text))

    def status(self, text: str, left_s: float | None = None) -> None:
        """Write the text to stderr if nothing was written for 3 s, with the seconds left if the command has a limit."""
        if self._now() - self._last_s >= _SILENT_START_S:
            self._last_s = self._now()
            self.talk(text if left_s is None else f"{text} {time_left(left_s)}")

    def progress(self, text: str, done: int, total: int, eta_s: float | None) -> None:
        """Write a line to stderr after 10 s without any line; otherwise the finished lines show the progress."""
        if done and self._now() - self._last_s >= _SILENCE_S:
            self._last_s = self._now()
            remaining = "" if eta_s is None else f", {time_left(eta_s)}"
            self.talk(f"{done} of {total} cases measured{remaining}: {text}")

    def close(self) -> None:
        """Remove the progress line, which this one does not have. It may be called more than once."""


class LiveScreen(PlainScreen):
    """A screen for a terminal: finished lines stay and scroll, only the last line is updated.

    `terminal` is the stream that is one; the other one may be a file and gets plain lines.
    """

    def __init__(self, stream: TextIO, err: TextIO, terminal: TextIO, color: bool) -> None:
        from rich.live import Live

        super().__init__(stream, err)
        self._stream_is_terminal = terminal is stream
        self._err_is_terminal = is_terminal(err, "stderr")
        self._console = _console(terminal, color)
        self.room: int | None = self._console.width if self._stream_is_terminal else None
        terminal.write(_ERASE_LINE)  # the status line of the process that started this one
        # Without rich's refresh, since a thread that wakes up four times a second would disturb the measurement.
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
        self._live.start()
        self._render: Callable[[str], RenderableType] | None = None
        self._eta_s: float | None = None
        self._shown_s = self._drawn_s = self._now()
        self._ended = Event()
        self._ticker = Thread(target=self._tick, name="time left", daemon=True)
        self._ticker.start()

    def data(self, line: Line) -> None:
        """Write the line above the progress line, or to the file if stdout is one."""
        if self._stream_is_terminal:
            self._above(line.text.rstrip("\r"), _STYLES.get(line.style, ""))
        else:
            super().data(line)

    def talk(self, text: str) -> None:
        """Write the text above the progress line, or to the file if stderr is one."""
        if self._err_is_terminal:
            self._above(printable(text), "")
        else:
            super().talk(text)

    def status(self, text: str, left_s: float | None = None) -> None:
        """Show the text in place of the live line."""
        from rich.text import Text

        self._show(lambda remaining: Text(printable(f"{text} {remaining}".rstrip()), no_wrap=True, overflow="ellipsis"), left_s)

    def progress(self, text: str, done: int, total: int, eta_s: float | None) -> None:
        """Redraw the live line."""
        self._show(lambda remaining: _progress(printable(text), done, total, remaining), eta_s)

    def close(self) -> None:
        """Remove the live line and restore the cursor."""
        self._ended.set()
        self._live.stop()

    def _show(self, render: Callable[[str], RenderableType], eta_s: float | None) -> None:
        """Show a live line, of which the time left goes on by itself."""
        self._render = render
        self._eta_s = eta_s
        self._shown_s = self._drawn_s = self._now()
        self._live.update(render(time_left(eta_s)), refresh=True)

    def _tick(self) -> None:
        """Redraw the line once per second while one case runs. Cases that are shorter redraw it themselves."""
        while not self._ended.wait(_TICK_S):
            now_s = self._now()
            render = self._render
            if render is None or now_s - self._drawn_s < _TICK_S * 0.9:
                continue
            self._drawn_s = now_s
            try:
                self._live.update(render(time_left(self._eta_s, now_s - self._shown_s)), refresh=True)
            except (OSError, ValueError):  # the output is closed
                return

    def _above(self, text: str, style: str) -> None:
        from rich.text import Text

        self._console.print(Text(text, style=style), soft_wrap=True)
        self._console.file.flush()


def time_left(eta_s: float | None, elapsed_s: float = 0.0) -> str:
    """Return "12 s left" of an estimate that was made `elapsed_s` ago, "3 s late" after it, and without one the seconds since then."""
    if eta_s is None:
        return format_duration(floor(elapsed_s)) if elapsed_s >= 1 else ""
    left_s = eta_s - elapsed_s
    return f"{format_duration(floor(-left_s))} late" if left_s <= -1 else f"{format_duration(ceil(max(left_s, 0.0)))} left"


def write_line(stream: TextIO, text: str) -> None:
    """Write and flush one line."""
    stream.write(f"{text}\n")
    stream.flush()


def check_format(format: str, choices: Iterable[str], context: str = "") -> None:
    """Raise UsageError for a format that is not one of `choices`; `context` is printed: " for pairs"."""
    formats = list(choices)
    if format in formats:
        return
    if "jsonl" in formats or {"table", "csv"} <= set(formats):  # records: their JSON has one object per line, and --help calls it jsonl
        formats = list(dict.fromkeys("jsonl" if name == "json" else name for name in formats))
    raise UsageError(f"unknown --format '{format}'{context}: choose from {', '.join(formats)}")


def print_lines(lines: Iterable[Line], stream: TextIO, color: bool = False, *, quiet: bool = False) -> None:
    """Print lines on `stream`, in colors if wanted; `quiet` leaves out the notes below a table."""
    screen = PlainScreen(stream, stream, color)
    for line in lines:
        if not (quiet and line.style == "foot"):
            screen.data(line)


def _console(stream: TextIO, color: bool) -> Console:
    from rich.console import Console

    return Console(
        file=stream, force_terminal=True, color_system="standard" if color else None, no_color=not color, highlight=False, markup=False
    )


def _progress(text: str, done: int, total: int, remaining: str) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2))
    for width in (20, len(f"{total}/{total}"), len(remaining)):
        line.add_column(min_width=width, no_wrap=True)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_row(ProgressBar(total=max(total, 1), completed=done, width=20), Text(f"{done}/{total}"), Text(remaining), Text(text))
    return line


# Line breaks of trees and lists on a terminal: a line continues below its own beginning, not at the screen's edge.

_LEAST = 40  # columns; on a narrower terminal its own line breaks are used
_BRANCHES = str.maketrans({"├": "│", "└": " ", "─": " "})
_HANG = 2


def width_of(stream: TextIO) -> int | None:
    """Return the number of columns of the terminal; None for a file or a pipe, where lines stay whole."""
    if not is_terminal(stream):
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return columns if columns >= _LEAST else None


def display_of(stream: TextIO, color: bool) -> Display:
    """Return the width and the characters of a stream."""
    try:
        BLOCKS.encode(stream.encoding or "utf-8")
        blocks = True
    except (UnicodeEncodeError, LookupError):
        blocks = False
    return Display(width_of(stream), color, blocks)


def wrapped(lines: Iterable[Line], width: int | None) -> Iterator[Line]:
    """Yield the lines, wrapped to `width` with the tree's branches continued; unchanged if `width` is None."""
    for line in lines:
        if width is None or line.whole or len(line.text) <= width:
            yield line
            continue
        text = line.text.lstrip(" │├└─")
        indent = line.text[: len(line.text) - len(text)]
        below = indent.translate(_BRANCHES) + " " * _HANG
        parts = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=below, break_on_hyphens=False)
        yield from (Line(part, line.style) for part in parts)
