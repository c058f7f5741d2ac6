"""What nccl-tests' and rccl-tests' text is made of: the lines of its head, of its table and of its foot (src/util.cu, 2.0 to 2.19)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from collbench.results.importers.prefixes import split_prefix

_DATE = re.compile(r"\d{4}-\d\d-\d\d$")
_VERSION = re.compile(r"#\s*([nr]ccl)-tests version (\S+)(?:.*?[nr]ccl-library=(\d+))?")
_RCCL_VERSION = re.compile(r"(.{0,120}?)#?\s*\brccl-tests: Version (\S+)")
_PROGRAM = re.compile(r"Collective test (?:starting|concluded): (.+)")
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d{1,7}) (?:Group\s+(\d{1,7}) )?Pid\s+(\d{1,10}) on\s+(\S{1,256}) device\s+(\d{1,4}) \[([^\]]{0,40})\] ?(.{0,200})"
)
_NUMBERS = {
    "gpus": re.compile(r"nGpus (\d+)"), "threads": re.compile(r"nThread (\d+)"), "warmup": re.compile(r"warmup iters: (\d+)"),
    "iterations": re.compile(r"(?<!warmup )(?<!agg )iters: (\d+)"), "calls": re.compile(r"agg iters: (\d+)"),
    "validation": re.compile(r"validation: (\d+)"), "graph": re.compile(r"graph: (\d+)"),
}  # fmt: skip
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")
# Web pages and Markdown take the # for a heading and drop it.
_UNMARKED = re.compile(
    r"\s*(?:nThread \d|Using devices|Rank\s+\d{1,7}\s.{0,80}Pid\s+\d|Out of bounds values\s*:|Avg bus bandwidth\s*:"
    r"|Collective test (?:starting|concluded):|[nr]ccl-tests version \d|size\s+count\s+(?:\(elements\)\s+)?type\s)"
)
_OLD_ERROR = re.compile(r"\d(?:\.\d+)?e-\d+|0e\+00|\d*\.\d+")
_LONGEST = 4096  # letters of a line of a table or a comment
_BODY, _WIDE = 4, 8  # time, algbw, busbw, #wrong; with -I 1 also i_min, i_max, i_p99, i_cv%
_GAP = re.compile(r"\s{30,}")  # where the out-of-place figures were left out


class Body(NamedTuple):
    """The figures of one placing as they are printed; per_iteration (-I 1): i_min, i_max, i_p99, i_cv%, of JSON p95, too."""

    time: str
    algbw: str
    busbw: str
    wrong: str
    per_iteration: tuple[str, ...] = ()


class Line(NamedTuple):
    """One line of a table; `placed` is out of place, then in place. redop and root are None where none is printed."""

    number: int
    size: int
    elements: int
    dtype: str
    redop: str | None
    root: int | None
    placed: tuple[Body | None, Body | None]

    @property
    def cell(self) -> tuple[int, str, str | None, int | None]:
        """What tells it from the others of its table."""
        return self.size, self.dtype, self.redop, self.root


class Device(NamedTuple):
    """A rank's line under "Using devices"."""

    rank: int
    group: int
    host: str
    device: int
    address: str
    name: str


@dataclass
class Head:
    """What stands around a table.

    starts    how many heads were printed before it: more than one means jobs that print into each other
    numbers   warmup, iterations, calls (per iteration), validation, graph, as far as they are told
    blocking  -z: 1 to 3
    old       whether the fourth column is the largest error instead of the number of wrong elements; None: there is no header
    bad       "Out of bounds values"
    cut       whether the list of devices was too long for its buffer
    averaged  whose time it is (-a); the text does not say, and the default is the ranks' average
    """

    tool: str = "nccl-tests"
    version: str | None = None
    library: str | None = None
    program: str | None = None
    starts: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    blocking: int = 0
    wide: bool = False
    cpu_time: bool = False
    old: bool | None = None
    bad: int | None = None
    devices: list[Device] = field(default_factory=list)
    cut: bool = False
    averaged: str = "averaged over the ranks"
    environment: dict[str, str] = field(default_factory=dict)

    def take(self, text: str) -> None:
        """Takes what a line that begins with # says; an unknown one is ignored."""
        if device := _DEVICE.match(text):
            rank, group, _, host, number, address, name = device.groups()
            self.devices.append(Device(int(rank), int(group or 0), host, int(number), address, name.strip()))
        elif version := _VERSION.match(text):
            self.tool, self.version, library = f"{version[1]}-tests", version[2], version[3]
            self.library = dotted(int(library)) if library and len(library) < 10 else None
        elif text.startswith("# nThread"):
            self.starts += 1
            self.numbers |= {name: int(found[1][:9]) for name, form in _NUMBERS.items() if (found := form.search(text))}
        elif program := _PROGRAM.search(text):
            self.program = program[1].strip()
        elif bad := _OUT_OF_BOUNDS.search(text):
            self.bad = int(bad[1][:18])
        else:
            self._take_rest(text)

    def _take_rest(self, text: str) -> None:
        words = text.split()
        if "Blocking Enabled" in text:
            self.blocking = 3 if "outer iteration" in text else 2 if "no barrier" in text else 1
        elif "algbw" in words and "busbw" in words:
            self.wide, self.cpu_time, self.old = "i_min" in words, "cputime" in words, not {"error", "res"}.isdisjoint(words)
        elif text.rstrip().endswith("...") and self.devices:
            self.cut = True


