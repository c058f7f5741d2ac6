"""What all series of trials share: a folder with a line per trial, commands on a test bed, links of a given rate, and busy cores."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tests.testbeds import Hosts, SlurmBed
from tests.testbeds.bed import Finished

ROOT = Path(__file__).parents[3]
PROGRAM = (str(ROOT / ".venv/bin/python"), "-P", "-m", "collbench")
RAW = "raw.tar.xz"
BURST = "256kb"  # passes unshaped after a pause. With less, hosts that share two cores wake up too rarely to use the whole rate
QUEUE_MS = 50

# Ends with its parent, also one that was killed.
_BURNER = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

T = TypeVar("T")


def trials_in(folder: Path, kind: type[T]) -> list[T]:
    """Return the trials stored in a folder, a line each."""
    file = folder / "trials.jsonl"
    return [kind(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def keep(folder: Path, trial: Any, readme: Callable[[Sequence[Any]], str]) -> None:
    """Store a trial, and write README.md again. A stored trial is not repeated, so an interrupted series continues."""
    with (folder / "trials.jsonl").open("a") as file:
        file.write(json.dumps(asdict(trial)) + "\n")
    (folder / "README.md").write_text(readme(trials_in(folder, type(trial))))


def span(values: Sequence[float]) -> str:
    """Return the smallest and the largest value."""
    return f"{min(values)} to {max(values)}" if values else "–"


def srun(
    bed: SlurmBed,
    options: Sequence[str],
    words: Sequence[str],
    *,
    codes: Sequence[int] = (0,),
    timeout: float = 600,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> Finished:
    """Return the end of `srun OPTIONS collbench WORDS`. Raises RuntimeError unless its exit code is one of `codes`."""
    done = bed.srun(options, [*program, *words], timeout=timeout, env=env)
    if done.returncode not in codes:
        raise RuntimeError(f"collbench {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done


def shape(hosts: Hosts, index: int, to_host: int, from_host: int, burst: str = BURST, *, queue_ms: int = QUEUE_MS) -> None:
    """Set the rates of a host's link in Mbit/s. The switch shapes what goes to a host, the host what it sends."""
    name = hosts.names[index]
    hosts.must("tc", "qdisc", "replace", "dev", f"{name}p", *bucket(to_host, burst, queue_ms))
    hosts.must("tc", "-n", name, "qdisc", "replace", "dev", "eth0", *bucket(from_host, burst, queue_ms))


def bucket(mbit: int, burst: str = BURST, queue_ms: int = QUEUE_MS) -> tuple[str, ...]:
    """Return tc's words for a token bucket of this rate; a packet that would wait longer than `queue_ms` is dropped."""
    return ("root", "tbf", "rate", f"{mbit}mbit", "burst", burst, "latency", f"{queue_ms}ms")


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Unpack the raw data of a stored series; yield its folder."""
    with TemporaryDirectory() as raw:
        with tarfile.open(folder / RAW) as packed:
            packed.extractall(raw, filter="data")
        yield Path(raw)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many cores busy until the end."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURNER]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in burners:
            each.kill()
            each.wait()
