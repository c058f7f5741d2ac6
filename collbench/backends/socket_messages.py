"""Messages over plain TCP: calls into sockets.c, or the same in Python where that was not built."""

from __future__ import annotations

import ctypes
import os
import select
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

from collbench.backends.messages import Messages, gone
from collbench.backends.socket_links import Link
from collbench.operations.program import Call, NativeCall, PythonCall

_NATIVE = Path(__file__).parents[1] / "native" / "_loop.so"  # all of the project's C is in one shared object
_CLOSED, _LATE = -1, -2  # sockets.c
_LONGEST_MS = 2**31 - 1  # what poll takes
_Message = tuple[int, int, int]  # POLLOUT or POLLIN, address, bytes


class _MessageStruct(ctypes.Structure):
    _fields_ = [("direction", ctypes.c_int64), ("at", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class _PairStruct(ctypes.Structure):
    _fields_ = [
        ("streams", ctypes.c_int64),
        ("sockets", ctypes.POINTER(ctypes.c_int32)),
        ("deadline_ms", ctypes.c_int64),
        ("room", ctypes.c_int64),
        ("posted", ctypes.c_int64),
        ("messages", ctypes.POINTER(_MessageStruct)),
    ]


@cache
def native() -> ctypes.CDLL | None:
    """The shared object with sockets.c, or None where none was built."""
    try:
        return ctypes.CDLL(str(_NATIVE))
    except OSError:
        return None


def explain(link: Link, code: int) -> str:
    """What a code of sockets.c says of the other rank."""
    if code == _CLOSED:
        return gone(link.peer)
    if code == _LATE:
        return f"no byte went to or came from {link.peer} for {link.deadline_s:g} s: stopped, or the path drops packets; or raise --timeout"
    return f"{os.strerror(code) if code > 0 else f'code {code}'}, between here and {link.peer}"


class NativeMessages:
    """Calls into sockets.c over a link, with room for so many posted messages."""

    def __init__(self, library: ctypes.CDLL, link: Link, room: int) -> None:
        self._library, self._link = library, link
        descriptors = [each.fileno() for each in link.sockets]
        sockets = (ctypes.c_int32 * len(descriptors))(*descriptors)
        self._struct = _PairStruct(len(descriptors), sockets, _deadline_ms(link), room, 0, (_MessageStruct * room)())

    def call(self, what: str, *words: int) -> Call:
        """The function of sockets.c."""
        name = f"collbench_socket_{what}"
        pointer = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0
        return NativeCall(f"socket {what}", pointer, (ctypes.addressof(self._struct), *words))


class PythonMessages:
    """The same in Python, for a machine without a C compiler: always by poll, 10 to 15 µs more per small message and stream."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._posted: list[_Message] = []

    def call(self, what: str, *words: int) -> Call:
        """The method of that name."""
        return PythonCall(f"socket {what}", partial(getattr(self, f"_{what}"), *words))

    def _send(self, at: int, size: int) -> None:
        self._move([(select.POLLOUT, at, size)])

    def _receive(self, at: int, size: int) -> None:
        self._move([(select.POLLIN, at, size)])

    def _post_send(self, at: int, size: int) -> None:
        self._posted.append((select.POLLOUT, at, size))

    def _post_receive(self, at: int, size: int) -> None:
        self._posted.append((select.POLLIN, at, size))

    def _waitall(self) -> None:
        posted, self._posted = self._posted, []
        self._move(posted)

    def _move(self, messages: Sequence[_Message]) -> None:
        """Moves everything; raises OSError that names the other rank."""
        waiting, left = select.poll(), {}
        for stream, connection in enumerate(self._link.sockets):
            parts = {way: deque(_parts(messages, way, stream, len(self._link.sockets))) for way in (select.POLLOUT, select.POLLIN)}
            left[connection.fileno()] = connection, {way: each for way, each in parts.items() if each}
        while left := {number: one for number, one in left.items() if one[1]}:
            for number, (_, ways) in left.items():
                waiting.register(number, sum(ways))
            ready = waiting.poll(_deadline_ms(self._link))
            if not ready:
                raise TimeoutError(explain(self._link, _LATE))
            for number, event in ready:
                self._serve(*left[number], event)
                waiting.unregister(number)

    def _serve(self, connection: socket.socket, ways: dict[int, deque[memoryview]], event: int) -> None:
        for way in [way for way in ways if event & (way | select.POLLERR | select.POLLHUP)]:
            part = ways[way].popleft()
            part = part[self._moved(connection, way, part) :]
            if part:
                ways[way].appendleft(part)
            if not ways[way]:
                del ways[way]

    def _moved(self, connection: socket.socket, way: int, part: memoryview) -> int:
        """How many bytes the socket takes or gives now."""
        flags = socket.MSG_DONTWAIT
        try:
            moved = connection.send(part, flags) if way == select.POLLOUT else connection.recv_into(part, 0, flags)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            moved = 0
        except OSError as error:
            raise OSError(explain(self._link, error.errno or 0)) from error
        if not moved:
            raise ConnectionError(explain(self._link, _CLOSED))
        return moved


def messages_over(link: Link, room: int) -> Messages:
    """The calls of a pair, with room for so many posted messages: native where sockets.c was built."""
    library = native()
    return NativeMessages(library, link, room) if library else PythonMessages(link)


def _deadline_ms(link: Link) -> int:
    return min(max(1, int(link.deadline_s * 1000)), _LONGEST_MS)


def _parts(messages: Sequence[_Message], way: int, stream: int, streams: int) -> Iterator[memoryview]:
    """What a stream carries of the messages in one direction, as sockets.c divides them."""
    for direction, at, size in messages:
        begin, end = (size * each // streams for each in (stream, stream + 1))
        if direction == way and end > begin:
            yield memoryview((ctypes.c_char * (end - begin)).from_address(at + begin)).cast("B")
