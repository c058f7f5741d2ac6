"""Which layers and which algorithm UCC chose: read from its log, which is on only while teams are made and during untimed calls.

UCC has no query for its choice, but its log has it: a line for each request that is made ("coll_init"), with the request's layers, and for
each team a table of the algorithms by size ("COLL_SCORE_MAP"). Its levels are in memory that the library exports (`ucc_global_config`), so
that they can be changed at any time. They are changed only where that memory looks as in UCC 1.8.0; elsewhere the choice stays unknown.

The log goes to a file in memory while it is on, else to stderr, since stdout has rows.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from collbench.units import parse_size

_HEAD = re.compile(r"COLL_SCORE_MAP \(team_id (\d{1,6}), size (\d{1,9})\)")
_COLLECTIVE = re.compile(r"\sINFO\s+(\w{1,32}):\s*$")
_HOST = re.compile(r"\sINFO\s+Host: (\{.{1,4000})$")
_RANGE = re.compile(r"\{(\w{1,24})(?:\.\.(\w{1,24}))?\}:(\w{1,32}):\w{1,16}(?:=(\w{1,128}))?(?=\s|$)")
_MADE = re.compile(r"coll_init: (\w{1,32})\b([^;]{0,512}); (CL_\w{1,32}) \{(\w[\w, ]{0,64})\}, team_id (\d{1,6})")
_PART = re.compile(r"(src|dst)=\{\w{1,32}, (\d{1,20}), (\w{1,32}), \w{1,32}\}")
_NAME = re.compile(r"ucc_tl_[a-z0-9]+_(?P<collective>[a-z]+(?:_scatterv?)?)_(?P<algorithm>\w+)_init")
_WIDTH = re.compile(r"[a-z]+(8|16|32|64|128)(_complex)?")
_UNSIZED: Final = frozenset({"alltoallv", "gatherv", "scatterv"})  # UCC selects for 0 bytes: no rank knows the others' sizes
_DOUBTS = re.compile(r"\s(?:FATAL|ERROR|WARN|DIAG)\s")


class SizeRange(msgspec.Struct, frozen=True):
    """Sizes for which a team has one choice: from `first` to `last` bytes (None: no end). algorithm: None if the log has no name of it."""

    first: int
    last: int | None
    layer: str
    algorithm: str | None


class AlgorithmTable(msgspec.Struct, frozen=True):
    """The choices of a team of `ranks` ranks on host memory, by collective ("allreduce")."""

    ranks: int
    ranges: dict[str, tuple[SizeRange, ...]] = msgspec.field(default_factory=dict)

    def of(self, collective: str, n_bytes: int, layer: str) -> str | None:
        """Return the algorithm for this size, if the table's layer is the one that took the request; else None."""
        for sizes in self.ranges.get(collective, ()):
            if sizes.first <= n_bytes and (sizes.last is None or n_bytes <= sizes.last):
                return sizes.algorithm if sizes.layer == layer else None
        return None


def read_tables(lines: Iterable[str]) -> dict[int, AlgorithmTable]:
    """Return the tables of a log, by the number of the team."""
    tables: dict[int, AlgorithmTable] = {}
    table: AlgorithmTable | None = None
    collective = ""
    for line in lines:
        if head := _HEAD.search(line):
            table = AlgorithmTable(int(head[2]))
            tables[int(head[1])] = table
        elif title := _COLLECTIVE.search(line):
            collective = title[1].lower()
        elif table and collective and (host := _HOST.search(line)):
            table.ranges[collective] = tuple(_ranges(host[1], collective))
    return tables


def _ranges(text: str, collective: str) -> Iterator[SizeRange]:
    for first, last, layer, function in _RANGE.findall(text):
        name = _NAME.fullmatch(function)
        algorithm = name["algorithm"] if name and name["collective"] == collective else None
        yield SizeRange(_bytes(first), None if last == "inf" else _bytes(last or first), layer, algorithm)


def _bytes(text: str) -> int:
    return 0 if text == "0" else parse_size(text)


def read_choices(lines: Iterable[str], tables: dict[int, AlgorithmTable]) -> list[dict[str, Any]]:
    """Return {"collective", "composition", "layers", "algorithm"} of each request in a log; equal ones once.

    composition   the layer that combines others ("CL_BASIC"); layers: those that move the data ("TL_UCP")
    algorithm     None where the log does not have its name
    """
    choices: list[dict[str, Any]] = []
    for request in filter(None, map(_MADE.search, lines)):
        name, buffers, composition, layer_names, team = request.groups()
        collective = name.lower()
        layers = layer_names.split(", ")
        table = tables.get(int(team))
        size = _bytes_of(collective, buffers, table.ranks) if table else None
        algorithm = table.of(collective, size, layers[0]) if table and size is not None and len(layers) == 1 else None
        choice = {"collective": collective, "composition": composition, "layers": layers, "algorithm": algorithm}
        if choice not in choices:
            choices.append(choice)
    return choices


