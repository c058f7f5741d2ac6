"""What the active RDMA ports of this host have counted: /sys/class/infiniband/*/ports/*/counters and hw_counters.

Linux Documentation/ABI/stable/sysfs-class-infiniband has the names; drivers add their own to hw_counters (mlx5: losses and
congestion; rxe: sent_pkts, rcvd_pkts; EFA and bnxt_re: tx_bytes, rx_bytes).
"""

from __future__ import annotations

from collections.abc import Mapping

from collbench.machine.readers.infiniband_port import HW_COUNTERS
from collbench.measure.sysfs_numbers import Counts, entries, numbers, word

CLASS = "/sys/class/infiniband"
# port_xmit_data and port_rcv_data count in units of 4 bytes, headers included (InfiniBand 16.1.3.5, PortCounters).
_DATA = {"port_xmit_data": ("tx_bytes", 4), "port_rcv_data": ("rx_bytes", 4), "port_xmit_packets": ("tx_packets", 1),
         "port_rcv_packets": ("rx_packets", 1)}  # fmt: skip
_SIGNS = ("port_xmit_wait", "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
          "local_link_integrity_errors", "excessive_buffer_overrun_errors")  # fmt: skip
_OF_DRIVERS = ("tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts", "rdma_read_bytes", "rdma_read_resp_bytes", "rdma_write_bytes",
               "rdma_write_recv_bytes", "sent_pkts", "rcvd_pkts", *HW_COUNTERS)  # fmt: skip
_STUCK = 2**32 - 1  # old 32-bit counters stop here (InfiniBand: "counters shall not roll over")


def read(root: str = "") -> dict[str, Counts]:
    """Counters by port ("mlx5_0/1"): bytes and packets under Ethernet's names, the others under their own. A stuck one is left out."""
    found: dict[str, Counts] = {}
    for device in entries(f"{root}{CLASS}"):
        for port in entries(f"{root}{CLASS}/{device}/ports"):
            folder = f"{root}{CLASS}/{device}/ports/{port}"
            if word(f"{folder}/state").endswith("ACTIVE"):
                found[f"{device}/{port}"] = _port(folder)
    return found


def moved(counts: Mapping[str, int | None], direction: str) -> int | None:
    """Bytes that crossed a port in a direction ("tx" or "rx"), or None where they are not known. RDMA is counted apart by some."""
    names = {"tx": ("tx_bytes", "rdma_read_resp_bytes", "rdma_write_bytes"), "rx": ("rx_bytes", "rdma_read_bytes", "rdma_write_recv_bytes")}
    values = [counts.get(name, 0) for name in names[direction]]
    return None if None in values else sum(value for value in values if value)


def _port(folder: str) -> Counts:
    standard, own = numbers(f"{folder}/counters", (*_DATA, *_SIGNS)), numbers(f"{folder}/hw_counters", _names(folder))
    data = {new: standard[old] * unit for old, (new, unit) in _DATA.items() if standard.get(old, _STUCK) != _STUCK}
    return {**own, **{name: value for name, value in standard.items() if name not in _DATA and value != _STUCK}, **data}


def _names(folder: str) -> list[str]:
    there = set(entries(f"{folder}/hw_counters"))
    return [name for name in _OF_DRIVERS if name in there]
