"""The gate's self-test: how often it alarms without a slowdown, and how often it detects one, in seeded trials on simulated clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path
from typing import Annotated, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.gating.baseline import CLASSES, Baseline, CaseGroup, Figures, Numbers, Scheme, known_median, scheme_of, seconds_of
from collbench.gating.paired import PAIRED_CONFIRMATIONS, PAIRS, learn_pairs
from collbench.gating.rule import CONFIRMATIONS, ENOUGH, FEWEST, LEAST_CASES, exceed, learn, slower
from collbench.units import plural
from collbench.untrusted import parse_toml, read_file

# A simulated cluster: the scatter of its cases between iterations, launches and allocations.

_MEDIAN = 1.2533  # the error of a median over that of a mean, for a normal distribution
_LARGEST = 1 << 20  # bytes of a file
_Count = Annotated[int, Meta(gt=0)]
_Number = Annotated[float, Meta(ge=0, le=10)]
_ByClass = tuple[_Number, _Number, _Number]
_VALID = {
    _ByClass: "a list of three numbers from 0 to 10 (small, mid, large messages)",
    _Count: "a whole number above 0",
    _Number: "a number from 0 to 10",
}


class Noise(msgspec.Struct, frozen=True):
    """A noise model of a simulated cluster. Spreads are standard deviations of ln of time; lists of three: small, mid, large messages.

    iteration, iterations  within a launch, and the number of iterations that its median is taken over
    launch                 between launches of an allocation, with heavy tails (t of 4 degrees)
    allocation             between allocations
    launch_common, allocation_common  what all cases have in common
    case_spread            by how much cases differ in their launch and allocation spreads
    bimodal, slow_share, slow_by  the share of cases that are slower by `slow_by` in a share `slow_share` of their launches
    spikes, spike_by       the share of launches with a slower median, by `spike_by` times a Pareto variable (shape 1.5)
    drift                  by how much all cases become slower from one allocation to the next
    walk                   the step of a random walk of all cases from one allocation to the next
    missing                the share of cases that an allocation lacks
    """

    iteration: _ByClass = (0.20, 0.10, 0.03)
    iterations: _Count = 201
    launch: _ByClass = (0.03, 0.02, 0.006)
    allocation: _ByClass = (0.010, 0.008, 0.004)
    launch_common: _Number = 0.003
    allocation_common: _Number = 0.004
    case_spread: _Number = 0.35
    bimodal: _Number = 0.10
    slow_share: _Number = 0.20
    slow_by: _Number = 0.08
    spikes: _Number = 0.01
    spike_by: _Number = 0.05
    drift: _Number = 0.0
    walk: _Number = 0.0
    missing: _Number = 0.0


class Cluster(msgspec.Struct, frozen=True, eq=False):
    """A simulated cluster: its cases' own spreads, drawn once, as [cases]; `way` is the seed of its random walk."""

    noise: Noise
    scheme: Scheme
    launch: Figures
    allocation: Figures
    two_modes: NDArray[np.bool_]
    way: int

    @classmethod
    def draw(cls, noise: Noise, scheme: Scheme, random: np.random.Generator) -> Cluster:
        """Return a cluster with spreads drawn from the noise model."""
        classes = scheme.classes[scheme.of]
        cases = len(classes)
        launch, allocation = (
            np.array(each)[classes] * np.exp(random.normal(0, noise.case_spread, cases)) for each in (noise.launch, noise.allocation)
        )
        return cls(noise, scheme, launch, allocation, random.random(cases) < noise.bimodal, int(random.integers(2**63)))

    def launches(self, count: int, launches: int, random: np.random.Generator) -> Figures:
        """Return [count × launches × cases] ln of each launch's median, without what launches of an allocation have in common."""
        noise, cases = self.noise, len(self.launch)
        shape = (count, launches, cases)
        within = np.array(noise.iteration)[self.scheme.classes[self.scheme.of]] * _MEDIAN / np.sqrt(noise.iterations)
        times: Figures = random.normal(0, within, shape) + self.launch * random.standard_t(4, shape) / np.sqrt(2)
        times += random.normal(0, noise.launch_common, (count, launches, 1))
        times += np.where(self.two_modes * (random.random(shape) < noise.slow_share), np.log1p(noise.slow_by), 0.0)
        times += np.where(random.random(shape) < noise.spikes, np.log1p(noise.spike_by * random.pareto(1.5, shape)), 0.0)
        return times

    def allocations(self, count: int, launches: int, random: np.random.Generator, first: int = 0) -> Figures:
        """Return [count × cases] ln of time as the gate uses it: for each allocation the median of its launches' medians.

        first  the number of the first allocation
        """
        noise, cases = self.noise, len(self.launch)
        within = np.median(self.launches(count, launches, random), axis=1)
        between = random.normal(0, 1, (count, cases)) * self.allocation + random.normal(0, noise.allocation_common, (count, 1))
        wandered = np.random.default_rng(self.way).normal(noise.drift, noise.walk, first + count).cumsum()[first:]
        times: Figures = within + between + wandered[:, None]
        return self._lacking(times, random)

    def pairs(self, count: int, pairs: int, random: np.random.Generator) -> Figures:
        """Return [count × pairs × cases] ln of time, new over old, for interleaved launches: the allocation's effect cancels."""
        old, new = (self.launches(count, pairs, random) for _ in range(2))
        lacking = self._lacking(np.zeros((count, len(self.launch))), random)
        differences: Figures = new - old + lacking[:, None, :]
        return differences

    def _lacking(self, times: Figures, random: np.random.Generator) -> Figures:
        """Return the times with NaN for the cases that an allocation lacks."""
        missing = self.noise.missing
        return np.where(random.random(times.shape) < missing, np.nan, times) if missing else times


