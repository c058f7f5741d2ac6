"""A real PostgreSQL server of the system, in a temporary folder: `initdb` and `postgres` run as an unprivileged user."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

USER, DATABASE = "collbench", "postgres"
_START_S = 30.0


class NoServer(Exception):
    """PostgreSQL is not installed; the text is the reason."""


@dataclass
class Server:
    """A running server that listens on a Unix socket in `folder` alone."""

    folder: Path
    bin: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/{DATABASE}?host={self.folder}"

    def database(self, name: str) -> str:
        self.sql(f"CREATE DATABASE {name}")
        return f"postgresql://{USER}@/{name}?host={self.folder}"

    def sql(self, statement: str, database: str = DATABASE) -> str:
        command = [str(self.bin / "psql"), "-h", str(self.folder), "-U", USER, "-d", database, "-v", "ON_ERROR_STOP=1", "-Atqc", statement]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(timeout=30)


@contextmanager
def server(password: str = "", **settings: str) -> Iterator[Server]:
    """Run a server until the block ends; with a password, connections need it. Raises NoServer."""
    folder = Path(tempfile.mkdtemp(prefix="collbench-pg-", dir="/tmp"))  # short: a socket's path has at most 107 bytes
    try:
        programs, as_user = _programs(), _unprivileged(folder)
        data, secret = folder / "data", folder / "secret"
        secret.write_text(password)
        os.chown(secret, *_owner())
        method = ["-A", "scram-sha-256", "--pwfile", str(secret)] if password else ["-A", "trust"]
        _run([*as_user, str(programs / "initdb"), "-D", str(data), "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync", *method])
        chosen = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off", **settings}
        options = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*as_user, str(programs / "postgres"), "-D", str(data), *options], stdout=log, stderr=log)
        try:
            _await(programs, folder, process)
            yield Server(folder, programs, process)
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    other = shutil.which("initdb")
    if other is None:
        raise NoServer("PostgreSQL is not installed (Debian: postgresql)")
    return Path(other).parent


def _owner() -> tuple[int, int]:
    """The user and group of the server: PostgreSQL does not run as root."""
    if os.getuid():
        return os.getuid(), os.getgid()
    found = pwd.getpwnam("nobody")
    return found.pw_uid, found.pw_gid


def _unprivileged(folder: Path) -> list[str]:
    uid, gid = _owner()
    os.chown(folder, uid, gid)
    folder.chmod(0o755)
    return [] if os.getuid() else ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd="/")
    if done.returncode:
        raise RuntimeError(f"{command[-1]}: {done.stderr[-400:]}")


def _await(programs: Path, folder: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_S
    while subprocess.run([str(programs / "pg_isready"), "-q", "-h", str(folder)], check=False).returncode:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the server did not start: {(folder / 'log').read_text()[-400:]}")
        time.sleep(0.05)
