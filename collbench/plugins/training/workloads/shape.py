"""The user's model and options for a workload (`Shape`), their parsing, and the groups of ranks by host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from collbench.errors import UsageError
from collbench.operations.dtypes import DType, dtype_named
from collbench.operations.groups import Groups
from collbench.plugins.training.workloads.step import Regime, Shape
from collbench.units import listed, parse_size, plural

# Groups of ranks by host.

_MOST_IN_TABLE = 8192  # of ranks; the table then takes half a gigabyte


def printable(text: str) -> str:
    """Return the user's text without control characters, shortened for messages."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:40])


def need_ranks(shape: Shape, least: int, regime: str) -> None:
    """Raise UsageError if there are fewer ranks than `least`."""
    if shape.ranks < least:
        raise UsageError(f"{regime} over {plural(shape.ranks, 'rank')}: it needs {least} or more; start more with --ranks, srun or mpirun")


def need_table(shape: Shape, regime: str) -> None:
    """Raise UsageError for so many ranks that a [ranks × ranks] table would need too much memory."""
    if shape.ranks > _MOST_IN_TABLE:
        raise UsageError(
            f"{regime} over {plural(shape.ranks, 'rank')}: what each sends to each other one is kept in a table, and {_MOST_IN_TABLE:,} "
            "ranks are the most that it is made for; start fewer"
        )


def by_host(shape: Shape) -> Groups:
    """Return the ranks of each host in ascending order, the host of rank 0 first."""
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(shape.hosts):
        found.setdefault(host, []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())


def host_after_host(shape: Shape) -> tuple[int, ...]:
    """Return all ranks, ordered by host."""
    return tuple(rank for ranks in by_host(shape) for rank in ranks)


def ranks_per_host(shape: Shape) -> int | None:
    """Return the number of ranks per host; None if hosts differ."""
    sizes = {len(ranks) for ranks in by_host(shape)}
    return sizes.pop() if len(sizes) == 1 else None


def blocks(ranks: Sequence[int], size: int) -> Groups:
    """Return groups of `size` adjacent ranks; `size` divides their number."""
    return tuple(tuple(ranks[at : at + size]) for at in range(0, len(ranks), size))


def crossing(groups: Groups, shape: Shape) -> bool:
    """Return whether any group has ranks of several hosts."""
    return any(len({shape.hosts[rank] for rank in group}) > 1 for group in groups)


def everybody(shape: Shape) -> Groups:
    """Return one group of all ranks."""
    return (tuple(range(shape.ranks)),)


# Models: those in models.toml, each with its source, and those that the user gives as a number of parameters.

