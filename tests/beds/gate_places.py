"""Where the gate's trials are measured: two hosts on a link that can be re-shaped, or two ranks on this host's shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from tests.beds import Hosts, SlurmBed
from tests.beds.bed import Finished
from tests.cli.command import PROGRAM, run

LINK_MBIT, RESHAPED_MBIT = 500, 450
# So much passes unshaped after a pause. With less, hosts that share two cores are not woken often enough to use the whole rate.
_BURST = "256kb"
_PATIENCE_S = 60
_UNTIL_PRECISE = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}


class Place(Protocol):
    """name, and suite: the TOML of what is measured there. `options` keep a launch short."""

    name: str
    suite: str
    options: Sequence[str]

    def launch(self, words: Sequence[str]) -> Finished:
        """Starts all ranks once with `collbench WORDS`."""

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """Gives the link another rate both ways; `at_hosts`: where they see it, and not only in the switch between them."""


class Link:
    """Two hosts of a bed under Slurm: Gloo and MPI in one start, so that what passes meanwhile on the machine meets both."""

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
        """By srun. MPI goes by libfabric, as the bed has it: with UCX 8 MiB and more take 1 or 1.5 times what the link says, by chance."""
        return self._bed.srun(["-N2", "--mpi=pmi2"], [*PROGRAM, *words], _PATIENCE_S)

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """What goes to a host is shaped by the switch, what comes from it by the host: the slower one is the link's rate."""
        for name in self._hosts.names:
            self._hosts.must("tc", "qdisc", "replace", "dev", f"{name}p", *_shape(mbit))
            self._hosts.must("tc", "-n", name, "qdisc", "replace", "dev", "eth0", *_shape(mbit if at_hosts else LINK_MBIT))


class Memory:
    """Two ranks of MPI on this host, without a launcher of the system's."""

    name = "memory"
    suite = (
        'schema = 1\ntitle = "the gate\'s trials on shared memory"\n\n[[sweeps]]\noperations = ["allreduce"]\n'
        'backends = ["mpi"]\nsizes = ["8", "512", "8K", "128K", "2M", "4M"]\n'
    )
    options = ("--max-time", "0.15", "--ranks", "2")

    def launch(self, words: Sequence[str]) -> Finished:
        """From a folder of its own."""
        with TemporaryDirectory() as folder:
            return run(Path(folder), *words, env=_UNTIL_PRECISE, timeout=_PATIENCE_S)

    def reshape(self, mbit: int, at_hosts: bool) -> None:
        """There is no link."""


@contextmanager
def link() -> Iterator[Link]:
    """The hosts and their Slurm until the end. Raises Missing where this machine cannot have them."""
    with Hosts(2, f"{LINK_MBIT}mbit", _BURST) as hosts, SlurmBed(hosts) as bed:
        yield Link(hosts, bed)


@contextmanager
def memory() -> Iterator[Memory]:
    """This host."""
    yield Memory()


def _shape(mbit: int) -> tuple[str, ...]:
    return ("root", "tbf", "rate", f"{mbit}mbit", "burst", _BURST, "latency", "50ms")
