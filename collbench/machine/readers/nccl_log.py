"""The data path in a log of NCCL or RCCL (NCCL_DEBUG=INFO).

Only the connection lines, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/3/GDRDMA", prove a path. Lines such as "Using network IB",
"GPU Direct RDMA Enabled for HCA 0" or "NET/Socket : Using" show what could be used. Formats from 2.4 to 2.30 are known.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from collbench.machine.readers.log_messages import LoggedMessage, MessageCounter, info_hints, line_hints, place_of
from collbench.machine.readers.nccl_startup import (
    OF_A_CALL,
    CollNet,
    CollNetDevice,
    Communicator,
    LogLibrary,
    LogSetting,
    Release,
    StartupFact,
    head_facts,
    only_rccl,
    release_in,
    startup_facts,
    text,
    tree_facts,
)
from collbench.machine.readers.text import HEAD, Unreadable, printable
from collbench.machine.sources import is_folder, text_of
from collbench.untrusted import open_file

# The lines of a log of any size, read in blocks, so that memory does not grow with the file. Pipes, devices and binaries are rejected.

LONGEST = 4096  # bytes of a line that are examined; ring listings of thousands of ranks are cut
_BLOCK = 1 << 20
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstandard


def is_packed(path: Path) -> bool:
    """Return whether the file is compressed. Raises Unreadable when it is not a file or cannot be read."""
    with _opened(path) as read:
        return read(8).startswith(_PACKED)


def lines_in(path: Path) -> Iterator[list[bytes]]:
    """Yield the file's lines, one block at a time; an incomplete last line counts.

    Raises Unreadable for a folder, pipe or device, and for a file that is empty, binary, or cannot be read completely.
    """
    with _opened(path) as read:
        head = read(_BLOCK)
        if not head.strip():
            raise Unreadable(f"{printable(path.name)} is empty: save NCCL's log into it again")
        if b"\x00" in head[:HEAD]:
            raise Unreadable(f"{printable(path.name)} is binary, no log of NCCL: name the text that NCCL_DEBUG=INFO prints")
        yield from lines_of(read, head)


def lines_of(read: Callable[[int], bytes], begun: bytes = b"") -> Iterator[list[bytes]]:
    """Yield lists of lines from `begun` and then `read(at most)`. Of an endless line, a few thousand bytes are kept."""
    rest, block = b"", begun or read(_BLOCK)
    while block:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()[:LONGEST]
        yield lines
        block = read(_BLOCK)
    yield [rest]


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[int], bytes]]:
    """Open a regular file without blocking and yield its `read`; read errors become Unreadable."""
    if is_folder(path):
        raise Unreadable(f"{printable(str(path))} is a folder: name the file that holds NCCL's log")
    try:
        with open_file(path) as file:
            yield file.read
    except OSError as why:
        reason = why.strerror or type(why).__name__
        raise Unreadable(f"{printable(str(path))} cannot be read ({reason}): name the file that holds NCCL's log") from None


# The facts of one message of NCCL or RCCL. Formats of 2.4 to 2.32, from NCCL's sources of 2.18 to 2.30 and the library 2.32.3.
#
# A message is the text after "NCCL INFO ". The only state is a cache of results for equal messages.

GDR = "/GDRDMA"
SHARED_MEMORY = "SHM"

_LONGEST_INDEX = 3  # of GPUs; addresses have four digits or more
_MOST_ANSWERS = 4096  # every rank of a host prints equal messages, some with every call
# include/nccl_common.h of 2.20 to 2.23, which print numbers; later ones print names (collectives.cc)
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_PLUGIN = rb"NET/(?:[A-Za-z0-9_.-]{1,40} ){1,3}[A-Za-z0-9_.-]{1,40}/[\w./()\[\]-]{1,60}"  # "NET/AWS Libfabric/0/GDRDMA"
_WAY = re.compile(rb"direct shared memory|P2P/direct pointer|" + _PLUGIN + rb"|[A-Z][\w./()\[\]-]{1,100}")
_PROXY = re.compile(r"\([^()]{0,40}\)")
_RANK = re.compile(rb"(\d{1,7})(?:\[([0-9a-f]{1,8})\])?")
_CHANNEL = re.compile(rb"\[?(\d{1,4})\]?(?:/\d{1,4})?")
_NETWORK = re.compile(rb"Using network (\S[\w .-]{0,60})")
_DEVICES = re.compile(rb"NET/(IB|Socket) ?: Using (.{0,4096})")
_DEVICE = re.compile(rb"\[(\d{1,4})\]([\w.-]{1,64}(?::\d{1,3}(?::\d{0,5}){0,2}/\w{1,10})?)(/SHARP)?")
_FUSED = re.compile(rb"\[(\d{1,4})\]=\{([^{}]{1,400})\}")  # the two ports of a card as one device, 2.20 to 2.23
_PART = re.compile(rb"\[\d{1,4}\] ([\w.-]{1,64}:\d{1,3}/\w{1,10})")
_VIRTUAL = re.compile(rb"Made virtual device \[(\d{1,4})\] name=([\w.+-]{1,200})")
_GDR = re.compile(rb"GPU Direct RDMA (Enabled|Disabled) for (?:GPU \S{1,40} / )?HCA ([0-9a-f]{1,16})\b(?: '([^']{1,64})')?")
_DMA_BUF = re.compile(rb"DMA-BUF (?:is (not )?available|registrations: (true|false))")
_NVLS = re.compile(rb"NVLS multicast support is (not )?available")
_SPEED_OF = re.compile(rb"/sys/class/net/([\w.-]{1,64})/speed")
_RANKS = re.compile(rb"\bnranks (\d{1,7})\b", re.IGNORECASE)
_GRAPH = re.compile(rb"\+ ([A-Z][A-Z0-9]{1,5})\[(\d{1,7}\.\d{1,3})\] - ")
_PATH = re.compile(rb"\(\d{1,3}/\d{1,7}\.\d{1,3}/([A-Z][A-Z0-9]{1,5})\)")
_PROVIDER = re.compile(rb"Selected Provider is ([^\s,]{1,40})(?:, fabric is [^()]{1,80})?(?: \(found (\d{1,4}) nics\))?", re.IGNORECASE)
_STATED = re.compile(rb"(\d{1,5}) (coll|collnet|nvls|p2p) channels(?! per)")
_CHOICE = re.compile(
    rb"(?:([A-Z][A-Za-z]{1,30})(?: \[([A-Za-z ]{1,30})\])?: )?(\d{1,18}) Bytes -> "
    rb"(?:Algo (\w{1,30}) proto (\w{1,20})|Kernel (\w{1,60})|cudaMemcpy|RMA proxy|Rail )"
)
_SPAN = re.compile(rb"channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}")
_TREE = frozenset({b" ", b"+"})  # "              + PCI[24.0] - GPU/0-cf000 (5)"
_LISTING = frozenset({b"Chan", b"Ring"})
_COUNT = re.compile(rb"nchannels (\d{1,4})")
_TABLE_PROTOCOLS = ("LL", "LL128", "Simple")
_TABLE_COLLECTIVES = frozenset({b"Broadcast", b"Reduce", b"AllGather", b"ReduceScatter", b"AllReduce"})
_TABLE_NAME = re.compile(rb"[A-Za-z_]{1,20}(?: {0,20}/ {0,20}[A-Za-z0-9]{1,10})?")
_TABLE_ENTRY = re.compile(rb" {0,20}(\d{1,9}\.\d)/ {0,20}(\d{1,9}\.\d) ?")
_MOST_COLUMNS = 64


class Connection(NamedTuple):
    """A line that proves a path: "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA".

    channel, source and target are None if the line has none. `way`: "send", "receive" or "" (inside a host). `gpu`: the GPU
    that wrote the line ("3", "0000:1b:00.0"), None when unknown.
    """

    channel: int | None
    source: int | None
    target: int | None
    way: str
    transport: str
    gpu: str | None


@dataclass(frozen=True, slots=True)
class CallChoice:
    """NCCL's choice for a call: algorithm ("RING"), protocol ("SIMPLE") and number of channels; None if not printed."""

    algorithm: str | None
    protocol: str | None
    channels: int | None


