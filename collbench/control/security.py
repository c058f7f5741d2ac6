"""Secret, keys, socket filters and rejected peers of the control plane.

A process without the launch's secret cannot join, and cannot read or forge a message. The secret is never sent, printed or stored.
Each launch derives its own keys from the secret and the launch's token (job and step).
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import ipaddress
import os
import secrets
import socket
import stat
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from collbench.addresses import is_numeric
from collbench.control.wire import PIECE_BYTES
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from collbench.reason import Fact
from collbench.units import plural

_SHORTEST = 16  # characters
_MOST_BYTES = 4096
SECRET_REMEDY = "set COLLBENCH_SECRET to the same 16 or more characters for all ranks (openssl rand -hex 16)"


@dataclass(frozen=True, repr=False)
class Secret:
    """The secret of a launch: 32 bytes that its ranks share. `source` describes its origin in messages."""

    key: bytes
    source: str

    def derived(self, purpose: str) -> bytes:
        """Return 32 bytes for one purpose. The secret cannot be computed from them."""
        return hmac.digest(self.key, purpose.encode(), "sha256")


def secret_of(info: LaunchInfo, env: Mapping[str, str]) -> Secret:
    """Return the secret of a launch. Raises UsageError if it is not available, or if other users could read it."""
    base, source = _base(info, env)
    return Secret(hmac.digest(hashlib.sha256(base).digest(), f"{info.token}:{info.ranks}".encode(), "sha256"), source)


def _base(info: LaunchInfo, env: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the secret and its source: the launch, the environment, a file in the home directory, or for one host a folder in /tmp."""
    if info.secret:
        secret = info.token.encode() if info.secret == "token" else _read(Path(info.secret))
        return secret, "this launch"
    if env.get("COLLBENCH_SECRET"):
        return _long_enough(env["COLLBENCH_SECRET"].encode(), "COLLBENCH_SECRET"), "COLLBENCH_SECRET"
    if env.get("COLLBENCH_SECRET_FILE"):
        path = Path(env["COLLBENCH_SECRET_FILE"])
        return _read(path), str(path)
    try:
        folder = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
        if not folder.startswith("/"):
            raise UsageError(f"HOME is not set, so the secret with which ranks join cannot be stored: {SECRET_REMEDY}")
        path = Path(folder) / "collbench" / "secret"
        return _read(path) if os.path.lexists(path) else _created(path), str(path)  # symbolic links are followed there
    except UsageError:
        if info.local_ranks < info.ranks:
            raise
        return _of_host(Path(tempfile.gettempdir()) / f"collbench-{os.geteuid()}" / "secret")


def _of_host(path: Path) -> tuple[bytes, str]:
    """Return the secret in a folder that another user may have created first. The folder is checked; no symbolic link is followed."""
    if not os.path.lexists(path):
        return _created(path), str(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read ({error.strerror}): {SECRET_REMEDY}") from error
    try:
        _check_folder(path.parent, os.fstat(folder))
        return _read(path, folder), str(path)
    finally:
        os.close(folder)


def _check_folder(path: Path, status: os.stat_result) -> None:
    """Raise UsageError unless `path` is a folder of this user that no other user can write."""
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UsageError(f"{path} is not a folder that only its owner can write, so it cannot hold the secret: {SECRET_REMEDY}")


def _read(path: Path, folder: int | None = None) -> bytes:
    """Return the secret in a file. folder: the open folder that contains it; then no symbolic link is followed."""
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags) if folder is None else os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
        try:
            status = os.fstat(handle)
            text = os.read(handle, _MOST_BYTES)
        finally:
            os.close(handle)
    except OSError as error:
        raise UsageError(f"the secret in {path} cannot be read ({error.strerror}): check the path, or {SECRET_REMEDY}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UsageError(f"the secret in {path} is in a file that others can read or own: chown it to yourself and chmod 600 it")
    return _long_enough(text.strip(), str(path))


def _long_enough(text: bytes, source: str) -> bytes:
    if len(text) < _SHORTEST:
        length = plural(len(text), "character")
        raise UsageError(f"the secret in {source} has {length}, but needs {_SHORTEST}: make one with openssl rand -hex 16")
    return text


def _created(path: Path) -> bytes:
    """Create and return a new secret, or return the one that another rank created first. The file appears as a whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(path.parent, path.parent.lstat())
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, base64.b16encode(secrets.token_bytes(32)))
            os.fsync(handle)
        finally:
            os.close(handle)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise UsageError(f"the secret with which ranks join cannot be written to {path} ({error.strerror}): {SECRET_REMEDY}") from error
    return _read(path)


# The launch's keys on its sockets. ZeroMQ's CURVE encrypts and authenticates every message, and rejects a replayed one.
#
# Both ends derive the same two key pairs from the launch's secret. The coordinator's public key is never sent. Without it a process
# cannot begin a handshake, and only the holder of the other pair can complete one. Source: rfc.zeromq.org/spec/25 and 26.

_HANDSHAKE_MS = 10_000  # a connection without a complete handshake is dropped after that
_LINGER_MS = 1000
_OVERHEAD_BYTES = 1024  # CURVE adds 33 bytes to a frame, and metadata to a handshake
DOMAIN = b"collbench"


@dataclass(frozen=True, repr=False)
class Keys:
    """The CURVE key pairs, (public, secret) in Z85, of the listening end and of the connecting ends."""

    listener: tuple[bytes, bytes]
    caller: tuple[bytes, bytes]

    @classmethod
    def of(cls, secret: Secret) -> Keys:
        """Return the launch's keys, which are the same at all its ranks."""
        return cls(_pair(secret.derived("listener")), _pair(secret.derived("caller")))

    def secure_listener(self, socket: zmq.Socket[Any]) -> None:
        """Accept only the launch's own ranks at this socket. Call it before `bind`."""
        _bounded(socket)
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.listener
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)

    def secure_caller(self, socket: zmq.Socket[Any]) -> None:
        """Prepare a rank's socket so that it connects only to this launch's coordinator. Call it before `connect`."""
        _bounded(socket)
        socket.curve_serverkey = self.listener[0]
        socket.curve_publickey, socket.curve_secretkey = self.caller


