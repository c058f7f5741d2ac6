"""What one message of NCCL or RCCL says. Spellings from 2.4 to 2.32, read in NCCL's sources of 2.18 to 2.30 and in the library 2.32.3.

A message is what stands behind "NCCL INFO ". Nothing here remembers anything but answers to equal messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from collbench.machine.readers.nccl_startup import CollNetDevice, StartupFact, startup_facts, tree_facts
from collbench.machine.readers.text import printable

GDR = "/GDRDMA"
SHARED_MEMORY = "SHM"

_LONGEST_INDEX = 3  # of GPUs; addresses have four digits or more
_MOST_ANSWERS = 4096  # equal messages come from every rank of a host, and with every call
# include/nccl_common.h of 2.20 to 2.23, which print numbers; later ones print names (collectives.cc)
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_PLUGIN = rb"NET/(?:[A-Za-z0-9_.-]{1,40} ){1,3}[A-Za-z0-9_.-]{1,40}/[\w./()\[\]-]{1,60}"  # "NET/AWS Libfabric/0/GDRDMA"
_WAY = re.compile(rb"direct shared memory|P2P/direct pointer|" + _PLUGIN + rb"|[A-Z][\w./()\[\]-]{1,100}")
_PROXY = re.compile(r"\([^()]{0,40}\)")
_RANK = re.compile(rb"(\d{1,7})(?:\[([0-9a-f]{1,8})\])?")
_CHANNEL = re.compile(rb"\[?(\d{1,4})\]?(?:/\d{1,4})?")
_NETWORK = re.compile(rb"Using network (\S[\w .-]{0,60})")
_DEVICES = re.compile(rb"NET/(IB|Socket) ?: Using (.{0,4096})")
_DEVICE = re.compile(rb"\[(\d{1,4})\]([\w.-]{1,64}(?::\d{1,3}(?::\d{0,5}){0,2}/\w{1,10})?)(/SHARP)?")
_FUSED = re.compile(rb"\[(\d{1,4})\]=\{([^{}]{1,400})\}")  # the two ports of a card as one device, 2.20 to 2.23
_PART = re.compile(rb"\[\d{1,4}\] ([\w.-]{1,64}:\d{1,3}/\w{1,10})")
_VIRTUAL = re.compile(rb"Made virtual device \[(\d{1,4})\] name=([\w.+-]{1,200})")
_GDR = re.compile(rb"GPU Direct RDMA (Enabled|Disabled) for (?:GPU \S{1,40} / )?HCA ([0-9a-f]{1,16})\b(?: '([^']{1,64})')?")
_DMA_BUF = re.compile(rb"DMA-BUF (?:is (not )?available|registrations: (true|false))")
_NVLS = re.compile(rb"NVLS multicast support is (not )?available")
_SPEED_OF = re.compile(rb"/sys/class/net/([\w.-]{1,64})/speed")
_RANKS = re.compile(rb"\bnranks (\d{1,7})\b", re.IGNORECASE)
_GRAPH = re.compile(rb"\+ ([A-Z][A-Z0-9]{1,5})\[(\d{1,7}\.\d{1,3})\] - ")
_PATH = re.compile(rb"\(\d{1,3}/\d{1,7}\.\d{1,3}/([A-Z][A-Z0-9]{1,5})\)")
_PROVIDER = re.compile(rb"Selected Provider is (\S{1,40}) \(found (\d{1,4}) nics\)", re.IGNORECASE)
_GROUP = re.compile(rb"NIC group (\d{1,4}) device")
_STATED = re.compile(rb"(\d{1,5}) (coll|collnet|nvls|p2p) channels(?! per)")
_CHOICE = re.compile(
    rb"(?:([A-Z][A-Za-z]{1,30})(?: \[([A-Za-z ]{1,30})\])?: )?(\d{1,18}) Bytes -> "
    rb"(?:Algo (\w{1,30}) proto (\w{1,20})|Kernel (\w{1,60})|cudaMemcpy|RMA proxy|Rail )"
)
_SPAN = re.compile(rb"channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}")
_OF_HOST = frozenset({"devices", "nic", "network", "startup"})
_TREE = frozenset({b" ", b"+"})  # "              + PCI[24.0] - GPU/0-cf000 (5)"
_LISTING = frozenset({b"Chan", b"Ring"})
_COUNT = re.compile(rb"nchannels (\d{1,4})")


class Connection(NamedTuple):
    """A line that proves a path: "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA".

    channel, source and target are None where the line names none; `way` is "send", "receive" or "" (inside a host); `gpu` is the one
    that wrote the line ("3", "0000:1b:00.0"), None unknown.
    """

    channel: int | None
    source: int | None
    target: int | None
    way: str
    transport: str
    gpu: str | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL chose for a call: "RING", "SIMPLE", and how many channels; None where it does not tell."""

    algorithm: str | None
    protocol: str | None
    channels: int | None


