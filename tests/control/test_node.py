"""Processes of this node: how each ended, as the kernel reports it."""

from __future__ import annotations

import socket
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from collbench.control import diagnosis
from collbench.control.diagnosis import NodeProcesses, ProcessEnd, began_of, how_ended
from collbench.control.members import Member


@pytest.mark.parametrize(
    ("state", "status", "how"),
    [
        ("Z", 0, ProcessEnd(exit_code=0)),
        ("Z", 4 << 8, ProcessEnd(exit_code=4)),
        ("Z", 9, ProcessEnd(killed=True, signal=9)),
        ("Z", 11 | 0x80, ProcessEnd(killed=True, signal=11)),  # with a core dump
        ("Z", 60, ProcessEnd(killed=True, signal=60)),
        ("S", 0, ProcessEnd()),
    ],
)
def test_how_a_process_ended(monkeypatch: pytest.MonkeyPatch, state: str, status: int, how: ProcessEnd) -> None:
    monkeypatch.setattr(diagnosis, "_stat", lambda pid: [state, *["0"] * 48, str(status)])
    assert how_ended(77) == how


def test_a_process_that_is_not_there_has_no_end() -> None:
    assert not how_ended(1 << 30).known and began_of(1 << 30) == -1


@pytest.mark.parametrize(
    ("changes", "watched"), [({}, True), ({"began": 1}, False), ({"began": -1}, False), ({"host": "other"}, False), ({"pid": 1}, False)]
)
def test_only_a_process_with_a_matching_identity_is_watched(changes: dict[str, Any], watched: bool) -> None:
    """Containers number their processes alike: the host's name and the moment of the start must fit, too."""
    with subprocess.Popen(["sleep", "60"]) as process:
        member = Member(3, socket.gethostname(), 0, process.pid, (), began=began_of(process.pid))
        made = NodeProcesses()
        made.watch(replace(member, **changes))
        found = made.has(3), bool(made.descriptors)
        made.close()
        process.kill()
    assert found == (watched, watched)
