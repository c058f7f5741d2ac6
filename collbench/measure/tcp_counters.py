"""What TCP of this host's network namespace has sent, and sent again (RFC 4022: tcpOutSegs, tcpRetransSegs)."""

from __future__ import annotations

from collbench.measure.sysfs_numbers import Counts, text

_TABLE = "/proc/net/snmp"
_WANTED = {"RetransSegs": "retransmitted", "OutSegs": "sent"}


def read(root: str = "") -> Counts:
    """Return the segments "sent" and "retransmitted" so far; nothing where the kernel does not count them."""
    rows = [line.split()[1:] for line in text(f"{root}{_TABLE}").splitlines() if line.startswith("Tcp:")]
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        return {}
    return {_WANTED[name]: int(value) for name, value in zip(*rows, strict=True) if name in _WANTED and value.isdecimal()}
