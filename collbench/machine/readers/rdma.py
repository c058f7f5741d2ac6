"""Values that RDMA tools and the kernel print: data rates ("400 Gb/sec (4X NDR)"), states, link layers, GUIDs, LIDs."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from collbench.machine.readers.text import bounded, printable, whole

LinkLayer = Literal["infiniband", "ethernet"]


class Lane(msgspec.Struct, frozen=True):
    """One lane's rate in bits/s: as the kernel prints it, of data after line coding, and the signalling rate in Gb/s."""

    printed: float
    data: float
    signalling_gb_per_s: float


# Printed rates: rate_show() in Linux drivers/infiniband/core/sysfs.c. Data: SDR, DDR and QDR are 8b10b; FDR is 14.0625 Gb/s at 64b66b,
# 54.5 Gb/s over four lanes; FDR10 and all later names are data rates (https://www.infinibandta.org/infiniband-roadmap/). Signalling, as
# iblinkinfo and ibportstate print it: IBA specification 1.7, PortInfo LinkSpeedActive.
LANES = {
    "SDR": Lane(2.5e9, 2.0e9, 2.5),
    "DDR": Lane(5e9, 4e9, 5.0),
    "QDR": Lane(10e9, 8e9, 10.0),
    "FDR10": Lane(10e9, 10e9, 10.3125),
    "FDR": Lane(14e9, 13.625e9, 14.0625),
    "EDR": Lane(25e9, 25e9, 25.78125),
    "HDR": Lane(50e9, 50e9, 53.125),
    "NDR": Lane(100e9, 100e9, 106.25),
    "XDR": Lane(200e9, 200e9, 212.5),
}
WIDTHS = (1, 2, 4, 8, 12)
_RATE = re.compile(r"^\s*(\d{1,5}(?:\.5)?)\s*Gb/sec\s*\((\d{1,2})X(?:\s+([A-Z]{3}(?:10)?))?\)\s*$", re.ASCII)


def port_rate(text: str, link_layer: LinkLayer = "infiniband") -> float | None:
    """Return the data bits/s of "56 Gb/sec (4X FDR)" (54.5e9). None for other text, unknown lanes, and contradictory values.

    Ethernet uses InfiniBand's names (a 10 Gb/s port is "1X QDR", one of 40 "4X QDR") without its coding: the printed value counts.
    The kernel also prints SDR for an unknown speed: see `falls_back`.
    """
    match = _RATE.match(text)
    lane = LANES.get(match[3] or "SDR") if match else None
    if not match or not lane or int(match[2]) not in WIDTHS:
        return None
    printed = lane.printed * int(match[2])
    if float(match[1]) * 1e9 != printed:
        return None
    return printed if link_layer == "ethernet" else lane.data * int(match[2])


def falls_back(text: str) -> bool:
    """Return whether the text has SDR, the speed or the fallback: old kernels print "10 Gb/sec (4X SDR)" for a port at XDR."""
    match = _RATE.match(text)
    return match is not None and (match[3] or "SDR") == "SDR"


def lane_name(signalling_bits_per_s: float) -> str | None:
    """Return "EDR" for 25.78125e9 bits/s of one lane before line coding; None for an unknown rate."""
    return next((name for name, lane in LANES.items() if lane.signalling_gb_per_s == signalling_bits_per_s / 1e9), None)


def fabric_rate(width: int | None, signalling_bits_per_s: float | None) -> float | None:
    """Return the data bits/s of a link of `width` lanes: 100e9 for 4 lanes of 25.78125e9; None when either is unknown."""
    name = lane_name(signalling_bits_per_s) if signalling_bits_per_s else None
    return LANES[name].data * width if name and width else None


# Common values of RDMA tools: states, link layers, GUIDs, software devices.

MTUS = (4096, 2048, 1024, 512, 256)  # InfiniBand's, bytes of payload
IS_DOWN = "the port is down: what is printed for it is not in use"

_LAYERS: dict[str, LinkLayer] = {"infiniband": "infiniband", "ib": "infiniband", "ethernet": "ethernet"}
_SOFTWARE = {"rxe": "software RDMA (rxe)", "siw": "software RDMA (siw)", "scif": "scif"}
_MOST_CHARACTERS = 8 << 20  # sixteen devices with -v and all their GIDs have half a million
_LONGEST_LINE = 1000
_GUID = re.compile(r"^[0-9a-f]{16}$")


def lines_of(text: str, name: str) -> Iterator[str]:
    """Yield the stripped lines of a tool's output. Raises Unreadable for more lines than one machine's tools print."""
    whole_text = bounded(text, name, _MOST_CHARACTERS, "a machine's ports fill", "give one machine's output")
    return (line.strip()[:_LONGEST_LINE] for line in io.StringIO(whole_text))


def link_layer(text: str | None) -> LinkLayer | None:
    """Return the model's value for "InfiniBand" or "Ethernet"; None for "Unspecified", which Amazon's EFA reports, and other text."""
    return _LAYERS.get((text or "").strip().lower())


def state(text: str | None) -> str | None:
    """Return "active" for "PORT_ACTIVE (4)", "4: ACTIVE" and "Active"; "linkup" for "LINK_UP (5)"; "init" for "Initializing"."""
    word = re.sub(r"^\d+:|\(\d+\)$", "", printable(text or "", 60)).strip().lower().removeprefix("port_").replace("_", "").replace(" ", "")
    return {"initializing": "init", "initialize": "init"}.get(word, word) or None


# A bond of the ports of one card ("RoCE LAG") is one RDMA device. The kernel names it (mlx5_ib_stage_ib_reg_init in Linux
# drivers/infiniband/hw/mlx5/main.c), and prints the rate of one port: https://github.com/deepseek-ai/DeepEP/pull/671 has 200 Gb/s printed
# and 372 measured, https://github.com/NVIDIA/nccl/issues/1015 likewise.
_BOND = "mlx5_bond_"
OF_ONE_PORT = "what is printed is the rate of one port of this bond: the speed of its network interface is that of all"


def is_bond(name: str) -> bool:
    """Return whether an RDMA device is a bond of all ports of its card, by the kernel's name for it."""
    return name.startswith(_BOND)


def parse_guid(text: str | None) -> str | None:
    """Return "58a2:e103:002a:09b8" for that text and for "0x58a2e103002a09b8"; None for zero and other text."""
    digits = (text or "").strip().lower().removeprefix("0x").replace(":", "")
    if not _GUID.match(digits) or not digits.strip("0"):
        return None
    return ":".join(digits[start : start + 4] for start in range(0, 16, 4))


def parse_lid(text: str | None) -> int | None:
    """Return a local identifier assigned by a subnet manager; None for 0 and 65535, which mean unassigned."""
    return whole(text, 1, 0xFFFE)


def why_no_lid(text: str | None) -> str:
    """Return why a port has no LID, by the text that a source has for it."""
    return "it is not in the files" if text is None else "no subnet manager has given it a LID"


def why_software(name: str) -> str | None:
    """Return why a device is not an adapter, by the kernel's names for software devices ("rxe0"); None for adapters."""
    return next((why for start, why in _SOFTWARE.items() if name.startswith(start)), None)
