"""How often the gate alarms where nothing is wrong, and how often it finds what is: seeded trials on made-up clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import sqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.gate.allocation import CaseTimes
from collbench.gate.baseline import CLASSES, Baseline, CaseGroup, Figures, Numbers, Scheme, known_median, scheme_of
from collbench.gate.paired import PAIRED_STRIKES, PAIRS, learn_pairs
from collbench.gate.rule import CONFIRMATIONS, ENOUGH, FEWEST, LEAST_CELLS, BaselineLimits, Slower, exceed, learn, slower
from collbench.units import plural
from collbench.untrusted import parse_toml, read_file

# A cluster made up: how its cells scatter between iterations, launches and allocations. For the self-test of the gate.

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
    return Scheme.of_cells([CaseGroup(backend, operation, size) for operation in operations for backend in backends for size in sizes])


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


BASELINE_LAUNCHES, LAUNCHES = 3, 5
_TWO_SIDED = 1.96


class Cells(Protocol):
    """A cluster to be judged, be it made up or drawn from what was recorded; ln of time each."""

    def allocations(self, count: int, launches: int, random: np.random.Generator, first: int = 0) -> Figures:
        """[count × cells] of so many allocations, the first of which is number `first`."""

    def pairs(self, count: int, pairs: int, random: np.random.Generator) -> Figures:
        """[count × pairs × cells] new over old, launches by turns."""


@dataclass(frozen=True, eq=False)
class TrialSetting:
    """What is tried: `draw` gives each trial's cluster, of the cells of `scheme`.

    allocations, launches  of the baseline, and of each of its allocations
    paired                 no baseline: an old and a new stack side by side
    """

    draw: Callable[[np.random.Generator], Cells]
    scheme: Scheme
    allocations: int = ENOUGH
    launches: int = BASELINE_LAUNCHES
    paired: bool = False


def made_up(noise: Noise, scheme: Scheme, allocations: int = ENOUGH, paired: bool = False) -> TrialSetting:
    """Clusters of such a noise, another one for each trial."""
    return TrialSetting(lambda random: Cluster.draw(noise, scheme, random), scheme, allocations, paired=paired)


@dataclass(frozen=True)
class SelfTestLine:
    """One line of the table.

    done    what was done to the candidate: "nothing", "one cell of large messages slower by 5 %"
    wanted  whether it should have been found; nothing should not
    found   in how many of `trials`
    """

    done: str
    wanted: bool
    found: int
    trials: int

    @property
    def share(self) -> float:
        """Of the trials."""
        return self.found / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, Wilson's: it holds where nothing or everything was found, too."""
        n, share, z = self.trials, self.share, _TWO_SIDED
        middle, half = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


@dataclass(frozen=True, eq=False)
class _TrialKind:
    """What is done: which cells become slower (a draw), by what factor given the limits, and whether an excess shows it."""

    done: str
    cells: Callable[[np.random.Generator], Numbers]
    factor: Callable[[BaselineLimits, Numbers], float | Figures]
    shows: Callable[[Slower, Numbers], bool]
    wanted: bool = True


def self_test(setting: TrialSetting, trials: int, seed: int = 0) -> Iterator[SelfTestLine]:
    """The table, line by line: each trial has a cluster, a baseline, and three allocations of the candidate; or two of pairs."""
    for number, kind in enumerate(_kinds(setting.scheme)):
        random = np.random.default_rng([seed, number])
        found = sum(_finds(kind, setting, random) for _ in range(trials))
        yield SelfTestLine(kind.done, kind.wanted, found, trials)


def _finds(kind: _TrialKind, setting: TrialSetting, random: np.random.Generator) -> bool:
    cluster, slowed = setting.draw(random), kind.cells(random)
    if setting.paired:
        differences = cluster.pairs(PAIRED_STRIKES, PAIRS, random)
        limits = learn_pairs(differences, setting.scheme)
        candidate = known_median(np.moveaxis(differences, 1, -1))
    else:
        limits = learn(cluster.allocations(setting.allocations, setting.launches, random), setting.scheme)
        candidate = cluster.allocations(CONFIRMATIONS, LAUNCHES, random, first=setting.allocations)
    candidate[:, slowed] += np.log(kind.factor(limits, slowed))
    return kind.shows(slower(exceed(limits, candidate)), slowed)


