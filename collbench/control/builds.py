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
import os
import secrets
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Annotated, Any, Self, TypeVar

import msgspec
from msgspec import DecodeError, Meta, Struct, json

from collbench.addresses import LOOPBACK
from collbench.control.addresses import candidate_ports, hub_places
from collbench.control.security import Secret, secret_of
from collbench.launch import software
from collbench.launch.info import LaunchInfo
from collbench.launch.software import Build, read_build

_MAGIC = b"collbench build 1\n"
_MAC_BYTES = 32
_MOST_BYTES = 1200  # of JSON; with its header it stays below the MTU of any path
_LONGEST_BYTES = len(_MAGIC) + _MAC_BYTES + _MOST_BYTES + 1  # one more than the limit, so that a longer datagram is detected
T = TypeVar("T")
_CALL = "build call"  # one key for each direction, so that a returned call is not a valid reply
_ANSWER = "build answer"
_RESEND_S = 0.25
_Host = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z._:-]{1,255}\Z")]
_Nonce = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class BuildRequest(Struct):
    """The JSON of a rank's datagram. about: other facts about its host that the command needs."""

    rank: Annotated[int, Meta(gt=0, lt=1 << 24)]
    host: _Host
    nonce: _Nonce
    build: Any = None
    echo: str = ""
    about: dict[str, Any] = {}


class BuildReply(Struct):
    """The JSON of rank 0's datagram. noted: rank 0 has stored the build of this rank."""

    host: _Host
    nonce: _Nonce
    echo: _Nonce
    build: Any = None
    noted: bool = False


class BuildAddresses(msgspec.Struct, frozen=True):
    """The UDP addresses at which rank 0 listens. The port comes from the launch, or is derived from the secret."""

    secret: Secret
    fixed: int | None
    addresses: Sequence[str]

    @property
    def ports(self) -> list[int]:
        """Return the UDP ports at which rank 0 may listen, the most likely first."""
        derived = candidate_ports(self.secret, "build ports")
        return [self.fixed, *derived] if self.fixed else derived


class BuildServer:
    """Rank 0's end: it answers every rank of the launch from its own thread, and passes each rank's call to `take` once."""

    def __init__(self, place: BuildAddresses, build: Build, take: Callable[[BuildRequest], None]) -> None:
        self._secret = place.secret
        self._build = build
        self._take = take
        self._nonce = secrets.token_hex(16)
        self._seen: set[int] = set()
        self._sockets = list(filter(None, (_bound_socket(address, place.ports) for address in place.addresses)))
        self._thread = threading.Thread(target=self._serve, name="collbench-builds", daemon=True)
        if self._sockets:
            self._stop = os.eventfd(0)  # which the thread closes
            self._thread.start()

    def _serve(self) -> None:
        with ExitStack() as stack, selectors.DefaultSelector() as waiting:  # not select(), which rejects descriptors above 1023
            stack.callback(os.close, self._stop)
            waiting.register(self._stop, selectors.EVENT_READ)
            for listener in self._sockets:
                waiting.register(stack.enter_context(listener), selectors.EVENT_READ)
            while True:
                for key, _ in waiting.select():
                    if key.fileobj == self._stop:
                        return
                    ready: Any = key.fileobj
                    with suppress(OSError):  # the answer cannot be sent
                        datagram, sender = ready.recvfrom(_LONGEST_BYTES)
                        call = _opened(datagram, self._secret.derived(_CALL), BuildRequest)
                        if call:
                            ready.sendto(self._answer(call), sender)

    def _answer(self, call: BuildRequest) -> bytes:
        """Return the reply to a call of a rank of this launch."""
        is_fresh = hmac.compare_digest(call.echo.encode(), self._nonce.encode())
        if is_fresh and call.rank not in self._seen:
            self._seen.add(call.rank)
            self._take(call)
        answer = BuildReply(socket.gethostname(), call.nonce, self._nonce, self._build.as_json(), is_fresh)
        return _sealed(answer, self._secret.derived(_ANSWER))

    def close(self) -> None:
        """Stop listening."""
        if self._thread.is_alive():
            os.eventfd_write(self._stop, 1)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask_rank_0(
    place: BuildAddresses, rank: int, build: Build, stop: threading.Event, seconds: float, *, about: Mapping[str, str] | None = None
) -> BuildReply | None:
    """Send this rank's build to rank 0 until it has stored it, for at most `seconds`. Return its last reply, or None without one.

    Ends early when `stop` is set. about: other facts about this host.
    """
    end = time.monotonic() + seconds
    key = place.secret.derived(_ANSWER)
    call = BuildRequest(rank, socket.gethostname(), secrets.token_hex(16), build.as_json(), about=dict(about or {}))
    last_reply: BuildReply | None = None
    with ExitStack() as stack:
        sockets = {address: stack.enter_context(_udp_socket(address)) for address in place.addresses}
        while not (stop.is_set() or (last_reply and last_reply.noted)) and time.monotonic() < end:
            datagram = _sealed(call, place.secret.derived(_CALL))
            for address, udp_socket in sockets.items():
                for port in place.ports:
                    with suppress(OSError):  # no route, or a firewall that rejects it
                        udp_socket.sendto(datagram, (address, port))
            reply = _first_reply(list(sockets.values()), key, call.nonce, min(end, time.monotonic() + _RESEND_S))
            if reply:
                last_reply = reply
                call.echo = reply.echo
    return last_reply


