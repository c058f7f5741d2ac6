"""The links that join the hosts of runs: their rates in the first and the last run, which of them limit or are slow, and their picture."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from collbench.analysis.ceilings import FELL, carrying, hosts_of, link_rates
from collbench.machine.cluster import folded
from collbench.plugins.drawings.layout import CARD_HEIGHT, PAD
from collbench.plugins.drawings.svg import BOLD, Box, card, curve, document, rect, tag, text
from collbench.report.kinds import SuspectLink
from collbench.report.machine import safe
from collbench.results.reader import Run
from collbench.units import first_of, format_percent, plural
from collbench.untrusted import dict_of

SLOW, SUSPECT, LIMITS = "slow", "suspect", "limits"  # marks of links
_LOOPBACK = "lo"
_MOST_NAMED = 8
_LEAST_SHARE = 0.01  # of a host's bytes: an interface with fewer carried other traffic

HostInterface = tuple[str, str]  # a host and the name of one of its interfaces


class HostLink(msgspec.Struct, frozen=True):
    """The link of a host to the network.

    host       its name
    interface  the name of its NIC or network interface; "": unknown
    before     its rate in the first run that has it, in bits per second; None: unknown
    after      its rate in the last run
    state      SLOW: a finding names it, or its rate fell; SUSPECT: it may be slow; "": neither
    limits     whether it sets an expected rate of the last run
    share      its speed relative to the links of the other hosts, where a finding has it; None: unknown
    """

    host: str
    interface: str
    before: float | None = None
    after: float | None = None
    state: str = ""
    limits: bool = False
    share: float | None = None

    @property
    def mark(self) -> str:
        """Return its state, else LIMITS, else ""."""
        return self.state or (LIMITS if self.limits else "")

    @property
    def has_fallen(self) -> bool:
        """Whether it is slower in the last run than in the first one."""
        return self.before is not None and self.after is not None and self.after < FELL * self.before

    @property
    def rate(self) -> str:
        """Return "1 Gb/s", of a changed rate "1 → 0.8 Gb/s", of a measured share "51 % of the others"; "" if nothing is known."""
        if self.share is not None:
            return f"{format_percent(100 * self.share)} of the others"
        if self.before is None or self.after is None:
            return ""
        changed = "" if self.before == self.after else f"{self.before / 1e9:g} → "
        return f"{changed}{self.after / 1e9:g} Gb/s"

    def sentence(self, host: str | None = None) -> str:
        """Return "eth0 of cb1h2 (1 → 0.8 Gb/s)"; `host` replaces the name of the host."""
        rate = f" ({self.rate})" if self.rate else ""
        return f"{safe(self.interface) or 'the link'} of {safe(self.host) if host is None else host}{rate}"


def host_links(runs: Sequence[Run], slow: Iterable[SuspectLink]) -> list[HostLink]:
    """Return the links that carried the traffic of the runs, or that findings name, by host. Which of them limit is not set.

    A host of several that has neither has a link without a name.
    """
    hosts = list(dict.fromkeys(host for run in runs for host in hosts_of(run)))
    interfaces: dict[str, dict[str, None]] = {host: {} for host in hosts}
    before: dict[HostInterface, float] = {}
    after: dict[HostInterface, float] = {}
    for run in runs:
        for host, interface in sorted(_used(run)):
            interfaces.setdefault(host, {})[interface] = None
        for key, rate in link_rates(run).items():
            before.setdefault(key, rate)
            after[key] = rate
    found = {SLOW: defaultdict[str, list[SuspectLink]](list), SUSPECT: defaultdict[str, list[SuspectLink]](list)}
    for finding in slow:
        if len(finding.hosts) == 1:
            found[SLOW if finding.is_confirmed else SUSPECT][finding.hosts[0]].append(finding)
            interfaces.setdefault(finding.hosts[0], {}).update(dict.fromkeys(finding.interfaces))
    links = []
    for host, names in interfaces.items():
        for name in names or {"": None} if len(hosts) > 1 else names:
            link = HostLink(host, name, before.get((host, name)), after.get((host, name)))
            if link.has_fallen:
                link = replace(link, state=SLOW)
            for state in (SUSPECT, SLOW):
                for finding in found[state][host]:
                    if not finding.interfaces or name in finding.interfaces:
                        link = replace(link, state=state, share=finding.share)
            links.append(link)
    return links


def _used(run: Run) -> set[HostInterface]:
    """Return the interfaces that carried the bytes of the rows by the hosts' counters; without counters those chosen for the traffic."""
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in run.rows:
        for host, moved in dict_of(dict_of(row.evidence.get("moved")).get("hosts")).items():
            for kind in ("interfaces", "ports"):
                for name, counts in dict_of(dict_of(moved).get(kind)).items():
                    bytes_counted = [value for key, value in dict_of(counts).items() if key.endswith("_bytes") and isinstance(value, int)]
                    counted[host][name.partition("/")[0]] += sum(bytes_counted)  # a port is "mlx5_0/1"
    used = {each for each in carrying(run) if each[0] not in counted}
    for host, totals in counted.items():
        del totals[_LOOPBACK]
        used |= {(host, name) for name, total in totals.items() if total > _LEAST_SHARE * totals.total()}
    return {(host, name) for host, name in used if name != _LOOPBACK}


