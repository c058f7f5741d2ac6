"""A whole run with a foreign connection at its port: it is reported; the secret and its keys appear nowhere."""

import itertools
import socket
import threading
from pathlib import Path

import pytest

from collbench.control.security import Keys, secret_of
from collbench.launch.detect import detect_torchrun
from tests.cli.command import PROGRAM, running, start, until
from tests.control.ends_here import free_port

SECRET = "only-the-ranks-of-this-launch-know-it"


@pytest.mark.long
def test_a_foreign_connection_is_reported_and_no_secret_is(tmp_path):
    port = free_port()
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "COLLBENCH_SECRET": SECRET}
    folders = [tmp_path / "rank0", tmp_path / "rank1"]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        line = ("allreduce", "--sizes", "8", "-n", "3", "--backend", "gloo", "--out", "run", "--evidence", "off")
        start(folder, *line, program=PROGRAM, env={**common, "RANK": str(rank)})
    seen = set()
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(seen, done))
    watcher.start()
    until(lambda: browsed(port), "rank 0's port")
    until(lambda: not any(map(running, folders)), "the ranks' end", 60)
    done.set()
    watcher.join()
    info = detect_torchrun({**common, "RANK": "0"})
    assert info
    secret = secret_of(info, common)
    keys = Keys.of(secret)
    hidden = [SECRET.encode(), secret.key, secret.key.hex().encode(), *keys.listener, *keys.caller]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert (folders[0] / "run/run.json").exists(), (folders[0] / "stderr").read_text()
    assert any("collbench" in line for line in seen)
    for actual in (folders[0] / "stderr", folders[0] / "run/events.jsonl"):
        assert "refused 1 connection" in actual.read_text()
    for text, word in itertools.product([*written, *(line.encode() for line in seen)], hidden):
        assert word not in text


def browsed(port):
    """Return whether a process listens there. The probe asks for a web page and closes."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(4096):
                pass
    except ConnectionRefusedError:
        return False
    except ConnectionError:
        pass
    return True


def watch(seen, done):
    """The command lines of all processes, now and again."""
    while not done.wait(0.1):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.add(path.read_text(errors="replace"))
            except OSError:
                continue