def _bytes_of(collective: str, text: str, ranks: int) -> int | None:
    """Return the size by which UCC selects (ucc_coll_args_msgsize), from the buffers of a request; None for types of unknown width."""
    parts = {name: (int(count), _WIDTH.fullmatch(dtype)) for name, count, dtype in _PART.findall(text)}
    if collective in _UNSIZED or not parts:
        return 0
    count, width = parts.get("dst") or parts["src"]
    if width is None:
        return None
    element_bytes = int(width[1]) // 8 * (2 if width[2] else 1)
    is_one_part = collective == "gather" and "dst" not in parts  # at a rank other than the root
    return count * element_bytes * (ranks if is_one_part else 1)


_USER_VARIABLES: Final = ("UCC_LOG_FILE", "UCC_LOG_LEVEL", "UCC_COLL_TRACE")  # if the user sets one, the log is the user's
# UCC_LOG_LEVEL_*
_INFO = 4
_DEBUG = 5
_MOST = 12


class _Levels(ctypes.Structure):
    """The beginning of ucc_global_config_t."""

    _fields_ = [
        ("log", ctypes.c_int), ("log_name", ctypes.c_char * 16), ("log_files", ctypes.c_void_p),
        ("trace", ctypes.c_int), ("trace_name", ctypes.c_char * 16), ("trace_files", ctypes.c_void_p),
    ]  # fmt: skip

    @classmethod
    def of(cls, library: ctypes.CDLL) -> Self | None:
        """Return the levels of a started library; None where they are not at the place where 1.8.0 has them."""
        try:
            levels = cls.in_dll(library, "ucc_global_config")
        except ValueError:
            return None
        has_names = levels.log_name == b"UCC" and levels.trace_name == b"UCC_COLL"
        return levels if has_names and 0 <= levels.log <= _MOST and 0 <= levels.trace <= _MOST else None


class ChoiceLog:
    """UCC's log in this process. Without it every choice is unknown: the lists of `witness` stay empty."""

    def __init__(self) -> None:
        self._levels: _Levels | None = None
        self._tables: dict[int, AlgorithmTable] = {}
        self._memory = os.memfd_create("ucc-log")
        self._stream: int | None = None

    @contextmanager
    def start(self, library: ctypes.CDLL) -> Iterator[None]:
        """Direct the log of the library, which starts in the block, to stderr; unless the user directs it, or it has started before."""
        if any(name in os.environ for name in _USER_VARIABLES):
            yield
            return
        os.environ["UCC_LOG_FILE"] = f"/proc/self/fd/{self._memory}"
        try:
            yield
        finally:
            del os.environ["UCC_LOG_FILE"]
            self._stream = self._find_stream()
            if self._stream is not None:
                self._forward(self._take())
                os.dup2(2, self._stream)
                self._levels = _Levels.of(library)

    def _find_stream(self) -> int | None:
        """Return the file that the library opened for its log."""
        memory = os.fstat(self._memory)
        for entry in Path("/proc/self/fd").iterdir():
            number = int(entry.name)
            try:
                same = number != self._memory and os.path.samestat(os.fstat(number), memory)
            except OSError:  # the folder's own
                continue
            if same:
                return number
        return None

    @contextmanager
    def making_team(self) -> Iterator[None]:
        """Read the tables of the teams that are made in the block."""
        with self._on("log", _DEBUG) as lines:
            yield
        self._tables |= read_tables(lines)

    @contextmanager
    def witness(self) -> Iterator[list[dict[str, Any]]]:
        """Yield a list, which has the choices for the requests made in the block when it ends. See `read_choices`."""
        choices: list[dict[str, Any]] = []
        with self._on("trace", _INFO) as lines:
            yield choices
        choices += read_choices(lines, self._tables)

    @contextmanager
    def _on(self, part: str, level: int) -> Iterator[list[str]]:
        """Yield a list, which has the lines that the library logged in the block when it ends."""
        lines: list[str] = []
        if self._levels is None or self._stream is None:
            yield lines
            return
        _flush()
        os.dup2(self._memory, self._stream)
        before = getattr(self._levels, part)
        setattr(self._levels, part, level)
        try:
            yield lines
        finally:
            setattr(self._levels, part, before)
            lines += self._take()
            os.dup2(2, self._stream)
            self._forward(lines)

    def _take(self) -> list[str]:
        """Return what the library has written to the file in memory, and empty the file."""
        _flush()
        text = os.pread(self._memory, os.fstat(self._memory).st_size, 0)
        os.ftruncate(self._memory, 0)
        os.lseek(self._memory, 0, os.SEEK_SET)
        return text.decode(errors="replace").splitlines()

    def _forward(self, lines: Iterable[str]) -> None:
        for line in lines:
            if _DOUBTS.search(line):
                print(line, file=sys.stderr)

    def close(self) -> None:
        """Close the file in memory. The library keeps its own, which is stderr."""
        os.close(self._memory)


def _flush() -> None:
    ctypes.CDLL(None).fflush(None)
