"""What a log of NCCL or RCCL (NCCL_DEBUG=INFO) shows: the data path, the library's start, its choices, and failures.

Only the connection lines, "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/3/GDRDMA", prove a path. Lines such as "Using network IB",
"GPU Direct RDMA Enabled for HCA 0" or "NET/Socket : Using" show what could be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from collbench.machine.readers import nccl_facts
from collbench.machine.readers.log_messages import LoggedMessage, MessageCounter, hints
from collbench.machine.readers.nccl_facts import Connection, LogFact, LogLibrary, TunedRate, facts_in, is_staged, network_path
from collbench.machine.readers.nccl_lines import INFO, LONGEST, VERSION, WARN, LogLine, LogWriter, cleaned, split_line, writer_of
from collbench.machine.readers.text import HEAD, Unreadable, printable
from collbench.machine.sources import is_folder, text_of
from collbench.untrusted import open_file

_MOST_CHANNELS = 1024  # of a connection
_LONGEST_BEGIN = 32
_MOST_HOSTS = 65536
_MOST_WARNINGS = 100
_MOST_FACTS = 65536  # of a kind
_MOST_REMEMBERED = 8192  # cached results, which only save time
_RESULT = b"# Avg bus bandwidth"  # of nccl-tests and rccl-tests, which print it at their successful end
_LAST_ERROR = b"Last error:"  # of PyTorch; the next line is NCCL's last warning, without its prefix
_Kind = TypeVar("_Kind", bound=LogFact)


class ConnectionLines(msgspec.Struct):
    """The number of lines of a connection, and their begins, which have the channels ("Channel 00/0 :")."""

    count: int = 0
    begins: set[bytes] = msgspec.field(default_factory=set)

    @property
    def channels(self) -> set[int]:
        """The channels that use the connection."""
        return {channel for channel in map(nccl_facts.channel_of, self.begins) if channel is not None}


class NcclLog(msgspec.Struct):
    """The content of a log; () and None where it has none.

    hosts           hosts that wrote lines, in order of appearance
    lines           number of the library's lines
    facts           by kind the facts of messages, each with its host ("" where that is irrelevant or unknown), with the number of lines
    connections     the lines of each connection
    rates           the entries of NCCL's tables of latencies and bandwidths
    messages        known messages (log_messages.toml), in the order of the log
    """

    name: str = ""
    hosts: tuple[str, ...] = ()
    lines: int = 0
    facts: dict[type[LogFact], dict[tuple[str, LogFact], int]] = msgspec.field(default_factory=dict)
    connections: dict[Connection, ConnectionLines] = msgspec.field(default_factory=dict)
    rates: dict[TunedRate, None] = msgspec.field(default_factory=dict)
    messages: tuple[LoggedMessage, ...] = ()

    def of_kind(self, kind: type[_Kind]) -> list[_Kind]:
        """Return the facts of one kind, without duplicates, in the order of the log."""
        return list(dict.fromkeys(fact for _, fact in self.with_hosts(kind)))

    def with_hosts(self, kind: type[_Kind]) -> list[tuple[str, _Kind]]:
        """Return (host, fact) for the facts of one kind, in the order of the log."""
        return cast("list[tuple[str, _Kind]]", list(self.facts.get(kind, ())))

    # The library and its settings.

    @property
    def release(self) -> nccl_facts.Release | None:
        """The version as the library prints it, else as nccl-tests does."""
        numbers = [nccl_facts.dotted(linked.code) for linked in self.of_kind(nccl_facts.LinkedRelease)]
        linked_releases = [nccl_facts.Release(LogLibrary.NCCL, number, number) for number in numbers]
        return next(iter([*self.of_kind(nccl_facts.Release), *linked_releases]), None)

    @property
    def version(self) -> str | None:
        """The number of the version: "2.22.3"."""
        return self.release.number if self.release else None

    @property
    def library(self) -> LogLibrary:
        """The library: NCCL, unless the log shows RCCL."""
        libraries = [release.library for release in self.of_kind(nccl_facts.Release)]
        is_rccl = LogLibrary.RCCL in libraries or self.of_kind(nccl_facts.RcclMessage)
        return LogLibrary.RCCL if is_rccl else LogLibrary.NCCL

    @property
    def settings(self) -> dict[str, str]:
        """The variables that were set, by name, with the last value that a rank printed."""
        return {setting.name: setting.value for setting in self.of_kind(nccl_facts.LogSetting)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """The texts of NCCL WARN."""
        return tuple(dict.fromkeys(warning.text for warning in self.of_kind(nccl_facts.LoggedWarning)))

    # The job.

    @property
    def job(self) -> nccl_facts.Communicator | None:
        """The largest communicator."""
        return max(self.of_kind(nccl_facts.Communicator), key=lambda communicator: (communicator.ranks, communicator.nodes), default=None)

    @property
    def ranks(self) -> int | None:
        """The number of ranks as printed, of the largest communicator."""
        return max((count.ranks for count in self.of_kind(nccl_facts.RankCount) if not count.truncated), default=None)

    @property
    def ranks_at_least(self) -> int | None:
        """The least number of ranks that the log shows, also by truncated lists."""
        return max((count.ranks for count in self.of_kind(nccl_facts.RankCount)), default=None)

    @property
    def ranks_of_hosts(self) -> dict[str, int]:
        """The number of ranks of each host in the largest group that nccl-tests lists; {} if ranks are missing from the list."""
        hosts: dict[tuple[int, int], str] = {}
        for listed in self.of_kind(nccl_facts.ListedRank):
            hosts.setdefault((listed.group or 0, listed.rank), listed.host)
        numbers = {rank for _, rank in hosts}
        if len(numbers) != max(numbers, default=-1) + 1 or len(hosts) >= _MOST_FACTS:
            return {}
        groups = Counter(group for group, _ in hosts)
        largest = max(groups, key=lambda group: groups[group], default=0)
        return Counter(host for (group, _), host in hosts.items() if group == largest)

    @property
    def inside_one_node(self) -> bool:
        """Whether all ranks are on one node, as far as the log shows. A truncated log may only have connections inside a node."""
        return self.job.nodes == 1 if self.job else bool(self.transports) and not self.lines_of("NET")

    # The network and its devices.

    @property
    def net(self) -> str | None:
        """The network by connections ("IB", "Socket", "IBext_v8"), else by what NCCL reports to use, else by what it found."""
        used: Counter[str] = Counter()
        for name, count in self.transports.items():
            path = network_path(name)
            if path:
                used[path.network] += count
        if used:
            return used.most_common(1)[0][0]
        selected = [network.name for _, network in self.with_hosts(nccl_facts.UsedNetwork)]
        if selected:
            return selected[-1]
        listed = {device.kind for device in self.of_kind(nccl_facts.NetDevice)}
        return next((kind for kind in ("IB", "Socket") if kind in listed), None)

    def device_names(self, kind: str) -> tuple[str, ...]:
        """Return the names of network devices that NCCL lists as of this kind: "IB" or "Socket"."""
        return tuple(dict.fromkeys(device.name for device in self.of_kind(nccl_facts.NetDevice) if device.kind == kind))

    @property
    def names(self) -> dict[tuple[str, int], str]:
        """The names of network devices by host and NCCL's number: ("node1", 0): "mlx5_0:1/IB", "mlx5_0+mlx5_1"."""
        names: dict[tuple[str, int], str] = {}
        is_socket = self.net == "Socket"
        for host, device in self.with_hosts(nccl_facts.NetDevice):
            if (device.kind == "Socket") == is_socket:
                names.setdefault((host, device.number), device.name)
        final_names: dict[tuple[str, int], str] = {}
        for host, final in self.with_hosts(nccl_facts.DeviceName):
            final_names.setdefault((host, final.number), final.name)
        # final names override those of the initial list: 2.30 renumbers them
        return names | {place: name for place, name in final_names.items() if name not in names.get(place, "")}

    @property
    def provider(self) -> str | None:
        """The provider of libfabric."""
        providers = self.of_kind(nccl_facts.Provider)
        return providers[-1].name if providers else None

    # GPUDirect RDMA, and other paths.

    @property
    def transports(self) -> dict[str, int]:
        """The number of lines by "NET/IB/3/GDRDMA", "P2P/CUMEM", "SHM"; the number is NCCL's index, not that of mlx5_<number>."""
        transports: dict[str, int] = {}
        for path, lines in self.connections.items():
            transports[path.transport] = transports.get(path.transport, 0) + lines.count
        return transports

    @property
    def gdr_send(self) -> bool:
        """Whether there is a [send] line with GDRDMA."""
        return any(path.way == "send" and path.is_direct for path in self.connections)

    @property
    def gdr_receive(self) -> bool:
        """Whether there is a [receive] line with GDRDMA."""
        return any(path.way == "receive" and path.is_direct for path in self.connections)

    @property
    def staged(self) -> int:
        """The number of lines of RDMA without GDRDMA."""
        return sum(count for name, count in self.transports.items() if is_staged(name))

    @property
    def gdr_gpus(self) -> tuple[tuple[str, str], ...]:
        """GPUs with both directions shown: (host, "3") by the driver's number, (host, "0000:1b:00.0") in older logs."""
        ways: dict[tuple[str, str], set[str]] = {}
        for path in self.connections:
            if path.gpu and path.is_direct:
                ways.setdefault((path.host, path.gpu), set()).add(path.way)
        staged_gpus = set(self.staged_gpus)
        return tuple(gpu for gpu, both in ways.items() if len(both) == 2 and gpu not in staged_gpus)

    @property
    def staged_gpus(self) -> tuple[tuple[str, str], ...]:
        """GPUs with lines of RDMA without GDRDMA."""
        return tuple(dict.fromkeys((path.host, path.gpu) for path in self.connections if path.gpu and is_staged(path.transport)))

    @property
    def gdr_refused(self) -> tuple[str, ...]:
        """HCAs that NCCL reports as unusable for GPUDirect RDMA. A distance ("HCA 3") that is too long for some GPUs does not count."""
        accesses = self.of_kind(nccl_facts.DirectAccess)
        enabled = {access.name for access in accesses if access.enabled}
        has_near = any(name.startswith("HCA ") for name in enabled)
        disabled = [access.name for access in accesses if not access.enabled and access.name not in enabled]
        return tuple(name for name in disabled if not (has_near and name.startswith("HCA ")))

    @property
    def nvls_available(self) -> bool | None:
        """Whether NVLink multicast is available to all GPUs."""
        answers = self.of_kind(nccl_facts.Multicast)
        return all(answer.available for answer in answers) if answers else None

    @property
    def collnet(self) -> bool:
        """Whether ranks are connected for reductions in the network (SHARP)."""
        return bool(self.lines_of("COLLNET") or self.of_kind(nccl_facts.CollNet))

    def lines_of(self, kind: str) -> int:
        """Return the number of connections of a kind of transport: "SHM", "P2P", "NET/Socket"."""
        return sum(count for name, count in self.transports.items() if name == kind or name.startswith(f"{kind}/"))

    # Algorithms, protocols and channels.

    @property
    def stated(self) -> dict[str, int]:
        """The number of channels that NCCL reports: {"coll": 16, "nvls": 16, "p2p": 32}; of several communicators the most."""
        stated: dict[str, int] = {}
        for channels in self.of_kind(nccl_facts.ChannelCount):
            stated[channels.kind] = max(channels.count, stated.get(channels.kind, 0))
        return stated

    @property
    def choices(self) -> dict[nccl_facts.CallChoice, int]:
        """The choices for calls with the number of calls, by collective and size; the most frequent one of a size comes first."""
        calls = self.facts.get(nccl_facts.CallChoice, {})
        choices = cast("dict[nccl_facts.CallChoice, int]", {choice: count for (_, choice), count in calls.items()})
        return dict(sorted(choices.items(), key=lambda item: (item[0].collective or "", item[0].size_bytes, -item[1])))

    @property
    def tuning(self) -> tuple[TunedRate, ...]:
        """NCCL's table of latencies and bandwidths; () without one, where communicators differ, and for RCCL, which corrects its own."""
        keys = {rate[:3] for rate in self.rates}
        return tuple(self.rates) if len(keys) == len(self.rates) and self.library is LogLibrary.NCCL else ()


