"""Expert-parallel training: a mixture of experts.

Every rank has some experts of each layer, neighboring ones. Tokens are sent to their experts (dispatch) and back (combine), in the forward
and the backward pass, each with its own data type. A token goes to `top_k` different experts. Its copies are sent separately, also two to
experts of one rank.

Without a routing, all ranks send to all experts evenly, or with an imbalance of X: the experts of one rank, chosen by the seed, get X
times the average of all tokens, and the other ranks share the rest evenly. With `--routing` every step has its own token counts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.traffic import Traffic
from collbench.plugins.training.workloads.routing import Generator, Routing, Way, check_size, generate, parse_routing, to_ranks
from collbench.plugins.training.workloads.shape import everybody, need_ranks, need_table, need_transformer, printable, whole
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step
from collbench.units import plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collbench.plugins.training.workloads.routing_files import TokenCounts

# bounded digits, since a Fraction with a large exponent would be computed to the last digit
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9}|/\d{1,9})?", re.ASCII)
# Forward: to the experts and back. Backward: the gradients take the same ways in reverse.
_FORWARD = ("tokens to their experts", "results back to the tokens' ranks")
_BACKWARD = ("gradients of results to the experts", "gradients of tokens back to their ranks")
_TYPES = "float32, float64, bfloat16, float16, float8_e4m3fn or float8_e5m2"


def _step(shape: Shape) -> Step:
    need_ranks(shape, 2, REGIME.name)
    need_table(shape, REGIME.name)
    source = _source(shape)
    if source is not None:
        return _step_routed(shape, source)
    _check_experts(shape)
    need_transformer(shape, REGIME.name, shape.top_k)
    imbalance, seed = _imbalance(shape), _seed(shape)
    dispatch, combine = ways_of(shape)
    copies = _copies(shape, imbalance, random.Random(f"experts, {seed}").randrange(shape.ranks))
    name = f"experts, imbalance {float(imbalance):g}, seed {seed}"
    there = Traffic(name, matrix=_bytes(copies, dispatch))
    back = Traffic(f"{name}, back", matrix=_bytes(list(zip(*copies, strict=True)), combine))
    note = f"{shape.experts or shape.ranks} experts in each of {plural(shape.layers, 'layer')}, top {shape.top_k}"
    busiest, own = max(map(sum, (*copies, *zip(*copies, strict=True)))), sum(copies[0])
    return _step_of(shape, (there, back), (busiest, own), note)


def _step_of(shape: Shape, traffic: tuple[Traffic, Traffic], copies: tuple[int, int], note: str, more: str = "") -> Step:
    """Return the step: four exchanges of each layer. copies: of the busiest rank, and of a rank's own tokens, in one exchange.

    more: the end of the exchanges' names.
    """
    busiest, own = copies
    times, ways = shape.layers * shape.microbatches, ways_of(shape)
    exchanges = tuple(
        Exchange("alltoallv", everybody(shape), busiest * way.token_bytes, f"{what}{more}", times, way.dtype, traffic=each)
        for names in (_FORWARD, _BACKWARD)
        for what, way, each in zip(names, ways, traffic, strict=True)
    )
    return Step(exchanges, 2 * times * own * sum(way.token_bytes for way in ways), note)


def ways_of(shape: Shape) -> tuple[Way, Way]:
    """Return dispatch and combine with their data types, those of the model by default. Raises UsageError."""
    found = []
    for name in ("dispatch", "combine"):
        text = shape.options.get(f"{name}_dtype") or shape.dtype
        try:
            dtype = dtype_named(text)
        except UsageError as error:
            raise UsageError(f"--{name}-dtype: {error}") from None
        if dtype.kind != "float":
            raise UsageError(f"--{name}-dtype {dtype.name} is not supported for training: choose {_TYPES}")
        found.append(Way(name, dtype.name, shape.hidden * dtype.size, back=name == "combine"))
    return found[0], found[1]


def _bytes(copies: Sequence[Sequence[int]], way: Way) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(each * way.token_bytes) for each in row) for row in copies)


# Routings: token counts of a file, or of a generator.

_STEPS = 8  # that a generator gives by default
_MOST_STEPS = 1000


def _step_routed(shape: Shape, source: Generator | Path) -> Step:
    """Return the step with even traffic, and with the routings that are measured instead."""
    import hashlib

    typed, seed = whole(shape, "routings"), _seed(shape)
    if isinstance(source, Path):
        counts = _counts_of(source)
        shape = _shape_of_counts(shape, counts, source)
        number = len(counts.steps)
        count = min(number, typed or number)
        chosen = [turn * number // count for turn in range(count)]  # evenly spaced
        steps, name = tuple(counts.steps[each] for each in chosen), source.name
        _check_shape(shape)
        check_size(len(steps), shape.layers, shape.ranks, shape.experts)
        tokens = _tokens_of(counts, chosen, shape, source)
    else:
        steps, name = tuple(range(typed or _STEPS)), f"{source}, seed {seed}"
        _check_shape(shape)
        tokens = generate(source, shape, len(steps), seed)
    digest = hashlib.sha256(tokens.tobytes()).hexdigest()[:8]
    experts = shape.experts or shape.ranks
    routing = Routing(f"{name}:{digest}", steps, experts, tokens, ways_of(shape), shape.microbatches)
    total = -(-int(tokens.sum()) // (len(steps) * shape.layers))
    traffic = tuple(routing.even(total, way) for way in routing.ways)
    most = max(int(each.tokens.sum(axis=axis).max()) for each in traffic for axis in (0, 1) if each.tokens is not None)
    busiest = [routing.imbalance(step) for step in range(len(steps))]
    note = (
        f"{experts} experts in each of {plural(shape.layers, 'layer')}, top {shape.top_k}; {plural(len(steps), 'routing')} of {name}, "
        f"busiest rank {min(busiest):.2f} to {max(busiest):.2f} times the average"
    )
    return replace(_step_of(shape, (traffic[0], traffic[1]), (most, most), note, ", if evenly"), routing=routing)


def _check_shape(shape: Shape) -> None:
    _check_experts(shape)
    need_transformer(shape, REGIME.name, shape.top_k)


def _source(shape: Shape) -> Generator | Path | None:
    """Return the source of the routings; None without any. Raises UsageError for a routing with an imbalance, or the reverse."""
    text = shape.options.get("routing") or ""
    if not text:
        if shape.options.get("routings"):
            raise UsageError("--routings needs --routing: add e.g. --routing zipf:1.2, or remove it")
        return None
    if shape.options.get("imbalance"):
        raise UsageError("--imbalance and --routing exclude each other: remove one of them")
    return parse_routing(text)


def _check(shape: Shape) -> None:
    """Raise UsageError for options that are invalid with any ranks, and for an invalid file."""
    _seed(shape)
    _typed_imbalance(shape)
    ways_of(shape)
    source, steps = _source(shape), whole(shape, "routings") or 1
    if steps > _MOST_STEPS:
        raise UsageError(f"--routings {steps} is not supported: use 1 to {_MOST_STEPS}")
    if isinstance(source, Path):
        _counts_of(source)


def _counts_of(path: Path) -> TokenCounts:
    """Return the counts of a file. It is read again only if it has changed."""
    try:
        about = path.stat()
        known = (about.st_mtime_ns, about.st_size)
    except (OSError, ValueError):
        known = (0, 0)  # the reader reports the reason
    return _read(path, known)


@lru_cache(maxsize=1)
def _read(path: Path, known: tuple[int, int]) -> TokenCounts:
    from collbench.plugins.training.workloads.routing_files import read_counts

    return read_counts(path)


def _shape_of_counts(shape: Shape, counts: TokenCounts, path: Path) -> Shape:
    """Return the shape with the file's layers and experts. Raises UsageError for ranks, experts and counts that do not fit."""
    _, layers, ranks, experts = counts.tokens.shape
    if shape.experts and shape.experts != experts:
        raise UsageError(f"--experts {shape.experts}, but routing file '{path}' has {experts}: remove --experts")
    if counts.ranked and ranks != shape.ranks:
        raise UsageError(
            f"routing file '{path}' has the tokens of {plural(ranks, 'rank')}, and this launch has {shape.ranks}: start {ranks}, or leave "
            "the ranks out of the file"
        )
    if experts % shape.ranks:
        raise UsageError(
            f"routing file '{path}' has {plural(experts, 'expert')}, which {plural(shape.ranks, 'rank')} cannot share evenly: "
            "start a number of ranks that divides them"
        )
    return replace(shape, layers=layers, experts=experts)