class TunedRate(NamedTuple):
    """An entry of NCCL's own table (subsystem TUNING): latency and algorithm bandwidth by which it selects algorithm and protocol.

    Names are as in the table: "AllReduce", "Ring", "LL128". gb_per_s is 0 if NCCL cannot or may not use the combination.
    """

    collective: str
    algorithm: str
    protocol: str
    latency_us: float
    gb_per_s: float


# A fact of a message other than a connection: (table of `LogFacts`, key, value).
Entry = tuple[str, Any, Any]


@lru_cache(maxsize=_MOST_ANSWERS)
def parse_line(message: bytes) -> tuple[Entry, ...]:
    """Return the facts of a message; () without any. The cheap tests come first, since most messages pass none."""
    if b" Bytes -> " in message and (choice := _choice(message)):
        return (("choices", choice, 1),)
    if message[:1] in _TREE and (widths := _GRAPH.findall(message)):
        graph: list[Entry] = [("graph", (text(kind), float(width)), None) for kind, width in widths]
        return (*(("startup", fact, None) for fact in tree_facts(message)), *graph)
    if message[:4] in _LISTING and (listing := _listing(message)):
        return (("listings", listing[1], listing[0]),)
    return tuple(_parse_words(message))


@lru_cache(maxsize=_MOST_ANSWERS)
def transport(text: bytes) -> str | None:
    """Return the transport after "via": "NET/IB/3/GDRDMA", "P2P/CUMEM/read", "SHM"; None for other text.

    Without proxy ranks, kinds of memory in brackets and what follows GDRDMA. Old and new names of shared memory are unified.
    """
    match = _WAY.match(text)
    if not match:
        return None
    bare = _PROXY.sub("", match[0].decode("ascii", "replace")).rstrip("/.")
    if bare == "direct shared memory" or bare.split("/")[0] == SHARED_MEMORY:
        return SHARED_MEMORY
    before, direct, _ = bare.partition(GDR)
    return before + direct if direct else bare.removesuffix("/Shared")


