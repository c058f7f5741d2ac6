"""Compare the builds of ranks that cannot join, over UDP. The control plane's messages differ between builds.

A rank's first message contains its build. Rank 0 cannot read that message if keys or messages of the two builds differ.
Therefore a rank without a reply after one second sends its build in a datagram. The format of these datagrams must never
change; another format needs another magic.

    datagram   magic, HMAC-SHA256 of the rest with a key of this launch, JSON of at most 1200 bytes
    call       {"rank", "host", "build", "nonce", "echo", "about"}: from a rank; echo is rank 0's nonce once the rank has received it
    answer     {"host", "build", "nonce", "echo", "noted"}: from rank 0; nonce is the caller's, echo is rank 0's

A datagram without the launch's secret gets no answer, so other programs cannot detect the listener. Rank 0 accepts only a
call that repeats rank 0's own nonce, so a replayed call has no effect. Rank 0 listens only until all ranks have joined.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from collbench.control.addresses import hub_places
from collbench.control.security import Secret, secret_of
from collbench.launch import software
from collbench.launch import software as build
from collbench.launch.info import LaunchInfo
from collbench.launch.software import Build, read_build

_MAGIC = b"collbench build 1\n"
_MAC_BYTES = 32
_MOST_BYTES = 1200  # of JSON; with its header it stays below the MTU of any path
_FIRST_PORT, _PORTS, _APART, _CANDIDATES = 20000, 12000, 1237, 8
_AGAIN_S, _LOOK_S = 0.25, 0.2
_HOST = re.compile(r"[0-9A-Za-z._:-]{1,255}")
_NONCE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class BuildRequest:
    """A rank's message: its build (None if it cannot be read), and other facts about its host that the command needs."""

    rank: int
    host: str
    build: Build | None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BuildReply:
    """Rank 0's reply. noted: rank 0 has stored the build of this rank."""

    host: str
    build: Build | None
    noted: bool


@dataclass(frozen=True)
class BuildAddresses:
    """The UDP addresses at which rank 0 listens. The port comes from the launch, or is derived from the secret."""

    secret: Secret
    fixed: int | None
    addresses: Sequence[str]

    @property
    def ports(self) -> list[int]:
        """Return the UDP ports at which rank 0 may listen, the most likely first."""
        seed = int.from_bytes(self.secret.derived("build ports")[:8], "big")
        drawn = [_FIRST_PORT + (seed + _APART * k) % _PORTS for k in range(_CANDIDATES)]
        return [self.fixed, *drawn] if self.fixed else drawn


class BuildServer:
    """Rank 0's end: it answers every rank of the launch from its own thread, and passes each rank's call to `take` once."""

    def __init__(self, place: BuildAddresses, me: BuildRequest, take: Callable[[BuildRequest], None]) -> None:
        self._keys, self._me, self._take = _Keys.of(place.secret), me, take
        self._nonce = secrets.token_hex(16)
        self._seen: set[int] = set()
        self._stop = threading.Event()
        bound = (_bound(address, place.ports) for address in place.addresses)
        self._sockets = [one for one in bound if one]
        self._thread = threading.Thread(target=self._serve, name="collbench-builds", daemon=True)
        if self._sockets:
            self._thread.start()

    def _serve(self) -> None:
        with ExitStack() as stack, selectors.DefaultSelector() as waiting:  # not select(), which rejects descriptors above 1023
            for one in self._sockets:
                waiting.register(stack.enter_context(one), selectors.EVENT_READ, one)
            while not self._stop.is_set():
                for key, _ in waiting.select(_LOOK_S):
                    own: socket.socket = key.data
                    with suppress(OSError):  # the answer cannot be sent
                        datagram, sender = own.recvfrom(len(_MAGIC) + _MAC_BYTES + _MOST_BYTES + 1)
                        answer = self._answer(datagram)
                        if answer:
                            own.sendto(answer, sender)

    def _answer(self, datagram: bytes) -> bytes | None:
        """Return the reply to a call; None if it is not from a rank of this launch."""
        request = _opened(datagram, self._keys.call)
        call = _call_of(request) if request else None
        if request is None or call is None:
            return None
        fresh = hmac.compare_digest(str(request.get("echo", "")), self._nonce)
        if fresh and call.rank not in self._seen:
            self._seen.add(call.rank)
            self._take(call)
        known = {"host": self._me.host, "build": _build_of(self._me), "nonce": request["nonce"], "echo": self._nonce, "noted": fresh}
        return _sealed(known, self._keys.answer)

    def close(self) -> None:
        """Stop listening."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * _LOOK_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask_rank_0(place: BuildAddresses, me: BuildRequest, stop: threading.Event, seconds: float) -> BuildReply | None:
    """Send calls to rank 0 until it has stored one, for at most `seconds`. Return its last reply, or None without one.

    Ends early when `stop` is set.
    """
    keys, end = _Keys.of(place.secret), time.monotonic() + seconds
    nonce, echo, last = secrets.token_hex(16), "", None
    with _sockets(place.addresses) as open_at:
        while not stop.is_set() and time.monotonic() < end:
            known = {"rank": me.rank, "host": me.host, "build": _build_of(me), "nonce": nonce, "echo": echo, "about": dict(me.about)}
            _send(_sealed(known, keys.call), open_at, place.ports)
            heard = _heard(open_at, keys.answer, nonce, min(end, time.monotonic() + _AGAIN_S))
            if heard:
                last, echo = heard
                if last.noted:
                    break
    return last


def _send(datagram: bytes, open_at: Mapping[str, socket.socket], targets: Sequence[int]) -> None:
    for address, own in open_at.items():
        for port in targets:
            with suppress(OSError):  # no route, or a firewall that rejects it
                own.sendto(datagram, (address, port))


def _heard(open_at: Mapping[str, socket.socket], key: bytes, nonce: str, end: float) -> tuple[BuildReply, str] | None:
    """Return the first reply to this nonce, with rank 0's own nonce; None if none arrives in time."""
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select(list(open_at.values()), [], [], left)
        for one in ready:
            with suppress(OSError):
                reply = _opened(one.recv(len(_MAGIC) + _MAC_BYTES + _MOST_BYTES + 1), key)
                if reply and reply.get("nonce") == nonce and _fits(_NONCE, reply.get("echo")) and _fits(_HOST, reply.get("host")):
                    return BuildReply(reply["host"], read_build(reply.get("build")), reply.get("noted") is True), reply["echo"]
    return None


