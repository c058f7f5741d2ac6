"""A suite with the operations of a replayed step: each with its sizes and groups, to measure alone with `collbench run`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from collbench.errors import UsageError
from collbench.operations.case import parse_split
from collbench.operations.groups import Groups
from collbench.operations.suite import VERSION
from collbench.plugins.traces.recording import Recording
from collbench.plugins.training.workloads.step import Exchange, operation_of

_MESSAGES = "p2p_bandwidth"  # the operation of a suite for messages between pairs


def suite_text(recording: Recording, title: str) -> str:
    """Return the suite as TOML: a sweep for each operation, data type, reduction op, root and split, with all its sizes.

    A comment names operations that a suite cannot have: groups that are not all ranks and not a split, and parts of uneven all-to-alls.
    """
    sweeps: dict[tuple[tuple[str, str], ...], set[int]] = {}
    left_out: dict[str, None] = {}
    for exchange in recording.step.exchanges:
        split = _split_of(exchange, recording.ranks)
        if split is None or exchange.traffic is not None:
            left_out[f"{exchange.operation} of {exchange.size_bytes} bytes over {len(exchange.groups)} groups"] = None
            continue
        sweeps.setdefault(tuple(_keys(exchange, split)), set()).add(exchange.size_bytes)
    if not sweeps:
        raise UsageError("--suite: no operation of the trace runs over all ranks or an even split of them: use the replay itself")
    lines = [f"schema = {VERSION}", f"title = {json.dumps(title)}", "", f"# for {recording.ranks} ranks"]
    lines += [f"# left out: {text}" for text in left_out]
    for keys, sizes in sweeps.items():
        lines += ["", "[[sweeps]]", *(f"{name} = {value}" for name, value in keys)]
        lines += [f"sizes = {sorted(sizes)}"] if _has_sizes(keys) else []
    return "\n".join(lines) + "\n"


def _keys(exchange: Exchange, split: str) -> Iterator[tuple[str, str]]:
    operation = operation_of(exchange)
    yield "operations", json.dumps([_MESSAGES if operation.pair else operation.name])
    if operation.is_barrier:
        return
    yield "dtypes", json.dumps([exchange.dtype])
    if exchange.redop:
        yield "redops", json.dumps([exchange.redop])
    if exchange.root is not None:
        yield "roots", json.dumps([exchange.root])
    if operation.pair:
        yield "window", "1"
    if split:
        yield "split", json.dumps(split)


def _has_sizes(keys: Sequence[tuple[str, str]]) -> bool:
    return any(name == "dtypes" for name, _ in keys)


def _split_of(exchange: Exchange, ranks: int) -> str | None:
    """Return the split that gives these groups: "" for all ranks and for messages, None if no split does."""
    if operation_of(exchange).pair or exchange.groups == (tuple(range(ranks)),):
        return ""
    width = len(exchange.groups[0])
    for text in (f"DIV {width}", f"MOD {ranks // width}"):
        if _groups(text, ranks) == exchange.groups:
            return text
    return None


def _groups(text: str, ranks: int) -> Groups:
    try:
        return parse_split(text).groups(ranks)
    except UsageError:
        return ()
