"""A file's lines, as shells and terminals leave them."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.importer import lines_of

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
    with pytest.raises(UsageError, match=r"gunzip"):
        lines_of(gzip.compress(TEXT.encode()))


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x1d", "\x85", "\u2028"])
def test_more_lines_than_a_log_has_are_refused_before_they_are_made(end: str) -> None:
    with pytest.raises(UsageError, match=r"4,194,304 lines"):
        lines_of(end.encode() * ((1 << 22) + 1))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x85", "\u2028"])
def test_a_line_ends_where_python_ends_it(end: str) -> None:
    text = f"a{end}b{end}{end}c{end}"
    assert lines_of(text.encode()) == text.splitlines() == ["a", "b", "", "c"]


def test_a_line_longer_than_any_tool_prints_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^line 2 .*16 MiB"):
        lines_of(b"a\n" + b"x" * (17 << 20) + b"\n")
