"""Where gate trials are measured: two hosts on a link with a variable rate, or two ranks on this host's shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from tests.cli.command import PROGRAM, run
from tests.testbeds import Hosts, SlurmBed
from tests.testbeds.bed import Finished

LINK_MBIT, RESHAPED_MBIT = 500, 450
# So much passes unshaped after a pause. With less, hosts that share two cores do not wake up often enough to use the whole rate.
_BURST = "256kb"
_PATIENCE_S = 60
_UNTIL_PRECISE = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}


class Place(Protocol):
    """A place to measure: its name, the suite (TOML), and `options` that keep a launch short."""

    name: str
    suite: str
    options: Sequence[str]

    def launch(self, words: Sequence[str]) -> Finished:
        """Start all ranks once with `collbench WORDS`."""

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """Set the link's rate both ways; `at_hosts`: visible to the hosts, not only in the switch between them."""


class Link:
    """Two hosts of a test bed under Slurm: Gloo and MPI in one start, so that other work on the machine affects both."""

    name = "link"
    suite = (
        'schema = 1\ntitle = "the gate\'s trials over a link"\n\n[[sweeps]]\noperations = ["allreduce"]\n'
        'backends = ["gloo", "mpi"]\nsizes = ["4M", "8M", "16M"]\n'
    )
    # While a rank is held by `--slowed` the shaper saves up its burst, 4 ms at this rate: of smaller messages that would be all of 5 %.
    # An iteration of all cells takes 1 s, comparing what arrived twice that (other tests do it). Gloo's first sample is a slow one.
    options = ("-n", "3", "-w", "1", "-c", "0")

    def __init__(self, hosts: Hosts, bed: SlurmBed) -> None:
        self._hosts, self._bed = hosts, bed
        self.reshape(LINK_MBIT, at_hosts=True)

    def launch(self, words: Sequence[str]) -> Finished:
        """Start with srun. MPI uses the test bed's libfabric: with UCX, 8 MiB and more randomly take 1 or 1.5 times the link's time."""
        return self._bed.srun(["-N2", "--mpi=pmi2"], [*PROGRAM, *words], _PATIENCE_S)

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """The switch shapes what goes to a host, the host what it sends: the lower rate is the link's."""
        for name in self._hosts.names:
            self._hosts.must("tc", "qdisc", "replace", "dev", f"{name}p", *_shape(mbit))
            self._hosts.must("tc", "-n", name, "qdisc", "replace", "dev", "eth0", *_shape(mbit if at_hosts else LINK_MBIT))


class Memory:
    """Two MPI ranks on this host, without a system launcher."""

    name = "memory"
    suite = (
        'schema = 1\ntitle = "the gate\'s trials on shared memory"\n\n[[sweeps]]\noperations = ["allreduce"]\n'
        'backends = ["mpi"]\nsizes = ["8", "512", "8K", "128K", "2M", "4M"]\n'
    )
    options = ("--max-time", "0.15", "--ranks", "2")

    def launch(self, words: Sequence[str]) -> Finished:
        """Start in a folder of its own."""
        with TemporaryDirectory() as folder:
            return run(Path(folder), *words, env=_UNTIL_PRECISE, timeout=_PATIENCE_S)

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """Do nothing: shared memory has no link."""


@contextmanager
def link() -> Iterator[Link]:
    """Yield the hosts and their Slurm. Raises Missing if this machine cannot run them."""
    with Hosts(2, f"{LINK_MBIT}mbit", _BURST) as hosts, SlurmBed(hosts) as bed:
        yield Link(hosts, bed)


@contextmanager
def memory() -> Iterator[Memory]:
    """Yield this host."""
    yield Memory()


def _shape(mbit: int) -> tuple[str, ...]:
    return ("root", "tbf", "rate", f"{mbit}mbit", "burst", _BURST, "latency", "50ms")
