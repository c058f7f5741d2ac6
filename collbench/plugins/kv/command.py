"""`collbench kv`: its request from the command line, and its plan."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_defaults
from collbench.cli.dry_run import planned_hosts
from collbench.cli.help import HelpEntry
from collbench.cli.options import OUTPUT, Layout, Option, add_options, in_folder, some
from collbench.cli.parser import add_command, duration, positive, words
from collbench.cli.request import request_of
from collbench.cli.start import Command, begin, check_installed, launch_of
from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.sweep import Sweep
from collbench.units import parse_size, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.plugins.kv.models import ModelBlocks, PlainBlocks
    from collbench.plugins.kv.task import KvRequest

_MOST_BLOCKS = 1_000_000
_LEAST_BYTES = 8  # a block has its number in its first bytes
_OF_MODEL = ("tokens", "block_size", "cache_dtype", "layout")
_OF_PLAIN = ("blocks", "block_bytes")


def kv_request(arguments: argparse.Namespace, argv: Sequence[str]) -> KvRequest:
    """Return the request. Raises UsageError for invalid options."""
    from collbench.plugins.kv.block_transfer import METHODS
    from collbench.plugins.kv.task import KvRequest

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
    from collbench.plugins.kv.models import ModelBlocks, PlainBlocks, cache_model

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
    from collbench.plugins.kv.task import too_large

    plans = [kv.plan(blocks, ranks) for blocks in kv.blocks]
    wrong = too_large(plans, range(ranks), socket.gethostname())
    if wrong:
        raise UsageError(wrong)


def show_kv(kv: KvRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the transfers and the estimated time, at rank 0 of a launch. Return 0. Raises UsageError for ranks that do not fit."""
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


_KV_SUMMARY = "transfers of scattered blocks, as of a key-value cache from prefill to decode"
_KV_ABOUT = (
    f"Measure {_KV_SUMMARY}: by messages per block, derived types, one-sided puts, packing, writev over TCP, and NIXL. Without --model "
    "the costs per transfer and per block follow from several numbers and sizes of blocks. Every byte of a transfer is verified."
)
_KV_MAX_TIME_S = 3.0
KV: Layout = {
    "what to move": [
        Option("--model", "send the key-value cache of a model: llama-3.1-8b, llama-3.1-70b or mistral-7b (default: plain blocks)", "NAME"),
        Option("--tokens", "with --model: tokens of the request (default: 512)", "N", positive),
        Option("--block-size", "with --model: tokens of a block (default: 16)", "N", positive),
        Option("--cache-dtype", "with --model: type of the cache (default: bf16)", choices=("bf16", "fp16", "fp8")),
        Option("--layout", "with --model: memory of the cache. layer-first: a pool of blocks per layer; block-first: all layers of a "
               "block are adjacent (default: layer-first)", choices=("layer-first", "block-first")),
        Option("--blocks", "without --model: blocks per pair of ranks, or several numbers (default: 8,64,512)", "N", words),
        Option("--block-bytes", "without --model: bytes of a block, or several (default: 4K,32K)", "SIZES", words),
        Option("--pattern", "prefill-decode: pairs of ranks; broadcast: rank 0 sends the same blocks to all others (default: "
               "prefill-decode)",
               choices=("prefill-decode", "broadcast"), default="prefill-decode"),
        Option("--tp", "ranks that send and ranks that receive: 4:2 joins the heads of 4 ranks on 2 (default: half of the "
               "ranks each)", "M:N"),
        Option("--prefill-time", "your time of prefill: adds the share of the transfer in the time to first token", "SECONDS", duration),
        Option("--method", "mpi-messages, mpi-type, mpi-put, mpi-put-type, packed, writev, nixl (default: all)", "NAMES", words),
    ],
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


def add_kv(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "kv", _KV_SUMMARY, call_kv, partial(add_options, layout=KV), entry=_KV_HELP, description=_KV_ABOUT)


def call_kv(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.plugins.kv.task import run_kv

    kv, info = kv_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return show_kv(kv, arguments, info, os.environ)
    if info is None:  # before ranks are started: do blocks and ranks fit?
        check_blocks(kv, len(planned_hosts(kv.launch, arguments, None, os.environ)))

    def measure(request: Request, *rank: Any) -> int:
        return run_kv(replace(kv, launch=request), *rank)

    return begin(kv.launch, Command(arguments, argv, measure, progress="collbench.plugins.kv.progress:KvProgressPrinter"), info)
