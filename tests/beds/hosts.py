"""Hosts that are network namespaces on one bridge, their links shaped to a known rate in both directions."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.beds.bed import Bed, Finished

HERE = Path(__file__).parent


class Hosts(Bed):
    """`count` hosts; large messages between them must read 0.93-0.957 of `rate` (1448 of 1514 bytes of a full frame are payload).

    `burst` is what the shaper lets pass at once: too small starves 1 Gbit/s, too large lets short messages through unshaped.
    """

    tools = ("ip", "tc", "nsenter", "unshare")
    package = "iproute2"

    def __init__(self, count: int = 2, rate: str | None = "1gbit", burst: str = "256kb") -> None:
        self.count, self.rate, self.burst = count, rate, burst

    @property
    def names(self) -> list[str]:
        """The hosts' names, which resolve on them (not on the machine)."""
        return [f"cb{self.number}h{index}" for index in range(1, self.count + 1)]

    @property
    def addresses(self) -> list[str]:
        """The hosts' addresses, on their eth0."""
        return [f"10.99.{self.number}.{index}" for index in range(1, self.count + 1)]

    @property
    def gateway(self) -> str:
        """The machine's own address in the hosts' network."""
        return f"10.99.{self.number}.254"

    @property
    def bridge(self) -> str:
        """The machine's own interface in that network."""
        return f"cb{self.number}br"

    @property
    def rsh(self) -> str:
        """The command that takes ssh's place in MPI launchers."""
        return str(HERE / "rsh.sh")

    def up(self) -> None:
        """Lay the bridge, then each host's link to it."""
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address, name in zip(self.addresses, self.names, strict=True))]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        bridge = self.bridge
        self.must("ip", "link", "add", bridge, "type", "bridge")
        self.must("ip", "address", "add", f"{self.gateway}/24", "dev", bridge)
        self.must("ip", "link", "set", bridge, "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            self._connect(name, address, bridge)

    def run(self, host: str | int, command: Sequence[str], timeout: float = 60, env: Mapping[str, str] | None = None) -> Finished:
        """Run on a host (its name, or its index from 0)."""
        return self.call(self.on(host, command), timeout, env)

    def start(self, host: str | int, command: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start on a host and return at once; the bed's end ends it."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.on(host, command), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=self.environment(env)
        )

    def on(self, host: str | int, command: Sequence[str]) -> list[str]:
        """Return the command that runs this one on a host."""
        return [str(HERE / "on_host.sh"), self.names[host] if isinstance(host, int) else host, *command]

    def _connect(self, name: str, address: str, bridge: str) -> None:
        self.must("ip", "netns", "add", name)
        self.must("ip", "link", "add", f"{name}p", "type", "veth", "peer", "name", "eth0", "netns", name)
        self.must("ip", "link", "set", f"{name}p", "master", bridge, "up")
        self.must("ip", "-n", name, "link", "set", "lo", "up")
        self.must("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        self.must("ip", "-n", name, "link", "set", "eth0", "up")
        if self.rate:
            shape = ("root", "tbf", "rate", self.rate, "burst", self.burst, "latency", "50ms")
            self.must("tc", "qdisc", "add", "dev", f"{name}p", *shape)  # towards the host
            self.must("tc", "-n", name, "qdisc", "add", "dev", "eth0", *shape)  # from the host
