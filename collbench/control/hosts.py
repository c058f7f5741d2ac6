"""The software of all hosts of a launch, reported to rank 0 before any rank joins: builds that cannot join are the reason to ask."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from collbench.control.builds import BuildServer, Call, Place, addresses_of, ask
from collbench.control.places import hub_places
from collbench.control.secret import secret_of
from collbench.launch import software
from collbench.launch import software as build
from collbench.launch.info import LaunchInfo

T = TypeVar("T")
_LOOK_S = 0.05
_OLDER = "an older build"


def hosts_of(info: LaunchInfo) -> int:
    """How many hosts the launch has, as far as its launcher reports."""
    return len(set(info.hosts)) or -(-info.ranks // info.local_ranks)


def tell_rank_0(info: LaunchInfo, env: Mapping[str, str], about: Mapping[str, str], seconds: float) -> None:
    """Report this host's software to rank 0; for the first rank of a host. Raises UsageError where there is no secret."""
    secret = secret_of(info, env)
    place = Place(secret, info.port, addresses_of(hub_places(info, secret)))
    ask(place, Call(info.rank, socket.gethostname(), build.own(), about), threading.Event(), seconds)


def collect(
    info: LaunchInfo, env: Mapping[str, str], meanwhile: Callable[[], T], mine: Callable[[T], Mapping[str, str]], seconds: float
) -> tuple[T, list[dict[str, Any]], int]:
    """At rank 0: (what `meanwhile` returns, the software of the hosts as `software.grouped` gives it, how many hosts did not answer).

    `mine` gives this host's own software from that. Hosts have so many seconds after `meanwhile`. Raises UsageError without a secret.
    """
    calls: list[Call] = []
    any_address = "::" if any(":" in one for one in addresses_of([info.meeting + ":0"])) else "0.0.0.0"
    me = Call(0, socket.gethostname(), build.own())
    with BuildServer(Place(secret_of(info, env), info.port, [any_address]), me, calls.append):
        found = meanwhile()
        end = time.monotonic() + seconds
        while len(calls) < hosts_of(info) - 1 and time.monotonic() < end:
            time.sleep(_LOOK_S)
    told = [(me.host, {"collbench": str(me.build), **mine(found)})]
    for call in sorted(calls, key=lambda call: call.rank):
        told.append((call.host, {**_texts(call.about), "collbench": str(call.build or _OLDER)}))
    return found, software.grouped(told), hosts_of(info) - 1 - len(calls)


def _texts(about: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in about.items() if isinstance(value, str)}