def connection(left: bytes, right: bytes) -> Connection | None:
    """Return the path that a line proves, from the text before and after "via"; None for other messages."""
    found = transport(right)
    if found is None:
        return None
    parts = left.split()
    way = parts.pop()[1:-1].decode("ascii", "replace") if parts and parts[-1] in (b"[send]", b"[receive]") else ""
    if len(parts) < 4 or parts[2] != b":":
        return Connection(None, None, None, way, found, None)
    # a [send] line is written by the sending GPU, a [receive] line by the receiving one
    channel, source = _CHANNEL.fullmatch(parts[1]), _RANK.fullmatch(parts[3])
    target = _RANK.fullmatch(parts[5]) if len(parts) > 5 and parts[4] == b"->" else None
    writer = source if way == "send" else target if way == "receive" else None
    return Connection(
        int(channel[1]) if channel else None, int(source[1]) if source else None, int(target[1]) if target else None, way, found,
        _gpu(writer[2].decode()) if writer and writer[2] else None,
    )  # fmt: skip


def _parse_words(message: bytes) -> Iterator[Entry]:
    if b"anks " in message and (match := _RANKS.search(message)):
        yield "ranks", None, int(match[1])
    if b"Using " in message:
        yield from _used(message)
    if b" RDMA " in message and (match := _GDR.search(message)):
        name = text(match[3]) if match[3] else f"HCA {text(match[2])}"
        yield "gdr", (match[1] == b"Enabled", name), None
        if match[3] and match[2].isdigit():
            yield "nics", int(match[2]), name
    if b"Made virtual" in message and (match := _VIRTUAL.search(message)):
        yield "nics", int(match[1]), text(match[2])
    if b"DMA-BUF" in message and (match := _DMA_BUF.search(message)):
        yield "dma_buf", match[1] is None and match[2] != b"false", None
    if b"NVLS mult" in message and (match := _NVLS.search(message)):
        yield "nvls", match[1] is None, None
    yield from (("startup", fact, None) for fact in startup_facts(message))
    if b"efaulting to 10 Gbps" in message:
        named = _SPEED_OF.search(message)
        yield "speeds", text(named[1]) if named else "?", None
    if b"elected " in message and (match := _PROVIDER.search(message)):
        yield "provider", None, (text(match[1]), int(match[2]) if match[2] else None)
    if b"(" in message:
        yield from (("paths", text(kind), 1) for kind in _PATH.findall(message) if kind != _BELOW_SWITCH)
    if b" channels" in message:
        yield from (("stated", text(kind), int(count)) for count, kind in _STATED.findall(message))


def _listing(message: bytes) -> tuple[int, bool] | None:
    """Return the minimum number of ranks in "Channel 00/16 :  0 7 6 5 ...", and whether the list is truncated."""
    parts = message.partition(b" :")[2].split()
    short = parts[-1:] == [b"..."]
    numbers = parts[:-1] if short else parts
    if not numbers or not all(part.isdigit() and len(part) < 8 for part in numbers):
        return None
    return max(map(int, numbers)) + 1, short


def _used(message: bytes) -> Iterator[Entry]:
    if match := _NETWORK.search(message):
        yield "networks", text(match[1]).strip(), None
    if match := _DEVICES.search(message):
        kind, listed = text(match[1]), match[2].partition(b"OOB")[0]
        fused = [(int(number), "+".join(map(text, _PART.findall(parts)))) for number, parts in _FUSED.findall(listed)]
        single = [(int(number), text(name)) for number, name, _ in _DEVICE.findall(_FUSED.sub(b"", listed))]
        for number, name in sorted(fused + single):
            yield "devices", (kind, name), None
            yield "listed", (kind, number), name
        if b"/SHARP" in message:
            yield from (("startup", CollNetDevice(text(name)), None) for _, name, sharp in _DEVICE.findall(match[2]) if sharp)


def _choice(message: bytes) -> tuple[str | None, int, CallChoice] | None:
    match = _CHOICE.search(message)
    if not match:
        return None
    collective, special, size, algorithm, protocol, kernel = (text(part) if part else None for part in match.groups())
    span, count = _SPAN.search(message), _COUNT.search(message)
    channels = int(span[2]) - int(span[1]) + 1 if span else int(count[1]) if count else None
    if algorithm:
        return collective, int(size or 0), CallChoice(_named(algorithm, _ALGORITHMS), _named(protocol or "", _PROTOCOLS), channels)
    return collective, int(size or 0), CallChoice(" ".join(filter(None, (special, kernel))) or None, None, channels)


def _named(word: str, names: tuple[str, ...]) -> str:
    return names[int(word)] if word.isdigit() and int(word) < len(names) else word.upper()