def _kinds(scheme: Scheme) -> list[_TrialKind]:
    """The large messages' cells and groups, or those of the largest class that there is; no group where none is judged as one."""
    name = CLASSES[scheme.classes.max()]
    groups = np.flatnonzero(scheme.classes == scheme.classes.max())
    cells, every = np.flatnonzero(np.isin(scheme.of, groups)), np.arange(len(scheme.of))
    judged = [members for group in groups if len(members := scheme.members[group]) >= LEAST_CELLS]

    def one_of(choice: Numbers) -> Callable[[np.random.Generator], Numbers]:
        return lambda random: random.choice(choice, 1)

    def one_group(random: np.random.Generator) -> Numbers:
        return judged[int(random.integers(len(judged)))]

    def by(factor: float) -> Callable[[BaselineLimits, Numbers], float]:
        return lambda limits, slowed: factor

    def visible(times: float) -> Callable[[BaselineLimits, Numbers], Figures]:
        return lambda limits, slowed: 1 + times * np.nan_to_num(limits.visible()[slowed] - 1)

    def its_own(found: Slower, slowed: Numbers) -> bool:
        return bool(found.cells[slowed].any() or found.groups[scheme.of[slowed]].any())

    def anything(found: Slower, _: Numbers) -> bool:
        return found.anything

    one_cell, group = f"one cell of {name} messages slower by", f"one group of {name} messages slower by"
    return [
        _TrialKind("nothing", lambda _: every[:0], by(1.0), anything, wanted=False),
        *(_TrialKind(f"{one_cell} {percent} %", one_of(cells), by(1 + percent / 100), its_own) for percent in (5, 10)),
        *(_TrialKind(f"{group} {percent} %", one_group, by(1 + percent / 100), its_own) for percent in (2, 5) if judged),
        _TrialKind("all cells slower by 2 %", lambda _: every, by(1.02), anything),
        _TrialKind("a cell slower by twice what is visible", one_of(every), visible(2.0), its_own),
        _TrialKind("a cell slower by half of what is visible", one_of(every), visible(0.5), its_own),
    ]


# A cluster as recorded: allocations made up from those of a baseline, so that the self-test speaks of the cells that are judged by it.
#
# What is common to cells stays common, since whole vectors over all cells are drawn: of the launches one as it was recorded, of the
# allocations a normal mixture of all. Neither can be worse than what was recorded: what happens once in a hundred launches is not in it
# unless it happened, and whether the cluster drifts is not known. Few allocations overstate false alarms, since a mixture of few moves
# many cells at once (six of a made-up cluster with 0.5 % said 2 %), and say little of groups (2 % of one: found in 48 to 97 %, truly 65 %).

_FEWEST_LAUNCHES = 2  # of one alone it is not known how launches scatter
_DRAWN = 400  # allocations, to see how much of the scatter between them is that of their launches


@dataclass(frozen=True, eq=False)
class NoiseRecord:
    """scheme    how the cells that can be drawn are grouped
    launch       [launches × cells] by how much each launch was off the mean of its allocation, ln; widened, since so few have a mean that
                 follows them; NaN where it lacks the cell
    allocation   [allocations × cells] likewise the allocations off theirs, without what their launches explain; 0 where one lacks the cell
    lacking      [allocations × cells] which cells an allocation lacks
    launches     how many an allocation has, as a rule
    left_out     cells that too few allocations have
    """

    scheme: Scheme
    launch: Figures
    allocation: Figures
    lacking: NDArray[np.bool_]
    launches: int
    left_out: int

    def allocations(self, count: int, launches: int, random: np.random.Generator, first: int = 0) -> Figures:
        """[count × cells] ln of time, as the gate takes it. The recorded ones have no order: `first` changes nothing."""
        mixed = random.normal(size=(count, len(self.allocation))) @ self.allocation
        lacking = self.lacking[random.integers(len(self.lacking), size=count)]
        times: Figures = np.where(lacking, np.nan, self._medians(count, launches, random) + mixed)
        return times

    def pairs(self, count: int, pairs: int, random: np.random.Generator) -> Figures:
        """[count × pairs × cells] ln of time, new over old."""
        old, new = self.launch[random.integers(len(self.launch), size=(2, count, pairs))]
        differences: Figures = new - old
        return differences

    def _medians(self, count: int, launches: int, random: np.random.Generator) -> Figures:
        drawn = self.launch[random.integers(len(self.launch), size=(count, launches))]
        return known_median(np.moveaxis(drawn, 1, -1))


