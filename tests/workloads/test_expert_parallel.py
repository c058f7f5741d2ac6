"""Expert-parallel: each token's copies go to its experts' ranks and come back, twice; one rank may be busier than the others."""

import pytest

from collbench.errors import UsageError
from tests.workloads.laid import described, laid_out

SMALL = {"layers": "3", "hidden": "8", "sequence": "12", "top_k": "1"}
TOKEN = 8 * 4  # bytes


def test_evenly_every_rank_sends_every_rank_as_many():
    step = laid_out("expert-parallel", SMALL, (0, 1, 2))
    assert [described(one) for one in step.exchanges] == [("alltoallv", ((0, 1, 2),), 12 * TOKEN, 3)] * 4
    assert {one.traffic.matrix for one in step.exchanges} == {((12 // 3 * TOKEN,) * 3,) * 3}
    assert step.payload_bytes == 4 * 3 * 12 * TOKEN
    assert step.note == "3 experts in each of 3 layers, top 1"


def test_forward_there_and_back_then_backward_there_and_back():
    step = laid_out("expert-parallel", {**SMALL, "imbalance": "2"}, (0, 1, 2))
    there, back, there_again, back_again = [one.traffic.matrix for one in step.exchanges]
    assert there == there_again and back == back_again
    assert back == tuple(zip(*there, strict=True)) != there


def test_the_busiest_ranks_experts_get_so_many_times_the_average():
    step = laid_out("expert-parallel", {**SMALL, "imbalance": "2"}, (0, 1, 2))
    received = [sum(column) for column in zip(*step.exchanges[0].traffic.matrix, strict=True)]
    assert sorted(received) == [(36 - 24) // 2 * TOKEN, (36 - 24) // 2 * TOKEN, 2 * 12 * TOKEN]
    assert step.exchanges[0].size_bytes == 2 * 12 * TOKEN


def test_the_seed_draws_the_busiest_rank_and_the_same_one_each_time():
    def busiest(seed):
        step = laid_out("expert-parallel", {**SMALL, "imbalance": "2", "seed": str(seed)}, (0, 1, 2))
        received = [sum(column) for column in zip(*step.exchanges[0].traffic.matrix, strict=True)]
        return received.index(max(received))

    drawn = [busiest(seed) for seed in range(20)]
    assert set(drawn) == {0, 1, 2}
    assert drawn == [busiest(seed) for seed in range(20)]


def test_more_experts_per_rank_allow_more_imbalance():
    step = laid_out("expert-parallel", {**SMALL, "top_k": "2", "experts": "6", "imbalance": "3"}, (0, 1, 2))
    received = [sum(column) for column in zip(*step.exchanges[0].traffic.matrix, strict=True)]
    assert sorted(received) == [0, 0, 3 * 12 * 2 * TOKEN]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ({"experts": "4"}, "--experts 4 cannot be shared evenly by 3 ranks: choose a multiple of them, like 6"),
        ({"top_k": "4"}, "--top-k 4 exceeds the number of experts, 3: choose 1 to 3"),
        (
            {"imbalance": "4"},
            "--imbalance 4 over 3 ranks with 1 expert each and top 1: one rank's experts can get 1 to 3 times the average",
        ),
        (
            {"imbalance": "2", "top_k": "2"},
            "--imbalance 2 over 3 ranks with 1 expert each and top 2: one rank's experts can get 1 to 1.5",
        ),
        ({"imbalance": "0.5"}, "--imbalance '0.5' is not a number from 1 up: 1 is even"),
        ({"imbalance": "nan"}, "--imbalance 'nan'"),
        ({"imbalance": "1/0"}, "--imbalance '1/0'"),
        ({"imbalance": "1e9999"}, "--imbalance '1e9999' is not a number from 1 up"),
        ({"seed": "-1"}, "--seed '-1' is not a valid seed: use a whole number from 0 up"),
        ({"model": "resnet50", "layers": "3"}, "expert-parallel needs hidden"),
    ],
)
def test_what_cannot_be_routed_is_refused_with_a_remedy(typed, why):
    given = {**({} if "model" in typed else SMALL), **typed}
    with pytest.raises(UsageError) as caught:
        laid_out("expert-parallel", given, (0, 1, 2))
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(("experts", "top_k", "most"), [("4", "1", 4), ("4", "2", 2), ("8", "2", 4), ("16", "2", 4), ("16", "4", 4)])
def test_a_token_goes_to_each_expert_once_so_that_the_imbalance_has_an_end(experts, top_k, most):
    typed = {**SMALL, "experts": experts, "top_k": top_k}
    step = laid_out("expert-parallel", {**typed, "imbalance": str(most)}, (0, 1, 2, 3))
    received = [sum(column) for column in zip(*step.exchanges[0].traffic.matrix, strict=True)]
    assert max(received) == most * 12 * int(top_k) * TOKEN
    with pytest.raises(UsageError, match=f"can get 1 to {most} times the average"):
        laid_out("expert-parallel", {**typed, "imbalance": str(most + 0.5)}, (0, 1, 2, 3))
