"""Attacks 1 to 7: garbage and floods of connections at rank 0's port, before and while the ranks join."""

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from collbench.control import security
from collbench.control.security import UnknownConnections
from collbench.errors import RunFailed
from collbench.launch import limits
from tests.cli.command import BIN, Finished, environment, until
from tests.control.ends_here import free_port

pytestmark = pytest.mark.system

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)  # rfc.zeromq.org/spec/37


class Launch:
    """Two ranks, each as a node of its own, over loopback; they join at a port that unknown peers can reach too."""

    def __init__(self, folder: Path, soft: int, hard: int, timeout_s: int = 20) -> None:
        self.folder, self.soft, self.hard, self.port, self.timeout_s = folder, soft, hard, free_port(), timeout_s

    def start(self, rank: int) -> subprocess.Popen[str]:
        words = ("p2p", "--backend", "socket", "--sizes", "64", "-n", "3", "-w", "1", "--timeout", str(self.timeout_s))
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        own = {**place, "MASTER_PORT": str(self.port), "COLLBENCH_SECRET": "flood" * 5, "COLLBENCH_OUT": str(self.folder / "run")}
        limit = ["prlimit", f"--nofile={self.soft}:{self.hard}"] if rank == 0 else []
        line = ["timeout", "--kill-after=5", "100", *limit, str(BIN / "collbench"), *words]
        return subprocess.Popen(
            line, cwd=self.folder, env=environment(own), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=0.5):
            return True
        return False


