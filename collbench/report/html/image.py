"""The classes of a pair matrix as a PNG of one pixel per cell, in colours that the colour-blind tell apart."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from collbench.report.pairs_map import CLASSES, WRONG

# matplotlib's cividis at its fifths, from the median on to far below it, and a red for wrong data
COLORS = ("#00224e", "#434e6c", "#7d7c78", "#bcae6c", "#fee838", "#d0104c")
_CLEAR = len(COLORS)  # what is not measured, and a place with itself: the page shows through
_PALETTE = b"".join(bytes.fromhex(color[1:]) for color in (*COLORS, "#ffffff"))


def image_of(classes: NDArray[np.int64]) -> str:
    """The picture of classes [rows × columns] as a data: address."""
    assert WRONG == CLASSES == _CLEAR - 1
    pixels = np.where(classes < 0, _CLEAR, classes).astype(np.uint8)
    lines = np.insert(pixels, 0, 0, axis=1)  # each line begins with its filter: none
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", head),
        (b"PLTE", _PALETTE),
        (b"tRNS", b"\xff" * _CLEAR + b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 6)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in parts)
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
