"""What the JSON of each kind of message must look like, by the kind's word on the wire: all the rest is refused before anybody reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MOST_RANKS = 1 << 24
_MOST_CODE = 255


def whole(value: Any) -> bool:
    """Whether it is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _rank(value: Any) -> bool:
    return whole(value) and 0 <= value < MOST_RANKS


def _said(value: Any) -> bool:
    """[rank, anything, how many raw parts belong to it]."""
    return isinstance(value, list) and len(value) == 3 and _rank(value[0]) and whole(value[2]) and value[2] >= 0


def _list_of(shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _presented(value: Any) -> bool:
    """[rank, what it says of itself, its build (launch/build.py reads it)]."""
    return isinstance(value, list) and len(value) == 3 and _rank(value[0]) and isinstance(value[1], dict)


def _stacked(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _rank(value[0]) and isinstance(value[1], str)


def _ended(value: Any) -> bool:
    """[sentence, exit code]."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and whole(value[1]) and 0 < value[1] <= _MOST_CODE


def _gone(value: Any) -> bool:
    """[rank, how it ended]."""
    return _stacked(value)


def _is_port(value: Any) -> bool:
    return whole(value) and 0 <= value < 1 << 16


def _is_size(value: Any) -> bool:
    return whole(value) and 0 <= value < 1 << 31


def _paths(value: Any) -> bool:
    """[rank, port (0: none), reports]; world/tcp_info.py reads the reports."""
    return isinstance(value, list) and len(value) == 3 and _rank(value[0]) and _is_port(value[1]) and isinstance(value[2], list)


def _probe(value: Any) -> bool:
    """[address, port]."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and _is_port(value[1])


def _probed(value: Any) -> bool:
    """[rank, address, sizes that passed, sizes that did not]."""
    sizes = _list_of(_is_size)
    return (
        isinstance(value, list)
        and len(value) == 4
        and _rank(value[0])
        and isinstance(value[1], str)
        and sizes(value[2])
        and sizes(value[3])
    )


def _anything(_: Any) -> bool:
    return True


def _nothing(value: Any) -> bool:
    return value is None


SHAPES: Mapping[bytes, Callable[[Any], bool]] = {
    b"hello": _list_of(_presented),
    b"welcome": _nothing,
    b"moved": _rank,
    b"say": _list_of(_said),
    b"offer": lambda size: whole(size) and size >= 0,
    b"grant": _nothing,
    b"tell": _anything,
    b"beat": _list_of(_anything),  # world/standing.py looks closer
    b"stuck": lambda what: isinstance(what, str),
    b"where": _nothing,
    b"here": _list_of(_anything),
    b"aside": _list_of(_rank),
    b"paths": _paths,
    b"probe": _probe,
    b"probed": _probed,
    b"stack": _rank,
    b"stacked": _stacked,
    b"gone": _gone,
    b"bye": lambda rank: rank is None or _rank(rank),
    b"abort": _ended,
}
