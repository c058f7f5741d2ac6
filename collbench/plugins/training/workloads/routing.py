"""Routing of tokens to experts: token counts by step and layer, read from a file or generated, as traffic between ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.errors import UsageError
from collbench.operations.traffic import Traffic
from collbench.plugins.training.workloads.shape import printable
from collbench.units import plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collbench.plugins.training.workloads.step import Shape

MOST_EXPERTS = 4096
_MOST_NUMBERS = 2**25  # of [steps × layers × ranks × ranks] counts: 256 MiB at each rank
MOST_TOKENS = 2**31 - 1  # of one rank in one layer


@dataclass(frozen=True)
class RoutedTraffic(Traffic):
    """The traffic of one exchange of tokens. The name identifies it; see `Traffic`.

    tokens   [n × n] copies of tokens, by sending and receiving rank
    """

    tokens: NDArray[np.int64] | None = field(default=None, hash=False, compare=False)

    def weights(self, n: int) -> NDArray[np.float64]:
        """Return [n × n] copies of tokens. Raises UsageError for another number of ranks."""
        import numpy as np

        assert self.tokens is not None
        self.check_ranks(n)
        return self.tokens.astype(np.float64)

    def check_ranks(self, n: int, by_rank: bool = False) -> None:
        """Raise UsageError if this traffic does not fit groups of n ranks."""
        assert self.tokens is not None
        if len(self.tokens) != n:
            raise UsageError(f"routing {self.name} is between {len(self.tokens)} ranks, not {n}: start {len(self.tokens)} ranks")

    def own_bytes(self) -> int | None:
        """Return None: the tokens have no size of their own."""
        return None


class Way(msgspec.Struct, frozen=True):
    """One direction of the tokens: to their experts (dispatch), or back (combine), with the type and bytes of a token on the wire."""

    name: str
    dtype: str
    token_bytes: int
    back: bool


class Routing(msgspec.Struct, frozen=True, eq=False):
    """Several routings of the same model; each is one training step.

    name     "zipf:1.2, seed 0", "experts.npz", and a hash of the counts, the same at all ranks
    steps    the numbers of the steps, ascending
    experts  the number of experts of a layer; expert e is on rank e // (experts / ranks)
    tokens   [steps × layers × ranks × ranks] copies of tokens, from the token's rank to its expert's rank
    ways     dispatch and combine
    times    how often each routing is used in a step (microbatches)
    """

    name: str
    steps: tuple[int, ...]
    experts: int
    tokens: NDArray[np.int64]
    ways: tuple[Way, Way]
    times: int = 1

    @property
    def layers(self) -> int:
        """The number of layers with experts."""
        return int(self.tokens.shape[1])

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.tokens.shape[2])

    def traffic(self, step: int, layer: int, way: Way) -> RoutedTraffic:
        """Return the traffic of a layer. step: index in `steps`."""
        return _traffic(f"{self.name}, step {self.steps[step]}, layer {layer}", self.tokens[step, layer], way)

    def even(self, total: int, way: Way) -> RoutedTraffic:
        """Return the traffic of so many copies of tokens if all ranks send to all experts evenly."""
        return _traffic(f"{total} tokens over {self.ranks} ranks evenly", even(total, self.ranks), way)

    def totals(self, step: int) -> tuple[int, ...]:
        """Return the copies of tokens of each layer. step: index in `steps`."""
        return tuple(self.tokens[step].sum(axis=(1, 2)).tolist())

    def received(self, step: int) -> NDArray[np.int64]:
        """Return [layers × ranks] copies of tokens that each rank's experts get. step: index in `steps`."""
        found: NDArray[np.int64] = self.tokens[step].sum(axis=1)
        return found

    def imbalance(self, step: int) -> float:
        """Return the load of the busiest rank of each layer, over all layers, as a multiple of the average; 1: even."""
        received = self.received(step)
        return float(received.max(axis=1).sum() * self.ranks / received.sum())

    def busiest(self, step: int) -> tuple[int, float]:
        """Return the rank with the experts that get most tokens in a step, and its share of them; 1 / ranks: even."""
        received = self.received(step).sum(axis=0)
        rank = int(received.argmax())
        return rank, float(received[rank] / received.sum())


