"""One round over one interface alone: a plain TCP stream between the two hosts of each pair, from and to the addresses of that interface.

The backend cannot be told which interface to take; a stream of our own can: it leaves from that interface's address for the address of
the same interface of the other host, and what the interfaces at both ends counted proves that it did. Where hosts have several
interfaces in one network their kernels may choose others, to send and to answer for an address: then there is no figure.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from collbench.addresses import Family, family_of, is_link_local, is_loopback, listen_at
from collbench.control.members import Member
from collbench.control.world import World
from collbench.measure import ethernet_counters, streams
from collbench.measure.channels_between import COUNTED, Told, attempt, patience
from collbench.measure.tasks.hunt_asked import Asked
from collbench.measure.tasks.pair_places import Places
from collbench.results.rounds import HuntRound
from collbench.stats.median import median

Rails = Mapping[str, Sequence[str]]  # by interface the address that each place has there
_COUNTED_PART = 0.8  # of the time, after a stream's warm-up: the rates are of it


def rails_of(world: World, places: Places) -> Rails:
    """Return the interfaces that all nodes have under one name, with addresses of one family that differ; none where ranks are paired.

    IPv4 is preferred where all nodes have it on that interface. All ranks call.
    """
    if places.by != "node":
        return {}
    leaders = _leaders(world, places)
    told = world.agree(_addresses() if world.me in leaders else {}, "reading the interfaces' addresses")
    each = [told[leader.rank] for leader in leaders]
    return {name: known for name in sorted(each[0]) if (known := _common([one.get(name, {}) for one in each]))}


def _common(each: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the addresses of the first family that every node has, if they differ."""
    for family in Family:
        known = tuple(one.get(family.value, "") for one in each)
        if all(known) and len(set(known)) == len(known):
            return known
    return ()


def _leaders(world: World, places: Places) -> list[Member]:
    """By place the first rank of its host."""
    return [world.on_host(name)[0] for name in places.names]


def _addresses() -> dict[str, dict[str, str]]:
    """Return by interface of this host that is up its first address of each family; without loopback and link-local ones."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found: dict[str, dict[str, str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            usable = each.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(each.address) and not is_link_local(each.address)
            if name in up and usable:
                found.setdefault(name, {}).setdefault(family_of(each.address).value, each.address)
    return found


@dataclass(frozen=True)
class _Way:
    """One stream over an interface: who sends, to whom, from which address to which."""

    nic: str
    source: Member
    target: Member
    source_address: str
    target_address: str

    @property
    def reversed(self) -> _Way:
        """The other way."""
        return _Way(self.nic, self.target, self.source, self.target_address, self.source_address)

    def sent(self, port: int, key: bytes, seconds: float, waits: float) -> int | None:
        """Sends; returns the bytes that the interface counted meanwhile, None where it counts none."""
        before = _counted(self.nic, "tx_bytes")
        streams.send((self.target_address, port), key, 1, (seconds, waits), source=self.source_address)
        return _since(before, _counted(self.nic, "tx_bytes"))

    def taken(self, listener: socket.socket, key: bytes, seconds: float, waits: float) -> list[Any]:
        """Receives; returns [the rates, what was wrong, the bytes that the interface counted meanwhile]."""
        before = _counted(self.nic, "rx_bytes")
        arrived = streams.receive(listener, key, 1, seconds, waits)
        return [arrived.rates.tolist(), arrived.wrong, _since(before, _counted(self.nic, "rx_bytes"))]


def _counted(nic: str, what: str) -> int | None:
    return ethernet_counters.read()[0].get(nic, {}).get(what)


def _since(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True)
class _Carried:
    """What a stream carried, bytes per second with its interval; or why nothing is known. proven: whether both interfaces counted it."""

    speed: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: str | None = None
    na: str | None = None
    proven: bool = True


@dataclass(frozen=True)
class Streaming:
    """Streams over the interfaces that all nodes have, of so many seconds each."""

    world: World
    places: Places
    rails: Rails
    seconds: float

    def play(self, number: int, ask: Asked) -> HuntRound | None:
        """Measures a round on all ranks, first one way, then the other; returns it at rank 0, elsewhere None."""
        nic = ask.nic or ""
        leaders, addresses = _leaders(self.world, self.places), self.rails[nic]
        ways = [_Way(nic, leaders[a], leaders[b], addresses[a], addresses[b]) for a, b in ask.groups]
        there, back = self._carried(ways), self._carried([way.reversed for way in ways])
        return _round(number, ask, list(zip(there, back, strict=True))) if self.world.rank == 0 else None

    def _carried(self, ways: Sequence[_Way]) -> list[_Carried]:
        """What each stream carried, all of them at once, at all ranks."""
        world = self.world
        mine = next((way for way in ways if world.me in (way.source, way.target)), None)
        listener: list[socket.socket] = []
        key = secrets.token_bytes(streams.KEY_BYTES)

        def listen(address: str) -> list[Any]:
            listener.append(listen_at(address))
            return [listener[0].getsockname()[1], key.hex()]

        awaited = mine and mine.target == world.me
        offers = world.agree(attempt(partial(listen, mine.target_address)) if mine and awaited else {}, "listening for TCP streams")
        try:
            with world.patient(self.seconds + 2 * patience(world)), world.watchdog.phase("measuring TCP"):
                told = world.agree(self._done(mine, offers[mine.target.rank], listener) if mine else {}, "measuring TCP")
        finally:
            for each in listener:
                each.close()
        return [_carried(way, offers[way.target.rank], (told[way.source.rank], told[way.target.rank]), self.seconds) for way in ways]

    def _done(self, way: _Way, offer: Told, listener: Sequence[socket.socket]) -> Told:
        """This rank's part of a stream: it sends or takes."""
        if "value" not in offer:
            return {}
        port, key = offer["value"][0], bytes.fromhex(offer["value"][1])
        waits = patience(self.world)
        if way.target == self.world.me:
            return attempt(lambda: way.taken(listener[0], key, self.seconds, waits))
        return attempt(lambda: way.sent(port, key, self.seconds, waits))