def table_columns(message: bytes) -> list[tuple[str, str]] | None:
    """Return (algorithm, protocol) of each column below a heading of the table; None for other messages.

    "  Algorithm   |     Tree     |     Ring     |" has three protocols below each name; NCCL before 2.19 prints
    "Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |" instead.
    """
    parts = [part.strip() for part in message.split(b"|")]
    if parts[0] not in (b"Algorithm", b"Latency/AlgBw") or len(parts) > _MOST_COLUMNS or not all(map(_TABLE_NAME.fullmatch, parts[1:-1])):
        return None
    names = [text(part) for part in parts[1:-1]]
    if parts[0] == b"Algorithm":
        return [(name, protocol) for name in names for protocol in _TABLE_PROTOCOLS]
    halves = [name.partition("/") for name in names]
    return [(algorithm.strip(), protocol.strip()) for algorithm, _, protocol in halves]


def table_row(message: bytes, columns: Sequence[tuple[str, str]]) -> list[TunedRate] | None:
    """Return the entries of a row of the table, "AllReduce |  16.8/  0.5 |  31.0/  0.0 |"; None for other messages."""
    name, *fields = message.split(b"|")
    if name.strip() not in _TABLE_COLLECTIVES or len(fields) != len(columns) + 1 or fields[-1].strip():
        return None
    found = [_TABLE_ENTRY.fullmatch(part) for part in fields[:-1]]
    return [
        TunedRate(text(name.strip()), *column, float(match[1]), float(match[2]))
        for column, match in zip(columns, found, strict=True)
        if match is not None
    ]