def _traffic(name: str, tokens: NDArray[np.int64], way: Way) -> RoutedTraffic:
    return RoutedTraffic(f"{name}, {way.name}", tokens=tokens.T if way.back else tokens)


def even(total: int, n: int) -> NDArray[np.int64]:
    """Return [n × n] copies of tokens that sum up to `total`. Rows differ by at most 1, and so do columns."""
    import numpy as np

    base, more = divmod(total, n * n)
    diagonals, rest = divmod(more, n)
    rows, columns = np.indices((n, n))
    turn = (columns - rows) % n
    found: NDArray[np.int64] = base + (turn < diagonals) + ((turn == diagonals) & (rows < rest))
    return found


# Generators: each gives the kinds of tokens of a layer, and how many of its tokens are of each kind.


class TokenKinds(msgspec.Struct, frozen=True):
    """The kinds of tokens of a layer.

    experts  [kinds × experts] 1.0 where a token of this kind goes to the expert, else 0.0; top_k of each row are 1.0
    shares   [kinds] the probability of each kind
    """

    experts: NDArray[np.float64]
    shares: NDArray[np.float64]


class Generator(msgspec.Struct, frozen=True):
    """The text of `--routing` that generates routings.

    name, value   "zipf" and its exponent, "drift" and the share of the hot experts, "groups" and their number
    settings      the options after the value, as numbers
    """

    name: str
    value: float
    settings: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        """Return the text: "drift:0.5,hot=2"."""
        return ",".join([f"{self.name}:{self.value:g}", *(f"{name}={value:g}" for name, value in self.settings)])

    def get(self, name: str, default: float) -> float:
        """Return an option, or its default."""
        return dict(self.settings).get(name, default)


# bounded digits; the options of each generator, and whether it is a whole number
_NUMBER = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)
_VALUES = {"zipf": "an exponent", "drift": "the share of the hot experts", "groups": "a number of groups"}
_SETTINGS = {"zipf": {}, "drift": {"hot": True, "every": True}, "groups": {"limit": True, "zipf": False}}
_LIKE = "use e.g. zipf:1.2, drift:0.5,hot=2,every=1 or groups:8,limit=4, or the name of a .csv, .npz or .parquet file"


def parse_routing(text: str) -> Generator | Path:
    """Return the generator or the file in the text of `--routing`. Raises UsageError; reads no file."""
    typed = text.strip()
    name, colon, rest = typed.partition(":")
    if not colon or name not in _VALUES:
        if not typed or (colon and name.isalpha() and not Path(typed).exists()):
            raise UsageError(f"--routing '{printable(text)}' is not a valid routing: {_LIKE}")
        return Path(typed)
    value, *settings = rest.split(",")
    found = Generator(name, _number(typed, value, _VALUES[name]), tuple(_setting(typed, name, one) for one in settings))
    if len(dict(found.settings)) < len(found.settings):
        raise UsageError(f"--routing '{printable(text)}' has an option twice: {_LIKE}")
    if name == "drift" and not 0 < found.value < 1:
        raise UsageError(f"--routing '{printable(text)}': the share of the hot experts must be between 0 and 1: {_LIKE}")
    if name == "groups" and (found.value < 1 or found.value % 1):
        raise UsageError(f"--routing '{printable(text)}': the number of groups must be a whole number from 1 on: {_LIKE}")
    return found


def _number(whole: str, text: str, what: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"--routing '{printable(whole)}': '{printable(text)}' is not {what}: {_LIKE}")
    return float(text)