@dataclass(slots=True, eq=False)  # not frozen: that would take longer than reading the message; no eq: equal messages give one object
class Words:
    """What a message says beside connections; None and () where it says nothing of that.

    devices   ("IB", {0: "mlx5_0:1/IB"}, whether relaxed ordering is on)
    nic       (NCCL's number of a network device, its name)
    gdr       (whether a GPU may reach it, the name of the HCA or "HCA 3")
    choice    ("AllReduce" or None, bytes, Choice)
    stated    channels by kind: {"coll": 16}
    listing   (ranks that a ring listing has, whether it ends early)
    startup   what the library says of its start
    of_host   whether it holds for the host alone that wrote it
    """

    ranks: int | None = None
    network: str | None = None
    devices: tuple[str, tuple[tuple[int, str], ...], bool] | None = None
    nic: tuple[int, str] | None = None
    default_speed: str | None = None
    provider: tuple[str, int] | None = None
    group: int | None = None
    gdr: tuple[bool, str] | None = None
    dma_buf: bool | None = None
    nvls: bool | None = None
    widths: tuple[tuple[str, float], ...] = ()
    paths: tuple[str, ...] = ()
    choice: tuple[str | None, int, Choice] | None = None
    stated: tuple[tuple[str, int], ...] = ()
    listing: tuple[int, bool] | None = None
    startup: tuple[StartupFact, ...] = ()
    of_host: bool = False


@lru_cache(maxsize=_MOST_ANSWERS)
def words(message: bytes) -> Words | None:
    """What a message says, None for nothing that is wanted. The cheap tests come first: most messages pass none."""
    if b" Bytes -> " in message and (choice := _choice(message)):
        return Words(choice=choice)
    if message[:1] in _TREE and (widths := _GRAPH.findall(message)):
        startup = tree_facts(message)
        return Words(widths=tuple((text(kind), float(width)) for kind, width in widths), startup=startup, of_host=bool(startup))
    if message[:4] in _LISTING and (listing := _listing(message)):
        return Words(listing=listing)
    found = dict(_said(message))
    return Words(**found, of_host=not found.keys().isdisjoint(_OF_HOST)) if found else None


@lru_cache(maxsize=_MOST_ANSWERS)
def transport(text: bytes) -> str | None:
    """What stands behind "via": "NET/IB/3/GDRDMA", "P2P/CUMEM/read", "SHM"; None for other text.

    Without ranks of proxies, kinds of memory in brackets and what follows GDRDMA; old and new words for shared memory are one.
    """
    match = _WAY.match(text)
    if not match:
        return None
    bare = _PROXY.sub("", match[0].decode("ascii", "replace")).rstrip("/.")
    if bare == "direct shared memory" or bare.split("/")[0] == SHARED_MEMORY:
        return SHARED_MEMORY
    before, direct, _ = bare.partition(GDR)
    return before + direct if direct else bare.removesuffix("/Shared")


def connection(left: bytes, right: bytes) -> Connection | None:
    """The path that a line proves, from its words before and after "via"; None for other messages."""
    found = transport(right)
    if found is None:
        return None
    parts = left.split()
    way = parts.pop()[1:-1].decode("ascii", "replace") if parts and parts[-1] in (b"[send]", b"[receive]") else ""
    if len(parts) < 4 or parts[2] != b":":
        return Connection(None, None, None, way, found, None)
    return _connection(parts, way, found)


def _connection(parts: list[bytes], way: str, found: str) -> Connection:
    """A [send] line is written by the GPU that sends, a [receive] line by the one that receives."""
    channel, source = _CHANNEL.fullmatch(parts[1]), _RANK.fullmatch(parts[3])
    target = _RANK.fullmatch(parts[5]) if len(parts) > 5 and parts[4] == b"->" else None
    writer = source if way == "send" else target if way == "receive" else None
    return Connection(
        int(channel[1]) if channel else None, int(source[1]) if source else None, int(target[1]) if target else None, way, found,
        _gpu(writer[2].decode()) if writer and writer[2] else None,
    )  # fmt: skip