def _gpu(found: str) -> str:
    """Return the driver's number, or the PCI address that older logs print as one hexadecimal number ("1b000")."""
    if len(found) <= _LONGEST_INDEX:
        return found
    number = int(found, 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


# Totals of a log's lines in limited memory: each kind of fact has a maximum number, for any input.
#
# Equal lines are only counted; their facts are added once at the end.

MOST_CHANNELS = 16384  # connections that are stored one by one: those of 512 ranks with 16 channels, in both directions
_MOST = 4096  # of names with counts: transports, sizes, widths
_MOST_HOSTS = 65536
_LIMITS = {
    "startup": _MOST_HOSTS,
    "listed": _MOST_HOSTS,
    "listed_ranks": _MOST_HOSTS,
    "nics": _MOST_HOSTS,
    "hosts": _MOST_HOSTS,
    "warnings": 100,
    "unexplained": 100,
}
_COUNTED = frozenset({"transports", "choices", "paths"})  # tables with the number of lines by key
_LARGEST = frozenset({"ranks", "listings", "stated"})  # of several communicators the one with the most
_LAST = frozenset({"networks", "provider"})  # the last one in the log becomes the last entry
_BY_HOST = frozenset({"startup", "listed", "nics"})  # with keys (host, key)
_AT_ONCE = _BY_HOST | {"devices", "networks"}  # entered in the order of the lines, once for each host and message
_LONGEST_PATH = 120
_MOST_ENTRIES = 1024
_MOST_TABLES = 2  # of several communicators: with two it is not known which one a call uses
_MOST_REMEMBERED = 8192  # cached results, which only save time
_BELOW_SWITCH = b"LOC"
_KINDS = {b"INFO": "INFO", b"WARN": "WARN", b"TRAC": "TRACE", b"vers": "version"}
_LISTED_RANK = re.compile(rb"^#?\s*Rank\s+(\d{1,7}) (?:Group\s+(\d{1,7}) )?Pid\s+\d{1,10} on\s+(\S{1,256}) device\s")
_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,20}[A-Za-z]")
_COMPLETE = b"Init COMPLETE"
_RESULT = b"# Avg bus bandwidth"  # of nccl-tests and rccl-tests, which print it at their successful end
_LAST_ERROR = b"Last error:"  # of PyTorch; the next line is NCCL's last warning, without its prefix
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class LogFacts:
    """The facts of a log, collected line by line, in tables of limited length; see `parse_line`."""

    def __init__(self) -> None:
        self.lines = 0
        self.number = 0  # of the current line in the log, from 1
        self.messages = MessageCounter()
        self._of_torch = False  # whether the line before announces NCCL's last warning
        self.rccl = False
        self.tables: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        self.ways: set[tuple[str, bool]] = set()
        self.channels: dict[tuple[str, Connection], None] = {}
        self.local: dict[tuple[str, str], set[str]] = {}
        self._hosts_of: dict[bytes, str] = {}  # by the text before a message, which is constant for a thread of a rank
        self._seen: dict[tuple[bytes, str], bool] = {}  # whether the facts of a message were entered for a host
        self._words: dict[bytes, tuple[Entry, ...]] = {}
        self._times: dict[bytes, int] = {}  # since the last `add_up`, counts by message
        self._paths: dict[bytes, dict[bytes, int]] = {}  # likewise, by the text before the message and its end: "[send] via NET/IB/0"
        self._kept = 0  # number of these
        self._columns: dict[tuple[str, str], list[tuple[str, str]]] = {}  # of the table that a rank writes, by process and part
        self.tunings: dict[tuple[str, str, str], set[TunedRate]] = {}

    def take(self, lines: Iterable[bytes]) -> None:
        """Add lines of the log; other lines (the program's own output) are skipped.

        Most lines start like the one before and repeat its facts: these must take less than a microsecond.
        """
        head, here, times, found = b"\n", self._paths.setdefault(b"", {}), self._times, 0
        for number, printed in enumerate(lines, self.number + 1):
            self.number = number
            line = _COLOUR.sub(b"", printed) if b"\x1b" in printed else printed
            if not line.startswith(head):
                place = line.find(b"CCL INFO ")
                if place < 1 or len(line) > LONGEST:
                    self._other(line)
                    continue
                head = line[: place + 9]
                here = self._begin(head)
            found += 1
            message = line[len(head) :]
            middle = message.find(b" via ")
            if middle > 0:
                if (key := message[middle - 6 :]) in here:
                    here[key] += 1
                else:
                    self._path(message, middle, head)
            elif message in times:
                times[message] += 1
            else:
                self._new(message, head)
        self.lines += found
        if max(len(times), len(self._paths), self._kept) > _MOST_REMEMBERED:
            self.add_up()

    def add_up(self) -> None:
        """Add what was only counted. Call it after the last line."""
        for message, found in self._words.items():
            for entry in found:
                self._enter(*entry, times=self._times[message])
        for key, times in ((key, times) for here in self._paths.values() for key, times in here.items() if times):
            if name := transport(key.partition(b" via ")[2][:_LONGEST_PATH]):
                self._enter("transports", name, 1, times=times)
        self._kept = 0
        for remembered in (self._words, self._times, self._paths):
            remembered.clear()

    def _other(self, line: bytes) -> None:
        """Process a line that is too long or not an INFO: a warning, the version, or other output."""
        if len(line) > LONGEST:
            line = line[: LONGEST - 64].rpartition(b" ")[0] + b" ..."
        if b" Pid " in line or b"nccl-library=" in line or b"Librccl" in line:  # nccl-tests above its table, or RCCL about itself
            self.rccl = self.rccl or only_rccl(line)
            for fact in head_facts(line.strip()):
                self._enter("startup", fact, None)
            if listed := _LISTED_RANK.match(line):
                self._enter("listed_ranks", (int(listed[2] or 0), int(listed[1])), printable(listed[3].decode("utf-8", "replace"), 256))
        of_torch = self._of_torch
        self._of_torch = line.rstrip().endswith(_LAST_ERROR)
        if of_torch and self.messages.add(line, line, "warning", self.number):
            return
        place = 0
        kind = None
        while (place := line.find(b"CCL ", place + 1)) > 0:
            kind = _KINDS.get(line[place + 4 : place + 8])
            if kind and line[place - 1] in b"NR":
                self.lines += 1
                self._of_kind(kind, line, place)
                break
        if kind in (None, "version"):  # of its plug-ins, UCX, PyTorch, the kernel or nccl-tests
            if line.startswith(_RESULT):
                self.messages.finished = self.number
            if any(hint in line for hint in line_hints()):
                self.messages.add(line, line, "line", self.number)

    def _of_kind(self, kind: str, line: bytes, place: int) -> None:
        if kind == "version":
            if release := release_in(line[place - 1 :]):
                self._enter("startup", release, None)
            return
        message = line[place + 4 + len(kind) :].strip()
        if kind == "WARN":
            source = line.rfind(b"] ", 0, place)  # before the library's file and line
            known = self.messages.add(line, line[source + 2 if source >= 0 else 0 :], "warning", self.number)
            self._enter("warnings", text(message), None)
            if not known:
                self._enter("unexplained", text(message), None)
        self._begin(line[:place])
        self._new(message, line[:place])

    def _enter(self, table: str, key: Any, value: Any, host: str = "", *, times: int = 1) -> None:
        """Enter a fact into a table, by the table's rule and as long as there is room; of other tables the first value of a key counts."""
        known = self.tables[table]
        if table in _BY_HOST:
            self.rccl = self.rccl or (isinstance(key, Release) and key.library is LogLibrary.RCCL)
            key = (host, key)
        if key not in known and len(known) >= _LIMITS.get(table, _MOST):
            return
        if table in _COUNTED:
            known[key] = known.get(key, 0) + times
        elif table in _LARGEST:
            known[key] = max(value, known.get(key, 0))
        elif table in _LAST:
            known.pop(key, None)
            known[key] = value
        else:
            known.setdefault(key, value)

    def _begin(self, head: bytes) -> dict[bytes, int]:
        self._host(head)
        return self._paths.setdefault(head, {})

    def _host(self, head: bytes) -> str:
        known = self._hosts_of.get(head)
        if known is not None:
            return known
        self.rccl = self.rccl or only_rccl(head)
        host = place_of(head).host
        if host:
            self._enter("hosts", host, None)
        return _remember(self._hosts_of, head, host)

    def _new(self, message: bytes, head: bytes) -> None:
        if len(message) > LONGEST:
            self._other(head + message)
            return
        if b"|" in message and self._of_table(message, head):
            return
        found = parse_line(message)
        if not self.rccl and OF_A_CALL not in message:
            self.rccl = only_rccl(message)
        if _COMPLETE in message:
            self.messages.complete(head, self.number)
        if any(hint in message for hint in info_hints()) and self.messages.add(head, message, "info", self.number):
            for entry in found:
                self._enter(*entry, host=self._host(head))
            return
        if _AT_ONCE.isdisjoint(table for table, _, _ in found):
            self._times[message] = self._times.get(message, 0) + 1
            if found:
                self._words[message] = found
        elif (message, host := self._host(head)) not in self._seen:
            _remember(self._seen, (message, host), True)
            for entry in found:
                self._enter(*entry, host=host)

    def _of_table(self, message: bytes, head: bytes) -> bool:
        """Return whether the message is of NCCL's table, and add its entries. Rows belong to the last heading of the same rank."""
        columns = table_columns(message)
        place = place_of(head)
        writer = place.process, place.part
        if columns is not None:
            _remember(self._columns, writer, columns)
            return True
        entries = table_row(message, self._columns.get(writer, ()))
        for entry in entries or ():
            if entry[:3] in self.tunings or len(self.tunings) < _MOST_ENTRIES:
                values = self.tunings.setdefault(entry[:3], set())
                if len(values) < _MOST_TABLES:
                    values.add(entry)
        return entries is not None

    def _path(self, message: bytes, middle: int, head: bytes) -> None:
        """Add a connection. Beyond a limit, further ones of the same rank and transport are only counted."""
        found = connection(message[:middle], message[middle + 5 : middle + 5 + _LONGEST_PATH])
        if found is None:
            self._new(message, head)
            return
        host = self._host(head)
        self._enter("transports", found.transport, 1)
        if found.way:
            direct = found.transport.endswith(GDR)
            self.ways.add((found.way, direct))
            local = (host, found.gpu or "")
            if found.gpu and (direct or staged(found.transport)) and (local in self.local or len(self.local) < _MOST_HOSTS):
                self.local.setdefault(local, set()).add(found.way if direct else "staged")
        if len(self.channels) < MOST_CHANNELS:
            self.channels[host, found] = None
        elif (host, found) not in self.channels and len(message) <= LONGEST:
            self._kept += 1
            self._paths.setdefault(head, {})[message[middle - 6 :]] = 0


