"""Untrusted files are read up to a limit, and anything that is not a regular file is rejected at once."""

import errno
import os
import socket
from pathlib import Path

import pytest

from collbench.untrusted import open_file, parse_toml, read_file, values_in


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    assert (read_file(tmp_path / "a", 3), read_file(tmp_path / "link", 3)) == (b"abc", b"abc")
    with open_file(tmp_path / "a") as file:
        assert file.read() == b"abc"


def test_one_byte_more_than_the_limit_is_too_much(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(OSError, match="1 MiB"):
        read_file(tmp_path / "a", 1 << 20)


def test_a_sparse_file_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(OSError, match="0 MiB"):
        read_file(tmp_path / "a", 10)


@pytest.mark.contract
def test_paths_that_are_not_regular_files_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        for name, words in (
            ("pipe", "pipe"),
            ("zero", "device"),
            ("socket", "socket"),
            ("circle", os.strerror(errno.ELOOP)),
            ("none", os.strerror(errno.ENOENT)),
            (".", os.strerror(errno.EISDIR)),
            ("a\0b", "file name"),
        ):
            with pytest.raises(OSError) as refused:
                read_file(tmp_path / name, 10)
            assert words in str(refused.value.strerror) and refused.value.filename == str(tmp_path / name)


def test_toml_is_parsed() -> None:
    assert parse_toml('a.b = 1\n[[c]]\n"d.e" = "x"') == {"a": {"b": 1}, "c": [{"d.e": "x"}]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a" + ".a" * 400_000 + " = 1", "32 parts"),
        ("[" + "a . " * 200_000 + "a]", "32 parts"),
        ('"a"' + '."b"' * 200_000 + " = 1", "32 parts"),
        ("a = " + "[" * 100_000, "nested"),
        ("a = " + "{b=" * 100_000, "nested"),
        ("a" * 1_000_000, "Expected"),
        ("a " * 500_000, "Expected"),
        ("a.\n" * 300_000, "Invalid"),
    ],
    ids=range(8),
)
def test_text_that_would_take_the_parser_hours_is_rejected_at_once(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):  # some of them after hours without the limits
        parse_toml(text)


def test_values_are_counted_as_their_memory_grows() -> None:
    assert values_in(b'{"a": 1, "b": [1, 2, 3]}') == 1 + 3 + 2 + 2 * 5
    assert values_in(b"") == 1
