"""The words that RDMA tools share: states, link layers, GUIDs, software devices."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

from collbench.machine.readers.infiniband_rate import LinkLayer
from collbench.machine.readers.text import bounded, printable, whole

MTUS = (4096, 2048, 1024, 512, 256)  # InfiniBand's, bytes of payload
IS_DOWN = "the port is down: what is printed for it is not in use"
NO_LID = "no subnet manager has given it a LID"

_LAYERS: dict[str, LinkLayer] = {"infiniband": "infiniband", "ib": "infiniband", "ethernet": "ethernet"}
_SOFTWARE = {"rxe": "software RDMA (rxe)", "siw": "software RDMA (siw)", "scif": "scif"}
_MOST_CHARACTERS = 8 << 20  # sixteen devices with -v and all their GIDs have half a million
_LONGEST_LINE = 1000
_GUID = re.compile(r"^[0-9a-f]{16}$")


def lines_of(text: str, name: str) -> Iterator[str]:
    """The lines of a tool's output, without the space around them. Raises Unreadable for more than a machine's tools print."""
    whole_text = bounded(text, name, _MOST_CHARACTERS, "a machine's ports fill", "give one machine's output")
    return (line.strip()[:_LONGEST_LINE] for line in io.StringIO(whole_text))


def link_layer(text: str | None) -> LinkLayer | None:
    """ "InfiniBand" or "Ethernet" in the model's words; None for "Unspecified", which Amazon's EFA says, and other text."""
    return _LAYERS.get((text or "").strip().lower())


def state(text: str | None) -> str | None:
    """ "active" of "PORT_ACTIVE (4)", "4: ACTIVE" and "Active"; "linkup" of "LINK_UP (5)"; "init" of "Initializing"."""
    word = re.sub(r"^\d+:|\(\d+\)$", "", printable(text or "", 60)).strip().lower().removeprefix("port_").replace("_", "").replace(" ", "")
    return {"initializing": "init", "initialize": "init"}.get(word, word) or None


def guid(text: str | None) -> str | None:
    """ "58a2:e103:002a:09b8" of that, and of "0x58a2e103002a09b8"; None for zero and other text."""
    digits = (text or "").strip().lower().removeprefix("0x").replace(":", "")
    if not _GUID.match(digits) or not digits.strip("0"):
        return None
    return ":".join(digits[at : at + 4] for at in range(0, 16, 4))


def lid(text: str | None) -> int | None:
    """A local identifier that a subnet manager gave; None for 0 and 65535, which mean that none did."""
    return whole(text, 1, 0xFFFE)


def why_software(name: str) -> str | None:
    """Why a device is no adapter, by the names that the kernel gives such devices ("rxe0"); None for adapters."""
    return next((why for start, why in _SOFTWARE.items() if name.startswith(start)), None)