def _setting(whole: str, generator: str, text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    known = _SETTINGS[generator]
    if name not in known:
        choices = f"choose from {', '.join(known)}" if known else "it has none"
        raise UsageError(f"--routing '{printable(whole)}': {generator} has no option '{printable(name)}': {choices}")
    number = _number(whole, value, "a number")
    if known[name] and (number < 1 or number % 1):
        raise UsageError(f"--routing '{printable(whole)}': {name} must be a whole number from 1 on")
    return name, number


def generate(generator: Generator, shape: Shape, steps: int, seed: int) -> NDArray[np.int64]:
    """Return [steps × layers × ranks × ranks] copies of tokens. The same seed gives the same counts at every rank.

    Every token goes to top_k different experts, and is drawn from the kinds of its layer. Raises UsageError for a generator that does
    not fit the experts.
    """
    import numpy as np

    n, experts = shape.ranks, shape.experts or shape.ranks
    check_size(steps, shape.layers, n, experts)
    found = np.zeros((steps, shape.layers, n, n), np.int64)
    for layer in range(shape.layers):
        kinds_of = KINDS[generator.name](generator, experts, shape.top_k, np.random.default_rng([seed, layer]))
        for step in range(steps):
            kinds = kinds_of(step)
            drawn = np.random.default_rng([seed, layer, step]).multinomial(shape.sequence * shape.microbatch, kinds.shares, size=n)
            found[step, layer] = to_ranks((drawn @ kinds.experts).round().astype(np.int64))
    return found


def to_ranks(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return [… × n × n] counts by receiving rank from [… × n × experts]; neighboring experts are on one rank."""
    import numpy as np

    *outer, n, experts = counts.shape
    found: NDArray[np.int64] = counts.reshape(*outer, n, n, experts // n).sum(axis=-1, dtype=np.int64)
    return found


def check_size(steps: int, layers: int, ranks: int, experts: int) -> None:
    """Raise UsageError for so many counts that they would need too much memory."""
    if experts > MOST_EXPERTS:
        raise UsageError(f"--routing with {experts:,} experts in a layer is not supported: use at most {MOST_EXPERTS:,}")
    if steps * layers * ranks * ranks > _MOST_NUMBERS:
        fit = max(1, _MOST_NUMBERS // (layers * ranks * ranks))
        raise UsageError(
            f"--routing: {plural(steps, 'routing')} of {plural(layers, 'layer')} between {plural(ranks, 'rank')} need too much memory: "
            f"use --routings {fit}, or fewer --layers"
        )


KindsOfStep = Callable[[int], TokenKinds]


def _zipf(generator: Generator, experts: int, top_k: int, rng: np.random.Generator) -> KindsOfStep:
    """Return the kinds of tokens where the i-th most popular expert gets copies in proportion to i^-exponent, in every step."""
    shares = zipf_shares(experts, top_k, generator.value)
    kinds = kinds_with(shares[rng.permutation(experts)], top_k, rng.permutation(experts))
    return lambda step: kinds


def _drift(generator: Generator, experts: int, top_k: int, rng: np.random.Generator) -> KindsOfStep:
    """Return the kinds of tokens where `hot` experts get a share of the copies. Every `every` steps one of them is replaced."""
    hot, every = int(generator.get("hot", max(1, experts // 8))), int(generator.get("every", 1))
    if hot >= experts:
        raise UsageError(f"--routing '{generator}': hot={hot} must be less than the number of experts, {experts}")
    each, other = top_k * generator.value / hot, top_k * (1 - generator.value) / (experts - hot)
    if max(each, other) > 1:
        raise UsageError(
            f"--routing '{generator}': a token goes to {top_k} different experts, so that {hot} hot ones cannot get "
            f"{100 * generator.value:g} % of the copies of {experts} experts: use another share, or another hot="
        )
    order, mixed = rng.permutation(experts), rng.permutation(experts)

    def kinds_of(step: int) -> TokenKinds:
        import numpy as np

        shares = np.full(experts, other)
        shares[hot_experts(order, hot, step // every)] = each
        return kinds_with(shares, top_k, mixed)

    return kinds_of


def hot_experts(order: NDArray[Any], hot: int, turn: int) -> NDArray[Any]:
    """Return the hot experts after `turn` moves; `order` is the order in which they become hot."""
    import numpy as np

    found: NDArray[Any] = order[(turn + np.arange(hot)) % len(order)]
    return found


_POOL = 2048  # kinds of tokens of a layer with groups


def _groups(generator: Generator, experts: int, top_k: int, rng: np.random.Generator) -> KindsOfStep:
    """Return the kinds of tokens that use the experts of at most `limit` groups: group-limited top-k, as DeepSeek-V3 selects experts.

    Affinities are sigmoids. A group's score is the sum of its highest top_k / limit affinities, and the token goes to the top_k experts
    of the `limit` groups with the highest scores (arXiv:2412.19437, sections 2.1.2 and 3.2.2: 256 experts in 8 groups, top 8, 4 groups).
    The affinities themselves are made up: normal, around a popularity of `zipf`. One layer has 2,048 kinds of tokens.
    """
    import numpy as np

    groups, limit = int(generator.value), int(generator.get("limit", max(1, int(generator.value) // 2)))
    if groups > experts or experts % groups:
        raise UsageError(f"--routing '{generator}': {experts} experts cannot be divided into {groups} equal groups: use a divisor")
    size = experts // groups
    if limit > groups or limit * size < top_k:
        fewest = -(-top_k // size)
        raise UsageError(
            f"--routing '{generator}': limit={limit} must be {fewest} to {groups}, so that {limit} groups have {top_k} experts for a token"
            if fewest <= groups else f"--routing '{generator}': {top_k} experts for a token are more than there are"
        )  # fmt: skip
    popularity = zipf_shares(experts, 1, generator.get("zipf", 0.0))[rng.permutation(experts)]
    affinity = 1 / (1 + np.exp(-(np.log(popularity * experts) + rng.standard_normal((_POOL, experts)))))
    best = min(max(1, top_k // limit), size)
    by_group = np.sort(affinity.reshape(_POOL, groups, size), axis=2)[:, :, size - best :].sum(axis=2)
    chosen = np.zeros((_POOL, groups), bool)
    np.put_along_axis(chosen, np.argsort(by_group, axis=1)[:, groups - limit :], True, axis=1)
    affinity[~np.repeat(chosen, size, axis=1)] = -1.0
    members = np.zeros((_POOL, experts))
    np.put_along_axis(members, np.argsort(affinity, axis=1)[:, experts - top_k :], 1.0, axis=1)
    kinds = TokenKinds(members, np.full(_POOL, 1 / _POOL))
    return lambda step: kinds


# By generator the function (generator, experts, top_k, random numbers of the layer) that returns the kinds of its tokens by step.
KINDS: dict[str, Callable[[Generator, int, int, Any], KindsOfStep]] = {"zipf": _zipf, "drift": _drift, "groups": _groups}


def zipf_shares(experts: int, top_k: int, exponent: float) -> NDArray[np.float64]:
    """Return the expected copies of each expert per token: proportional to i^-exponent, but at most 1; they add up to top_k."""
    import numpy as np

    weights = np.arange(1, experts + 1) ** -float(exponent)
    shares, capped = np.zeros(experts), 0
    while True:
        shares[capped:] = (top_k - capped) * weights[capped:] / weights[capped:].sum()
        over = int((shares[capped:] > 1).sum())
        shares[capped : capped + over] = 1.0
        capped += over
        if not over:
            return shares


def kinds_with(shares: NDArray[np.float64], top_k: int, order: NDArray[Any]) -> TokenKinds:
    """Return kinds of tokens in which expert e has exactly the probability shares[e]; the shares add up to top_k, none above 1.

    Systematic sampling (W. G. Madow, Annals of Mathematical Statistics 20, 1949): experts are intervals in a row of length top_k,
    in this order. A token with the number u goes to the experts at u, u + 1 … All tokens between two fractional parts of the
    intervals' ends are of one kind.
    """
    import numpy as np

    ends = np.cumsum(shares[order])
    ends *= top_k / ends[-1]
    cuts = np.unique(np.concatenate([[0.0], ends[:-1] % 1.0, [1.0]]))
    widths = np.diff(cuts)
    cuts, widths = (cuts[:-1] + widths / 2)[widths > 1e-12], widths[widths > 1e-12]  # narrower ones are rounding of a double
    members = np.zeros((len(cuts), len(shares)))
    for turn in range(top_k):
        members[np.arange(len(cuts)), order[np.searchsorted(ends, cuts + turn, side="right")]] = 1.0
    return TokenKinds(members, widths / widths.sum())


def exchanges_of(routing: Routing) -> Iterator[tuple[int, Way]]:
    """Yield (layer, way) of every exchange of a step, in order; each runs `times` times. The gradients take the same ways in reverse."""
    for layer in (*range(routing.layers), *reversed(range(routing.layers))):
        for way in routing.ways:
            yield layer, way
