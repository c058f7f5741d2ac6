"""Untrusted files are read up to a limit, and anything that is not a regular file is rejected at once."""

from __future__ import annotations

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
    with pytest.raises(OSError, match="it is larger than 1 MiB"):
        read_file(tmp_path / "a", 1 << 20)


def test_a_sparse_file_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(OSError, match="it is larger than 0 MiB"):
        read_file(tmp_path / "a", 10)


def test_what_only_stands_in_a_files_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        for name, why in (
            ("pipe", "it is a pipe, not a regular file"),
            ("zero", "it is a device, not a regular file"),
            ("socket", "it is a socket, not a regular file"),
            ("circle", "Too many levels of symbolic links"),
            ("none", "No such file or directory"),
            (".", "Is a directory"),
            ("a\0b", "not a valid file name"),
        ):
            with pytest.raises(OSError) as refused:
                read_file(tmp_path / name, 10)
            assert (refused.value.strerror, refused.value.filename) == (why, str(tmp_path / name))


def test_toml_is_what_it_says() -> None:
    assert parse_toml('a.b = 1\n[[c]]\n"d.e" = "x"') == {"a": {"b": 1}, "c": [{"d.e": "x"}]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a" + ".a" * 400_000 + " = 1", "a key has more than 32 parts"),
        ("[" + "a . " * 200_000 + "a]", "a key has more than 32 parts"),
        ('"a"' + '."b"' * 200_000 + " = 1", "a key has more than 32 parts"),
        ("a = " + "[" * 100_000, "it is nested too deeply"),
        ("a = " + "{b=" * 100_000, "it is nested too deeply"),
        ("a" * 1_000_000, "Expected"),
        ("a " * 500_000, "Expected"),
        ("a.\n" * 300_000, "Invalid"),
    ],
    ids=range(8),
)
def test_what_would_keep_the_parser_busy_is_refused_at_once(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):  # some of them after hours without the limits
        parse_toml(text)


def test_values_are_counted_as_their_memory_grows() -> None:
    assert values_in(b'{"a": 1, "b": [1, 2, 3]}') == 1 + 3 + 2 + 2 * 5
    assert values_in(b"") == 1