def _pair(secret: bytes) -> tuple[bytes, bytes]:
    text = z85.encode(secret)
    return zmq.curve_public(text), text


def _bounded(socket: zmq.Socket[Any]) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, PIECE_BYTES + _OVERHEAD_BYTES)
    socket.setsockopt(zmq.SNDHWM, 0)  # a full queue would lose messages or block the I/O thread; large messages need a grant instead
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)


# Kernel filters on a listening TCP socket: they delay or drop connections before this process spends a descriptor on them.
#
# Sources: tcp(7) for TCP_DEFER_ACCEPT; include/uapi/linux/filter.h and bpf_common.h for classic BPF. A filter sees every packet of the
# listening socket; open connections are not affected. All functions raise OSError if the kernel rejects the filter.

_SO_ATTACH_FILTER = 26  # include/uapi/asm-generic/socket.h
_DEFER_S = 60  # longer than the kernel keeps a connection without data, so such a connection is never accepted
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets into the IP header
_LOAD_WORD = 0x20
_LOAD_BYTE = 0x30
_AND = 0x54
_EQUAL = 0x15
_RETURN = 0x06
_DROP = (_RETURN, 0, 0, 0)
_PASS = (_RETURN, 0, 0, 0xFFFFFFFF)
_V4_SOURCE = 12  # offsets of the source address in the two IP headers
_V6_SOURCE = 8
MOST_SOURCES = 64