def recorded(baseline: Baseline) -> NoiseRecord:
    """What a baseline's allocations say. Raises UsageError where there are too few allocations, or launches in them."""
    scattered = [each for each in baseline.allocations if each.launches >= _FEWEST_LAUNCHES]
    if len(scattered) < FEWEST:
        raise UsageError(
            f"--self-test: {baseline.path} has {plural(len(scattered), 'allocation')} of {_FEWEST_LAUNCHES} launches or more: "
            f"{FEWEST} are needed to see how they scatter; add good ones"
        )
    cells = baseline.cells
    each = [_times(allocation.launches, [allocation.cells.get(cell) for cell in cells]) for allocation in scattered]
    centres = np.array([known_median(times.T) for times in each])
    enough = np.isfinite(centres).sum(axis=0) >= FEWEST
    if not enough.any():
        raise UsageError(f"--self-test: {baseline.path} has no cell in {FEWEST} allocations: add good ones")
    scheme = scheme_of([cell for cell, is_in in zip(cells, enough, strict=True) if is_in])
    launch = np.concatenate([_widened(times[:, enough]) for times in each])
    return _made(scheme, launch, centres[:, enough], int(np.median([one.launches for one in scattered])), int((~enough).sum()))


def _times(launches: int, cells: Sequence[CaseTimes | None]) -> Figures:
    """[launches × cells] ln of seconds."""
    nothing = (None,) * launches
    found = np.array([nothing if cell is None else cell.medians_s for cell in cells], dtype=np.float64).T
    return np.asarray(np.log(found), dtype=np.float64)


def _widened(values: Figures) -> Figures:
    """Off the mean over the first axis, wider by what so few lose by having it follow them; NaN of a single one."""
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=0) / counts
        return np.where(known & (counts > 1), (values - mean) * np.sqrt(counts / (counts - 1)), np.nan)


def _made(scheme: Scheme, launch: Figures, centres: Figures, launches: int, left_out: int) -> NoiseRecord:
    """With allocations that scatter by what was recorded, less what their launches alone would make them scatter.

    That is taken apart for all cells, the groups and single ones, as what launches do to single cells is not in the median of all.
    """
    lacking = ~np.isfinite(centres)
    counts = (~lacking).sum(axis=0)
    off = np.nan_to_num(_widened(centres))
    first = NoiseRecord(scheme, launch, np.zeros((1, len(scheme.of))), lacking, launches, left_out)
    by_launches = np.nan_to_num(first._medians(_DRAWN, launches, np.random.default_rng(0)))
    parts = zip(_apart(scheme, off), _apart(scheme, by_launches), strict=True)
    own = sum((part * _left(scheme, part, explained) for part, explained in parts), np.zeros(off.shape))
    return replace(first, allocation=np.where(lacking, 0.0, own / np.sqrt(counts)))


def _apart(scheme: Scheme, values: Figures) -> tuple[Figures, Figures, Figures]:
    """[… × cells] as what all cells have in common, what is each group's, and what is each cell's own."""
    whole = known_median(values)[..., None]
    groups = scheme.medians(values - whole)[..., scheme.of]
    return np.broadcast_to(whole, values.shape), groups, values - whole - groups


def _left(scheme: Scheme, part: Figures, explained: Figures) -> Figures:
    """[cells] the share of a part's spread that launches do not explain, by class of sizes: single cells are too few to tell."""
    found = np.zeros(len(scheme.of))
    classes = scheme.classes[scheme.of]
    for each in np.unique(classes):
        seen, launches = (float(known_median((values[:, classes == each] ** 2).mean(axis=0))) for values in (part, explained))
        found[classes == each] = np.sqrt(max(0.0, 1 - launches / seen)) if seen > 0 else 0.0
    return found


def setting_of(found: NoiseRecord, allocations: int | None = None, paired: bool = False) -> TrialSetting:
    """The self-test on clusters such as this one, with a baseline of as many allocations as were recorded, if not told otherwise."""
    count = allocations or len(found.allocation)
    return TrialSetting(lambda _: found, found.scheme, count, found.launches, paired)