def rccl_version(text: str) -> tuple[str, str] | None:
    """(the writer's tag, the version) of "rccl-tests: Version develop:83d38d9", which is printed without #."""
    found = _RCCL_VERSION.match(text)
    return (split_prefix(f"{found[1]} #").writer, found[2]) if found else None


def dotted(code: int) -> str:
    """NCCL_VERSION_CODE as people write it: 22907 is 2.29.7, 2708 is 2.7.8 (nccl.h changed the form with 2.9)."""
    major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def split_line(line: str) -> tuple[str, str] | None:
    """(the writer's tag, the line); None for what is neither a comment nor begins with a number."""
    writer, text = split_prefix(line)
    first = text.lstrip()[:1] if len(text) < _LONGEST else ""
    if first == "#" or (first.isalpha() and _UNMARKED.match(text)):
        return writer, f"# {text.strip()}" if first != "#" else text.lstrip()
    return (writer, text) if first.isdigit() else None


def shows_errors(lines: Iterable[Line]) -> bool:
    """Whether the fourth column is the largest error, as in old versions, where no header says so: "2e-01", "0e+00"."""
    return any(_OLD_ERROR.fullmatch(body.wrong) for line in lines for body in line.placed if body)


def parse_line(number: int, text: str, wide: bool) -> Line | None:
    """A line of the table, None for any other; `wide`: the header names the columns of -I 1.

    Older versions leave redop and root out, or print redop as nothing.
    """
    words = text.split()
    if len(words) < 3 + _BODY or not (words[0].isdecimal() and words[1].isdecimal()) or len(words[0]) > 18 or len(words[1]) > 18:
        return None
    at = 4 if _is_word(words[3]) else 3
    figures = words[at:-2] if len(words) > 8 and _DATE.match(words[-2]) else words[at:]
    root = figures.pop(0) if len(figures) % _BODY == 1 else None
    placed = _placed(figures, wide, text)
    if placed is None or _is_number(words[2]) or (root is not None and not root.lstrip("-").isdecimal()):
        return None
    redop = words[3] if at == 4 and words[3] != "none" else None
    return Line(number, int(words[0]), int(words[1]), words[2], redop, _root(root), placed)


def _placed(figures: list[str], wide: bool, text: str) -> tuple[Body | None, Body | None] | None:
    width = _WIDE if wide or len(figures) == 2 * _WIDE else _BODY
    if len(figures) not in (width, 2 * width) or not all(_is_figure(word) for word in figures):
        return None
    first = _body(figures[:width])
    if len(figures) == width:  # cut off in the middle, or of a replay, which has no out-of-place figures
        return (None, first) if _GAP.search(text.rstrip()) else (first, None)
    return first, _body(figures[width:])


def _body(words: list[str]) -> Body | None:
    return None if words[0] == "N/A" else Body(words[0], words[1], words[2], words[3], tuple(words[_BODY:]))


def _root(text: str | None) -> int | None:
    return int(text) if text and len(text) < 9 and text.isdecimal() else None


def _is_word(text: str) -> bool:
    return text[0].isalpha() and text[:3] not in ("N/A", "nan", "inf")


def _is_number(text: str) -> bool:
    return text[0] in "-.0123456789"


def _is_figure(text: str) -> bool:
    return text[0] in "-+.0123456789" or text in ("N/A", "nan", "-nan", "inf")