def default_scheme() -> Scheme:
    """Return 336 cases: four operations, three backends, 28 sizes from 8 B to 1 GiB, of which 12 are small, 6 mid and 10 large."""
    sizes = [name for name, count in zip(CLASSES, (12, 6, 10), strict=True) for _ in range(count)]
    operations, backends = ("allreduce", "allgather", "reducescatter", "alltoall"), ("nccl", "gloo", "mpi")
    return Scheme.of_cases([CaseGroup(backend, operation, size) for operation in operations for backend in backends for size in sizes])


def noises() -> dict[str, Path]:
    """Return the files of the stronger noise models that are part of collbench, by name."""
    return {file.stem: file for file in sorted(Path(__file__).with_name("noises").glob("*.toml"))}


def read_noise(path: Path) -> Noise:
    """Return the noise model of a TOML file, or one of `noises`: the fields of `Noise`, with defaults for missing ones.

    Raises UsageError naming the invalid field.
    """
    path = noises().get(str(path), path)
    try:
        table = parse_toml(read_file(path, _LARGEST).decode("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--noise {path} cannot be read ({why}): name a TOML file, or one of {', '.join(noises())}") from error
    types = get_type_hints(Noise, include_extras=True)
    for name, value in table.items():
        if name not in types:
            raise UsageError(f"--noise {path}: '{name}' is unknown: choose from {', '.join(types)}")
        try:
            table[name] = msgspec.convert(value, types[name])
        except msgspec.ValidationError:
            raise UsageError(f"--noise {path}: '{name}' is {repr(value)[:60]}, where {_VALID[types[name]]} is wanted") from None
    return Noise(**table)


BASELINE_LAUNCHES, LAUNCHES = 3, 5
_TWO_SIDED = 1.96


class TrialSetting(msgspec.Struct, frozen=True, eq=False):
    """The setting of the trials: `draw` returns each trial's cluster, with the cases of `scheme`.

    allocations, launches  of the baseline, and of each of its allocations
    paired                 whether an old and a new stack are compared, without a baseline
    """

    draw: Callable[[np.random.Generator], Cluster | NoiseRecord]
    scheme: Scheme
    allocations: int = ENOUGH
    launches: int = BASELINE_LAUNCHES
    paired: bool = False


def simulated(noise: Noise, scheme: Scheme, allocations: int = ENOUGH, paired: bool = False) -> TrialSetting:
    """Return a setting with a new cluster of this noise for each trial."""
    return TrialSetting(lambda random: Cluster.draw(noise, scheme, random), scheme, allocations, paired=paired)


class SelfTestLine(msgspec.Struct, frozen=True):
    """A line of the self-test's table.

    done    the candidate's slowdown: "nothing", "one case of large messages slower by 5 %"
    expected  whether the gate should detect it; False for "nothing"
    found   in how many of `trials` it alarmed
    """

    done: str
    expected: bool
    found: int
    trials: int

    @property
    def share(self) -> float:
        """Return the share of the trials with an alarm."""
        return self.found / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """Return the share's 95 % confidence interval (Wilson), which is also valid for shares of 0 and 1."""
        n, share, z = self.trials, self.share, _TWO_SIDED
        middle, half = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


class _TrialKind(msgspec.Struct, frozen=True, eq=False):
    """A kind of slowdown of the cases that `cases` draws: by so many percent, or by so many times what is `visible`.

    anywhere  whether any alarm detects it, not only one of those cases or their groups
    """

    done: str
    cases: Callable[[np.random.Generator], Numbers]
    percent: float = 0.0
    visible: float = 0.0
    anywhere: bool = False
    expected: bool = True


def self_test(setting: TrialSetting, trials: int, seed: int = 0) -> Iterator[SelfTestLine]:
    """Yield the table's lines. Each trial has a cluster, a baseline and three allocations of the candidate; paired, two of pairs."""
    for number, kind in enumerate(_kinds(setting.scheme)):
        random = np.random.default_rng([seed, number])
        found = sum(_finds(kind, setting, random) for _ in range(trials))
        yield SelfTestLine(kind.done, kind.expected, found, trials)


def _finds(kind: _TrialKind, setting: TrialSetting, random: np.random.Generator) -> bool:
    cluster, slowed = setting.draw(random), kind.cases(random)
    if setting.paired:
        differences = cluster.pairs(PAIRED_CONFIRMATIONS, PAIRS, random)
        limits = learn_pairs(differences, setting.scheme)
        candidate = known_median(np.moveaxis(differences, 1, -1))
    else:
        limits = learn(cluster.allocations(setting.allocations, setting.launches, random), setting.scheme)
        candidate = cluster.allocations(CONFIRMATIONS, LAUNCHES, random, first=setting.allocations)
    visible = np.nan_to_num(limits.visible()[slowed] - 1)
    candidate[:, slowed] += np.log(1 + kind.visible * visible if kind.visible else 1 + kind.percent / 100)
    found = slower(exceed(limits, candidate))
    if kind.anywhere:
        return found.anything
    return bool(found.cases[slowed].any() or found.groups[setting.scheme.of[slowed]].any())


def _kinds(scheme: Scheme) -> list[_TrialKind]:
    """Return the kinds of slowdown, for large messages or the largest class present; no group if all are too small."""
    name = CLASSES[scheme.classes.max()]
    groups = np.flatnonzero(scheme.classes == scheme.classes.max())
    cases, every = np.flatnonzero(np.isin(scheme.of, groups)), np.arange(len(scheme.of))
    judged = [members for group in groups if len(members := scheme.members[group]) >= LEAST_CASES]

    def one_of(choice: Numbers) -> Callable[[np.random.Generator], Numbers]:
        return lambda random: random.choice(choice, 1)

    def one_group(random: np.random.Generator) -> Numbers:
        return judged[int(random.integers(len(judged)))]

    one_case, group = f"one case of {name} messages slower by", f"one group of {name} messages slower by"
    return [
        _TrialKind("nothing", lambda _: every[:0], anywhere=True, expected=False),
        *(_TrialKind(f"{one_case} {percent} %", one_of(cases), percent) for percent in (5, 10)),
        *(_TrialKind(f"{group} {percent} %", one_group, percent) for percent in (2, 5) if judged),
        _TrialKind("all cases slower by 2 %", lambda _: every, percent=2, anywhere=True),
        _TrialKind("a case slower by twice what is visible", one_of(every), visible=2.0),
        _TrialKind("a case slower by half of what is visible", one_of(every), visible=0.5),
    ]


# A recorded cluster: allocations drawn from those of a baseline, so that the self-test applies to the cases that the baseline judges.
#
# Whole vectors over all cases are drawn, which keeps their correlation: launches as recorded, allocations as a normal mixture of all.
# Neither can be worse than the record: rare events are missing unless they were recorded, and a drift of the cluster is unknown. With few
# allocations false alarms are overestimated, since a mixture of few moves many cases at once (six of a simulated cluster with 0.5 % gave
# 2 %). Results for groups are then uncertain, too (2 % slower: detected in 48 to 97 %, truly in 65 %).

_FEWEST_LAUNCHES = 2  # with one launch the scatter of launches is unknown
_DRAWN = 400  # allocations, to determine how much of their scatter comes from their launches


class NoiseRecord(msgspec.Struct, frozen=True, eq=False):
    """The recorded scatter of a baseline, from which clusters are drawn.

    scheme       the groups of the cases that can be drawn
    launch       [launches × cases] by how much each launch was off the mean of its allocation, in ln of time; NaN if it lacks the case.
                 Widened, since so few launches determine their own mean
    allocation   [allocations × cases] likewise for allocations, without what their launches explain; 0 if one lacks the case
    lacking      [allocations × cases] which cases an allocation lacks
    launches     the typical number of launches of an allocation
    left_out     the number of cases that too few allocations have
    """

    scheme: Scheme
    launch: Figures
    allocation: Figures
    lacking: NDArray[np.bool_]
    launches: int
    left_out: int

    def allocations(self, count: int, launches: int, random: np.random.Generator, first: int = 0) -> Figures:
        """Return [count × cases] ln of time as the gate uses it. Recorded allocations are drawn in any order: `first` has no effect."""
        mixed = random.normal(size=(count, len(self.allocation))) @ self.allocation
        lacking = self.lacking[random.integers(len(self.lacking), size=count)]
        times: Figures = np.where(lacking, np.nan, self._medians(count, launches, random) + mixed)
        return times

    def pairs(self, count: int, pairs: int, random: np.random.Generator) -> Figures:
        """Return [count × pairs × cases] ln of time, new over old."""
        old, new = self.launch[random.integers(len(self.launch), size=(2, count, pairs))]
        differences: Figures = new - old
        return differences

    def _medians(self, count: int, launches: int, random: np.random.Generator) -> Figures:
        drawn = self.launch[random.integers(len(self.launch), size=(count, launches))]
        return known_median(np.moveaxis(drawn, 1, -1))


def recorded(baseline: Baseline) -> NoiseRecord:
    """Return the scatter of a baseline's allocations. Raises UsageError if it has too few allocations, or too few launches in them."""
    scattered = [each for each in baseline.allocations if each.launches >= _FEWEST_LAUNCHES]
    if len(scattered) < FEWEST:
        raise UsageError(
            f"--self-test: {baseline.path} has {plural(len(scattered), 'allocation')} of {_FEWEST_LAUNCHES} launches or more: "
            f"{FEWEST} are needed to see how they scatter; add good ones"
        )
    cases = baseline.cases
    by_allocation = [np.log(seconds_of(allocation, cases)).T for allocation in scattered]
    centres = np.array([known_median(times.T) for times in by_allocation])
    enough = np.isfinite(centres).sum(axis=0) >= FEWEST
    if not enough.any():
        raise UsageError(f"--self-test: {baseline.path} has no case in {FEWEST} allocations: add good ones")
    scheme = scheme_of([case for case, is_in in zip(cases, enough, strict=True) if is_in])
    launch = np.concatenate([_widened(times[:, enough]) for times in by_allocation])
    launches = int(np.median([allocation.launches for allocation in scattered]))
    # The scatter of allocations, less what their launches alone explain. That part is computed separately for all cases, for groups and
    # for single ones: the scatter of single cases is not in the median of all.
    lacking = ~np.isfinite(centres[:, enough])
    off = np.nan_to_num(_widened(centres[:, enough]))
    record = NoiseRecord(scheme, launch, np.zeros((1, len(scheme.of))), lacking, launches, int((~enough).sum()))
    by_launches = np.nan_to_num(record._medians(_DRAWN, launches, np.random.default_rng(0)))
    parts = zip(_apart(scheme, off), _apart(scheme, by_launches), strict=True)
    own = sum((part * _left(scheme, part, explained) for part, explained in parts), np.zeros(off.shape))
    return replace(record, allocation=np.where(lacking, 0.0, own / np.sqrt((~lacking).sum(axis=0))))


def _widened(values: Figures) -> Figures:
    """Return the deviations from the mean over the first axis, widened since so few values determine it; NaN for a single one."""
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=0) / counts
        return np.where(known & (counts > 1), (values - mean) * np.sqrt(counts / (counts - 1)), np.nan)


def _apart(scheme: Scheme, values: Figures) -> tuple[Figures, Figures, Figures]:
    """Return [… × cases] as three parts: common to all cases, of each group, and of each case alone."""
    whole = known_median(values)[..., None]
    groups = scheme.medians(values - whole)[..., scheme.of]
    return np.broadcast_to(whole, values.shape), groups, values - whole - groups


def _left(scheme: Scheme, part: Figures, explained: Figures) -> Figures:
    """Return [cases] the share of a part's spread that launches do not explain, by size class: a single case has too few values."""
    found = np.zeros(len(scheme.of))
    classes = scheme.classes[scheme.of]
    for each in np.unique(classes):
        seen, launches = (float(known_median((values[:, classes == each] ** 2).mean(axis=0))) for values in (part, explained))
        found[classes == each] = np.sqrt(max(0.0, 1 - launches / seen)) if seen > 0 else 0.0
    return found


def setting_of(found: NoiseRecord, allocations: int | None = None, paired: bool = False) -> TrialSetting:
    """Return the setting for clusters drawn from a record; the baseline has as many allocations as recorded, unless given."""
    count = allocations or len(found.allocation)
    return TrialSetting(lambda _: found, found.scheme, count, found.launches, paired)