_FILE = Path(__file__).with_name("models.toml")
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([KMBGT]?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "B": 3, "G": 3, "T": 4}
_MODELS_MOST = 10**15
DEFAULT = "bert-large"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The trained model: number of parameters. A transformer with identical layers also has their number and sizes (0: unknown)."""

    name: str
    parameters: int
    source: str
    layers: int = 0
    hidden: int = 0
    sequence: int = 0
    vocabulary: int = 0


@cache
def models() -> dict[str, Model]:
    """Return the models in the package, by name."""
    import tomllib

    return {row["name"]: Model(**row) for row in tomllib.loads(_FILE.read_text(encoding="utf-8"))["model"]}


def model_named(text: str) -> Model:
    """Return the model of that name, or one with that many parameters ("340M", "1.5B"; K, M, B = powers of 1000). Raises UsageError."""
    typed = text.strip()
    found = models().get(typed.lower())
    if found:
        return found
    match = _NUMBER.fullmatch(typed)
    if not match:
        known = ", ".join(models())
        raise UsageError(f"model '{printable(typed)}' is unknown: choose from {known}, or give its number of parameters, like 340M or 1.5B")
    from fractions import Fraction

    number = Fraction(match[1]) * 1000 ** _POWERS[match[2].upper()]
    if number.denominator != 1 or not 1 <= number <= _MODELS_MOST:
        raise UsageError(f"model '{typed}' is not a number of parameters from 1 to 10^15: use e.g. 340M or 1.5B")
    return Model(name=typed, parameters=int(number), source="typed")


# the default of DistributedDataParallel: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
BUCKET = "25M"
DEFAULTS = {"model": DEFAULT, "dtype": "float32"}
HELP = {
    "model": "resnet50, bert-large, gpt2-xl, or a number of parameters like 340M or 1.5B",
    "dtype": "of gradients, parameters and activations on the wire: float32, float64, bfloat16, float16",
    "bucket": "bytes of gradients that are sent together",
    "layers": "of the transformer (default: the model's)",
    "hidden": "its hidden size (default: the model's)",
    "sequence": "tokens of a sequence (default: the model's)",
    "microbatch": "sequences of a microbatch",
    "microbatches": "of a step, one after the other",
    "experts": "of each layer (default: one per rank)",
    "top_k": "experts that each token is sent to",
}
_MOST = 10**9  # limit of every count
_MOST_BYTES = 2**40  # limit of the activations of a microbatch


def words(regime: Regime) -> dict[str, str]:
    """Return every option of a workload with its default. "": from the model, or computed. Names with "_" for "-"."""
    return {**DEFAULTS, **regime.takes, **regime.options}


def help_of(regime: Regime) -> dict[str, str]:
    """Return the one-line help of every option of a workload, by the same names as `words`."""
    return {name: regime.help[name] if name in regime.options else HELP[name] for name in words(regime)}


def shape_of(regime: Regime, typed: Mapping[str, str], hosts: Sequence[int]) -> Shape:
    """Return the shape from the user's options, for ranks on these hosts (by rank the number of its host).

    typed: by option ("_" for "-"), only those that the user gave. Raises UsageError for invalid values, and for options that
    do not apply to the workload; neither depends on the hosts.
    """
    for name in typed:
        if name not in words(regime):
            known = ", ".join(_option(one) for one in words(regime))
            raise UsageError(f"{_option(name)} means nothing to {regime.name}: leave it out; it takes {known}")
    settings = {**words(regime), **typed}
    model, dtype = model_named(settings["model"]), _dtype(settings["dtype"])
    own = {name: _count(name, settings.get(name, "")) or getattr(model, name) for name in ("layers", "hidden", "sequence")}
    shape = Shape(
        model.name, model.parameters, dtype.name, dtype.size, _bucket(settings.get("bucket", BUCKET), dtype), tuple(hosts),
        layers=own["layers"], hidden=own["hidden"], sequence=own["sequence"], vocabulary=model.vocabulary,
        microbatch=_count("microbatch", settings.get("microbatch", "1")),
        microbatches=_count("microbatches", settings.get("microbatches", "1")),
        experts=_count("experts", settings.get("experts", "")), top_k=_count("top_k", settings.get("top_k", "2")),
        options={name: settings[name].strip() for name in regime.options},
    )  # fmt: skip
    regime.check(shape)
    return shape


def host_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """Return the number of each rank's host, from the hosts' names by rank; rank 0's is host 0."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def need_transformer(shape: Shape, regime: str, copies: int = 1) -> None:
    """Raise UsageError if layers, hidden size or sequence are unknown, or if the activations exceed a limit."""
    missing = [name for name in ("layers", "hidden", "sequence") if not getattr(shape, name)]
    if missing:
        raise UsageError(
            f"{regime} needs {listed(missing)}, which model '{shape.name}' does not define: "
            f"choose bert-large or gpt2-xl, or add {', '.join(f'--{name}' for name in missing)}"
        )
    if shape.hidden * shape.sequence * shape.microbatch * shape.element_bytes * copies > _MOST_BYTES:
        smaller = ", ".join(_option(name) for name in ("microbatch", "sequence", "hidden", *(["top_k"] if copies > 1 else [])))
        raise UsageError(f"{regime}: the activations of a microbatch exceed 1 TiB: use smaller values of {smaller}")


def whole(shape: Shape, name: str) -> int | None:
    """Return a workload's own option as an integer of at least 1; None if the user did not give it. Raises UsageError."""
    return _count(name, shape.options.get(name, "")) or None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _count(name: str, text: str) -> int:
    """Return the number in the text of an option; 0 for an empty text. Raises UsageError."""
    typed = text.strip()
    if not typed:
        return 0
    if not (typed.isascii() and typed.isdigit() and len(typed) <= 10 and 1 <= int(typed) <= _MOST):
        raise UsageError(f"{_option(name)} '{printable(typed)}' is not valid: use a whole number from 1 to {_MOST:,}")
    return int(typed)


def _bucket(text: str, dtype: DType) -> int:
    try:
        size = parse_size(text)
    except UsageError as error:
        raise UsageError(f"--bucket: {error}") from None
    if size < dtype.size:
        raise UsageError(f"--bucket {size} has no room for one {dtype.name}: give {dtype.size} bytes or more, like {BUCKET}")
    return size


def _dtype(name: str) -> DType:
    dtype = dtype_named(name)
    if dtype.kind != "float" or dtype.size < 2:
        raise UsageError(f"--dtype {dtype.name} is not supported for training: choose float32, float64, bfloat16 or float16")
    return dtype