def describe_links(links: Sequence[HostLink], paths: Sequence[SuspectLink]) -> str:
    """Return which links are slow or limit, in sentences."""
    sentences = [f"{plural(len({link.host for link in links}), 'host')}."]
    for state, words in ((SLOW, "Slow"), (SUSPECT, "Perhaps slow")):
        named = [link.sentence() for link in links if link.state == state]
        named += [f"the path between {' and '.join(map(safe, path.hosts))}" for path in paths if path.is_confirmed == (state == SLOW)]
        if named:
            sentences.append(f"{words}: {first_of(named, _MOST_NAMED)}.")
    if limiting := [link.sentence() for link in links if link.limits]:
        sentences.append(f"The expected rates are limited by {first_of(limiting, _MOST_NAMED)}.")
    if len(sentences) == 1:
        sentences.append("No link is known to be slow.")
    return " ".join(sentences)


# The picture: the hosts in two rows, above and below the network, and a line for each link.

_WIDTH, _GAP, _WIRE, _NETWORK = 142.0, 12.0, 66.0, 32.0  # pixels
_IN_A_ROW = 8
_MOST_BOXES, _MOST_WIRES = 2 * _IN_A_ROW, 8
_MARKS = (SLOW, SUSPECT, LIMITS, "")  # the most important one first


class _Hosts(msgspec.Struct, frozen=True):
    """A box of the picture: a host, or hosts with equal links."""

    hosts: tuple[str, ...]
    links: tuple[HostLink, ...]

    @property
    def mark(self) -> str:
        return min((link.mark for link in self.links), key=_MARKS.index)