@dataclass(frozen=True, repr=False)
class _Keys:
    """The keys of the datagrams, one for each direction, so that a returned call is not a valid reply."""

    call: bytes
    answer: bytes

    @classmethod
    def of(cls, secret: Secret) -> _Keys:
        return cls(secret.derived("build call"), secret.derived("build answer"))


def _sealed(value: Mapping[str, Any], key: bytes) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    if len(text) > _MOST_BYTES:
        raise ValueError(f"a datagram of {len(text)} bytes exceeds the limit of {_MOST_BYTES}")
    return _MAGIC + hmac.digest(key, text, "sha256") + text


def _opened(datagram: bytes, key: bytes) -> dict[str, Any] | None:
    """Return the content of a datagram; None if this launch's key did not seal it."""
    mac, text = datagram[len(_MAGIC) :][:_MAC_BYTES], datagram[len(_MAGIC) + _MAC_BYTES :]
    if not datagram.startswith(_MAGIC) or len(text) > _MOST_BYTES or not hmac.compare_digest(mac, hmac.digest(key, text, "sha256")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _call_of(request: Mapping[str, Any]) -> BuildRequest | None:
    rank, host, about = request.get("rank"), request.get("host"), request.get("about", {})
    sound = (
        type(rank) is int and 0 < rank < 1 << 24 and _fits(_HOST, host) and _fits(_NONCE, request.get("nonce")) and isinstance(about, dict)
    )
    return BuildRequest(int(rank or 0), str(host), read_build(request.get("build")), about) if sound else None


def _build_of(one: BuildRequest) -> list[Any]:
    return one.build.as_json() if one.build else []


def _fits(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and bool(pattern.fullmatch(value))


def _bound(address: str, candidates: Sequence[int]) -> socket.socket | None:
    """Return a socket bound to the first free port, or None. Without a socket only the control plane compares the builds."""
    for port in candidates:
        bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            if address == "::":
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind((address, port))
        except OSError:
            bound.close()
        else:
            return bound
    return None


@contextmanager
def _sockets(addresses: Sequence[str]) -> Iterator[Mapping[str, socket.socket]]:
    """Open one socket for each address; yield them by address."""
    families = {address: socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses}
    with ExitStack() as stack:
        yield {address: stack.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for address, family in families.items()}


def addresses_of(places: Sequence[str]) -> list[str]:
    """Return the addresses in "tcp://10.0.0.1:20000" and the like; loopback if all ranks are on one host."""
    return list(dict.fromkeys(_addresses(places))) or ["127.0.0.1"]


def _addresses(places: Sequence[str]) -> Iterator[str]:
    for place in places:
        if place.startswith("tcp://"):
            yield place.removeprefix("tcp://").rpartition(":")[0].strip("[]")


# The software of all hosts, collected before any rank joins: the command that uses it diagnoses builds that cannot join.

T = TypeVar("T")
_HOSTS_LOOK_S = 0.05
_OLDER = "an older build"


def hosts_of(info: LaunchInfo) -> int:
    """Return how many hosts the launch has, as far as its launcher reports."""
    return len(set(info.hosts)) or -(-info.ranks // info.local_ranks)


def send_build(info: LaunchInfo, env: Mapping[str, str], about: Mapping[str, str], seconds: float) -> None:
    """Send this host's software to rank 0. Only the first rank of a host calls it. Raises UsageError without a secret."""
    secret = secret_of(info, env)
    place = BuildAddresses(secret, info.port, addresses_of(hub_places(info, secret)))
    ask_rank_0(place, BuildRequest(info.rank, socket.gethostname(), build.own(), about), threading.Event(), seconds)


def collect(
    info: LaunchInfo, env: Mapping[str, str], meanwhile: Callable[[], T], own_texts: Callable[[T], Mapping[str, str]], seconds: float
) -> tuple[T, list[dict[str, Any]], int]:
    """Run `meanwhile` and collect the software of all hosts. Only rank 0 calls it. Raises UsageError without a secret.

    Returns (result of `meanwhile`, software as from `software.grouped`, number of hosts that did not reply). `mine` returns
    this host's own software from that result. The other hosts may reply until `seconds` after `meanwhile` has ended.
    """
    calls: list[BuildRequest] = []
    any_address = "::" if any(":" in one for one in addresses_of([info.meeting + ":0"])) else "0.0.0.0"
    me = BuildRequest(0, socket.gethostname(), build.own())
    with BuildServer(BuildAddresses(secret_of(info, env), info.port, [any_address]), me, calls.append):
        found = meanwhile()
        end = time.monotonic() + seconds
        while len(calls) < hosts_of(info) - 1 and time.monotonic() < end:
            time.sleep(_HOSTS_LOOK_S)
    known = [(me.host, {"collbench": str(me.build), **own_texts(found)})]
    for call in sorted(calls, key=lambda call: call.rank):
        known.append((call.host, {**_texts(call.about), "collbench": str(call.build or _OLDER)}))
    return found, software.grouped(known), hosts_of(info) - 1 - len(calls)


def _texts(about: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in about.items() if isinstance(value, str)}
