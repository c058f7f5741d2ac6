"""Hosts that share less: each has its own processes, memory, /tmp and small disk, and a second network for control."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.testbeds.bed import Missing
from tests.testbeds.hosts import HERE, Hosts

DISK_MB = 8
_LISTENING = "0A"  # of /proc/net/tcp, include/net/tcp_states.h
# SIGCHLD is ignored, so the kernel reaps orphaned processes.
_BOOT = """
. "$4/own_sys.sh"
own_sys "$1" "$2"
mount -t tmpfs -o mode=1777 none /tmp
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs -o "size=$3m" none "$2/disk"
mount -t proc proc /proc
trap "" CHLD
echo ready
exec sleep infinity
"""


class Machines(Hosts):
    """Hosts that do not see each other's processes or files in /tmp and /dev/shm.

    disk          path of each host's own disk, of DISK_MB
    control       the hosts' addresses in the second network, on their ctl0
    """

    tools = (*Hosts.tools, "hostname", "mount")

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def control(self) -> list[str]:
        return [f"10.98.{self.number}.{index}" for index in range(1, self.count + 1)]

    def up(self) -> None:
        super().up()
        bridge = f"cb{self.number}cr"
        self.must("ip", "link", "add", bridge, "type", "bridge")
        self.must("ip", "link", "set", bridge, "up")
        for folder in (self.disk, self.folder / "machines"):
            folder.mkdir()
        for name, address in zip(self.names, self.control, strict=True):
            self.must("ip", "link", "add", f"{name}cp", "type", "veth", "peer", "name", "ctl0", "netns", name)
            self.must("ip", "link", "set", f"{name}cp", "master", bridge, "up")
            self.must("ip", "-n", name, "address", "add", f"{address}/24", "dev", "ctl0")
            self.must("ip", "-n", name, "link", "set", "ctl0", "up")
            self._boot(name)

    def down(self) -> None:
        """End each host's first process, which ends all others of the host; only SIGKILL ends it."""
        for name in self.names:
            with suppress(OSError, ValueError):
                os.kill(self.first(name), signal.SIGKILL)

    def first(self, host: str | int) -> int:
        name = self.names[host] if isinstance(host, int) else host
        return int((self.folder / "machines" / name).read_text())

    def within(self, host: int, path: Path | str) -> Path:
        return Path(f"/proc/{self.first(host)}/root{path}")

    def running(self, host: int) -> dict[int, str]:
        """Return the command lines of a host's running processes, except the first, by their pids on this machine."""
        first = self.first(host)
        inside = _namespace(first)
        found = {int(path.name) for path in Path("/proc").glob("[0-9]*") if _namespace(int(path.name)) == inside} - {first}
        return {pid: line for pid in sorted(found) if (line := line_of(pid))}

    def belongings(self, host: int) -> set[str]:
        """Return what processes may leave on a host: listening ports, names of sockets, files in /tmp and /dev/shm."""
        net = Path(f"/proc/{self.first(host)}/net")
        ports = {
            f"port {int(words[1].rpartition(':')[2], 16)}"
            for kind in ("tcp", "tcp6")
            for words in _table(net / kind)
            if words[3] == _LISTENING
        }
        sockets = {words[7] for words in _table(net / "unix") if len(words) > 7 and words[7].startswith("@") and "slurm" not in words[7]}
        files = {f"{place}/{path.name}" for place in ("/tmp", "/dev/shm") for path in self.within(host, place).iterdir()}
        return ports | sockets | files

    def set_link(self, host: int, link: str, state: str) -> None:
        """Unplug a host's link ("eth0", or "ctl0" of the network for control) or plug it in again: "down", "up"."""
        self.must("ip", "link", "set", f"{self.names[host]}{'c' if link == 'ctl0' else ''}p", state)

    def _boot(self, name: str) -> None:
        apart = ["unshare", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]
        line = ["nsenter", f"--net=/run/netns/{name}", *apart, "sh", "-c", _BOOT, "boot", name, str(self.folder), str(DISK_MB), str(HERE)]
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment()
        )
        assert process.stdout is not None and process.stderr is not None
        if process.stdout.readline() != "ready\n":
            raise Missing(f"a host of its own cannot be made here: {process.stderr.read().strip()[-300:]}")
        first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
        (self.folder / "machines" / name).write_text(first)


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def line_of(pid: int) -> str:
    """Return the command line of a running process; "" for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _table(path: Path) -> Sequence[list[str]]:
    return [line.split() for line in path.read_text().splitlines()[1:]]