def network_picture(links: Sequence[HostLink], paths: Sequence[SuspectLink] = ()) -> str:
    """Return the hosts with their links to the network as one SVG document; `paths` between two hosts are lines through the network.

    Of more than 16 hosts those with equal links are one box. If there are still too many boxes, those with marks are drawn first.
    """
    by_host: defaultdict[str, list[HostLink]] = defaultdict(list)
    for link in links:
        by_host[link.host].append(link)
    boxes = [_Hosts((host,), tuple(own)) for host, own in by_host.items()]
    if len(boxes) > _MOST_BOXES:
        boxes = _combined(boxes, {host for path in paths for host in path.hosts})
    boxes = sorted(boxes, key=lambda box: _MARKS.index(box.mark)) if len(boxes) > _MOST_BOXES else boxes
    left_out = sum(len(box.hosts) for box in boxes[_MOST_BOXES:])
    boxes = boxes[:_MOST_BOXES]
    columns = len(boxes) if len(boxes) <= _IN_A_ROW else -(-len(boxes) // 2)
    width = max(2 * PAD + columns * (_WIDTH + _GAP) - _GAP, 480.0)
    network = Box(PAD, PAD + CARD_HEIGHT + _WIRE, width - 2 * PAD, _NETWORK)
    start = (width - columns * (_WIDTH + _GAP) + _GAP) / 2
    lower = network.bottom + _WIRE
    body = [rect(network, "switch"), text(network.middle, network.y + 20.5, "network", "name mid", size=BOLD)]
    ends: dict[str, tuple[float, float]] = {}  # of a host's box, on the side of the network
    for number, box in enumerate(boxes):
        is_above = number < columns
        place = Box(start + number % columns * (_WIDTH + _GAP), PAD if is_above else lower, _WIDTH, CARD_HEIGHT)
        body += _wires(box, place, network)
        body += _host(box, place)
        ends |= dict.fromkeys(box.hosts, (place.x + _WIDTH - 18, place.bottom if is_above else place.y))
    for path in paths:
        body += _path(path, ends, network)
    bottom = (lower + CARD_HEIGHT if len(boxes) > columns else network.bottom) + PAD
    if left_out:
        bottom += PAD
        body.append(text(PAD, bottom - PAD / 2, f"{left_out} more hosts are not drawn.", "small"))
    return document(width, bottom, "hosts and their links", describe_links(links, paths), body)


def _combined(boxes: Sequence[_Hosts], apart: Collection[str]) -> list[_Hosts]:
    """Return the boxes with hosts of equal links together, but for the hosts in `apart`."""
    groups: dict[object, list[_Hosts]] = {}
    for box in boxes:
        key = tuple(replace(link, host="") for link in box.links)
        groups.setdefault(box.hosts if box.hosts[0] in apart else key, []).append(box)
    return [_Hosts(tuple(host for box in group for host in box.hosts), group[0].links) for group in groups.values()]


def _host(box: _Hosts, place: Box) -> Iterator[str]:
    """Yield a box with the names of its hosts and interfaces, and the rate of its most important link."""
    shown = min(box.links, key=lambda link: _MARKS.index(link.mark))
    count = f" ({len(box.hosts)} hosts)" if len(box.hosts) > 1 else ""
    interfaces = first_of([link.interface for link in box.links if link.interface], 2)
    rates = {link.rate for link in box.links}
    rate = shown.rate
    if len(rates) > 1 and rate:
        rate = f"{shown.interface}: {rate}"
    about = "; ".join(link.sentence() for link in box.links)
    yield from card(place, "nic", f"{folded(box.hosts)}{count}", (interfaces, rate), about, mark="")


def _wires(box: _Hosts, place: Box, network: Box) -> Iterator[str]:
    """Yield a line for each link of a box, with its mark."""
    drawn = sorted(box.links, key=lambda link: _MARKS.index(link.mark))[:_MOST_WIRES]
    is_above = place.y < network.y
    top, bottom = (place.bottom, network.y) if is_above else (network.bottom, place.y)
    step = min(22.0, (_WIDTH - 60) / len(drawn))
    for number, link in enumerate(drawn):
        x = place.middle + (number - (len(drawn) - 1) / 2) * step
        line = f"M{x:g} {top:g}V{bottom:g}"
        is_slow = link.mark in (SLOW, SUSPECT)
        if link.mark:
            yield curve(line, 12, "halo")
        yield curve(line, 3, f"wire{' slow' if is_slow else ''}", link.sentence())
        if link.mark and (number == 0 or link.mark != drawn[number - 1].mark):
            yield tag(x, (top + bottom) / 2, link.mark)


def _path(path: SuspectLink, ends: Mapping[str, tuple[float, float]], network: Box) -> Iterator[str]:
    """Yield the line of a slow path between two hosts, through the network; nothing if one of them is not drawn."""
    if len(path.hosts) != 2 or not all(host in ends for host in path.hosts):
        return
    (x, y), (other_x, other_y) = (ends[host] for host in path.hosts)
    middle = network.y + _NETWORK / 2
    line = f"M{x:g} {y:g}L{x:g} {middle:g}L{other_x:g} {middle:g}L{other_x:g} {other_y:g}"
    yield curve(line, 12, "halo")
    yield curve(line, 3, "wire slow", f"the path between {path.hosts[0]} and {path.hosts[1]}")
    yield tag((x + other_x) / 2, network.bottom + 12, SLOW if path.is_confirmed else SUSPECT)
