"""`collbench kv`: its options, request and plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from collbench.backends.registry import backend_defaults
from collbench.cli.command import CommandSpec
from collbench.cli.help import HelpEntry
from collbench.cli.options import OUTPUT, Layout, MeasuringOptions, in_folder, option, some
from collbench.cli.parser import duration, positive, words
from collbench.cli.request import request_of
from collbench.errors import UsageError
from collbench.measuring.request import Placement
from collbench.operations.dtypes import dtype_named
from collbench.operations.sweep import Sweep
from collbench.units import parse_size, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.plugins.kv.models import ModelBlocks, Pattern, PlainBlocks
    from collbench.plugins.kv.task import KvRequest
    from collbench.report.dry_run import PlannedRounds

_MOST_BLOCKS = 1_000_000
_LEAST_BYTES = 8  # a block has its number in its first bytes
_OF_MODEL = ("tokens", "block_size", "cache_dtype", "layout")
_OF_PLAIN = ("blocks", "block_bytes")


_KV_SUMMARY = "transfers of scattered blocks, as of a key-value cache from prefill to decode"
_KV_ABOUT = (
    f"Measure {_KV_SUMMARY}: by messages per block, derived types, one-sided puts, packing, writev over TCP, and NIXL. Without --model "
    "the costs per transfer and per block follow from several numbers and sizes of blocks. Every byte of a transfer is verified."
)
_KV_MAX_TIME_S = 3.0


@dataclass(frozen=True, kw_only=True)
class KvOptions(MeasuringOptions):
    """The options of `collbench kv`."""

    # fmt: off
    model: str | None = option("--model", "send the key-value cache of a model: llama-3.1-8b, llama-3.1-70b or mistral-7b (default: plain "
        "blocks)", "NAME")
    tokens: int | None = option("--tokens", "with --model: tokens of the request (default: 512)", "N", positive)
    block_size: int | None = option("--block-size", "with --model: tokens of a block (default: 16)", "N", positive)
    cache_dtype: str | None = option("--cache-dtype", "with --model: type of the cache (default: bf16)", choices=("bf16", "fp16", "fp8"))
    layout: Literal["layer-first", "block-first"] | None = option("--layout", "with --model: memory of the cache. layer-first: a pool of "
        "blocks per layer; block-first: all layers of a block are adjacent (default: layer-first)", choices=("layer-first", "block-first"))
    blocks: list[str] | None = option("--blocks", "without --model: blocks per pair of ranks, or several numbers (default: 8,64,512)", "N",
        words)
    block_bytes: list[str] | None = option("--block-bytes", "without --model: bytes of a block, or several (default: 4K,32K)", "SIZES",
        words)
    pattern: Pattern = option("--pattern", "prefill-decode: pairs of ranks; broadcast: rank 0 sends the same blocks to all others "
        "(default: prefill-decode)", choices=("prefill-decode", "broadcast"), default="prefill-decode")
    tp: str | None = option("--tp", "ranks that send and ranks that receive: 4:2 joins the heads of 4 ranks on 2 (default: half of the "
        "ranks each)", "M:N")
    prefill_time: float | None = option("--prefill-time", "your time of prefill: adds the share of the transfer in the time to first token",
        "SECONDS", duration)
    method: list[str] | None = option("--method", "mpi-messages, mpi-type, mpi-put, mpi-put-type, packed, writev, nixl (default: all)",
        "NAMES", words)
    # fmt: on


KV: Layout = {
    "what to move": some("model tokens block_size cache_dtype layout blocks block_bytes pattern tp prefill_time method", KvOptions),
    "how to measure": some(
        "max_time iterations warmup precision check stop_on_wrong seed",
        max_time={"default": _KV_MAX_TIME_S, "help": f"time limit of the samples of a row (default: {_KV_MAX_TIME_S:g})"},
        check={"help": "transfers per row of which every byte is compared; 0: off (default: 1)"},
        seed={"help": "seed of the contents, of the places of the blocks and of the order of the rows (default: 0, random order)"},
    ),
    "launch and output": in_folder(
        "kv", "the transfers, their blocks and the estimated time", f"ranks oversubscribe ranks_per_node {OUTPUT}"
    ),
}  # fmt: skip


_KV_HELP = HelpEntry(
    group="Training",
    follows="workload",
    examples=(
        ("kv --ranks 2", "all methods at three numbers and two sizes of blocks, with the costs"),
        ("kv --model llama-3.1-8b --tokens 512 --ranks 2", "the key-value cache of 512 tokens"),
        ("kv --model llama-3.1-70b --tp 4:2 --ranks 6", "from 4 tensor-parallel ranks to 2"),
    ),
)


def kv_request(options: KvOptions, argv: Sequence[str], info: LaunchInfo | None) -> KvRequest:
    """Return the request. Raises UsageError for invalid options."""
    from collbench.plugins.kv.block_transfer import METHODS
    from collbench.plugins.kv.task import KvRequest

    methods = tuple(dict.fromkeys(options.method or METHODS))
    for name in methods:
        if name not in METHODS:
            raise UsageError(f"--method '{name}' is unknown: choose from {', '.join(METHODS)}")
    backends = tuple(dict.fromkeys(METHODS[name].backend for name in methods))
    sweep = Sweep((), None, (dtype_named("uint8"),), buffers="fixed", seed=options.seed or 0, window=1, defaults=backend_defaults)
    requested = frozenset(backends if options.method else ())
    launch = request_of(options, sweep, argv, info, backends=backends, requested=requested)
    return KvRequest(launch, methods, _blocks(options), options.pattern, _parallel(options), options.prefill_time)


def _blocks(options: KvOptions) -> tuple[ModelBlocks | PlainBlocks, ...]:
    from collbench.plugins.kv.models import ModelBlocks, PlainBlocks, cache_model

    for name in _OF_PLAIN if options.model else _OF_MODEL:
        if getattr(options, name) is not None:
            problem = "is not valid with --model" if options.model else "needs --model"
            raise UsageError(f"--{name.replace('_', '-')} {problem}: remove one of them")
    if options.model:
        if options.pattern == "broadcast":
            raise UsageError("--pattern broadcast sends plain blocks: use --blocks and --block-bytes instead of --model")
        return (
            ModelBlocks(cache_model(options.model), options.tokens or 512, options.block_size or 16, options.cache_dtype or "bf16",
                        options.layout or "layer-first"),
        )  # fmt: skip
    sizes = [parse_size(text) for text in options.block_bytes or ("4K", "32K")]
    for size in sizes:
        if size < _LEAST_BYTES or size >= 2**31:
            raise UsageError(f"--block-bytes {size}: not a valid size of a block (use 8 to 2G-1)")
    counts = [_count(text) for text in options.blocks or ("8", "64", "512")]
    return tuple(dict.fromkeys(PlainBlocks(count, size) for size in sizes for count in counts))


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 1 <= number <= _MOST_BLOCKS:
        raise UsageError(f"--blocks '{text}': not a valid number of blocks (use 1 to {_MOST_BLOCKS}, e.g. 8,64,512)")
    return number


def _parallel(options: KvOptions) -> tuple[int, int] | None:
    if options.tp is None:
        return None
    if options.pattern == "broadcast":
        raise UsageError("--tp is for --pattern prefill-decode: a broadcast goes from rank 0 to all others")
    parts = options.tp.split(":")
    numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 6 else 0 for part in parts]
    if len(numbers) != 2 or min(numbers) < 1:
        raise UsageError(f"--tp '{options.tp}': not valid (use SENDING:RECEIVING ranks, e.g. 4:2)")
    return numbers[0], numbers[1]


def planned_transfers(kv: KvRequest, placement: Placement) -> PlannedRounds:
    """Return the transfers and the estimated time. Raises UsageError for ranks that do not fit."""
    from collbench.report.dry_run import PlannedRounds

    kv.launch.check_installed()
    sources, targets = kv.sides(placement.ranks)
    parts: list[dict[str, Any]] = []
    for method, blocks in kv.rows:
        plan = kv.plan(blocks, placement.ranks)
        parts.append({"method": method, "blocks": plan.count, "block_bytes": plan.block_bytes, "size_bytes": plan.size_bytes})
    limit = kv.launch.budget.max_time_s
    notes = [
        f"ranks that send: {sources}; ranks that receive: {targets}",
        f"at most {limit * len(parts):g} s of samples: {plural(len(parts), 'row')} × {limit:g} s of --max-time; start-up and "
        "verification come on top",
    ]
    return PlannedRounds(f"kv of {plural(len(parts), 'row')}", parts, 0, limit, notes)


KV_COMMAND = CommandSpec(
    name="kv", summary=_KV_SUMMARY, about=_KV_ABOUT, options=KvOptions, layout=KV, request=kv_request, plan=planned_transfers,
    task="collbench.plugins.kv.task:KvTask", progress="collbench.plugins.kv.progress:KvProgressPrinter", help=_KV_HELP,
)  # fmt: skip