def _carried(way: _Way, offer: Told, said: tuple[Told, Told], seconds: float) -> _Carried:
    source, target = said
    ends = ((offer, f"{way.target.host} cannot listen at {way.target_address}"),
            (source, f"{way.source.host} does not reach {way.target.host} at {way.target_address}"),
            (target, f"nothing arrived at {way.target.host} ({way.target_address})"))  # fmt: skip
    for told, what in ends:
        if "value" not in told:
            return _Carried(na=f"{what}: {told.get('why', 'nothing was said')}")
    (rates, wrong, came), left = target["value"], source["value"]
    if not rates or max(rates) <= 0:
        return _Carried(na=f"{way.nic} of {way.source.host}: the stream stalled", wrong=wrong)
    least = COUNTED * float(np.mean(rates)) * seconds * _COUNTED_PART
    if left is not None and left < least:
        return _Carried(na=f"the stream left {way.source.host} over another interface than {way.nic}, whose address it had", wrong=wrong)
    if came is not None and came < least:
        return _Carried(na=f"the stream came to {way.target.host} over another interface than {way.nic}, whose address it had", wrong=wrong)
    known = median(np.array(rates))
    return _Carried(known.value or None, known.ci_low, known.ci_high, wrong, proven=left is not None and came is not None)


def _round(number: int, ask: Asked, both: Sequence[tuple[_Carried, _Carried]]) -> HuntRound:
    """The interval is that of the slower direction; one direction without a figure leaves the pair without."""
    slower = [min(pair, key=lambda one: one.speed or 0.0) for pair in both]
    none = (None,) * len(both)
    wrong = [next(filter(None, (one.wrong for one in pair)), None) for pair in both]
    unproven = any(not one.proven for pair in both for one in pair)
    return HuntRound(
        number, ask.kind, ask.stage, ask.why, ask.groups, tuple(there.speed for there, _ in both), tuple(back.speed for _, back in both),
        none, tuple(one.low for one in slower), tuple(one.high for one in slower), tuple(int(detail is not None) for detail in wrong),
        tuple(there.na or back.na for there, back in both), ask.nic, ("path_unproven",) if unproven else (), tuple(wrong),
    )  # fmt: skip