_Step = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def hold_silent(descriptor: int) -> None:
    """Keep connections in the kernel until their first byte, so that silent ones use no descriptor. A rank's ZeroMQ sends immediately."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)


def drop_all(descriptor: int) -> None:
    """Drop every packet of new connections."""
    _attach(descriptor, [_DROP])


def drop_from(descriptor: int, addresses: Iterable[str]) -> None:
    """Drop the packets of new connections from these addresses (the first 64), and pass all others. Replaces an earlier filter."""
    _attach(descriptor, program(addresses))


def program(addresses: Iterable[str]) -> list[_Step]:
    """Return the BPF instructions that drop packets from these addresses, which they compare word by word."""
    numeric = {ipaddress.ip_address(address.partition("%")[0]) for address in addresses}
    sources = sorted(numeric, key=lambda source: (source.version, int(source)))[:MOST_SOURCES]
    v4 = [*_compare((source.packed for source in sources if source.version == 4), _V4_SOURCE), _PASS]
    v6 = [*_compare((source.packed for source in sources if source.version == 6), _V6_SOURCE), _PASS]
    # A jump skips at most 255 steps. The IPv4 part comes first because it is shorter: 3 steps for each of 64 addresses.
    return [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_AND, 0, 0, 0xF0), (_EQUAL, 0, len(v4), 0x40), *v4, *v6]


def _compare(addresses: Iterable[bytes], offset: int) -> list[_Step]:
    steps: list[_Step] = []
    for address in addresses:
        words = [int.from_bytes(address[start : start + 4], "big") for start in range(0, len(address), 4)]
        for index, word in enumerate(words):
            skipped = 2 * (len(words) - index) - 1  # steps to the end of this address's comparison, including its drop
            steps += [(_LOAD_WORD, 0, 0, _NETWORK_HEADER + offset + 4 * index), (_EQUAL, 0, skipped, word)]
        steps.append(_DROP)
    return steps


def _attach(descriptor: int, steps: list[_Step]) -> None:
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    memory = ctypes.create_string_buffer(code, len(code))
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(steps), ctypes.addressof(memory)))


# Connections that have not proved that they belong to the launch: limits, counts, and the fact about those refused.
#
# Above a limit the kernel drops new connections, from one address or from all, until half of the limit is free again. A rank's kernel
# repeats its attempt to connect. Once all ranks have joined, a flood closes the port for good, so that it does not disturb the measurement.

_MOST = 64  # addresses stored at most
_SHOWN = 3
_LOOK_S = 1.0
_FLOOD = 1000
_CLOSING = frozenset({"04", "05", "06", "08", "09", "0B"})  # TCP_FIN_WAIT1 … TCP_CLOSING, include/net/tcp_states.h
_MORE_OF_SOURCE = 64  # pending connections from one address in addition to its ranks: a rank that is dropped connects again
_HANDSHAKE_S = 2.0  # an unfinished handshake from another host is dropped after that
_PER_RANK_S = 0.001  # added to it for each rank: thousands connect at once, and a handshake takes a third of it
_SLOW_SHARE = 0.9  # of the handshake's time limit: a connection that closed later was dropped because of it


class UnknownConnections:
    """The connections to a socket that have not joined, and those that were refused. Memory is bounded. Used by one thread."""

    def __init__(self, most: int = 4096, most_of_source: int = 1024) -> None:
        self.most = most  # limit of all pending connections
        self.most_of_source = most_of_source  # limit of those from one address
        self.handshake_s = _HANDSHAKE_S
        self.listeners: set[int] = set()  # the descriptors of the sockets that listen for other hosts
        self.port: int | None = None  # their port
        self.members: set[str] = set()  # addresses of the launch's own ranks: a slow handshake from there belongs to a slow rank
        self.count = 0  # refused connections
        self.addresses: dict[str, None] = {}  # their sources, as far as known
        self.slow: Counter[str] = Counter()  # by address how many ended because their handshake took too long
        self.held_back: dict[str, None] = {}  # addresses that exceeded their limit at any time, in order
        self.deaf = False  # whether new connections are dropped for good
        self._pending: dict[int, tuple[str | None, float]] = {}  # by descriptor: the source (None: already closed), and when it came
        self._pending_of_source: Counter[str] = Counter()
        self._dropped: frozenset[str] = frozenset()
        self._full = False
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._pending

    def expect_ranks(self, count: int, most: int) -> None:
        """Set the limits for a launch of `count` ranks, which may all come from one address. most: limit of all connections."""
        self.handshake_s = _HANDSHAKE_S + _PER_RANK_S * count
        self.most = most
        self.most_of_source = min(most, count + _MORE_OF_SOURCE)

    def add(self, descriptor: int, address: str | None) -> None:
        """Add an accepted connection."""
        self.remove(descriptor)  # the event of an earlier connection's end may be lost
        self._pending[descriptor] = (address, time.monotonic())
        if is_remote(address):
            self._pending_of_source[str(address)] += 1
        self._limit()

    def remove(self, descriptor: int) -> str | None:
        """Remove a connection; return its address."""
        address, _ = self._pending.pop(descriptor, (None, 0.0))
        if address is not None and address in self._pending_of_source:
            self._pending_of_source[address] -= 1
            self._pending_of_source += Counter()  # removes counts of 0
            self._limit()
        return address

    def accept(self, descriptor: int) -> None:
        """Remove a connection because it belongs to the launch."""
        address = self.remove(descriptor)
        if address:
            self.members.add(address)

    def close(self, descriptor: int) -> None:
        """Remove a connection that has ended, and count it as refused, or as slow if its handshake took too long."""
        if descriptor not in self:
            return
        lasted_s = time.monotonic() - self._pending[descriptor][1]
        address = self.remove(descriptor)
        if address is None or not is_remote(address) or lasted_s < _SLOW_SHARE * self.handshake_s:
            self.note(address)
        elif len(self.slow) < _MOST or address in self.slow:
            self.slow[address] += 1

    def note(self, address: str | None) -> None:
        """Count one more refused connection. Without an address, the sources of connections that are closing at the port are stored.

        The count is last, since another thread may ask for the fact at any time.
        """
        has_room = len(self.addresses) < _MOST
        is_due = time.monotonic() >= self._look_at  # at most once a second, since a flood makes the table long
        if has_room and address:
            self.addresses[address] = None
        elif has_room and self.port is not None and is_due:
            self._look_at = time.monotonic() + _LOOK_S
            self.addresses |= dict.fromkeys(closing(self.port))
        self.count += 1

    def stop_flood(self) -> None:
        """Close the port to new connections for good if there were too many. Call it only after all ranks have joined."""
        if self.count + len(self) > _FLOOD and self.listeners:
            with suppress(OSError):
                for descriptor in self.listeners:
                    drop_all(descriptor)
                self.deaf = True
                self.listeners.clear()  # so that no limit opens the port again

    def _limit(self) -> None:
        """Make the kernel drop connections above a limit, and accept them again below half of it."""
        if not self.listeners:
            return
        full = len(self) > (self.most // 2 if self._full else self.most)
        above_half = {source for source, count in self._pending_of_source.items() if count > self.most_of_source // 2}
        above_limit = {source for source in above_half if self._pending_of_source[source] > self.most_of_source}
        dropped = frozenset(above_limit | (above_half & self._dropped))
        if (full, dropped) == (self._full, self._dropped):
            return
        if len(self.held_back) < MOST_SOURCES:
            self.held_back |= dict.fromkeys(sorted(dropped))
        self._full = full
        self._dropped = dropped
        for descriptor in self.listeners:
            with suppress(OSError):
                if full:
                    drop_all(descriptor)
                else:
                    drop_from(descriptor, dropped)

    def fact(self) -> ConnectionsRefused | None:
        """Return the fact about refused connections; None if there were none."""
        slow = {address: count for address, count in self.slow.items() if address not in self.members}
        count = self.count + sum(slow.values())
        return ConnectionsRefused(count, tuple({**self.addresses, **slow}), self.deaf, tuple(self.held_back)) if count else None


class ConnectionsRefused(Fact, frozen=True):
    """Connections to rank 0 were refused, because they did not belong to the launch."""

    count: int
    addresses: tuple[str, ...] = ()  # their sources, as far as known
    closed: bool = False  # whether rank 0 stopped listening because of them
    limited: tuple[str, ...] = ()  # addresses from which new connections were refused for a while, because there were too many

    def render(self) -> str:
        """Return the sentence, with what to check."""
        shown = ", ".join(self.addresses[:_SHOWN]) + (", …" if len(self.addresses) > _SHOWN else "")
        connections = "1 connection that was" if self.count == 1 else f"{self.count} connections that were"
        closed = ", and stopped listening" if self.closed else ""
        limited = ", ".join(self.limited[:_SHOWN])
        limit = f"; new connections from {limited} were refused for a while, because there were too many" if limited else ""
        return (
            f"rank 0 refused {connections} not of this launch (without its secret, or without a valid message) from "
            f"{shown or 'an unknown address'}{closed}{limit}: check what runs there; a second launch needs its own MASTER_PORT"
        )


def socket_event(monitor: zmq.Socket[Any]) -> tuple[int, int, bytes]:
    """Return the next event of a socket's monitor: its id, its value (a file descriptor or an error number), and the endpoint.

    pyzmq has such a function, too, in a module that takes longer to import than all of pyzmq.
    """
    event, endpoint = monitor.recv_multipart()
    return *struct.unpack("=Hi", event), endpoint


def peer_of(descriptor: int) -> str | None:
    """Return the address at the other end of a library's connection; None if the connection is already closed."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            peer = copy.getpeername()
    except OSError:
        return None
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) else "this host"


def closing(port: int) -> list[str]:
    """Return the remote addresses of this host's TCP connections at `port` that are closing (proc(5), /proc/net/tcp)."""
    addresses: dict[str, None] = {}
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with suppress(OSError, ValueError, IndexError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                _, local, peer, state, *_ = line.split()
                if state in _CLOSING and int(local.rpartition(":")[2], 16) == port:
                    digits = peer.rpartition(":")[0]  # words of 32 bits, each in the machine's byte order
                    packed = b"".join(bytes.fromhex(digits[start : start + 8])[::-1] for start in range(0, len(digits), 8))
                    address = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
                    addresses[address.removeprefix("::ffff:")] = None
    return list(addresses)


def is_remote(address: str | None) -> bool:
    """Return whether the address is an IP address. Ranks of this host use a Unix socket, which has none."""
    return address is not None and is_numeric(address)
