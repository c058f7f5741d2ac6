"""Hosts that lose packets, by the counters of each host while cases were measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from collbench.measuring.crossing import MovedBytes
from collbench.measuring.disturbances import PORT_ERRORS, HostNetwork, NetworkCounts
from collbench.results.reader import Run
from collbench.untrusted import list_of

_FEWEST_SEGMENTS = 1000  # of TCP, of a host that shows that it loses none: three losses would be 0.3 %
_MOST_NAMED = 0.25  # of the hosts: more have a common cause, such as a switch, and none is named
_ALL_SEND = ("allreduce", "allgather", "alltoall", "reducescatter", "sendrecv", "p2p_bidirectional", "p2p_latency")


class LossFigure(NamedTuple):
    """The counters of all hosts while a case was measured.

    pairs    by host its only partner; empty where hosts had several
    damage   whether a port that carried data counted errors
    by_rdma  whether the counters of RDMA ports show that these carried the data, of which TCP sent little then
    """

    source: str
    counts: Mapping[str, NetworkCounts]
    pairs: Mapping[str, str]
    damage: bool
    by_rdma: bool = False

    @property
    def lossy(self) -> list[str]:
        """Return the hosts of which sent packets were lost, beyond what full queues explain."""
        return [host for host, counts in self.counts.items() if counts.lossy]

    @property
    def broken(self) -> dict[str, str]:
        """Return by host the port that counted errors, in words."""
        ports = {host: HostNetwork(host, counts).port_errors for host, counts in self.counts.items() if self.damage}
        return {host: errors[0].render() for host, errors in ports.items() if errors}

    def is_clean(self, hosts: Collection[str]) -> bool:
        """Return whether these hosts lost nothing, counted no errors, and sent enough to show that."""
        enough = self.by_rdma or all(self.counts[host].tcp_sent >= _FEWEST_SEGMENTS for host in hosts)
        return enough and not set(hosts) & {*self.lossy, *self.broken}


def loss_figures(run: Run) -> Iterator[LossFigure]:
    """Yield the counters of each row between hosts in which all hosts send."""
    places = [place["host"] for place in list_of(run.info.get("rank_map"), dict) if "host" in place]
    half = len(places) // 2
    for row in run.rows:
        try:
            counts = msgspec.convert(row.evidence["network"], dict[str, NetworkCounts])
        except (KeyError, msgspec.ValidationError):
            continue
        if not all(isinstance(host, str) for host in places):
            continue
        pairing: list[tuple[int, int]] = []
        if row.group == "DIV 2":
            pairing = [(rank, rank ^ 1) for rank in range(2 * half)]
        elif row.operation.startswith("p2p"):
            pairing = [(rank, (rank + half) % (2 * half)) for rank in range(2 * half)]
        if len(counts) < len(places) or not set(places) <= set(counts):  # several ranks of a host have several partners
            pairing = []
        moved = MovedBytes.of(row.evidence)
        by_rdma = moved is not None and moved.path == "network" and any(host.ports for host in moved.hosts.values())
        if row.operation in _ALL_SEND and row.wrong == 0:
            yield LossFigure(str(run.path), counts, {places[a]: places[b] for a, b in pairing}, PORT_ERRORS in row.flags, by_rdma)


def losing_hosts(figures: Sequence[LossFigure]) -> dict[str, str]:
    """Return by host why it is named: its port counted errors, or packets between it and two healthy hosts are lost.

    Healthy: the host loses none with another partner, in the same direction.
    """
    lossy = {(host, figure.pairs[host]) for figure in figures for host in figure.lossy if host in figure.pairs}
    fine = {pair for figure in figures for pair in figure.pairs.items() if figure.is_clean(pair[:1])} - lossy
    named: dict[str, str] = {}
    for host in sorted({host for pair in lossy for host in pair}):
        senders = sorted(a for a, b in lossy if b == host and any(sender == a for sender, _ in fine))
        receivers = sorted(b for a, b in lossy if a == host and any(receiver == b for _, receiver in fine))
        if len(senders) > 1 and not any(b == host for _, b in fine):
            named[host] = f"packets to {host} from {' and from '.join(_losses(figures, senders))} are lost, and none from these to others"
        elif len(receivers) > 1 and not any(a == host for a, _ in fine):
            named[host] = f"packets to {' and '.join(receivers)} from {_losses(figures, [host])[0]} are lost, and none to these from others"
    hosts = {host for figure in figures for host in figure.counts}
    if len(named) > max(1, _MOST_NAMED * len(hosts)):
        named = {}
    for figure in figures:
        if len(figure.broken) == 1:  # of several hosts it is not stored whose port carried the data
            named |= figure.broken
    return named


def _losses(figures: Sequence[LossFigure], hosts: Sequence[str]) -> list[str]:
    """Return for each host its last loss, in words."""
    texts = {}
    for figure in figures:
        for host in figure.lossy:
            texts[host] = f"{host} ({figure.counts[host].lost} of {figure.counts[host].tcp_sent} segments)"
    return [texts[host] for host in hosts]
