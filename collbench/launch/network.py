"""Faults of this host's network that would end every launch, found before a library starts: a missing interface, and lo that is down."""

from __future__ import annotations

from collections.abc import Mapping

from collbench.addresses import interfaces, is_loopback_up
from collbench.reason import Fact

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_MOST_NAMES = 12
_HERE = "this host"


class InterfaceMissing(Fact, frozen=True):
    """GLOO_SOCKET_IFNAME has a name that is not an interface of a host. present: the interfaces with an address."""

    value: str
    name: str
    present: tuple[str, ...]
    host: str = _HERE

    def cause(self) -> str:
        """Return what is wrong."""
        which = "" if self.name == self.value else f" with {self.name!r}"
        listed = ", ".join(self.present[:_MOST_NAMES]) + (", …" if self.present[_MOST_NAMES:] else "")
        return f"{GLOO_INTERFACE}={self.value} names no interface of {self.host}{which} (it has {listed or 'none'})"

    def remedy(self) -> str:
        """Return what to do."""
        return "unset it, or use exact names; `^` and prefixes are NCCL's syntax"

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"{self.cause()}: {self.remedy()}"


def missing_interface(env: Mapping[str, str], host: str = _HERE) -> InterfaceMissing | None:
    """Return why Gloo cannot use GLOO_SOCKET_IFNAME, which has names of interfaces separated by commas; None if it can.

    host: the name of this host, for a sentence that a rank of another host may print.
    """
    value = env.get(GLOO_INTERFACE, "")
    present = interfaces()
    wrong = next((name for name in value.split(",") if name and name not in present), None)
    return None if wrong is None else InterfaceMissing(value, wrong, present, host)


def loopback_down(host: str = _HERE) -> str | None:
    """Return that lo is down on this host, with the remedy; None if it is up. host: as of `missing_interface`."""
    return None if is_loopback_up() else f"lo is down on {host}, so its ranks cannot reach each other: run `ip link set lo up`"