@contextmanager
def many_files() -> Iterator[None]:
    """For the attacker's own connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hold(stack: ExitStack, port: int, count: int, said: bytes) -> int:
    """Open connections and keep them; returns how many were established."""
    held = []
    for _ in range(count):
        one = stack.enter_context(socket.socket())
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        held.append(one)
    time.sleep(0.5)
    established = 0
    for one in held:
        with suppress(OSError):
            one.getpeername()
            established += 1
            one.send(said)
    return established


def flooded(folder: Path, count: int, said: bytes, *, soft: int, hard: int) -> list[Finished]:
    """Rank 0, then so many connections that stay, then rank 1."""
    launch = Launch(folder, soft, hard)
    with many_files(), ExitStack() as stack:
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < count + 200:
            pytest.skip(f"this machine allows a process fewer than {count} connections")
        first = launch.start(0)
        until(launch.listening, "rank 0 to listen")
        assert hold(stack, launch.port, count, said) > 0
        both = [first, launch.start(1)]
        ended = [(one, *one.communicate(timeout=90)) for one in both]
    return [Finished(one.args, one.returncode, out, err) for one, out, err in ended]


@pytest.mark.parametrize(("count", "said", "soft", "hard"), [
    pytest.param(1500, b"", 1024, 20_000, id="6 silent connections and a low soft limit"),
    pytest.param(3000, b"", 20_000, 20_000, id="5 silent connections and a high soft limit", marks=pytest.mark.long),
    pytest.param(3000, b"", 1024, 1024, id="7 silent connections and a low hard limit", marks=pytest.mark.long),
    pytest.param(1500, GREETING[:11], 1024, 20_000, id="half a greeting", marks=pytest.mark.long),
    pytest.param(3000, GREETING, 20_000, 20_000, id="a whole greeting", marks=pytest.mark.long),
])  # fmt: skip
def test_a_launch_passes_while_foreign_connections_are_open(count: int, said: bytes, soft: int, hard: int, tmp_path: Path) -> None:
    first, second = flooded(tmp_path, count, said, soft=soft, hard=hard)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "defect" not in first.stderr + second.stderr


@pytest.mark.long
def test_a_flood_with_greetings_and_a_low_hard_limit_passes_or_is_reported(tmp_path: Path) -> None:
    ends = flooded(tmp_path, 3000, GREETING[:11], soft=1024, hard=1024)
    text = "".join(each.stderr for each in ends)
    assert "defect" not in text and "Traceback" not in text
    assert {each.returncode for each in ends} == {0} or "not of this launch" in text or "1024 open files" in text, text


def test_an_exhausted_process_has_the_limit_and_other_errors_are_not_about_descriptors() -> None:
    code = (
        "import resource, socket\nfrom collbench.cli import main\nfrom collbench.launch import signals\n"
        "from collbench.launch import limits\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nheld = []\n"
        "def run(argv):\n    while True:\n        held.append(socket.socket())\n"
        "main.run = run\nimport sys\nsys.exit(main.guarded(['allreduce']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4 and done.stderr.count("\n") == 1, done.stderr
    assert "64 open files" in done.stderr and "defect" not in done.stderr
    assert limits.out_of_files(OSError(28, "No space left on device")) is None
    assert isinstance(limits.out_of_files(OSError(23, "Too many open files in system")), RunFailed)


class TestLimits:
    """Of connections that have not joined: by source, and in all."""

    @pytest.fixture
    def listening(self) -> Iterator[socket.socket]:
        with socket.create_server(("0.0.0.0", 0)) as server:
            yield server

    def reaches(self, server: socket.socket, source: str) -> bool:
        with suppress(TimeoutError), socket.create_connection(server.getsockname()[:2], timeout=0.3, source_address=(source, 0)):
            return True
        return False

    def test_a_source_with_too_many_is_held_back_alone_until_half_are_gone(self, listening: socket.socket) -> None:
        pending = UnknownConnections(most=100, most_of_source=3)
        pending.listeners = {listening.fileno()}
        for number in range(4):
            assert self.reaches(listening, "127.0.0.9")
            pending.add(1000 + number, "127.0.0.9")
        assert not self.reaches(listening, "127.0.0.9") and self.reaches(listening, "127.0.0.8")
        assert list(pending.held_back) == ["127.0.0.9"]
        for number in range(2):
            pending.remove(1000 + number)
        assert not self.reaches(listening, "127.0.0.9")
        pending.remove(1002)
        assert self.reaches(listening, "127.0.0.9")

    def test_too_many_in_all_close_the_port_until_half_are_gone(self, listening: socket.socket) -> None:
        pending = UnknownConnections(most=3, most_of_source=3)
        pending.listeners = {listening.fileno()}
        for number in range(4):
            pending.add(1000 + number, f"127.0.0.{number}")
        assert not self.reaches(listening, "127.0.0.9")
        for number in range(3):
            pending.remove(1000 + number)
        assert self.reaches(listening, "127.0.0.9")

    def test_ranks_of_this_host_and_descriptors_used_again_count_once_or_never(self) -> None:
        pending = UnknownConnections(most=1000, most_of_source=3)
        for number in range(50):
            pending.add(number, "this host")
        assert not pending.held_back
        pending = UnknownConnections()
        pending.add(7, "10.0.0.1")
        pending.add(7, "10.0.0.2")
        assert len(pending) == 1 and pending.remove(7) == "10.0.0.2" and len(pending) == 0

    @pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
    def test_the_filter_drops_the_addresses_that_it_names(self, family: socket.AddressFamily) -> None:
        here = "127.0.0.1" if family == socket.AF_INET else "::1"
        others = [f"10.1.0.{number}" for number in range(40)] + [f"fd00::{number:x}" for number in range(1, 24)]
        with socket.create_server((here, 0), family=family) as server:
            server.settimeout(5)
            port = server.getsockname()[1]
            security.drop_from(server.fileno(), others)
            socket.create_connection((here, port), timeout=5).close()
            security.drop_from(server.fileno(), [*others, here])
            with pytest.raises(TimeoutError):
                socket.create_connection((here, port), timeout=0.3)
            security.drop_from(server.fileno(), [])
            socket.create_connection((here, port), timeout=5).close()

    @pytest.mark.parametrize("here", ["127.0.0.1", "::1"])
    def test_a_silent_connection_is_not_accepted(self, here: str) -> None:
        family = socket.AF_INET6 if ":" in here else socket.AF_INET
        with socket.create_server((here, 0), family=family) as server:
            security.hold_silent(server.fileno())
            server.settimeout(0.5)
            with socket.create_connection(server.getsockname()[:2], timeout=5) as silent:
                with pytest.raises(TimeoutError):
                    server.accept()
                silent.sendall(b"\xff")
                server.accept()[0].close()