def _said(message: bytes) -> Iterator[tuple[str, Any]]:
    if b"anks " in message and (match := _RANKS.search(message)):
        yield "ranks", int(match[1])
    if b"Using " in message:
        yield from _used(message)
    if b" RDMA " in message and (match := _GDR.search(message)):
        name = text(match[3]) if match[3] else f"HCA {text(match[2])}"
        yield "gdr", (match[1] == b"Enabled", name)
        if match[3] and match[2].isdigit():
            yield "nic", (int(match[2]), name)
    if b"Made virtual" in message and (match := _VIRTUAL.search(message)):
        yield "nic", (int(match[1]), text(match[2]))
    if b"DMA-BUF" in message and (match := _DMA_BUF.search(message)):
        yield "dma_buf", match[1] is None and match[2] != b"false"
    if b"NVLS mult" in message and (match := _NVLS.search(message)):
        yield "nvls", match[1] is None
    if startup := (*startup_facts(message), *_reducing(message)):
        yield "startup", startup
    yield from _seldom(message)


def _seldom(message: bytes) -> Iterator[tuple[str, Any]]:
    if b"efaulting to 10 Gbps" in message:
        named = _SPEED_OF.search(message)
        yield "default_speed", text(named[1]) if named else "?"
    if b" nics)" in message and (match := _PROVIDER.search(message)):
        yield "provider", (text(match[1]), int(match[2]))
    if b"NIC group" in message and (match := _GROUP.search(message)):
        yield "group", int(match[1])
    if b"(" in message and (paths := _PATH.findall(message)):
        yield "paths", tuple(map(text, paths))
    if b" channels" in message and (stated := _STATED.findall(message)):
        yield "stated", tuple((text(kind), int(count)) for count, kind in stated)


def _listing(message: bytes) -> tuple[int, bool] | None:
    """ "Channel 00/16 :  0 7 6 5 ...": the ranks that it has at least, and whether it ends early."""
    parts = message.partition(b" :")[2].split()
    short = parts[-1:] == [b"..."]
    numbers = parts[:-1] if short else parts
    if not numbers or not all(part.isdigit() and len(part) < 8 for part in numbers):
        return None
    return max(map(int, numbers)) + 1, short


def _used(message: bytes) -> Iterator[tuple[str, Any]]:
    if match := _NETWORK.search(message):
        yield "network", text(match[1]).strip()
    if match := _DEVICES.search(message):
        listed = match[2].partition(b"OOB")[0]
        fused = tuple((int(number), "+".join(map(text, _PART.findall(parts)))) for number, parts in _FUSED.findall(listed))
        single = tuple((int(number), text(name)) for number, name, _ in _DEVICE.findall(_FUSED.sub(b"", listed)))
        yield "devices", (text(match[1]), tuple(sorted(fused + single)), b"[RO]" in listed)


def _reducing(message: bytes) -> Iterator[CollNetDevice]:
    """The devices that are listed with SHARP."""
    if b"/SHARP" in message and (match := _DEVICES.search(message)):
        yield from (CollNetDevice(text(name)) for _, name, sharp in _DEVICE.findall(match[2]) if sharp)


def _choice(message: bytes) -> tuple[str | None, int, Choice] | None:
    match = _CHOICE.search(message)
    if not match:
        return None
    collective, special, size, algorithm, protocol, kernel = (text(part) if part else None for part in match.groups())
    span, count = _SPAN.search(message), _COUNT.search(message)
    channels = int(span[2]) - int(span[1]) + 1 if span else int(count[1]) if count else None
    if algorithm:
        return collective, int(size or 0), Choice(_named(algorithm, _ALGORITHMS), _named(protocol or "", _PROTOCOLS), channels)
    return collective, int(size or 0), Choice(" ".join(filter(None, (special, kernel))) or None, None, channels)


def _named(word: str, names: tuple[str, ...]) -> str:
    return names[int(word)] if word.isdigit() and int(word) < len(names) else word.upper()


def _gpu(found: str) -> str:
    """The driver's number, or the PCI address that older logs print as one hexadecimal number ("1b000")."""
    if len(found) <= _LONGEST_INDEX:
        return found
    number = int(found, 16)
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def text(part: bytes) -> str:
    """Untrusted bytes as printable text."""
    return printable(part.decode("utf-8", "replace"))
