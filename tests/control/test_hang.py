"""A rank that dies, stops or never joins, with real processes: one sentence names it and its phase in time; no process remains."""

import re
import time

import pytest

from tests.control.together import Meeting, ends, start

pytestmark = [pytest.mark.long, pytest.mark.timeout(90)]

TIMEOUT_S = 3.0  # within which three ranks join on a busy machine
BODY = """
import ctypes, signal
WARM = "allreduce 8 B on mpi: warm-up"

def main(world):
    world.allgather(None, "beginning")
    guilty = world.rank == {guilty}
{what}
"""
# What all ranks do; `guilty` is the one that goes wrong. A library that waits for a rank is a sleep that no signal of Python's ends.
STOPPED_IN_A_CALL = """
    with world.watchdog.phase(WARM):
        world.watchdog.progress.value = 40
        os.kill(os.getpid(), signal.SIGSTOP) if guilty else ctypes.CDLL(None).sleep(60)"""
STOPPED_IN_A_WAIT = """
    time.sleep(0.2)  # earlier messages have arrived
    if guilty:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.allgather(None, "gathering samples")"""
KILLED = """
    with world.watchdog.phase(WARM):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL) if guilty else ctypes.CDLL(None).sleep(60)"""
LEAVES = """
    time.sleep(0.2)
    os._exit(0) if guilty else world.allgather(None, "gathering samples")"""
HOLDS_PYTHON = """
    with world.watchdog.phase(WARM):
        (ctypes.PyDLL if guilty else ctypes.CDLL)(None).sleep(60)"""
BEHIND = """
    with world.watchdog.phase(WARM):
        world.watchdog.progress.value = 39 if guilty else 40
        ctypes.CDLL(None).sleep(60)"""
NEVER_COMES = """
    if guilty:
        ctypes.CDLL(None).sleep(60)
    world.allgather(None, "gathering samples")"""
ECHO = """
    with world.watchdog.phase(WARM):
        time.sleep(0.5)
        if guilty:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        raise world.explained(RunFailed("Connection closed by peer"))"""


def told_by(what, guilty, tmp_path):
    """Return (exit of each rank, all output, seconds) of three ranks, one of which fails."""
    meeting, began = Meeting("ipc", tmp_path), time.monotonic()
    found = ends([start(BODY.format(guilty=guilty, what=what), rank, 3, meeting, timeout_s=TIMEOUT_S) for rank in range(3)])
    said = "\n".join(f"{one.stderr}{one.said[1] if isinstance(one.said, list) else ''}" for one in found)
    return found, said, time.monotonic() - began


def test_a_rank_that_is_killed_is_named_at_once(tmp_path):
    found, said, _ = told_by(KILLED, 1, tmp_path)
    assert re.search(r"rank 1 \(\S+, pid \d+\) .*allreduce 8 B on mpi: warm-up: killed", said), said
    assert found[0].code == found[2].code == 4, found


# By name of the fault what the guilty rank does, which rank that is, and the sentence that names it.
FAULTS = {
    "stopped in a call": (STOPPED_IN_A_CALL, 1, r"hang: {warm}: {rank} is stopped \(.*SIGSTOP.*; 2 of 3 ranks wait"),
    "stopped in a wait": (STOPPED_IN_A_WAIT, 1, r"hang: gathering samples: {rank} is stopped"),
    "leaves": (LEAVES, 1, r"{rank} ended unexpectedly during gathering samples: (exit code 0|killed)"),
    "holds Python": (HOLDS_PYTHON, 1, r"hang: {warm}: {rank} does not answer, but the host does"),
    "behind": (BEHIND, 1, r"hang: {warm}: {rank} never entered iteration 41; 2 of 3 ranks wait"),
    "never comes": (NEVER_COMES, 1, r"hang: gathering samples: {rank} is behind: still at work between two phases"),
    "echo": (ECHO, 1, r"{rank} ended unexpectedly during {warm}: killed"),
    "rank 0 stopped in a wait": (STOPPED_IN_A_WAIT, 0, r"hang: gathering samples: {rank} is stopped .* reported by rank 1 \("),
    "rank 0 killed": (KILLED, 0, r"{rank} ended unexpectedly during {warm}: killed"),
    "rank 0 never comes": (NEVER_COMES, 0, r"hang: gathering samples: {rank} is behind: still at work between two phases"),
    "rank 0 behind": (BEHIND, 0, r"hang: {warm}: {rank} never entered iteration 41"),
}