def staged(transport: str) -> bool:
    """Return whether a transport is RDMA without GPUDirect, staged through host memory."""
    return (
        transport.startswith("NET/") and GDR not in transport and not transport.startswith("NET/Socket") and "tcp" not in transport.lower()
    )


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    """Store a value in a cache that is emptied when full: lines of one rank are adjacent."""
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known[key] = value
    return value


KIND = "NCCL log"
_NCCL_LINE = re.compile(r"\b[NR]CCL (?:INFO|WARN|TRACE)\b|\b[NR]CCL version\b")
_Fact = TypeVar("_Fact", bound=StartupFact)
_NET = re.compile(r"^NET/([^/]+)(?:/(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class NcclLog:
    """The facts of a log; () and None if it has none.

    version         "2.22.3"
    net             what carried data between hosts: "IB", "Socket", "Libfabric", "IBext_v8", or a plug-in's name
    transports      number of lines by "NET/IB/3/GDRDMA", "P2P/CUMEM", "SHM"; the number is NCCL's index, not that of mlx5_<number>
    hosts           hosts that wrote lines, in order of appearance
    hcas            "mlx5_0:1/RoCE" as NCCL uses them; interfaces: those of its sockets
    gdr_enabled     HCAs that GPUs can reach according to NCCL (capability, not proof); gdr_disabled: cannot; one may be in both
    gdr_gpus        GPUs with both directions shown: (host, "3") by the driver's number, (host, "0000:1b:00.0") in older logs; the
                    host is "" where the lines have none; staged_gpus: those with lines of RDMA without GDRDMA
    gdr_send        whether there is a [send] line with GDRDMA; gdr_receive: a [receive] line; staged: NET lines of RDMA without it
    sockets         "data" where data goes over TCP, "bootstrap" where TCP only connects ranks at the start
    dma_buf         whether NCCL's plug-in registers memory through dma-buf; False does not exclude a peer-memory module
    ranks           as printed; ranks_at_least from truncated listings
    ranks_of_hosts  the number of ranks of each host, as nccl-tests lists all of them under "Using devices"
    graph           width in GB/s of the links that NCCL assumes, by kind ("PCI", "SYS"); paths: number of paths by kind
    default_speed   interfaces with an unreadable speed, which NCCL assumes as 10 Gb/s ("?" where the line has no name)
    nics            what a libfabric plug-in found
    channels        (host, connection) of every line that proves a path, the first 16,384 of them
    names           of network devices by host and NCCL's number: ("node1", 0): "mlx5_0:1/IB", "mlx5_0+mlx5_1"
    choices         (collective, bytes) -> choice -> number of calls, the most frequent first. Bytes as NCCL counts them: one
                    rank's part for all-gather and broadcast from 2.24 on; 2.20 to 2.22 print no collective (None)
    stated          number of channels that NCCL reports: {"coll": 16, "nvls": 16, "p2p": 32}
    tuning          NCCL's table of latencies and bandwidths; () without one, and where communicators have different ones
    library         NCCL, unless the log shows RCCL
    startup         (host, fact): what the library prints at its start, see `nccl_startup`; the host is "" where a line has none
    warnings        texts of NCCL WARN; unexplained: those that are not known messages
    messages        known messages (log_messages.toml), in the order of the log
    """

    name: str = ""
    version: str | None = None
    net: str | None = None
    transports: Mapping[str, int] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    gdr_enabled: tuple[str, ...] = ()
    gdr_disabled: tuple[str, ...] = ()
    gdr_send: bool = False
    gdr_receive: bool = False
    staged: int = 0
    sockets: Literal["data", "bootstrap"] | None = None
    dma_buf: bool | None = None
    nvls_available: bool | None = None
    ranks: int | None = None
    ranks_at_least: int | None = None
    ranks_of_hosts: Mapping[str, int] = field(default_factory=dict)
    graph: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paths: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    default_speed: tuple[str, ...] = ()
    provider: str | None = None
    nics: int | None = None
    gdr_gpus: tuple[tuple[str, str], ...] = ()
    staged_gpus: tuple[tuple[str, str], ...] = ()
    channels: tuple[tuple[str, Connection], ...] = ()
    names: Mapping[tuple[str, int], str] = field(default_factory=dict)
    choices: Mapping[tuple[str | None, int], Mapping[CallChoice, int]] = field(default_factory=dict)
    stated: Mapping[str, int] = field(default_factory=dict)
    tuning: tuple[TunedRate, ...] = ()
    library: LogLibrary = LogLibrary.NCCL
    startup: tuple[tuple[str, StartupFact], ...] = ()
    messages: tuple[LoggedMessage, ...] = ()

    @property
    def gdr_refused(self) -> tuple[str, ...]:
        """HCAs that NCCL reports as unusable for GPUDirect RDMA.

        A distance ("HCA 3") that is too long for only some GPUs does not count.
        """
        near = any(_is_distance(name) for name in self.gdr_enabled)
        return tuple(name for name in self.gdr_disabled if name not in self.gdr_enabled and not (near and _is_distance(name)))

    @property
    def release(self) -> Release | None:
        """The version as the library prints it, else as nccl-tests does."""
        found = self.startup_of(Release)
        return next((release for release in found if not release.linked), found[0] if found else None)

    @property
    def job(self) -> Communicator | None:
        """The largest communicator."""
        return max(self.startup_of(Communicator), key=lambda each: (each.ranks, each.nodes), default=None)

    @property
    def settings(self) -> dict[str, str]:
        """The variables that were set, by name, with the last value that a rank printed."""
        return {setting.name: setting.value for setting in self.startup_of(LogSetting)}

    @property
    def collnet(self) -> bool:
        """Whether ranks are connected for reductions in the network (SHARP)."""
        return bool(self.lines_of("COLLNET") or self.startup_of(CollNet))

    @property
    def inside_one_node(self) -> bool:
        """Whether all ranks are on one node, as far as the log shows. A truncated log may only have connections inside a node."""
        return self.job.nodes == 1 if self.job else bool(self.transports) and not self.lines_of("NET")

    def startup_of(self, kind: type[_Fact]) -> list[_Fact]:
        """Return the facts of one kind, without duplicates, in the order of the log."""
        return list(dict.fromkeys(fact for _, fact in self.startup if isinstance(fact, kind)))

    @property
    def indices(self) -> tuple[int, ...]:
        """The network devices in use, by NCCL's own numbers."""
        found = (_NET.match(key) for key in self.transports)
        return tuple(sorted({int(match[2]) for match in found if match and match[2]}))

    def lines_of(self, kind: str) -> int:
        """Return the number of connections of a kind of transport: "SHM", "P2P", "NET/Socket"."""
        return sum(count for key, count in self.transports.items() if key == kind or key.startswith(f"{kind}/"))


def looks_like(text: str, name: str) -> bool:
    """Return whether the first 64 KiB have a line of NCCL or RCCL."""
    return bool(_NCCL_LINE.search(text[:HEAD]))


def read(text: str, name: str) -> NcclLog:
    """Return the facts of a log. Raises Unreadable for text without a line of NCCL."""
    return _log([[line.encode("utf-8", "replace") for line in text.splitlines()]], name)


def read_file(file: Path) -> NcclLog:
    """Return the facts of a log file of any size, in limited memory; a compressed one may have 64 MiB.

    Raises Unreadable when it cannot be read, is a folder, pipe or device, is empty or binary, or has no line of NCCL.
    """
    return read(text_of(file), file.name) if is_packed(file) else read_files([file], file.name)


def read_files(files: Iterable[Path], name: str) -> NcclLog:
    """Return the facts of several plain files of one process as one log. Raises as `read_file` does."""
    return _log((lines for file in files for lines in lines_in(file)), name)


def _log(blocks: Iterable[list[bytes]], name: str) -> NcclLog:
    facts = LogFacts()
    for lines in blocks:
        facts.take(lines)
    facts.add_up()
    if not facts.lines and not facts.messages.found:
        raise Unreadable(f"{printable(name)} has no line of NCCL: run with NCCL_DEBUG=INFO and save what the ranks print")
    return _nccl_log(facts, printable(name))


def _nccl_log(facts: LogFacts, name: str) -> NcclLog:
    tables, net = facts.tables, _net(facts)
    ranks = max(tables["ranks"].get(None, 0), tables["listings"].get(False, 0)) or None
    startup = tuple(tables["startup"])
    releases = sorted((fact for _, fact in startup if isinstance(fact, Release)), key=lambda release: release.linked)
    hcas, sockets = ([name for kind, name in tables["devices"] if kind == wanted] for wanted in ("IB", "Socket"))
    graph: dict[str, list[float]] = {}
    for link, width in sorted(tables["graph"]):
        graph.setdefault(link, []).append(width)
    choices: dict[tuple[str | None, int], dict[CallChoice, int]] = {}
    for (collective, size, choice), calls in Counter(tables["choices"]).most_common():
        choices.setdefault((collective, size), {})[choice] = calls
    # NCCL's final names override those of the initial list: 2.30 renumbers them
    listed = {(host, number): name for (host, (kind, number)), name in tables["listed"].items() if (kind == "Socket") == (net == "Socket")}
    names = listed | {place: name for place, name in tables["nics"].items() if name not in listed.get(place, "")}
    # the ranks of each host, of the largest group that nccl-tests lists, unless ranks are missing from the list
    numbers = {rank for _, rank in tables["listed_ranks"]}
    groups = Counter(group for group, _ in tables["listed_ranks"])
    largest = max(groups, key=lambda group: groups[group], default=0)
    complete = len(numbers) == max(numbers, default=-1) + 1 and len(tables["listed_ranks"]) < _MOST_HOSTS
    of_hosts = Counter(host for (group, _), host in tables["listed_ranks"].items() if group == largest and complete)
    # RCCL selects by other corrections of its table
    one_table = not facts.rccl and all(len(entries) == 1 for entries in facts.tunings.values())
    return NcclLog(
        name=name,
        version=releases[0].number if releases else None,
        net=net,
        transports=tables["transports"],
        hosts=tuple(tables["hosts"]),
        hcas=tuple(hcas),
        interfaces=tuple(sockets),
        gdr_enabled=tuple(name for enabled, name in tables["gdr"] if enabled),
        gdr_disabled=tuple(name for enabled, name in tables["gdr"] if not enabled),
        gdr_send=("send", True) in facts.ways,
        gdr_receive=("receive", True) in facts.ways,
        staged=sum(count for key, count in tables["transports"].items() if staged(key)),
        sockets="data" if net == "Socket" else "bootstrap" if sockets else None,
        dma_buf=_all_of(tables["dma_buf"]),
        nvls_available=_all_of(tables["nvls"]),
        ranks=ranks,
        ranks_at_least=max(tables["listings"].values(), default=ranks),
        ranks_of_hosts=of_hosts,
        graph={link: tuple(widths) for link, widths in graph.items()},
        paths=tables["paths"],
        warnings=tuple(tables["warnings"]),
        unexplained=tuple(tables["unexplained"]),
        default_speed=tuple(tables["speeds"]),
        provider=tables["provider"].get(None, (None, None))[0],
        nics=tables["provider"].get(None, (None, None))[1],
        gdr_gpus=tuple(gpu for gpu, ways in facts.local.items() if ways == {"send", "receive"}),
        staged_gpus=tuple(gpu for gpu, ways in facts.local.items() if "staged" in ways),
        channels=tuple(facts.channels),
        names=names,
        choices=dict(sorted(choices.items(), key=lambda item: (item[0][0] or "", item[0][1]))),
        stated=tables["stated"],
        tuning=tuple(entry for entries in facts.tunings.values() for entry in entries if one_table),
        library=LogLibrary.RCCL if facts.rccl else LogLibrary.NCCL,
        startup=startup,
        messages=facts.messages.messages(),
    )


def _net(facts: LogFacts) -> str | None:
    """Return the network by connections, else by what NCCL reports to use, else by what it found."""
    used: Counter[str] = Counter()
    for key, count in facts.tables["transports"].items():
        if match := _NET.match(key):
            used[match[1]] += count
    if used:
        return used.most_common(1)[0][0]
    found = {kind for kind, _ in facts.tables["devices"]}
    return next(reversed(facts.tables["networks"]), None) or next((kind for kind in ("IB", "Socket") if kind in found), None)


def _all_of(answers: Collection[bool]) -> bool | None:
    return all(answers) if answers else None


def _is_distance(name: str) -> bool:
    return name.startswith("HCA ")
