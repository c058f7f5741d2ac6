"""What the lines of a log add up to, in bounded memory: whatever a log repeats or invents, each fact has its most.

Lines that say the same are only counted while they pass; what they say is added up for all of them at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from collbench.machine.readers.nccl_lines import LONGEST
from collbench.machine.readers.nccl_startup import OF_A_CALL, Library, Release, StartupFact, head_facts, only_rccl, release_in
from collbench.machine.readers.nccl_words import GDR, Choice, Connection, Words, connection, text, transport, words

MOST_CHANNELS = 16384  # connections that are kept one by one: those of 512 ranks with 16 channels, both ways
_MOST = 4096  # of what is counted by name: transports, sizes, widths
_MOST_HOSTS = 65536
_MOST_WARNINGS = 100
_LONGEST_PATH = 120
_MOST_REMEMBERED = 8192  # answers that only save time
_BELOW_SWITCH = "LOC"
_KINDS = {b"INFO": "INFO", b"WARN": "WARN", b"TRAC": "TRACE", b"vers": "version"}
# Before "NCCL INFO"; possessive, so that no text can make it try twice.
_HOST = re.compile(rb"(?:^|[\s>:])([A-Za-z0-9][\w.-]{0,252}+):\d{1,10}+:\d{1,10}+ \[-?\d{1,4}+\] ")
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Facts:
    """Grows line by line; `nccl_log` makes a log of it."""

    def __init__(self) -> None:
        self.lines = 0
        self.startup: dict[tuple[str, StartupFact], None] = {}
        self.rccl = False
        self.hosts: dict[str, None] = {}
        self.transports: Counter[str] = Counter()
        self.ways: set[tuple[str, bool]] = set()
        self.channels: dict[tuple[str, Connection], None] = {}
        self.left_out = 0
        self.local: dict[tuple[str, str], set[str]] = {}
        self.networks: dict[str, None] = {}
        self.devices: dict[str, dict[str, None]] = {"IB": {}, "Socket": {}}
        self.listed: dict[tuple[str, str, int], str] = {}
        self.nics: dict[tuple[str, int], str] = {}
        self.gdr: dict[bool, dict[str, None]] = {True: {}, False: {}}
        self.nvls: set[bool] = set()
        self.dma_buf: set[bool] = set()
        self.ordering: set[bool] = set()
        self.ranks = 0
        self.listings: dict[bool, int] = {}
        self.graph: dict[tuple[str, float], None] = {}
        self.paths: Counter[str] = Counter()
        self.choices: Counter[tuple[str | None, int, Choice]] = Counter()
        self.stated: dict[str, int] = {}
        self.warnings: dict[str, None] = {}
        self.speeds: dict[str, None] = {}
        self.provider: tuple[str | None, int | None] = (None, None)
        self.groups = 0
        self._hosts_of: dict[bytes, str] = {}  # by what stands before a message: always the same for a thread of a rank
        self._told: dict[tuple[Words, str], bool] = {}
        self._said: dict[bytes, Words] = {}
        self._times: dict[bytes, int] = {}  # since the last `add_up`, by message
        self._paths: dict[bytes, dict[bytes, int]] = {}  # likewise, by what stands before it and its end: "[send] via NET/IB/0"
        self._kept = 0  # of these

    def take(self, lines: Iterable[bytes]) -> None:
        """Lines of the log; others on the way (the program's own output) are passed over.

        Most lines begin as the one before and say what was said before: those must not take a microsecond.
        """
        head, here, times, found = b"\n", self._paths.setdefault(b"", {}), self._times, 0
        for line in lines:
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
        """Adds what was only counted: to be called when there are no more lines."""
        for message, said in self._said.items():
            self._add(said, self._times[message])
        for key, times in ((key, times) for here in self._paths.values() for key, times in here.items() if times):
            if name := transport(key.partition(b" via ")[2][:_LONGEST_PATH]):
                _count(self.transports, name, times)
                self.left_out += times
        self._kept = 0
        for remembered in (self._said, self._times, self._paths):
            remembered.clear()

    def _other(self, line: bytes) -> None:
        """A line that is too long, or is no INFO: a warning, the version, or no line of NCCL at all."""
        if len(line) > LONGEST:
            line = line[: LONGEST - 64].rpartition(b" ")[0] + b" ..."
        if b" Pid " in line or b"nccl-library=" in line or b"Librccl" in line:
            self._of_tests(line)
        place = 0
        while (place := line.find(b"CCL ", place + 1)) > 0:
            kind = _KINDS.get(line[place + 4 : place + 8])
            if kind and line[place - 1] in b"NR":
                self.lines += 1
                self._of_kind(kind, line, place)
                break

    def _of_kind(self, kind: str, line: bytes, place: int) -> None:
        if kind == "version":
            if release := release_in(line[place - 1 :]):
                self._start((release,), "")
            return
        message = line[place + 4 + len(kind) :].strip()
        if kind == "WARN":
            _keep(self.warnings, text(message), None, _MOST_WARNINGS)
        self._begin(line[:place])
        self._new(message, line[:place])

    def _of_tests(self, line: bytes) -> None:
        """A line of nccl-tests above its table, or of RCCL about itself."""
        self.rccl = self.rccl or only_rccl(line)
        self._start(head_facts(line.strip()), "")

    def _start(self, facts: Iterable[StartupFact], host: str) -> None:
        for fact in facts:
            _keep(self.startup, (host, fact), None, _MOST_HOSTS)
            if isinstance(fact, Release) and fact.library is Library.RCCL:
                self.rccl = True

    def _begin(self, head: bytes) -> dict[bytes, int]:
        """Where the paths of lines with this beginning are counted."""
        self._host(head)
        return self._paths.setdefault(head, {})

    def _host(self, head: bytes) -> str:
        """The host that a line's beginning names, "" for none."""
        known = self._hosts_of.get(head)
        if known is not None:
            return known
        self.rccl = self.rccl or only_rccl(head)
        match = _HOST.search(head)
        host = match[1].decode() if match else ""
        if match:
            _keep(self.hosts, host, None, _MOST_HOSTS)
        return _remember(self._hosts_of, head, host)

    def _new(self, message: bytes, head: bytes) -> None:
        if len(message) > LONGEST:
            self._other(head + message)
            return
        said = words(message)
        if not self.rccl and OF_A_CALL not in message:
            self.rccl = only_rccl(message)
        if said is None or not said.of_host:
            self._times[message] = self._times.get(message, 0) + 1
            if said:
                self._said[message] = said
        elif (said, host := self._host(head)) not in self._told:
            _remember(self._told, (said, host), True)
            self._network(said, host)
            self._add(said, 1)

    def _path(self, message: bytes, middle: int, head: bytes) -> None:
        """A connection. Once there are enough of them, further ones of the same rank by the same way are only counted."""
        found = connection(message[:middle], message[middle + 5 : middle + 5 + _LONGEST_PATH])
        if found is None:
            self._new(message, head)
            return
        host = self._host(head)
        _count(self.transports, found.transport)
        if found.way:
            self._way(found, host)
        if len(self.channels) < MOST_CHANNELS:
            self.channels[host, found] = None
        elif (host, found) not in self.channels:
            self.left_out += 1
            if len(message) <= LONGEST:
                self._kept += 1
                self._paths.setdefault(head, {})[message[middle - 6 :]] = 0

    def _way(self, found: Connection, host: str) -> None:
        direct = found.transport.endswith(GDR)
        self.ways.add((found.way, direct))
        if found.gpu and (direct or staged(found.transport)):
            ways = self.local.get((host, found.gpu)) or _keep(self.local, (host, found.gpu), set(), _MOST_HOSTS)
            ways.add(found.way if direct else "staged")

    def _network(self, said: Words, host: str) -> None:
        self._start(said.startup, host)
        if said.network:
            self.networks.pop(said.network, None)  # the last one named stands last
            _keep(self.networks, said.network, None, _MOST)
        if said.devices:
            self._devices(*said.devices, host)
        if said.nic:
            _keep(self.nics, (host, said.nic[0]), said.nic[1], _MOST_HOSTS)

    def _devices(self, kind: str, named: Iterable[tuple[int, str]], ordered: bool, host: str) -> None:
        for number, name in named:
            _keep(self.devices[kind], name, None, _MOST)
            _keep(self.listed, (kind, host, number), name, _MOST_HOSTS)
        if kind == "IB":
            self.ordering.add(ordered)

    def _add(self, said: Words, times: int) -> None:
        if said.choice:
            _count(self.choices, said.choice, times)
        if said.listing:
            self.listings[said.listing[1]] = max(said.listing[0], self.listings.get(said.listing[1], 0))
        if said.gdr:
            _keep(self.gdr[said.gdr[0]], said.gdr[1], None, _MOST)
        for answers, answer in ((self.nvls, said.nvls), (self.dma_buf, said.dma_buf)):
            if answer is not None:
                answers.add(answer)
        for width in said.widths:
            _keep(self.graph, width, None, _MOST)
        for kind in said.paths:
            if kind != _BELOW_SWITCH:
                _count(self.paths, kind, times)
        self._add_rest(said)

    def _add_rest(self, said: Words) -> None:
        self.ranks = max(self.ranks, said.ranks or 0)
        if said.default_speed:
            _keep(self.speeds, said.default_speed, None, _MOST)
        self.provider = said.provider or self.provider
        self.groups = max(self.groups, -1 if said.group is None else said.group + 1)
        for kind, count in said.stated:  # of several communicators the one that has most
            self.stated[kind] = max(count, self.stated.get(kind, 0))


def staged(transport: str) -> bool:
    """Whether it is RDMA without GPUDirect: staged through the host's memory."""
    return (
        transport.startswith("NET/") and GDR not in transport and not transport.startswith("NET/Socket") and "tcp" not in transport.lower()
    )


def bool_of(answers: Iterable[bool]) -> bool | None:
    """True where all say so, None where nobody answers."""
    listed = list(answers)
    return all(listed) if listed else None


def kinds_of(widths: Iterable[tuple[str, float]]) -> Mapping[str, tuple[float, ...]]:
    """Widths in GB/s by kind of link, ascending."""
    found: dict[str, list[float]] = {}
    for kind, width in sorted(widths):
        found.setdefault(kind, []).append(width)
    return {kind: tuple(each) for kind, each in found.items()}


def _keep(known: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> _Value:
    """Adds what is new while there is room; what is there stays."""
    return known.setdefault(key, value) if key in known or len(known) < most else value


def _remember(known: dict[_Key, _Value], key: _Key, value: _Value) -> _Value:
    """Keeps what can be found again; when there is too much of it, what was kept before goes: lines of one rank stand together."""
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known[key] = value
    return value


def _count(known: Counter[_Key], key: _Key, times: int = 1) -> None:
    if key in known or len(known) < _MOST:
        known[key] += times
