"""From what a user typed to the shape that a regime is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collbench.errors import UsageError
from collbench.operations.dtypes import DType, dtype_named
from collbench.units import parse_size
from collbench.workloads.exchange import Regime, Shape
from collbench.workloads.laying import printable
from collbench.workloads.models import DEFAULT, model_named

BUCKET = "25M"  # of DistributedDataParallel: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
USUAL = {"model": DEFAULT, "dtype": "float32"}
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
_MOST = 10**9  # of anything that is counted
_MOST_BYTES = 2**40  # of the activations of a microbatch


def words(regime: Regime) -> dict[str, str]:
    """Every option that a regime takes, with its default; "": the model's own, or worked out. Names with "_" for "-"."""
    return {**USUAL, **regime.takes, **regime.options}


def help_of(regime: Regime) -> dict[str, str]:
    """For the same names what they mean, a line each."""
    return {name: regime.help[name] if name in regime.options else HELP[name] for name in words(regime)}


def shape_of(regime: Regime, typed: Mapping[str, str], hosts: Sequence[int]) -> Shape:
    """The shape of what was typed, for ranks on these hosts (by rank the number of its host).

    typed: by option, "_" for "-", only what the user gave. Raises UsageError for words that cannot be read, and for options that
    mean nothing to the regime; neither depends on the hosts.
    """
    said = {**words(regime), **_fitting(regime, typed)}
    model, dtype = model_named(said["model"]), _dtype(said["dtype"])
    own = {name: _count(name, said.get(name, "")) or getattr(model, name) for name in ("layers", "hidden", "sequence")}
    shape = Shape(
        model.name, model.parameters, dtype.name, dtype.size, _bucket(said.get("bucket", BUCKET), dtype), tuple(hosts),
        layers=own["layers"], hidden=own["hidden"], sequence=own["sequence"], vocabulary=model.vocabulary,
        microbatch=_count("microbatch", said.get("microbatch", "1")),
        microbatches=_count("microbatches", said.get("microbatches", "1")),
        experts=_count("experts", said.get("experts", "")), top_k=_count("top_k", said.get("top_k", "2")),
        options={name: said[name].strip() for name in regime.options},
    )  # fmt: skip
    regime.check(shape)
    return shape


def host_numbers(names: Sequence[str]) -> tuple[int, ...]:
    """By rank the number of its host, from the hosts' names by rank; rank 0's is host 0."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return tuple(numbers[name] for name in names)


def need_transformer(shape: Shape, regime: str, copies: int = 1) -> None:
    """Raises UsageError where layers, hidden size or sequence are not known, or so many copies of activations larger than any memory."""
    missing = [name for name in ("layers", "hidden", "sequence") if not getattr(shape, name)]
    if missing:
        named = ", ".join(missing[:-1]) + " and " * (len(missing) > 1) + missing[-1]
        raise UsageError(
            f"{regime} needs {named}, which model '{shape.name}' does not say: "
            f"choose bert-large or gpt2-xl, or give {', '.join(f'--{name}' for name in missing)}"
        )
    if shape.hidden * shape.sequence * shape.microbatch * shape.element_bytes * copies > _MOST_BYTES:
        smaller = ", ".join(_option(name) for name in ("microbatch", "sequence", "hidden", *(["top_k"] if copies > 1 else [])))
        raise UsageError(f"{regime} of a microbatch whose activations are more than 1 TiB: give smaller ones of {smaller}")


def whole(shape: Shape, name: str) -> int | None:
    """A regime's own option as a number from 1 on; None where nothing was typed. Raises UsageError."""
    return _count(name, shape.options.get(name, "")) or None


def _fitting(regime: Regime, typed: Mapping[str, str]) -> Mapping[str, str]:
    for name in typed:
        if name not in words(regime):
            listed = ", ".join(_option(one) for one in words(regime))
            raise UsageError(f"{_option(name)} means nothing to {regime.name}: leave it out; it takes {listed}")
    return typed


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _count(name: str, text: str) -> int:
    """0 for no text."""
    typed = text.strip()
    if not typed:
        return 0
    if not (typed.isascii() and typed.isdigit() and len(typed) <= 10 and 1 <= int(typed) <= _MOST):
        raise UsageError(f"{_option(name)} '{printable(typed)}' is no number of them: give a whole number from 1 to {_MOST:,}")
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
        raise UsageError(f"--dtype {dtype.name} is no type to train in: choose float32, float64, bfloat16 or float16")
    return dtype
