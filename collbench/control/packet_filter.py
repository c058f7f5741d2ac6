"""Filters of the kernel on a listening TCP socket: connections are delayed or dropped before this process spends a descriptor on them.

Sources: tcp(7) for TCP_DEFER_ACCEPT; include/uapi/linux/filter.h and bpf_common.h for classic BPF. A filter sees every packet that the
listening socket gets; connections that are open already are not affected. All functions raise OSError where the kernel refuses.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # include/uapi/asm-generic/socket.h
_DEFER_S = 60  # longer than the kernel keeps a connection without data: it drops it itself, and no process accepts it
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets into the IP header
_LOAD_WORD, _LOAD_BYTE, _AND, _EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
_DROP, _PASS = (_RETURN, 0, 0, 0), (_RETURN, 0, 0, 0xFFFFFFFF)
_V4_SOURCE, _V6_SOURCE = 12, 8  # offsets of the source address in the two IP headers
MOST_SOURCES = 64

_Step = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def hold_silent(descriptor: int) -> None:
    """Keep connections in the kernel until their first byte: silent ones cost no descriptor. A rank's ZeroMQ sends its greeting at once."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)


def drop_all(descriptor: int) -> None:
    """Drop every packet of new connections."""
    _attach(descriptor, [_DROP])


def drop_from(descriptor: int, addresses: Iterable[str]) -> None:
    """Drop the packets of new connections from these addresses (the first 64), instead of those of an earlier call."""
    _attach(descriptor, program(addresses))


def pass_all(descriptor: int) -> None:
    """Remove the filter."""
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def program(addresses: Iterable[str]) -> list[_Step]:
    """Return the instructions that drop packets from these addresses: the version's part of them is run, word by word of the address."""
    found = sorted({ipaddress.ip_address(each.partition("%")[0]) for each in addresses}, key=lambda each: (each.version, int(each)))
    parts = {version: [each.packed for each in found[:MOST_SOURCES] if each.version == version] for version in (4, 6)}
    v4 = [*_compare(parts[4], _V4_SOURCE), _PASS]
    v6 = [*_compare(parts[6], _V6_SOURCE), _PASS]
    # a jump goes 255 steps at most: the part of version 4 is shorter, 3 steps for each of 64 addresses
    return [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_AND, 0, 0, 0xF0), (_EQUAL, 0, len(v4), 0x40), *v4, *v6]


def _compare(addresses: Iterable[bytes], offset: int) -> list[_Step]:
    steps: list[_Step] = []
    for address in addresses:
        words = [int.from_bytes(address[at : at + 4], "big") for at in range(0, len(address), 4)]
        for at, word in enumerate(words):
            left = 2 * (len(words) - at) - 1  # what is left of this address, its drop included
            steps += [(_LOAD_WORD, 0, 0, _NETWORK_HEADER + offset + 4 * at), (_EQUAL, 0, left, word)]
        steps.append(_DROP)
    return steps


def _attach(descriptor: int, steps: list[_Step]) -> None:
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    memory = ctypes.create_string_buffer(code, len(code))
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(steps), ctypes.addressof(memory)))
