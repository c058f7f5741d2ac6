"""Known failure messages in logs of NCCL and RCCL, their plug-ins, UCX, PyTorch and the kernel: log_messages.toml, and matching lines.

A line matches the first message of the table whose pattern it has. Equal messages are counted, so that memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from collbench.machine.readers.nccl_lines import LogWriter, writer_of
from collbench.machine.readers.text import printable

_FILE = Path(__file__).with_name("log_messages.toml")
_MOST_VALUES = 64  # distinct values of a kind, and places, that are stored for a message
_MOST_PLACES = 4096
_CACHE_SIZE = 4096

Where = Literal["warning", "info", "line"]
Phase = Literal["start", "run"]


class KnownMessage(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A message of the table; log_messages.toml describes the fields."""

    code: str
    severity: Literal["severe", "warning", "note"]
    where: Where
    pattern: re.Pattern[bytes]
    what: str
    cause: str
    remedy: str
    during: Phase
    source: str
    detail: str = ""
    hint: tuple[bytes, ...] = ()
    consequence: bool = False
    least_hosts: int = 0


class LoggedMessage(msgspec.Struct):
    """A known message in a log.

    count    number of its lines; line: number of the first one, from 1; last: of the last one
    text     the first one
    places   the writers, with the number of their last line
    values   by name, as far as lines have them, in the order of the log
    ended    whether nothing shows that the job or all these processes went on
    """

    message: KnownMessage
    line: int
    text: str
    count: int = 0
    last: int = 0
    places: dict[LogWriter, int] = msgspec.field(default_factory=dict)
    values: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ended: bool = True

    def add(self, place: LogWriter, values: Iterable[tuple[str, str]], line: int) -> None:
        """Count a line."""
        self.count += 1
        self.last = line
        if place in self.places or len(self.places) < _MOST_PLACES:
            self.places[place] = line
        for name, value in values:
            values_of_name = self.values.setdefault(name, [])
            if value not in values_of_name and len(values_of_name) < _MOST_VALUES:
                values_of_name.append(value)

    @property
    def hosts(self) -> list[str]:
        """The known hosts, in the order of the log."""
        return list(dict.fromkeys(place.host for place in self.places if place.host))


@cache
def known_messages() -> tuple[KnownMessage, ...]:
    """Return the table."""
    import tomllib

    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["messages"]
    for row in rows:
        row["pattern"] = re.compile(row["pattern"].encode())
        row["hint"] = tuple(text.encode() for text in row.get("hint", ()))
    return tuple(KnownMessage(**row) for row in rows)


@lru_cache(maxsize=_CACHE_SIZE)
def match_message(line: bytes, where: Where) -> tuple[KnownMessage, tuple[tuple[str, str], ...]] | None:
    """Return the message in a line, with its values by name; None without one."""
    for message in known_messages():
        if message.where != where and (where, message.where) != ("warning", "line"):
            continue
        if message.hint and not any(hint in line for hint in message.hint):
            continue
        match = message.pattern.search(line)
        if match:
            # "peer2" is the "peer" of another wording
            groups = ((name.rstrip("0123456789"), text) for name, text in match.groupdict().items() if text)
            return message, tuple((name, printable(text.decode("utf-8", "replace"))) for name, text in groups)
    return None


@cache
def hints(where: Where) -> tuple[bytes, ...]:
    """Return the texts of which a line needs one that is not NCCL's ("line"), or a message after NCCL INFO ("info")."""
    return tuple(dict.fromkeys(hint for message in known_messages() if message.where == where for hint in message.hint))


class MessageCounter:
    """The known messages of a log, collected line by line, and what shows that the job went on."""

    def __init__(self) -> None:
        self.logged_messages: dict[KnownMessage, LoggedMessage] = {}
        self.completed: dict[str, int] = {}  # line of the last "Init COMPLETE", by process
        self.finished = 0  # line of the last result that only a successful run prints

    def add(self, line: bytes, text: bytes, where: Where, number: int) -> bool:
        """Count the line if it has a known message, and return whether it has. `text`: what is matched and shown of it."""
        match = match_message(text, where)
        if match is None:
            return False
        message, values = match
        shown = printable(text.strip().decode("utf-8", "replace"))
        logged = self.logged_messages.setdefault(message, LoggedMessage(message, number, shown))
        logged.add(writer_of(line), values, number)
        return True

    def complete(self, process: str, number: int) -> None:
        """Note that a process completed a communicator."""
        if process and (process in self.completed or len(self.completed) < _MOST_PLACES):
            self.completed[process] = number

    def messages(self) -> tuple[LoggedMessage, ...]:
        """Return the messages in the order of the log."""
        for logged in self.logged_messages.values():
            # whether each writer completed a communicator after its last line of this message
            completed = all(self.completed.get(place.process, 0) > last for place, last in logged.places.items())
            logged.ended = self.finished < logged.last and (logged.message.during == "run" or not completed)
        return tuple(sorted(self.logged_messages.values(), key=lambda logged: logged.line))