class _LogReader:
    """Collects the content of a log line by line, in limited memory. Equal lines are only counted; their facts are added by `add_up`."""

    def __init__(self, name: str) -> None:
        self.log = NcclLog(name)
        self.number = 0  # of the current line in the log, from 1
        self.messages = MessageCounter()
        self._hosts: dict[str, None] = {}
        self._follows_last_error = False  # whether the line before announces NCCL's last warning
        self._times: dict[bytes, int] = {}  # since the last `add_up`, counts by message
        self._paths: dict[bytes, dict[bytes, ConnectionLines]] = {}  # by the text before a message, and its end: "[send] via NET/IB/0"
        self._columns: dict[tuple[str, int | None, int | None], list[tuple[str, str]]] = {}  # of the table that a rank writes

    def take(self, lines: Iterable[bytes]) -> None:
        """Add lines of the log; other lines (the program's own output) are skipped.

        Most lines start like the one before and repeat its facts: these must take less than a microsecond.
        """
        head = b"\n"
        paths = self._paths.setdefault(b"", {})
        times = self._times
        count = 0
        for number, printed in enumerate(lines, self.number + 1):
            self.number = number
            line = cleaned(printed) if b"\x1b" in printed or len(printed) > LONGEST else printed
            if not line.startswith(head):
                logged = split_line(line)
                if logged is None or logged.level != INFO:
                    self._add_other_line(line, logged)
                    continue
                head = logged.head
                paths = self._connections_after(head)
            count += 1
            message = line[len(head) :]
            middle = message.find(b" via ")
            if middle > 0:
                end = message[middle - 6 :]
                path_lines = paths.get(end) or self._connection_lines(message, end, head)
                if path_lines:
                    path_lines.count += 1
                    if len(path_lines.begins) < _MOST_CHANNELS:
                        path_lines.begins.add(message[: message.find(b":", 0, _LONGEST_BEGIN) + 1])
                    continue
            if message in times:
                times[message] += 1
            else:
                self._add_message(message, head)
        self.log.lines += count
        if max(len(times), sum(map(len, self._paths.values()))) > _MOST_REMEMBERED or len(self._paths) > _MOST_REMEMBERED:
            self.add_up()

    def add_up(self) -> None:
        """Add what was only counted. Call it after the last line."""
        for message, count in self._times.items():
            for fact in facts_in(message):
                self._add_fact(fact, times=count)
        self._times.clear()
        self._paths.clear()

    def finished(self) -> NcclLog:
        """Return the log."""
        self.add_up()
        self.log.hosts = tuple(self._hosts)
        self.log.messages = self.messages.messages()
        return self.log

    def _add_other_line(self, line: bytes, logged: LogLine | None) -> None:
        """Process a line that is not an INFO: a warning, the version, or other output."""
        if b" Pid " in line or b"nccl-library=" in line or b"Librccl" in line:  # nccl-tests above its table, or RCCL about itself
            kinds: tuple[type[LogFact], ...] = nccl_facts.ListedRank, nccl_facts.LinkedRelease, nccl_facts.RcclMessage
            for fact in (fact for kind in kinds for fact in kind.facts_in(line.strip())):
                self._add_fact(fact)
        follows_last_error = self._follows_last_error
        self._follows_last_error = line.rstrip().endswith(_LAST_ERROR)
        if follows_last_error and self.messages.add(line, line, "warning", self.number):
            return
        if logged is not None:
            self.log.lines += 1
        if logged is None or logged.level == VERSION:  # of its plug-ins, UCX, PyTorch, the kernel or nccl-tests
            for fact in facts_in(logged.text) if logged else ():
                self._add_fact(fact)
            if line.startswith(_RESULT):
                self.messages.finished = self.number
            if any(hint in line for hint in hints("line")):
                self.messages.add(line, line, "line", self.number)
            return
        message = logged.text.strip()
        if logged.level == WARN:
            source = line.rfind(b"] ", 0, len(logged.head))  # before the library's file and line
            is_known = self.messages.add(line, line[source + 2 if source >= 0 else 0 :], "warning", self.number)
            problems = [fact for fact in facts_in(message) if isinstance(fact, nccl_facts.ReportedProblem | nccl_facts.FabricBroken)]
            self._add_fact(nccl_facts.LoggedWarning(nccl_facts.text(message), is_known or bool(problems)))
        self._connections_after(logged.head)
        self._add_message(message, logged.head)

    def _add_fact(self, fact: LogFact, host: str = "", *, times: int = 1) -> None:
        facts = self.log.facts.setdefault(type(fact), {})
        most = _MOST_WARNINGS if isinstance(fact, nccl_facts.LoggedWarning) else _MOST_FACTS
        if (host, fact) in facts or len(facts) < most:
            facts[host, fact] = facts.get((host, fact), 0) + times

    def _connections_after(self, head: bytes) -> dict[bytes, ConnectionLines]:
        """Add the host of lines that begin with `head`, and return their connections."""
        host = writer_of(head).host
        if host and len(self._hosts) < _MOST_HOSTS:
            self._hosts[host] = None
        for fact in nccl_facts.RcclMessage.facts_in(head):
            self._add_fact(fact)
        return self._paths.setdefault(head, {})

    def _add_message(self, message: bytes, head: bytes) -> None:
        writer = writer_of(head)
        if b"|" in message and self._add_table_line(message, writer):
            return
        facts = facts_in(message)
        if nccl_facts.INIT_COMPLETE in message:
            self.messages.complete(writer.process, self.number)
        is_known = any(hint in message for hint in hints("info")) and self.messages.add(head, message, "info", self.number)
        if is_known or any(fact.of_host for fact in facts):
            for fact in facts:
                self._add_fact(fact, writer.host if fact.of_host else "")
        else:
            self._times[message] = 1

    def _add_table_line(self, message: bytes, writer: LogWriter) -> bool:
        """Return whether the message is of NCCL's table, and add its entries. Rows belong to the last heading of the same rank."""
        place = writer.process, writer.rank, writer.device
        columns = nccl_facts.table_columns(message)
        if columns is not None:
            if len(self._columns) < _MOST_HOSTS:
                self._columns[place] = columns
            return True
        entries = nccl_facts.table_row(message, self._columns.get(place, ()))
        for entry in entries or ():
            if len(self.log.rates) < _MOST_FACTS:
                self.log.rates[entry] = None
        return entries is not None

    def _connection_lines(self, message: bytes, end: bytes, head: bytes) -> ConnectionLines | None:
        """Return the lines of the message's connection; None without one."""
        path = nccl_facts.connection(writer_of(head).host, message)
        if path is None:
            return None
        if path not in self.log.connections and len(self.log.connections) >= _MOST_FACTS:
            path = path._replace(host="", gpu=None)
        lines = self.log.connections.setdefault(path, ConnectionLines())
        self._paths.setdefault(head, {})[end] = lines
        return lines


