"""`collbench kv`: its request from the command line, and its plan."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Mapping, Sequence

from collbench.backends.registry import backend_defaults
from collbench.cli.request import request_of
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from collbench.operations.dtypes import dtype_named
from collbench.operations.sweep import Sweep
from collbench.plugins.kv.block_transfer import METHODS
from collbench.plugins.kv.models import ModelBlocks, PlainBlocks, cache_model
from collbench.plugins.kv.task import KvRequest, too_large
from collbench.units import parse_size, plural

_MOST_BLOCKS = 1_000_000
_LEAST_BYTES = 8  # a block has its number in its first bytes
_OF_MODEL = ("tokens", "block_size", "cache_dtype", "layout")
_OF_PLAIN = ("blocks", "block_bytes")


def kv_request(arguments: argparse.Namespace, argv: Sequence[str]) -> KvRequest:
    """Return the request. Raises UsageError for invalid options."""
    methods = tuple(dict.fromkeys(arguments.method or METHODS))
    for name in methods:
        if name not in METHODS:
            raise UsageError(f"--method '{name}' is unknown: choose from {', '.join(METHODS)}")
    backends = tuple(dict.fromkeys(METHODS[name].backend for name in methods))
    sweep = Sweep((), None, (dtype_named("uint8"),), buffers="fixed", seed=arguments.seed or 0, window=1, defaults=backend_defaults)
    arguments.slowed = []
    requested = frozenset(backends if arguments.method else ())
    launch = request_of(arguments, sweep, argv, backends=backends, requested=requested)
    return KvRequest(launch, methods, _blocks(arguments), arguments.pattern, _parallel(arguments), arguments.prefill_time)


def _blocks(arguments: argparse.Namespace) -> tuple[ModelBlocks | PlainBlocks, ...]:
    other = _OF_PLAIN if arguments.model else _OF_MODEL
    for name in other:
        if getattr(arguments, name) is not None:
            need = "is not valid with --model" if arguments.model else "needs --model"
            raise UsageError(f"--{name.replace('_', '-')} {need}: remove one of them")
    if arguments.model:
        if arguments.pattern == "broadcast":
            raise UsageError("--pattern broadcast sends plain blocks: use --blocks and --block-bytes instead of --model")
        return (
            ModelBlocks(cache_model(arguments.model), arguments.tokens or 512, arguments.block_size or 16, arguments.cache_dtype or "bf16",
                        arguments.layout or "layer-first"),
        )  # fmt: skip
    sizes = [parse_size(text) for text in arguments.block_bytes or ("4K", "32K")]
    for size in sizes:
        if size < _LEAST_BYTES or size >= 2**31:
            raise UsageError(f"--block-bytes {size}: not a valid size of a block (use 8 to 2G-1)")
    counts = [_count(text) for text in arguments.blocks or ("8", "64", "512")]
    return tuple(dict.fromkeys(PlainBlocks(count, size) for size in sizes for count in counts))


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0
    if not 1 <= number <= _MOST_BLOCKS:
        raise UsageError(f"--blocks '{text}': not a valid number of blocks (use 1 to {_MOST_BLOCKS}, e.g. 8,64,512)")
    return number


def _parallel(arguments: argparse.Namespace) -> tuple[int, int] | None:
    if arguments.tp is None:
        return None
    if arguments.pattern == "broadcast":
        raise UsageError("--tp is for --pattern prefill-decode: a broadcast goes from rank 0 to all others")
    parts = arguments.tp.split(":")
    numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 6 else 0 for part in parts]
    if len(numbers) != 2 or min(numbers) < 1:
        raise UsageError(f"--tp '{arguments.tp}': not valid (use SENDING:RECEIVING ranks, e.g. 4:2)")
    return numbers[0], numbers[1]


def check_blocks(kv: KvRequest, ranks: int) -> None:
    """Raise UsageError if the blocks do not fit so many ranks on this host, or its memory."""
    plans = [kv.plan(blocks, ranks) for blocks in kv.blocks]
    wrong = too_large(plans, range(ranks), socket.gethostname())
    if wrong:
        raise UsageError(wrong)


def show_kv(kv: KvRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the transfers and the estimated time, at rank 0 of a launch. Return 0. Raises UsageError for ranks that do not fit."""
    from collbench.cli.dry_run import planned_hosts
    from collbench.cli.start import check_installed
    from collbench.report.dry_run import PlannedRounds, write_planned_rounds

    check_installed(kv.launch)
    ranks = len(planned_hosts(kv.launch, arguments, info, env))
    sources, targets = kv.sides(ranks)
    parts = []
    for method, blocks in kv.rows:
        plan = kv.plan(blocks, ranks)
        parts.append({"method": method, "blocks": plan.count, "block_bytes": plan.block_bytes, "size_bytes": plan.size_bytes})
    if not (info and info.rank):
        limit = kv.launch.budget.max_time_s
        notes = [
            f"ranks that send: {sources}; ranks that receive: {targets}",
            f"at most {limit * len(parts):g} s of samples: {plural(len(parts), 'row')} × {limit:g} s of --max-time; start-up and "
            "verification come on top",
        ]
        title = f"kv of {plural(len(parts), 'row')}"
        write_planned_rounds(
            PlannedRounds(title, parts, 0, limit, notes), arguments.format, sys.stdout, None if arguments.quiet else sys.stderr
        )
    return 0
