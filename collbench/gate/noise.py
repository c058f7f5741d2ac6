"""A cluster made up: how its cells scatter between iterations, launches and allocations. For the self-test of the gate."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.gate.scheme import CLASSES, Figures, Group, Scheme
from collbench.untrusted import parse_toml, read_file

_MEDIAN = 1.2533  # the error of a median over that of a mean, for a normal distribution
_LARGEST = 1 << 20  # bytes of a file


@dataclass(frozen=True)
class Noise:
    """All spreads are standard deviations of ln of time; three of a kind are those of small, mid and large messages.

    iteration, iterations  within a launch, of so many of which the median is taken
    launch                 between launches of an allocation, with heavy tails (t of 4 degrees)
    allocation             between allocations
    launch_common, allocation_common  what all cells have in common
    cell_spread            by how much cells differ in their launch and allocation spreads
    bimodal, slow_share, slow_by  that share of the cells is slower by so much in such a share of its launches
    spikes, spike_by       that share of all launches' medians is slower, by so much times a Pareto variable (shape 1.5)
    drift                  by how much all cells become slower from one allocation to the next
    walk                   by how much all cells wander together from one allocation to the next, on and on
    missing                the share of the cells that an allocation lacks
    """

    iteration: tuple[float, float, float] = (0.20, 0.10, 0.03)
    iterations: int = 201
    launch: tuple[float, float, float] = (0.03, 0.02, 0.006)
    allocation: tuple[float, float, float] = (0.010, 0.008, 0.004)
    launch_common: float = 0.003
    allocation_common: float = 0.004
    cell_spread: float = 0.35
    bimodal: float = 0.10
    slow_share: float = 0.20
    slow_by: float = 0.08
    spikes: float = 0.01
    spike_by: float = 0.05
    drift: float = 0.0
    walk: float = 0.0
    missing: float = 0.0


@dataclass(frozen=True, eq=False)
class Cluster:
    """One made-up cluster: its cells' own spreads, drawn once, as [cells]; `way` is the seed of where it wanders."""

    noise: Noise
    scheme: Scheme
    launch: Figures
    allocation: Figures
    two_modes: NDArray[np.bool_]
    way: int

    @classmethod
    def draw(cls, noise: Noise, scheme: Scheme, random: np.random.Generator) -> Cluster:
        """Its cells' spreads."""
        classes = scheme.classes[scheme.of]
        cells = len(classes)
        launch, allocation = (
            np.array(each)[classes] * np.exp(random.normal(0, noise.cell_spread, cells)) for each in (noise.launch, noise.allocation)
        )
        return cls(noise, scheme, launch, allocation, random.random(cells) < noise.bimodal, int(random.integers(2**63)))

    def launches(self, count: int, launches: int, random: np.random.Generator) -> Figures:
        """[count × launches × cells] ln of each launch's median, as far as launches of one allocation differ."""
        noise, cells = self.noise, len(self.launch)
        shape = (count, launches, cells)
        within = np.array(noise.iteration)[self.scheme.classes[self.scheme.of]] * _MEDIAN / np.sqrt(noise.iterations)
        times: Figures = random.normal(0, within, shape) + self.launch * random.standard_t(4, shape) / np.sqrt(2)
        times += random.normal(0, noise.launch_common, (count, launches, 1))
        times += np.where(self.two_modes * (random.random(shape) < noise.slow_share), np.log1p(noise.slow_by), 0.0)
        times += np.where(random.random(shape) < noise.spikes, np.log1p(noise.spike_by * random.pareto(1.5, shape)), 0.0)
        return times

    def allocations(self, count: int, launches: int, random: np.random.Generator, first: int = 0) -> Figures:
        """[count × cells] ln of time, as the gate takes it: of each allocation the median of its launches' medians."""
        noise, cells = self.noise, len(self.launch)
        within = np.median(self.launches(count, launches, random), axis=1)
        between = random.normal(0, 1, (count, cells)) * self.allocation + random.normal(0, noise.allocation_common, (count, 1))
        wandered = np.random.default_rng(self.way).normal(noise.drift, noise.walk, first + count).cumsum()[first:]
        times: Figures = within + between + wandered[:, None]
        return self._lacking(times, random)

    def pairs(self, count: int, pairs: int, random: np.random.Generator) -> Figures:
        """[count × pairs × cells] ln of time, new over old: launches of both by turns, so that what is the allocation's cancels."""
        old, new = (self.launches(count, pairs, random) for _ in range(2))
        lacking = self._lacking(np.zeros((count, len(self.launch))), random)
        differences: Figures = new - old + lacking[:, None, :]
        return differences

    def _lacking(self, times: Figures, random: np.random.Generator) -> Figures:
        """Without the cells that an allocation lacks."""
        missing = self.noise.missing
        return np.where(random.random(times.shape) < missing, np.nan, times) if missing else times


def usual_scheme() -> Scheme:
    """336 cells: four operations, three backends, 28 sizes from 8 B to 1 GiB, of which 12 are small, 6 mid and 10 large."""
    sizes = [name for name, count in zip(CLASSES, (12, 6, 10), strict=True) for _ in range(count)]
    operations, backends = ("allreduce", "allgather", "reducescatter", "alltoall"), ("nccl", "gloo", "mpi")
    return Scheme.of_cells([Group(backend, operation, size) for operation in operations for backend in backends for size in sizes])


def noises() -> dict[str, Path]:
    """The harsher noise models that come with collbench, by name."""
    return {file.stem: file for file in sorted(Path(__file__).with_name("noises").glob("*.toml"))}


def read_noise(path: Path) -> Noise:
    """A noise model from TOML, or one of `noises`: the fields of `Noise`, those left out as usual.

    Raises UsageError naming what does not fit.
    """
    path = noises().get(str(path), path)
    try:
        told = parse_toml(read_file(path, _LARGEST).decode("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--noise {path} cannot be read ({why}): name a TOML file, or one of {', '.join(noises())}") from error
    known = {field.name: field.default for field in fields(Noise)}
    for name, value in told.items():
        if name not in known:
            raise UsageError(f"--noise {path}: '{name}' is unknown: choose from {', '.join(known)}")
        if not _fits(value, known[name]):
            raise UsageError(f"--noise {path}: '{name}' is {repr(value)[:60]}, where {_wanted(known[name])} is wanted")
    fitting: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    return Noise(**fitting)


def _fits(value: Any, usual: Any) -> bool:
    if isinstance(usual, tuple):
        return isinstance(value, list) and len(value) == len(usual) and all(_fits(each, 0.0) for each in value)
    if isinstance(usual, int):
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 10


def _wanted(usual: Any) -> str:
    if isinstance(usual, tuple):
        return "a list of three numbers from 0 to 10 (small, mid, large messages)"
    return "a whole number above 0" if isinstance(usual, int) else "a number from 0 to 10"
