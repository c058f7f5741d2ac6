"""Files that killed libraries leave in /dev/shm: removed where they are this user's, and no living process maps them."""

import mmap
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.launch import shared_memory
from collbench.launch.shared_memory import remove_abandoned, remove_left, remove_mapped

NAME = f"mpich_shm_test{os.getpid()}_0"
HOLDER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    kept = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
{then}
"""


@pytest.fixture
def segment(tmp_path):
    """A file in a folder that takes the place of /dev/shm, where other runs of this machine clean up as well."""
    path = tmp_path / NAME
    path.write_bytes(bytes(4096))
    return path


def abandoned(segment):
    return remove_abandoned(str(segment.parent))


@pytest.fixture
def any_age(monkeypatch):
    monkeypatch.setattr(shared_memory, "_JUST_MADE_S", -1.0)
    monkeypatch.setattr(shared_memory, "_UNSEEN_S", -1.0)


@contextmanager
def holder(path, then="sys.stdin.read()"):
    line = [sys.executable, "-c", HOLDER.format(then=then), str(path)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "mapped\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.contract
@pytest.mark.usefixtures("any_age")
def test_a_file_that_a_living_process_maps_stays_and_one_of_a_dead_process_goes(segment):
    with holder(segment):
        assert NAME not in abandoned(segment) and segment.exists()
    assert NAME in abandoned(segment) and not segment.exists()


def test_a_file_that_was_just_made_stays(segment):
    assert NAME not in abandoned(segment) and segment.exists()


@pytest.mark.usefixtures("any_age")
def test_other_files_and_other_users_files_stay(segment):
    other = segment.with_name(f"database{os.getpid()}")
    other.write_bytes(b"x")
    try:
        os.chown(segment, 65534, 65534)
        assert not {NAME, other.name} & set(abandoned(segment))
        assert other.exists() and segment.exists()
    except PermissionError:
        pytest.skip("only root can give a file to another user")
    finally:
        other.unlink()


@pytest.mark.contract
def test_what_a_launch_left_is_removed_at_its_end(segment, monkeypatch):
    monkeypatch.setattr(shared_memory, "_JUST_MADE_S", 0.2)
    monkeypatch.setattr(shared_memory, "_sees_all_processes", lambda: True)
    with holder(segment):
        assert remove_left(segment.stat().st_ctime, str(segment.parent)) == []
    assert remove_left(segment.stat().st_ctime, str(segment.parent)) == [NAME]


@pytest.mark.parametrize(("total", "free", "is_short"), [(1 << 16, 0, True), (64 << 20, 64 << 20, True), (8 << 30, 1 << 20, True),
                                                         (8 << 30, 4 << 30, False)])  # fmt: skip
def test_only_little_shared_memory_explains_a_bus_error(total, free, is_short, monkeypatch):
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda _: SimpleNamespace(total=total, free=free))
    assert (shared_memory.REMEDY in shared_memory.shortage_behind(signal.SIGBUS)) is is_short
    assert shared_memory.shortage_behind(signal.SIGKILL) == shared_memory.shortage_behind(None) == ""


def test_a_process_removes_what_it_has_mapped(segment):
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert remove_mapped(str(segment.parent)) == [NAME]
    assert not segment.exists()
    assert remove_mapped(str(segment.parent)) == []


@pytest.mark.contract
def test_a_rank_that_ends_hard_removes_what_it_has_mapped():
    shared = Path("/dev/shm") / NAME
    shared.write_bytes(bytes(4096))
    then = "from collbench.control.watchdog import end_process; end_process('hang: x', 4)"
    try:
        with holder(shared, then) as process:
            assert process.wait(30) == 4
        assert not shared.exists()
    finally:
        shared.unlink(missing_ok=True)
