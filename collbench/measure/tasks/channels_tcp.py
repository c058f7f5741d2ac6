"""The channels over TCP: one stream and several, from each host to the next; on one host over loopback."""

from __future__ import annotations

import secrets
import socket
import threading
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from collbench.addresses import LOOPBACK, listen_at
from collbench.control.world import World
from collbench.machine.peak.link import Link
from collbench.measure import streams
from collbench.measure.channels_between import Pair, Told, attempt, in_turn, pairs, patience
from collbench.measure.tasks.channel_figures import against, from_rates
from collbench.results.steps import Channel

STREAMS = (1, 8)
_INSIDE = "loopback: no link in it, the CPUs limit it"


def tcp_channels(world: World, links: dict[str, Link], seconds: float) -> list[Channel]:
    """The rows, at all ranks. All ranks call; `links` are those of `links_of`."""
    return [_measured(_Way(pair, count, seconds), world, links) for pair in pairs(world) for count in STREAMS]


@dataclass(frozen=True)
class _Way:
    """So many streams from one host to another for so long."""

    pair: Pair
    streams: int
    seconds: float

    def channel(self, links: dict[str, Link]) -> Channel:
        """Its row without figures, against the slower of the two hosts' interfaces."""
        source, target = self.pair.source.host, self.pair.target.host
        row = Channel(f"tcp_{self.streams}", source, target)
        if self.pair.inside:
            return replace(row, limited_by=_INSIDE)
        ends = [links[source], links[target]]
        unclear = next((link for link in ends if link.bytes_per_s is None), None)
        return against(row, unclear or min(ends, key=lambda link: link.known))


def links_of(world: World) -> dict[str, Link]:
    """By host, what the interface with its address could carry of TCP's payload; of an only host nothing. All ranks call."""
    from collbench.machine.interfaces import interface_with, read_interface
    from collbench.machine.peak.network import tcp_link

    mine: tuple[float | None, str, str] | None = None
    if len(world.hosts) > 1 and world.on_host()[0] == world.me:
        link = tcp_link(read_interface(interface_with(world.me.address)))
        mine = (link.bytes_per_s, link.name, link.source)
    told = world.agree(mine, "reading the interfaces")
    return {member.host: Link(*words) for member in world.members if (words := told[member.rank])}


def _measured(way: _Way, world: World, links: dict[str, Link]) -> Channel:
    """One row. The target listens and says where, then both ends work; either one's failure is the row's reason."""
    row, target = way.channel(links), way.pair.target
    listener: list[socket.socket] = []
    key = secrets.token_bytes(streams.KEY_BYTES)
    address = LOOPBACK if way.pair.inside else target.address

    def listen() -> list[str | int]:
        listener.append(listen_at(address))
        return [address, listener[0].getsockname()[1], key.hex()]

    offer = in_turn(world, target.rank, "listening for TCP streams", listen, 0.0)
    if "value" not in offer:
        return replace(row, na=f"{target.host} cannot listen at {address}: {offer.get('why')}")
    try:
        return _row(way, row, _both_ends(way, world, offer["value"], listener), address)
    finally:
        for each in listener:
            each.close()


def _both_ends(way: _Way, world: World, offer: tuple[str, int, str], listener: list[socket.socket]) -> tuple[Told, Told]:
    """(what the source says, what the target says), at all ranks."""
    (address, port, key), waits = offer, patience(world)
    send = partial(streams.send, (address, port), bytes.fromhex(key), way.streams, (way.seconds, waits))
    mine: dict[str, Told] = {}
    with world.patient(way.seconds + 2 * waits):
        sender = threading.Thread(target=lambda: mine.update(source=attempt(send)), daemon=True)
        if world.me == way.pair.source:
            sender.start()
        if listener:
            mine["target"] = attempt(lambda: _received(way, listener[0], bytes.fromhex(key), waits))
        if world.me == way.pair.source:
            sender.join()
        told = world.agree(mine, "measuring TCP")
    return told[way.pair.source.rank].get("source", {}), told[way.pair.target.rank].get("target", {})


def _received(way: _Way, listener: socket.socket, key: bytes, waits: float) -> list[object]:
    arrived = streams.receive(listener, key, way.streams, way.seconds, waits)
    return [arrived.rates.tolist(), arrived.wrong]


def _row(way: _Way, row: Channel, said: tuple[Told, Told], address: str) -> Channel:
    source, target = said
    if "why" in source:
        return replace(row, na=f"{way.pair.source.host} does not reach {way.pair.target.host} at {address}: {source['why']}")
    if "why" in target:
        return replace(row, na=f"nothing arrived at {way.pair.target.host} ({address}): {target['why']}")
    rates, wrong = target["value"]
    return from_rates(row, np.array(rates), wrong)
