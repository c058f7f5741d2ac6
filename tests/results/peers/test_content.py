"""A file's lines, whatever a shell or a terminal made of them."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.results.peers.content import lines_of

TEXT = "# OSU MPI Allreduce Latency Test v7.4\n4 1.00\n"
LINES = TEXT.splitlines()


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.replace("\n", "\r\n").encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        TEXT.encode("utf-16"),
        codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
        f"\x1b[1;32m# OSU\x1b[0m{TEXT[5:]}\x1b[K".encode(),
    ],
    ids=["plain", "of Windows", "with a mark", "of PowerShell", "big-endian", "coloured"],
)
def test_the_lines_are_the_same(data: bytes) -> None:
    assert [line for line in lines_of(data) if line] == LINES


def test_what_is_no_text_is_lines_all_the_same() -> None:
    assert lines_of(b"\xff\xfe\x00") == ["\ufffd"]
    assert lines_of(b"") == []


def test_a_compressed_file_is_to_be_unpacked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^it is compressed: unpack it first \(gunzip\)$"):
        lines_of(gzip.compress(TEXT.encode()))