def _tokens_of(counts: TokenCounts, chosen: Sequence[int], shape: Shape, path: Path) -> NDArray[np.int64]:
    """Return [steps × layers × ranks × ranks] copies of tokens. Without counts by rank, every rank has the same share of the tokens."""
    import numpy as np

    found = np.zeros((len(chosen), shape.layers, shape.ranks, shape.ranks), np.int64)
    for place, step in enumerate(chosen):
        for layer in range(shape.layers):
            of_layer = counts.tokens[step, layer]
            of_ranks = of_layer if counts.ranked else shared_evenly(of_layer[0], shape.ranks)
            _check_counts(of_ranks, f"routing file '{path}', step {counts.steps[step]}, layer {layer}", shape)
            found[place, layer] = to_ranks(of_ranks)
    return found


def shared_evenly(tokens: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Return [ranks × experts] counts from [experts]: those of a rank differ from the others' by at most 1, and so do their sums."""
    import numpy as np

    base, more = np.divmod(tokens, ranks)
    first = (np.cumsum(more) - more) % ranks  # the rank that gets the first of the tokens that are left over
    turn = (np.arange(ranks)[:, None] - first) % ranks
    found: NDArray[np.int64] = base + (turn < more)
    return found


def _check_counts(tokens: NDArray[np.int64], where: str, shape: Shape) -> None:
    """Raise UsageError for counts that a rank's tokens cannot have: each goes to top_k different experts, at most."""
    own = shape.sequence * shape.microbatch
    remedy = f"a rank has {own:,} tokens of {plural(shape.top_k, 'expert')} each: use another --microbatch, --sequence or --top-k"
    sums = tokens.sum(axis=1)
    rank = int(sums.argmax())
    if not sums[rank]:
        raise UsageError(f"{where} has no tokens: remove the step, or the layer from all steps")
    if sums[rank] > shape.top_k * own:
        raise UsageError(f"{where}: rank {rank} sends {int(sums[rank]):,} copies of tokens, more than {shape.top_k * own:,}: {remedy}")
    if tokens.max() > own:
        rank, expert = divmod(int(tokens.argmax()), tokens.shape[1])
        raise UsageError(f"{where}: expert {expert} gets {int(tokens.max()):,} tokens of rank {rank}, more than {own:,}: {remedy}")


# Without a routing: even, or with an imbalance.


def _copies(shape: Shape, imbalance: Fraction, busiest: int) -> list[list[int]]:
    """Return [ranks × ranks] copies of tokens from a token's rank to the experts' rank. A row has all copies of the rank's tokens."""
    n, copies = shape.ranks, shape.sequence * shape.microbatch * shape.top_k
    most = round(imbalance * copies / n)
    base, more = divmod(copies - most, n - 1)
    rows = []
    for rank in range(n):
        others = [other for other in ((rank + step) % n for step in range(n)) if other != busiest]
        row = [most] * n
        for turn, other in enumerate(others):
            row[other] = base + (turn < more)
        rows.append(row)
    return rows


def _check_experts(shape: Shape) -> None:
    """Raise UsageError for experts that do not fit the ranks, or for a top_k above their number."""
    experts = shape.experts or shape.ranks
    if experts % shape.ranks:
        near = -(-experts // shape.ranks) * shape.ranks
        raise UsageError(
            f"--experts {experts} cannot be shared evenly by {plural(shape.ranks, 'rank')}: choose a multiple of them, like {near}"
        )
    if shape.top_k > experts:
        raise UsageError(f"--top-k {shape.top_k} exceeds the number of experts, {experts}: choose 1 to {experts}, or more experts")


def _imbalance(shape: Shape) -> Fraction:
    """Return the load of the busiest rank's experts as a multiple of the average. Raises UsageError for an impossible value."""
    value = _typed_imbalance(shape)
    here = (shape.experts or shape.ranks) // shape.ranks
    most = Fraction(shape.ranks * min(shape.top_k, here), shape.top_k)
    if value > most:
        raise UsageError(
            f"--imbalance {float(value):g} over {plural(shape.ranks, 'rank')} with {plural(here, 'expert')} each and top {shape.top_k}: "
            f"one rank's experts can get 1 to {float(most):g} times the average; choose from these, or more --experts"
        )
    return value


def _typed_imbalance(shape: Shape) -> Fraction:
    text = shape.options.get("imbalance") or "1"
    try:
        value = Fraction(text) if _NUMBER.fullmatch(text) else Fraction(0)
    except ZeroDivisionError:
        value = Fraction(0)
    if value < 1:
        raise UsageError(f"--imbalance '{printable(text)}' is not a number from 1 up: 1 is even; with 1.5 one rank's experts get 50 % more")
    return value


def _seed(shape: Shape) -> int:
    text = shape.options.get("seed") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"--seed '{printable(text)}' is not a valid seed: use a whole number from 0 up")
    return int(text)


REGIME = Regime(
    name="expert-parallel",
    summary="tokens to their experts and back: alltoallv, four per layer",
    step=_step,
    options={"imbalance": "", "routing": "", "routings": "", "dispatch_dtype": "", "combine_dtype": "", "seed": "0"},
    takes={"layers": "", "hidden": "", "sequence": "", "microbatch": "1", "microbatches": "1", "experts": "", "top_k": "2"},
    check=_check,
    help={
        "imbalance": "how many times the average the busiest rank's experts get (default: 1)",
        "routing": "tokens per expert, layer and step: a .csv, .npz or .parquet file, or zipf:S, drift:SHARE, groups:N,limit=M",
        "routings": f"different routings to measure (default: {_STEPS}, or all of the file)",
        "dispatch_dtype": "type of the tokens on the way to their experts (default: --dtype)",
        "combine_dtype": "type of the results on the way back (default: --dtype)",
        "seed": "which rank is the busiest, and of the generated routings",
    },
)