@pytest.mark.parametrize(("what", "guilty", "sentence"), FAULTS.values(), ids=FAULTS)
def test_a_rank_is_named_and_everything_ends(what, guilty, sentence, tmp_path):
    found, said, seconds = told_by(what, guilty, tmp_path)
    warm, rank = "allreduce 8 B on mpi: warm-up", rf"rank {guilty} \(\S+, pid \d+\)"
    assert re.search(sentence.format(warm=warm, rank=rank), said), said
    if guilty:
        assert found[0].code == 4 and found[2].code != 0, found
    else:
        assert found[1].code == found[2].code == 4, found
        assert not found[2].stderr  # one rank of a node reports
    assert seconds < TIMEOUT_S + 10 + TIMEOUT_S  # and so long at most until they had joined


def test_a_pause_within_the_deadline_changes_nothing_but_is_known(tmp_path):
    pauses = """
    world.allgather(None, "before")
    if guilty:
        import subprocess
        subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    return world.allgather(world.watchdog.paused_s, "after")"""
    found, said, _ = told_by(pauses, 1, tmp_path)
    assert [one.code for one in found] == [0, 0, 0], said
    paused_s = found[0].said
    assert 1.0 < paused_s[1] < 30
    assert paused_s[0] == paused_s[2] == 0


ALL_STOP = """
    import subprocess
    wake = "sleep {pause_s}; kill -CONT %d" if {pause_s} else ":; : %d"
    with world.watchdog.phase(WARM):
        world.watchdog.progress.value = 40
        time.sleep(1)  # the watchdog sees the progress
        subprocess.Popen(["sh", "-c", wake % os.getpid()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.kill(os.getpid(), signal.SIGSTOP)
        ctypes.CDLL(None).sleep(60)"""


@pytest.mark.parametrize("pause_s", [2 * TIMEOUT_S, 0], ids=["continued", "never continued"])
def test_ranks_that_are_all_stopped_beyond_the_deadline_report_it(pause_s, tmp_path):
    found, said, _ = told_by(ALL_STOP.format(pause_s=pause_s), 1, tmp_path)
    sentence = re.findall(r"hang: allreduce 8 B on mpi: warm-up: all 3 ranks were paused for (\d+) s", said)
    assert [one.code for one in found] == [4, 4, 4], said
    assert sentence, said
    assert int(sentence[0]) >= TIMEOUT_S


LIBRARY_FAILS = """
    import subprocess
    with world.watchdog.phase(WARM):
        world.watchdog.progress.value = 40
        time.sleep(1)
        subprocess.Popen(["sh", "-c", "sleep {pause_s}; kill -CONT %d" % os.getpid()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.kill(os.getpid(), signal.SIGSTOP)
        if not guilty:
            ctypes.CDLL(None).sleep(60)
        time.sleep(0.5)  # the others continue, too
        raise world.explained(RunFailed("all_reduce failed: timed out"))"""


@pytest.mark.parametrize(("pause_s", "explains"), [(2 * TIMEOUT_S, True), (1.5, False)], ids=["beyond the deadline", "within it"])
def test_a_library_that_fails_after_a_pause_of_all_ranks_beyond_the_deadline(pause_s, explains, tmp_path):
    found, said, _ = told_by(LIBRARY_FAILS.format(pause_s=pause_s), 1, tmp_path)
    paused = re.findall(r"all 3 ranks were paused for (\d+) s: .*; .*all_reduce failed: timed out", said)
    assert [one.code for one in found] == [4, 4, 4], said
    assert "all_reduce failed: timed out" in said
    assert bool(paused) is explains, said
    assert all(TIMEOUT_S <= int(seconds) <= pause_s + 2 for seconds in paused)
