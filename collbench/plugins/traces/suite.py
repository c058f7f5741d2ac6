"""A suite with the operations of a replayed step: each with its sizes and groups, to measure alone with `collbench run`."""

from __future__ import annotations

import json
from contextlib import suppress

from collbench.errors import UsageError
from collbench.operations.case import parse_split
from collbench.operations.suite import VERSION
from collbench.plugins.traces.recording import Recording
from collbench.plugins.training.workloads.step import Exchange, operation_of

_MESSAGES = "p2p_bandwidth"  # the operation of a suite for messages between pairs


def suite_text(recording: Recording, title: str) -> str:
    """Return the suite as TOML: a sweep for each operation, data type, reduction op, root and split, with all its sizes.

    A comment names operations that a suite cannot have: groups that are not all ranks and not a split, and parts of uneven all-to-alls.
    """
    sweeps: dict[tuple[str, ...], set[int]] = {}
    left_out: dict[str, None] = {}
    for exchange in recording.step.exchanges:
        split = _split_of(exchange, recording.ranks)
        if split is None or exchange.traffic is not None:
            left_out[f"{exchange.operation} of {exchange.size_bytes} bytes over {len(exchange.groups)} groups"] = None
            continue
        operation = operation_of(exchange)
        keys = [f"operations = {json.dumps([_MESSAGES if operation.pair else operation.name])}"]
        if not operation.is_barrier:
            lists = {"dtypes": exchange.dtype, "redops": exchange.redop or None, "roots": exchange.root}
            keys += [f"{name} = {json.dumps([value])}" for name, value in lists.items() if value is not None]
            keys += ["window = 1"] if operation.pair else []
            keys += [f"split = {json.dumps(split)}"] if split else []
        sizes = sweeps.setdefault(tuple(keys), set())
        if not operation.is_barrier:
            sizes.add(exchange.size_bytes)
    if not sweeps:
        raise UsageError("--suite: no operation of the trace runs over all ranks or an even split of them: use the replay itself")
    lines = [f"schema = {VERSION}", f"title = {json.dumps(title)}", "", f"# for {recording.ranks} ranks"]
    lines += [f"# left out: {text}" for text in left_out]
    for known_keys, known_sizes in sweeps.items():
        lines += ["", "[[sweeps]]", *known_keys]
        lines += [f"sizes = {sorted(known_sizes)}"] if known_sizes else []
    return "\n".join(lines) + "\n"


def _split_of(exchange: Exchange, ranks: int) -> str | None:
    """Return the split that gives these groups: "" for all ranks and for messages, None if no split does."""
    if operation_of(exchange).pair or exchange.groups == (tuple(range(ranks)),):
        return ""
    width = len(exchange.groups[0])
    for text in (f"DIV {width}", f"MOD {ranks // width}"):
        with suppress(UsageError):
            if parse_split(text).groups(ranks) == exchange.groups:
                return text
    return None