def _first_reply(sockets: Sequence[socket.socket], key: bytes, nonce: str, end: float) -> BuildReply | None:
    """Return the first reply to this nonce; None if none arrives in time."""
    poll = select.poll()  # select() rejects descriptors above 1023
    by_descriptor = {}
    for udp_socket in sockets:
        by_descriptor[udp_socket.fileno()] = udp_socket
        poll.register(udp_socket, select.POLLIN)
    while time.monotonic() < end:
        for descriptor, _ in poll.poll(1000 * max(0.0, end - time.monotonic())):
            with suppress(OSError):
                reply = _opened(by_descriptor[descriptor].recv(_LONGEST_BYTES), key, BuildReply)
                if reply and reply.nonce == nonce:
                    return reply
    return None


def _sealed(value: Any, key: bytes) -> bytes:
    text = json.encode(value)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"a datagram of {len(text)} bytes exceeds the limit of {_MOST_BYTES}")
    return _MAGIC + hmac.digest(key, text, "sha256") + text


def _opened(datagram: bytes, key: bytes, kind: type[T]) -> T | None:
    """Return the content of a datagram; None if it is not of this kind, or this launch's key did not seal it."""
    mac = datagram[len(_MAGIC) :][:_MAC_BYTES]
    text = datagram[len(_MAGIC) + _MAC_BYTES :]
    if not datagram.startswith(_MAGIC) or len(text) > _MOST_BYTES or not hmac.compare_digest(mac, hmac.digest(key, text, "sha256")):
        return None
    with suppress(DecodeError, UnicodeDecodeError, RecursionError):
        return json.decode(text, type=kind)
    return None


def _bound_socket(address: str, candidates: Sequence[int]) -> socket.socket | None:
    """Return a socket bound to the first free port, or None. Without a socket only the control plane compares the builds."""
    for port in candidates:
        bound = _udp_socket(address)
        try:
            if address == "::":
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind((address, port))
        except OSError:
            bound.close()
        else:
            return bound
    return None


def _udp_socket(address: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)


def addresses_of(places: Sequence[str]) -> list[str]:
    """Return the addresses in "tcp://10.0.0.1:20000" and the like; loopback if all ranks are on one host."""
    addresses = (place.removeprefix("tcp://").rpartition(":")[0].strip("[]") for place in places if place.startswith("tcp://"))
    return list(dict.fromkeys(addresses)) or [LOOPBACK]


# The software of all hosts, collected before any rank joins: the command that uses it diagnoses builds that cannot join.

_POLL_S = 0.05
_OLDER = "an older build"


def hosts_of(info: LaunchInfo) -> int:
    """Return how many hosts the launch has, as far as its launcher reports."""
    return len(set(info.hosts)) or -(-info.ranks // info.local_ranks)


def send_build(info: LaunchInfo, env: Mapping[str, str], about: Mapping[str, str], seconds: float) -> None:
    """Send this host's software to rank 0. Only the first rank of a host calls it. Raises UsageError without a secret."""
    secret = secret_of(info, env)
    place = BuildAddresses(secret, info.port, addresses_of(hub_places(info, secret)))
    ask_rank_0(place, info.rank, software.own(), threading.Event(), seconds, about=about)


def collect(
    info: LaunchInfo, env: Mapping[str, str], meanwhile: Callable[[], T], own_texts: Callable[[T], Mapping[str, str]], seconds: float
) -> tuple[T, list[dict[str, Any]], int]:
    """Run `meanwhile` and collect the software of all hosts. Only rank 0 calls it. Raises UsageError without a secret.

    Returns (result of `meanwhile`, software as from `software.grouped`, number of hosts that did not reply). `own_texts` returns
    this host's own software from that result. The other hosts may reply until `seconds` after `meanwhile` has ended.
    """
    calls: list[BuildRequest] = []
    other_hosts = hosts_of(info) - 1
    [rank_0] = addresses_of([f"{info.meeting}:0"])
    place = BuildAddresses(secret_of(info, env), info.port, ["::" if ":" in rank_0 else "0.0.0.0"])
    with BuildServer(place, software.own(), calls.append):
        result = meanwhile()
        end = time.monotonic() + seconds
        while len(calls) < other_hosts and time.monotonic() < end:
            time.sleep(_POLL_S)
    host_texts = [(socket.gethostname(), {"collbench": str(software.own()), **own_texts(result)})]
    for call in sorted(calls, key=lambda call: call.rank):
        texts = {name: value for name, value in call.about.items() if isinstance(value, str)}
        host_texts.append((call.host, {**texts, "collbench": str(read_build(call.build) or _OLDER)}))
    return result, software.grouped(host_texts), other_hosts - len(calls)
