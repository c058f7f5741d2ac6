"""Wire tools as processes: each ends in time, its output is bounded, and no process remains."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from collbench.addresses import free_port
from collbench.errors import RunFailed
from collbench.plugins.channels.wire_tools import Tool, once
from tests.cli.command import ROOT, running, until


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.mark.system
def test_outputs_and_exit_codes_of_tools_and_endless_output() -> None:
    done = once(shell("echo figure; echo talk >&2; exit 3"), 5)
    assert (done.code, done.out, done.err) == (3, "figure\n", "talk\n")
    done = once(["/nowhere/iperf3"], 5)
    assert done.code == 127 and "/nowhere/iperf3" in done.err
    assert once(shell(r"printf '\377\n'"), 5).out == "\ufffd\n"
    with pytest.raises(RunFailed, match=r"^sh .*4 MiB"):
        once(shell("yes"), 20)


@pytest.mark.system
def test_a_hanging_tool_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"^sh .* within 0 s$"):
        once(shell("sleep 77 & sleep 78"), 0.3)
    assert time.monotonic() - began < 3
    until(lambda: running(tmp_path) == [os.getpid()], "the end of its children", 5)


@pytest.mark.system
def test_a_server_is_waited_for_and_its_one_connection_left_to_the_client() -> None:
    port = free_port("127.0.0.1")
    serve = f"import socket, time; time.sleep(.2); s = socket.create_server(('127.0.0.1', {port})); print(s.accept()[0].recv(9))"
    with Tool([sys.executable, "-c", serve], 20) as server:
        server.await_listening(port, 10)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"once")
        assert server.ended().out == f"{b'once'}\n"


@pytest.mark.system
def test_a_server_that_ends_or_never_listens_gives_the_reason() -> None:
    with Tool(shell("echo unable to start listener >&2; exit 1"), 5) as server, pytest.raises(RunFailed) as failed:
        server.await_listening(1, 5)
    assert str(failed.value) == "sh ended before it listened: unable to start listener"
    with Tool(shell("sleep 79"), 5) as server, pytest.raises(RunFailed, match=r"^sh .* port 1 within 0 s$"):
        server.await_listening(1, 0.1)


def names(folder: Path) -> list[str]:
    found = []
    for pid in running(folder):
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


@pytest.mark.system
def test_a_killed_process_leaves_no_tool_behind(tmp_path: Path) -> None:
    program = "from collbench.plugins.channels.wire_tools import once; once(['sleep', '80'], 60)"
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    until(lambda: "sleep" in names(tmp_path), "the tool", 20)  # which setpriv and timeout have become, or started, by then
    parent.send_signal(signal.SIGKILL)
    assert parent.wait() == -signal.SIGKILL
    until(lambda: not running(tmp_path), "its end", 5)


def test_without_what_ends_it_no_tool_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RunFailed, match=r"^setpriv .* or timeout "):
        once(["/bin/true"], 5)
