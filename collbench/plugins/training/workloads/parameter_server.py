"""Parameter servers: workers push their gradients to the servers, which store the model, and pull the model from them.

Every worker sends each server its shard of every bucket, and receives that shard of the model. Messages go only between workers
and servers, so a few ranks receive from many at once. The servers compute the sums, without a collective.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from collbench.errors import UsageError
from collbench.operations.traffic import Traffic
from collbench.plugins.training.workloads.data_parallel import Bucket, buckets
from collbench.plugins.training.workloads.shape import BUCKET, by_host, everybody, need_ranks, need_table, printable, whole
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step
from collbench.units import plural

_WAYS = {True: "gradients to the servers", False: "the model from the servers"}  # by `push`
UPDATES = ("synchronous", "asynchronous", "sharded")


class Roles(msgspec.Struct, frozen=True):
    """The ranks that are servers, and the ranks that are workers; together all ranks of the job."""

    servers: tuple[int, ...]
    workers: tuple[int, ...]


def roles(shape: Shape) -> Roles:
    """Return the roles. Servers are the first rank of each host, then the second of each and so on, so that they share NICs rarely.

    Raises UsageError for a number of servers that leaves no worker, or a server without parameters.
    """
    need_ranks(shape, 2, REGIME.name)
    number = _servers(shape)
    if number > shape.parameters:
        raise UsageError(
            f"{plural(number, 'server')} cannot share {plural(shape.parameters, 'parameter')}: choose fewer --servers or a larger --model"
        )
    if number >= shape.ranks:
        raise UsageError(
            f"parameter-server with {plural(number, 'server')} among {plural(shape.ranks, 'rank')} leaves no workers: "
            f"choose --servers 1 to {shape.ranks - 1}, or start more ranks"
        )
    turns = sorted((place, at, rank) for at, ranks in enumerate(by_host(shape)) for place, rank in enumerate(ranks))
    servers = tuple(sorted(rank for _, _, rank in turns[:number]))
    return Roles(servers, tuple(rank for rank in range(shape.ranks) if rank not in servers))


def shards(elements: int, servers: int) -> list[int]:
    """Return the number of elements of a bucket per server; they differ by at most one."""
    base, more = divmod(elements, servers)
    return [base + (server < more) for server in range(servers)]


def _servers(shape: Shape) -> int:
    update, number = _update(shape), whole(shape, "servers")
    if update != "sharded":
        return number or 1
    if number == 1:
        raise UsageError("--update sharded with one server has no shards: choose --servers 2 or more, or --update synchronous")
    return number or 2


def _update(shape: Shape) -> str:
    update = shape.options.get("update") or UPDATES[0]
    if update not in UPDATES:
        raise UsageError(f"--update '{printable(update)}' is unknown: choose from {', '.join(UPDATES)}")
    return update


def _step(shape: Shape) -> Step:
    roles_of_ranks = roles(shape)
    alone = _update(shape) == "asynchronous"
    if not alone:
        need_table(shape, REGIME.name)
    parts = buckets(shape)
    one_way = _messages if alone else _incast
    push = [exchange for one in parts for exchange in one_way(shape, roles_of_ranks, one, push=True)]
    pull = [exchange for one in parts for exchange in one_way(shape, roles_of_ranks, one, push=False)]
    return Step((*push, *pull), 2 * shape.gradient_bytes, _note(roles_of_ranks, alone))


def _note(roles_of_ranks: Roles, alone: bool) -> str:
    servers, workers = len(roles_of_ranks.servers), plural(len(roles_of_ranks.workers), "worker")
    each = "one server keeps the model" if servers == 1 else f"each of {servers} servers keeps a shard of the model"
    if alone:
        return f"{each}; this is the round of one of {workers}, each independent of the others"
    return f"{each} and sums the gradients of {workers}"


def _incast(shape: Shape, roles_of_ranks: Roles, one: Bucket, *, push: bool) -> Iterator[Exchange]:
    """Yield the exchanges in which all workers push or pull at the same time."""
    each = [float(part * shape.element_bytes) for part in shards(one.size_bytes // shape.element_bytes, len(roles_of_ranks.servers))]
    rows = [[0.0] * shape.ranks for _ in range(shape.ranks)]
    for worker in roles_of_ranks.workers:
        for server, size in zip(roles_of_ranks.servers, each, strict=True):
            rows[worker if push else server][server if push else worker] = size
    name = f"{'push to' if push else 'pull from'} {plural(len(roles_of_ranks.servers), 'server')}"
    busiest = max(one.size_bytes, int(max(each)) * len(roles_of_ranks.workers))
    yield Exchange(
        "alltoallv", everybody(shape), busiest, f"{_WAYS[push]}, {one.which}", one.times, shape.dtype,
        traffic=Traffic(name, matrix=tuple(map(tuple, rows))), adds=push,
    )  # fmt: skip


def _messages(shape: Shape, roles_of_ranks: Roles, one: Bucket, *, push: bool) -> Iterator[Exchange]:
    """Yield the messages of the first worker alone, one per server."""
    worker, servers = roles_of_ranks.workers[0], roles_of_ranks.servers
    for server, part in zip(servers, shards(one.size_bytes // shape.element_bytes, len(servers)), strict=True):
        if part:
            pair = (worker, server) if push else (server, worker)
            yield Exchange("p2p_bandwidth", (pair,), part * shape.element_bytes, f"{_WAYS[push]}, {one.which}", one.times, shape.dtype)


REGIME = Regime(
    name="parameter-server",
    summary="workers push gradients to servers and pull the model",
    step=_step,
    options={"update": UPDATES[0], "servers": ""},
    asynchronous=lambda shape: _update(shape) == "asynchronous",
    takes={"bucket": BUCKET},
    check=_servers,
    help={
        "update": "synchronous, asynchronous (no worker waits for another) or sharded (the model in parts, one per server)",
        "servers": "ranks that serve and do not work (default: 1; 2 of --update sharded)",
    },
)
