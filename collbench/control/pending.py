"""Connections that have not proved yet that they belong to the launch, with limits: in all, and for each source address.

A source that exceeds its limit, or all sources if the whole does, cannot open new connections until half of the limit is free again:
ZeroMQ drops those that do not finish their handshake after 2 s, and the kernel of a rank that waits tries again.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from contextlib import suppress

from collbench.control import packet_filter


class PendingConnections:
    """By descriptor the source address (None: it was gone before it could be read).

    listening       the descriptors of the sockets that listen for other hosts
    most            connections in all
    most_of_source  connections from one address
    held_back       addresses that exceeded their limit at any time, in order
    """

    def __init__(self, most: int = 4096, most_of_source: int = 1024) -> None:
        self.listening: set[int] = set()
        self.most, self.most_of_source = most, most_of_source
        self.held_back: dict[str, None] = {}
        self._address: dict[int, str | None] = {}
        self._of_source: Counter[str] = Counter()
        self._dropped: frozenset[str] = frozenset()
        self._full = False

    def __len__(self) -> int:
        return len(self._address)

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._address

    def add(self, descriptor: int, address: str | None) -> None:
        """One more was accepted."""
        self.remove(descriptor)  # the event of an earlier one's end was lost
        self._address[descriptor] = address
        if is_remote(address):
            self._of_source[str(address)] += 1
        self._limit()

    def remove(self, descriptor: int) -> str | None:
        """It has closed, or belongs to the launch; returns its address."""
        address = self._address.pop(descriptor, None)
        if address is not None and address in self._of_source:
            self._of_source[address] -= 1
            self._of_source += Counter()  # without those at 0
            self._limit()
        return address

    def _limit(self) -> None:
        """Have the kernel drop what exceeds a limit, and let in again what is below half of it."""
        if not self.listening:
            return
        full = len(self._address) > (self.most // 2 if self._full else self.most)
        dropped = frozenset(
            source
            for source, count in self._of_source.items()
            if count > (self.most_of_source // 2 if source in self._dropped else self.most_of_source)
        )
        if (full, dropped) == (self._full, self._dropped):
            return
        if len(self.held_back) < packet_filter.MOST_SOURCES:
            self.held_back |= dict.fromkeys(sorted(dropped))
        self._full, self._dropped = full, dropped
        for descriptor in self.listening:
            with suppress(OSError):
                if full:
                    packet_filter.drop_all(descriptor)
                elif dropped:
                    packet_filter.drop_from(descriptor, dropped)
                else:
                    packet_filter.pass_all(descriptor)


def is_remote(address: str | None) -> bool:
    """Whether it is an IP address: ranks of this host come through a Unix socket, which has none."""
    try:
        return address is not None and bool(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return False
