"""Blocks of a key-value cache: which blocks of scattered memory a rank sends, and where they must arrive.

A cache keeps the keys and values of so many tokens per block. With "layer-first" memory each layer has a pool of blocks for keys and one
for values, as in vLLM: a block of tokens is in 2 × layers places. With "block-first" memory all layers of a block are adjacent. Within a
block the heads are outermost, so that some of its heads are adjacent: between tensor-parallel groups of m and n ranks, blocks are split or
joined by heads.

All places of a plan have the same size, and every offset is a multiple of it.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError, nearest

Layout = Literal["layer-first", "block-first"]
Pattern = Literal["prefill-decode", "broadcast"]
WIDTHS = {"fp8": 1, "bf16": 2, "fp16": 2}  # bytes of an element
_SPARE = 2  # a pool has so many times the blocks that are sent, so that they are scattered
_FILE = Path(__file__).with_name("kv_models.toml")


class CacheModel(msgspec.Struct, frozen=True):
    """The attention of a model: layers, heads of keys and values, elements of a head. source: where the figures are published."""

    name: str
    layers: int
    kv_heads: int
    head_dimension: int
    source: str


@cache
def cache_models() -> dict[str, CacheModel]:
    """Return the models of kv_models.toml by name."""
    models = tomllib.loads(_FILE.read_text(encoding="utf-8"))["model"]
    return {values["name"]: CacheModel(**values) for values in models}


def cache_model(name: str) -> CacheModel:
    """Return a model. Raises UsageError for an unknown name."""
    if name not in cache_models():
        raise UsageError(f"--model '{name}' is unknown: {nearest(name, cache_models())}")
    return cache_models()[name]


class ModelBlocks(msgspec.Struct, frozen=True):
    """The blocks of the cache of a request of so many tokens. block_tokens: of a block; dtype: a name of WIDTHS."""

    model: CacheModel
    tokens: int
    block_tokens: int
    dtype: str
    layout: Layout


class PlainBlocks(msgspec.Struct, frozen=True):
    """So many blocks of so many bytes per pair of ranks."""

    count: int
    block_bytes: int


class BlockLink(msgspec.Struct, frozen=True, eq=False):
    """The blocks that one rank sends to another one: the places in the memory of both, in the same order. source, target: ranks."""

    source: int
    target: int
    at_source: NDArray[np.int64]
    at_target: NDArray[np.int64]


class BlockPlan(msgspec.Struct, frozen=True, eq=False):
    """What all ranks send: places of `block_bytes`, of which sources and targets have so many each, and the links between ranks."""

    block_bytes: int
    source_places: int
    target_places: int
    links: tuple[BlockLink, ...]

    def outgoing(self, rank: int) -> list[BlockLink]:
        """Return the links on which a rank sends."""
        return [link for link in self.links if link.source == rank]

    def incoming(self, rank: int) -> list[BlockLink]:
        """Return the links on which a rank receives."""
        return [link for link in self.links if link.target == rank]

    def places(self, rank: int) -> int:
        """Return the places in a rank's memory; 0 for a rank without blocks."""
        if self.outgoing(rank):
            return self.source_places
        return self.target_places if self.incoming(rank) else 0

    @property
    def count(self) -> int:
        """All blocks that are sent."""
        return sum(len(link.at_source) for link in self.links)

    @property
    def busiest(self) -> int:
        """The blocks of the rank that sends or receives most."""
        ranks = {rank for link in self.links for rank in (link.source, link.target)}
        return max(sum(len(link.at_source) for link in (*self.outgoing(rank), *self.incoming(rank))) for rank in ranks)

    @property
    def size_bytes(self) -> int:
        """All bytes that are sent."""
        return self.count * self.block_bytes


def pairs_of(sources: int, targets: int) -> list[tuple[int, int]]:
    """Return (source, target) of ranks that share heads; targets follow sources. Raises UsageError if no number divides the other."""
    larger = max(sources, targets)
    smaller = min(sources, targets)
    if smaller < 1 or larger % smaller:
        raise UsageError(f"--tp {sources}:{targets}: one number must divide the other, e.g. 4:2")
    return [(number * sources // larger, sources + number * targets // larger) for number in range(larger)]


def make_plan(blocks: ModelBlocks | PlainBlocks, pattern: Pattern, sources: int, targets: int, seed: int) -> BlockPlan:
    """Return the plan, the same at all ranks. seed: of which blocks of the pools are used. Raises UsageError for heads that do not fit."""
    pairs = [(0, 1 + target) for target in range(targets)] if pattern == "broadcast" else pairs_of(sources, targets)
    if isinstance(blocks, PlainBlocks):
        return _plain(blocks, pattern, pairs, seed)
    return _of_model(blocks, pairs, sources, targets, seed)


def _chosen(count: int, seed: int, rank: int) -> NDArray[np.int64]:
    """Return which blocks of a pool of twice as many a rank uses, in the order of the tokens."""
    return np.random.default_rng([seed, rank]).permutation(_SPARE * count)[:count].astype(np.int64)


def _plain(blocks: PlainBlocks, pattern: Pattern, pairs: list[tuple[int, int]], seed: int) -> BlockPlan:
    # how many pairs a source and a target are in
    outgoing, incoming = (max(Counter(pair[side] for pair in pairs).values()) for side in (0, 1))
    if pattern == "broadcast":  # each target gets the same blocks
        outgoing = 1
    done: Counter[int] = Counter()
    links = []
    for pair in pairs:
        places = []
        for rank, parts in zip(pair, (outgoing, incoming), strict=True):
            part = done[rank] % parts
            done[rank] += 1
            places.append(_chosen(blocks.count * parts, seed, rank)[part * blocks.count : (part + 1) * blocks.count])
        links.append(BlockLink(*pair, *places))
    return BlockPlan(blocks.block_bytes, _SPARE * blocks.count * outgoing, _SPARE * blocks.count * incoming, tuple(links))


def _of_model(blocks: ModelBlocks, pairs: list[tuple[int, int]], sources: int, targets: int, seed: int) -> BlockPlan:
    model = blocks.model
    for ranks in (sources, targets):
        if model.kv_heads % ranks:
            raise UsageError(f"--tp {sources}:{targets}: {ranks} ranks cannot share the {model.kv_heads} KV heads of {model.name} evenly")
    shared = model.kv_heads // max(sources, targets)
    source_parts, target_parts = (model.kv_heads // ranks // shared for ranks in (sources, targets))
    count = ceil(blocks.tokens / blocks.block_tokens)
    layers = 2 * model.layers  # keys and values
    part_bytes = shared * blocks.block_tokens * model.head_dimension * WIDTHS[blocks.dtype]
    whole = blocks.layout == "block-first" and source_parts == target_parts  # all layers of a block are adjacent on both sides

    def places(rank: int, parts: int, part: int) -> NDArray[np.int64]:
        used = _chosen(count, seed, rank)[np.newaxis, :]
        if whole:
            return used.ravel()
        layer = np.arange(layers)[:, np.newaxis]
        cells = layer * (_SPARE * count) + used if blocks.layout == "layer-first" else used * layers + layer
        return np.asarray(cells * parts + part, np.int64).ravel()

    links = []
    for source, target in pairs:
        at_source = places(source, source_parts, (target - sources) % source_parts)
        at_target = places(target, target_parts, source % target_parts)
        links.append(BlockLink(source, target, at_source, at_target))
    if whole:
        return BlockPlan(part_bytes * layers, _SPARE * count, _SPARE * count, tuple(links))
    return BlockPlan(part_bytes, _SPARE * count * layers * source_parts, _SPARE * count * layers * target_parts, tuple(links))
