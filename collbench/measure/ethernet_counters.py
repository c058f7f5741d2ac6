"""What the network interfaces of this host have counted (Linux Documentation/networking/statistics.rst).

/proc/net/dev has all of them in one file, read in a tenth of the time of the files in /sys/class/net/*/statistics, which are read where
it is not there. In it a received packet that was missed for want of buffers is a dropped one, too (net/core/net-procfs.c).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from collbench.measure.sysfs_numbers import Counts, entries, numbers, text, word

CLASS = "/sys/class/net"
NAMES = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets", "tx_dropped", "rx_dropped", "tx_errors", "rx_errors")
_TABLE = "/proc/net/dev"
_MOST_DIGITS = 20  # of 64 bits
_COLUMNS = {
    "rx_bytes": 0,
    "rx_packets": 1,
    "rx_errors": 2,
    "rx_dropped": 3,
    "tx_bytes": 8,
    "tx_packets": 9,
    "tx_errors": 10,
    "tx_dropped": 11,
}
LOOPBACK = "lo"
HEADERS_BYTES = 66
_IP_OVER_INFINIBAND = "32"  # ARPHRD_INFINIBAND, Linux include/uapi/linux/if_arp.h


def read(root: str = "") -> tuple[dict[str, Counts], frozenset[str]]:
    """(counters by interface, the interfaces whose bytes leave this host and are counted nowhere else).

    A bond, VLAN or bridge repeats what the interfaces below it count, InfiniBand ports count what IP over InfiniBand sends, and
    the host's end of a container's link carries the container's bytes, which leave by another interface.
    """
    counts: dict[str, Counts] = {}
    leaving: set[str] = set()
    table = _table(f"{root}{_TABLE}")
    for name in entries(f"{root}{CLASS}"):
        found = table.get(name) or numbers(f"{root}{CLASS}/{name}/statistics", NAMES)
        if not found:
            continue
        counts[name] = found
        if name != LOOPBACK and _leaves(f"{root}{CLASS}/{name}"):
            leaving.add(name)
            counts[name] |= numbers(f"{root}{CLASS}/{name}", ("carrier_changes",))
    return counts, frozenset(leaving)


def payload(counts: Mapping[str, int | None], direction: str) -> int | None:
    """Bytes of TCP's payload among those counted in a direction ("tx" or "rx"); None where a counter is not known.

    Each packet counted holds 66 bytes of headers: Ethernet 14, IPv4 20, TCP 32 with its timestamps (IPv6: 20 more, 1.3 % of a full
    frame). Whether a packet is a frame or what the kernel hands down before a card cuts it up (64 KiB and one header, as on veth
    and virtio) depends on the driver, and bytes and packets agree in either case: on veth, 80 MiB all-reduced or sent by Gloo
    over a 1 Gbit/s link were counted as 1.001 to 1.003 of it, and 1.0000 to 1.0006 after this.
    """
    bytes_counted, packets = counts.get(f"{direction}_bytes", 0), counts.get(f"{direction}_packets", 0)
    if bytes_counted is None or packets is None:
        return None
    return max(0, bytes_counted - HEADERS_BYTES * packets)


def _table(path: str) -> dict[str, Counts]:
    """The interfaces of /proc/net/dev; lines that are not as expected are left out."""
    found: dict[str, Counts] = {}
    for line in text(path).splitlines():
        name, _, rest = line.partition(":")
        values = rest.split()
        if len(values) >= len(_COLUMNS) * 2 and "".join(values).isdecimal() and max(map(len, values)) <= _MOST_DIGITS:
            found[name.strip()] = {counter: int(values[place]) for counter, place in _COLUMNS.items()}
    return found


def _leaves(folder: str) -> bool:
    there = entries(folder)
    lower = bisect_left(there, "lower_")  # sorted, and there are dozens
    stacked = there[lower : lower + 1] != [] and there[lower].startswith("lower_")
    inner = "master" in there and "device" not in there
    return not stacked and not inner and word(f"{folder}/type") != _IP_OVER_INFINIBAND
