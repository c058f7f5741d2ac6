"""Faults of the path between two hosts, made with packet filters and shapers of one host's network."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.matrix.plan import NIC_S, Case
from tests.testbeds import Hosts
from tests.testbeds.machines import Machines

DROPPED = {  # by fault which packets to a host iptables drops
    "mtu": ("-m", "length", "--length", "1001:"),
    "loss 1": ("-m", "statistic", "--mode", "random", "--probability", "0.01"),
    "loss 5": ("-m", "statistic", "--mode", "random", "--probability", "0.05"),
    "loss 30": ("-m", "statistic", "--mode", "random", "--probability", "0.30"),
    "one way": (),
}
_SLOW = "40mbit"


@contextmanager
def filtered(hosts: Hosts, host: int, table: str, chain: str, rule: tuple[str, ...]) -> Iterator[None]:
    """Inside, this rule of iptables applies to packets of a host."""
    inside = ("ip", "netns", "exec", hosts.names[host], "iptables", "-w", "-t", table)
    hosts.must(*inside, "-A", chain, *rule)
    try:
        yield
    finally:
        hosts.must(*inside, "-D", chain, *rule)


@contextmanager
def dropped(hosts: Hosts, host: int, fault: str) -> Iterator[None]:
    """Inside, the packets of a fault of DROPPED do not arrive at a host."""
    with filtered(hosts, host, "filter", "INPUT", ("-i", hosts.interfaces[host], *DROPPED[fault], "-j", "DROP")):
        yield


class PathFaults:
    def __init__(self, bed: Machines) -> None:
        self._bed = bed

    @contextmanager
    def applied(self, case: Case) -> Iterator[None]:
        host = case.host
        if case.fault in DROPPED:
            with dropped(self._bed, host, case.fault):
                yield
        elif case.fault == "duplicates":
            twice = ("-o", "eth0", "-m", "statistic", "--mode", "random", "--probability", "0.2")
            with filtered(self._bed, host, "mangle", "POSTROUTING", (*twice, "-j", "TEE", "--gateway", self._bed.addresses[1 - host])):
                yield
        elif case.fault == "slow":
            with self._slow(host):
                yield
        else:
            with self._down(host, NIC_S if case.fault == "nic 3 s" else None):
                yield

    @contextmanager
    def _slow(self, host: int) -> Iterator[None]:
        self._shape(host, _SLOW, self._bed.burst, "50ms")
        try:
            yield
        finally:
            self._shape(host, self._bed.rate or "1gbit", self._bed.burst, "50ms")

    def _shape(self, host: int, rate: str, burst: str, latency: str) -> None:
        name = self._bed.names[host]
        shape = ("root", "tbf", "rate", rate, "burst", burst, "latency", latency)
        self._bed.must("tc", "qdisc", "replace", "dev", f"{name}p", *shape)
        self._bed.must("tc", "-n", name, "qdisc", "replace", "dev", "eth0", *shape)

    @contextmanager
    def _down(self, host: int, seconds: float | None) -> Iterator[None]:
        """Unplug the host's links; for some seconds, or as long as this lasts."""
        for link in ("eth0", "ctl0"):
            self._bed.set_link(host, link, "down")
        later = threading.Timer(seconds, self._up, [host]) if seconds else None
        if later:
            later.start()
        try:
            yield
        finally:
            if later:
                later.cancel()
                later.join()
            self._up(host)

    def _up(self, host: int) -> None:
        for link in ("eth0", "ctl0"):
            self._bed.set_link(host, link, "up")
