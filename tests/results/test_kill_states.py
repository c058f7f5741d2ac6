"""A run killed at any byte, or by a power loss: the folder reads back to its last finished case, and the run can be resumed."""

from __future__ import annotations

import json
import os
import random
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.errors import UsageError
from collbench.results import folder, store
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Row
from collbench.results.store import LOCK
from tests.conftest import sample
from tests.results.rows import make_row

PARTS = 100  # a test takes each hundredth byte


@dataclass
class Disk:
    """Every change that a run made on the disk, in order: (file, bytes added at its end or None: it is new as a whole, its bytes)."""

    steps: list[tuple[str, bool, bytes]] = field(default_factory=list)
    synced: list[tuple[int, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def after(self, count: int) -> dict[str, bytes]:
        """What the files hold after so many bytes; a file that is replaced is the old one until the new one is whole."""
        found: dict[str, bytes] = {}
        for name, grows, data in self.steps:
            part = data[:count]
            if grows:
                found[name] = found.get(name, b"") + part
            elif len(part) == len(data):
                found[name] = data
            count -= len(part)
            if not count:
                break
        return found

    def kept(self, count: int) -> dict[str, int]:
        """Up to where the disk surely has each file after so many bytes."""
        begun, sure = 0, dict[str, int]()
        for at, (name, grows, data) in enumerate(self.steps):
            begun += len(data)
            if begun > count:
                break
            if not grows:
                sure[name] = len(data)
            elif (at + 1, name) in self.synced:
                sure[name] = len(self.after(begun)[name])
        return sure

    @property
    def size(self) -> int:
        return sum(len(data) for _, _, data in self.steps)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    """A run of four cases, recorded at its system calls."""
    seen, path = Disk(), tmp_path_factory.mktemp("kill") / "run"
    write, fdatasync, replace = os.write, os.fdatasync, folder.replace

    def name(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    def writing(descriptor: int, data: Any) -> int:
        done = write(descriptor, data)
        seen.steps.append((name(descriptor), True, bytes(data[:done])))
        return done

    def syncing(descriptor: int) -> None:
        fdatasync(descriptor)
        seen.synced.append((len(seen.steps), name(descriptor)))

    def replacing(file: Path, text: str) -> None:
        replace(file, text)
        seen.steps.append((file.name, False, text.encode()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.os, "write", writing)
        patch.setattr(store.os, "fdatasync", syncing)
        patch.setattr(folder, "replace", replacing)
        _record(path, seen)
    return seen


def _record(path: Path, seen: Disk) -> None:
    run = RunFolder.create(path, "allreduce", {"seed": 7})
    run.event("note", text="begun")
    for number in range(4):
        arrays = {"max_s": np.full(number * 3, number + 0.5), "rank": np.arange(number % 2, dtype=np.int32)}
        seen.rows.append(run.append(make_row(8 << number), arrays if number != 2 else {}))
    run.event("finding", text="slow")
    run.finish(exit_code=0)


def _check(path: Path, files: dict[str, bytes], least: int, disk: Disk) -> None:
    """The folder reads back to at least so many rows, those that are whole, and goes on behind them."""
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    (path / LOCK).write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1}))
    if "run.json" not in files:  # killed before there was a run
        with pytest.raises(UsageError, match=r"run\.json is missing"):
            RunFolder.reopen(path)
        return
    kept = read_run(path).rows
    assert least <= len(kept) and kept == disk.rows[: len(kept)]
    again = RunFolder.reopen(path)
    again.go_on()
    again.event("resumed")
    new = again.append(make_row(1 << 20), {"max_s": np.arange(7.0)})
    run = read_run(path)
    assert (run.rows, run.warnings) == ([*kept, new], [])
    for number, row in enumerate(kept):
        assert "max_s" not in row.samples or run.array(row, "max_s").tolist() == [number + 0.5] * (number * 3)
    assert run.array(new, "max_s").tolist() == list(range(7))
    again.give_up()


def _whole(text: bytes) -> int:
    """How many lines are objects: one that lacks nothing but its end counts."""
    *lines, last = text.split(b"\n")
    return len(lines) + last.endswith(b"}") * (last.count(b"{") == last.count(b"}"))


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of folders need not reach the disk."""
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("part", sample(range(PARTS), 1))
def test_a_kill_at_any_byte(disk: Disk, tmp_path: Path, part: int) -> None:
    for count in range(part, disk.size + 1, PARTS):
        files = disk.after(count)
        _check(tmp_path / str(count), files, _whole(files.get("cells.jsonl", b"")), disk)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("part", sample(range(PARTS), 1))
def test_power_lost_at_any_byte(disk: Disk, tmp_path: Path, part: int) -> None:
    """What was not synced may be on the disk in part, or its length may be there without its bytes."""
    draw = random.Random(part)
    for count in range(part, disk.size + 1, PARTS):
        files, sure = disk.after(count), disk.kept(count)
        for name in files.keys() - {"run.json"}:
            data = files[name]
            end = draw.randint(sure.get(name, 0), len(data))
            files[name] = data[:end] + bytes(len(data) - end) * draw.getrandbits(1)
        _check(tmp_path / str(count), files, _whole(disk.after(count).get("cells.jsonl", b"")[: sure.get("cells.jsonl", 0)]), disk)


def test_what_a_row_points_to_is_on_the_disk_before_the_row_is_written(disk: Disk) -> None:
    synced = 0
    for at, (name, _, data) in enumerate(disk.steps):
        if name == "cells.jsonl":
            needed = max((place["offset"] + np.dtype(place["dtype"]).itemsize * int(np.prod(place["shape"]))
                          for place in json.loads(data)["samples"].values()), default=0)  # fmt: skip
            assert needed <= synced
        if (at + 1, "samples.bin") in disk.synced:
            synced = sum(len(part) for of, _, part in disk.steps[: at + 1] if of == "samples.bin")
