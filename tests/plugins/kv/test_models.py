"""Plans of blocks: which places are sent and where they must arrive, with and without a mismatch of tensor-parallel groups."""

import numpy as np
import pytest

from collbench.errors import UsageError
from collbench.plugins.kv.models import CacheModel, Layout, ModelBlocks, PlainBlocks, cache_models, make_plan, pairs_of

MODEL = CacheModel("small", 3, 4, 2, "this test")


def cache_of(layout: Layout, tokens: int = 40) -> ModelBlocks:
    return ModelBlocks(MODEL, tokens, 16, "bf16", layout)


def test_heads_are_shared_by_pairs_and_broadcast_to_all() -> None:
    assert pairs_of(2, 2) == [(0, 2), (1, 3)]
    assert pairs_of(4, 2) == [(0, 4), (1, 4), (2, 5), (3, 5)]
    assert pairs_of(1, 2) == [(0, 1), (0, 2)]
    plan = make_plan(cache_of("layer-first"), "prefill-decode", 1, 2, 3)
    first, second = plan.links
    assert set(first.at_source % 2) == {0} and set(second.at_source % 2) == {1}
    assert np.array_equal(first.at_source + 1, second.at_source)
    plan = make_plan(PlainBlocks(5, 64), "broadcast", 1, 3, 1)
    assert [(link.source, link.target) for link in plan.links] == [(0, 1), (0, 2), (0, 3)]
    assert all(np.array_equal(link.at_source, plan.links[0].at_source) for link in plan.links)
    assert plan.count == 15 and plan.busiest == 15
    for model in cache_models().values():
        assert model.source.startswith("https://") and model.kv_heads * model.head_dimension == 1024
    assert (
        make_plan(ModelBlocks(cache_models()["llama-3.1-8b"], 16, 16, "bf16", "layer-first"), "prefill-decode", 1, 1, 0).size_bytes == 2**21
    )


@pytest.mark.parametrize(("layout", "count", "size"), [("layer-first", 3 * 6, 16 * 4 * 2 * 2), ("block-first", 3, 6 * 16 * 4 * 2 * 2)])
def test_blocks_of_equal_groups_are_whole(layout: Layout, count: int, size: int) -> None:
    plan = make_plan(cache_of(layout), "prefill-decode", 1, 1, 1)
    assert (plan.count, plan.block_bytes) == (count, size)
    assert plan.size_bytes == 3 * 16 * MODEL.layers * 2 * MODEL.kv_heads * MODEL.head_dimension * 2  # 40 tokens fill 3 blocks


@pytest.mark.parametrize("layout", ["layer-first", "block-first"])
@pytest.mark.parametrize(("sources", "targets"), [(1, 1), (2, 1), (1, 2), (4, 2), (2, 4), (4, 4)])
def test_every_head_of_every_layer_arrives_once(layout: Layout, sources: int, targets: int) -> None:
    plan = make_plan(cache_of(layout), "prefill-decode", sources, targets, 7)
    assert plan.size_bytes == make_plan(cache_of(layout), "prefill-decode", 1, 1, 7).size_bytes
    for rank in range(sources + targets):
        links = [*plan.outgoing(rank), *plan.incoming(rank)]
        at = np.concatenate([link.at_source if link.source == rank else link.at_target for link in links])
        assert len(set(at.tolist())) == len(at) and at.min() >= 0 and at.max() < plan.places(rank)
        assert len(at) * 2 == plan.places(rank)  # half of each pool is in use


@pytest.mark.parametrize(("sources", "targets"), [(3, 2), (8, 1)])
def test_groups_that_cannot_share_heads_are_refused(sources: int, targets: int) -> None:
    with pytest.raises(UsageError):
        make_plan(cache_of("layer-first"), "prefill-decode", sources, targets, 1)