# Reading of texts and files.

_BLOCK = 1 << 20
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstandard


def read(text: str, name: str) -> NcclLog:
    """Return the content of a log. Raises Unreadable for text without a line of NCCL."""
    return _log([[line.encode("utf-8", "replace") for line in text.splitlines()]], name)


def read_file(file: Path) -> NcclLog:
    """Return the content of a log file of any size, in limited memory; a compressed one may have 64 MiB.

    Raises Unreadable when it cannot be read, is a folder, pipe or device, is empty or binary, or has no line of NCCL.
    """
    with _opened(file) as read_bytes:
        is_packed = read_bytes(8).startswith(_PACKED)
    return read(text_of(file), file.name) if is_packed else read_files([file], file.name)


def read_files(files: Iterable[Path], name: str) -> NcclLog:
    """Return the content of several plain files of one process as one log. Raises as `read_file` does."""
    return _log((lines for file in files for lines in _lines_in(file)), name)


def _log(blocks: Iterable[list[bytes]], name: str) -> NcclLog:
    reader = _LogReader(printable(name))
    for lines in blocks:
        reader.take(lines)
    log = reader.finished()
    if not log.lines and not log.messages:
        raise Unreadable(f"{log.name} has no line of NCCL: run with NCCL_DEBUG=INFO and save what the ranks print")
    return log


def _lines_in(path: Path) -> Iterator[list[bytes]]:
    """Yield the file's lines, one block at a time; an incomplete last line counts. Of an endless line, a few thousand bytes are kept.

    Raises Unreadable for a folder, pipe or device, and for a file that is empty, binary, or cannot be read completely.
    """
    with _opened(path) as read:
        block = read(_BLOCK)
        if not block.strip():
            raise Unreadable(f"{printable(path.name)} is empty: save NCCL's log into it again")
        if b"\x00" in block[:HEAD]:
            raise Unreadable(f"{printable(path.name)} is binary, no log of NCCL: name the text that NCCL_DEBUG=INFO prints")
        rest = b""
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
