"""Hosts that are network namespaces on one bridge, their links shaped to a known rate in both directions."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tests.testbeds.bed import Bed, Finished

HERE = Path(__file__).parent
Family = Literal["IPv4", "IPv6", "dual"]
_FEW = 16  # hosts that may learn the addresses of one another
_UNLIKE = ("eno1", "ens3", "enp65s0f0np0", "bond0")  # names of interfaces that unlike hosts have, in turn


class Hosts(Bed):
    """`count` hosts; large messages between them must read 0.93-0.957 of `rate` (1448 of 1514 bytes of a full frame are payload).

    `burst` is what the shaper lets pass at once: too little does not reach 1 Gbit/s, too much does not limit short messages.
    `family` chooses the addresses of all hosts: "dual" gives each both. `own_name_at` puts a host's own name at that address in its
    /etc/hosts, as Debian's installer does with 127.0.1.1. `unlike` gives the hosts differently named interfaces, and what looks like a
    network to some of them: every host has the bridge docker0 with one address, every second one virbr0 and a NIC of another network.
    """

    tools = ("ip", "tc", "nsenter", "unshare")
    package = "iproute2"

    def __init__(
        self,
        count: int = 2,
        rate: str | None = "1gbit",
        burst: str = "256kb",
        family: Family = "IPv4",
        own_name_at: str = "",
        *,
        unlike: bool = False,
    ) -> None:
        self.count, self.rate, self.burst, self.family, self.own_name_at = count, rate, burst, family, own_name_at
        self.unlike = unlike

    @property
    def names(self) -> list[str]:
        return [f"cb{self.number}h{index}" for index in range(1, self.count + 1)]

    @property
    def addresses(self) -> list[str]:
        """Return the hosts' addresses, on their interfaces of `interfaces`; IPv4 if they have both families."""
        return self.ipv6_addresses if self.family == "IPv6" else self.ipv4_addresses

    @property
    def interfaces(self) -> list[str]:
        return [_UNLIKE[index % len(_UNLIKE)] if self.unlike else "eth0" for index in range(self.count)]

    @property
    def ipv4_addresses(self) -> list[str]:
        """Return the hosts' IPv4 addresses; not for IPv6-only hosts."""
        return [f"10.99.{self.number}.{index}" for index in range(1, self.count + 1)]

    @property
    def ipv6_addresses(self) -> list[str]:
        """Return the hosts' IPv6 addresses; not for IPv4-only hosts."""
        return [f"fd99:{self.number:x}::{index:x}" for index in range(1, self.count + 1)]

    @property
    def gateway(self) -> str:
        return f"fd99:{self.number:x}::fe" if self.family == "IPv6" else f"10.99.{self.number}.254"

    @property
    def bridge(self) -> str:
        """Return the machine's own interface in that network."""
        return f"cb{self.number}br"

    @property
    def rsh(self) -> str:
        return str(HERE / "rsh.sh")

    def up(self) -> None:
        """Create the bridge, then each host's link to it."""
        for index, name in enumerate(self.names):
            (self.folder / f"hosts.{name}").write_text(self._names_file(index))
        bridge = self.bridge
        self.must("ip", "link", "add", bridge, "type", "bridge")
        self.must("ip", "address", "add", *_on(self.gateway, bridge))
        self.must("ip", "link", "set", bridge, "up")
        for index in range(self.count):
            self._connect(index, bridge)
        if self.count > _FEW:
            self._know_one_another()

    def _know_one_another(self) -> None:
        """Give each host permanent entries for all others.

        All namespaces share the kernel's table of neighbors, which has room for 1024 (gc_thresh3) that are not permanent: 32 hosts that
        reach one another would overflow it, and wait seconds for addresses.
        """
        nics = self.interfaces
        known = [
            json.loads(self.must("ip", "-j", "-n", name, "link", "show", nic))[0]["address"]
            for name, nic in zip(self.names, nics, strict=True)
        ]
        for own, name in enumerate(self.names):
            lines = [
                f"neighbour add {address} lladdr {known[index]} dev {nics[own]} nud permanent\n"
                for index in range(self.count)
                for address in self.addresses_of(index)
                if index != own
            ]
            batch = self.folder / f"neighbours.{name}"
            batch.write_text("".join(lines))
            self.must("ip", "-n", name, "-batch", str(batch))

    def limit_packets(self, segments: int = 1) -> None:
        """Send packets of so many TCP segments at most: 1 as on a cable. Without a limit hosts of one machine pass up to 64 KiB at once."""
        for name, nic in zip(self.names, self.interfaces, strict=True):
            self.must("ip", "-n", name, "link", "set", nic, "gso_max_segs", str(segments))

    def run(self, host: str | int, command: Sequence[str], timeout: float = 60, env: Mapping[str, str] | None = None) -> Finished:
        """Run on a host (its name, or its index from 0)."""
        return self.call(self.on(host, command), timeout, env)

    def start(self, host: str | int, command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start on a host and return at once; the process ends with the test bed."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.on(host, command), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=self.environment(env)
        )

    def on(self, host: str | int, command: Sequence[str]) -> list[str]:
        """Return the command line that runs this command on a host."""
        return [str(HERE / "on_host.sh"), self.names[host] if isinstance(host, int) else host, *command]

    def addresses_of(self, index: int) -> list[str]:
        """Return the addresses of a host, of the families that the hosts have."""
        found = {"IPv4": self.ipv4_addresses[index], "IPv6": self.ipv6_addresses[index]}
        return [address for family, address in found.items() if self.family in (family, "dual")]

    def _names_file(self, own: int) -> str:
        """Return a host's /etc/hosts."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for index, name in enumerate(self.names):
            addresses = [self.own_name_at] if self.own_name_at and index == own else self.addresses_of(index)
            lines += [f"{address} {name}" for address in addresses]
        return "\n".join(lines) + "\n"

    def _connect(self, index: int, bridge: str) -> None:
        name, nic = self.names[index], self.interfaces[index]
        self.must("ip", "netns", "add", name)
        if self.unlike:
            self._add_dead_ends(index)
        self.must("ip", "link", "add", f"{name}p", "type", "veth", "peer", "name", nic, "netns", name)
        self.must("ip", "link", "set", f"{name}p", "master", bridge, "up")
        self.must("ip", "-n", name, "link", "set", "lo", "up")
        for address in self.addresses_of(index):
            self.must("ip", "-n", name, "address", "add", *_on(address, nic))
        self.must("ip", "-n", name, "link", "set", nic, "up")
        if self.rate:
            shape = ("root", "tbf", "rate", self.rate, "burst", self.burst, "latency", "50ms")
            self.must("tc", "qdisc", "add", "dev", f"{name}p", *shape)  # towards the host
            self.must("tc", "-n", name, "qdisc", "add", "dev", nic, *shape)  # from the host

    def _add_dead_ends(self, index: int) -> None:
        """Add interfaces with addresses that no other host can reach, before the NIC: lists of interfaces begin with them."""
        name = self.names[index]
        bridges = {"docker0": "172.17.0.1"} | ({"virbr0": "192.168.122.1"} if index % 2 else {})
        for bridge, address in bridges.items():
            self.must("ip", "-n", name, "link", "add", bridge, "type", "bridge")
            self._add_dead_end(name, f"{bridge}p")
            self.must("ip", "-n", name, "link", "set", f"{bridge}p", "master", bridge)  # a bridge without a port has no carrier
            self.must("ip", "-n", name, "address", "add", *_on(address, bridge))
            self.must("ip", "-n", name, "link", "set", bridge, "up")
        if index % 2:
            self._add_dead_end(name, "ens2")
            self.must("ip", "-n", name, "address", "add", *_on(f"10.123.{self.number}.{index}", "ens2"))

    def _add_dead_end(self, name: str, interface: str) -> None:
        """Add an interface with a carrier, whose other end has no address."""
        self.must("ip", "-n", name, "link", "add", interface, "type", "veth", "peer", "name", f"{interface}x")
        self.must("ip", "-n", name, "link", "set", interface, "up")
        self.must("ip", "-n", name, "link", "set", f"{interface}x", "up")


class Bottleneck(Hosts):
    """Hosts of which the first half and the second half are on two bridges, joined by one link of known rate in both directions.

    The hosts' own links are not limited. isolated: whether the link gives each host a fixed share, which no other host can use;
    else all share one queue.
    """

    def __init__(self, count: int = 4, rate_mbit: int = 100, *, isolated: bool = False) -> None:
        super().__init__(count, None)
        self.rate_mbit, self.isolated = rate_mbit, isolated

    @property
    def far_bridge(self) -> str:
        return f"cb{self.number}cr"

    def up(self) -> None:
        """Create the hosts, then move the second half behind the link."""
        super().up()
        near, far = f"cb{self.number}h0p", f"cb{self.number}h00p"  # names that `bed.links` removes
        self.must("ip", "link", "add", self.far_bridge, "type", "bridge")
        self.must("ip", "link", "set", self.far_bridge, "up")
        self.must("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        self.must("ip", "link", "set", near, "master", self.bridge, "up")
        self.must("ip", "link", "set", far, "master", self.far_bridge, "up")
        for name in self.names[self.count // 2 :]:
            self.must("ip", "link", "set", f"{name}p", "master", self.far_bridge)
        for device, senders in ((near, self.addresses[: self.count // 2]), (far, self.addresses[self.count // 2 :])):
            self._shape(device, senders)

    def _shape(self, device: str, senders: Sequence[str]) -> None:
        if not self.isolated:
            shape = ("tbf", "rate", f"{self.rate_mbit}mbit", "burst", "64kb", "latency", "20ms")
            self.must("tc", "qdisc", "add", "dev", device, "root", *shape)
            return
        share = f"{self.rate_mbit // len(senders)}mbit"
        self.must("tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
        for number, address in enumerate(senders, 1):
            rate = ("htb", "rate", share, "ceil", share, "burst", "16kb", "cburst", "16kb")
            self.must("tc", "class", "add", "dev", device, "parent", "1:", "classid", f"1:{number}", *rate)
            match = ("u32", "match", "ip", "src", f"{address}/32", "flowid", f"1:{number}")
            self.must("tc", "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1", *match)


def _on(address: str, interface: str) -> list[str]:
    """Return the end of `ip address add`; IPv6 addresses are usable at once, without the search for duplicates."""
    return [f"{address}/64", "dev", interface, "nodad"] if ":" in address else [f"{address}/24", "dev", interface]
