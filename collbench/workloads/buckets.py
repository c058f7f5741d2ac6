"""Gradients in buckets: as many equal ones as fit, and a last one that is smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.workloads.exchange import Shape


@dataclass(frozen=True)
class Bucket:
    """`times` equal buckets of size_bytes each; which: "buckets 1 to 51 of 52"."""

    size_bytes: int
    times: int
    which: str


def buckets(shape: Shape, unit: int = 1) -> tuple[Bucket, ...]:
    """Those of a shape's gradients, each a whole number of `unit` elements: the last one is filled up where that does not work out.

    Bucket sizes are rounded down to whole units. Raises UsageError for a bucket that has no room for one.
    """
    width = shape.element_bytes * unit
    size = shape.bucket_bytes // width * width
    if not size:
        room = f"{unit} elements of {shape.dtype}" if unit > 1 else f"one {shape.dtype}"
        raise UsageError(f"--bucket {shape.bucket_bytes} has no room for {room}: give {width} bytes or more, like 25M")
    return tuple(_buckets(-(-shape.gradient_bytes // width) * width, size))


def _buckets(total: int, size: int) -> Iterator[Bucket]:
    whole, last = divmod(total, size)
    number = whole + (last > 0)
    if whole:
        yield Bucket(size, whole, f"buckets 1 to {whole} of {number}" if whole > 1 else f"bucket 1 of {number}")
    if last:
        yield Bucket(last, 1, f"bucket {number} of {number}")


def filled_up(shape: Shape, unit: int) -> str:
    """A sentence where the last bucket is filled up to a whole number of units, else ""."""
    missing = -shape.parameters % unit
    return f"the last bucket is filled up by {missing} of {unit} elements, so that every rank has an equal part" if missing else ""
