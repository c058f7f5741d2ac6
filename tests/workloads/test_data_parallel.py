"""Data-parallel: every gradient is in one bucket, every rank in the one group."""

import pytest

from collbench.errors import UsageError
from tests.workloads.laid import MIB, described, laid_out

GRADIENTS = 340 * 10**6 * 4


def test_bert_large_in_buckets_of_25_mib():
    step = laid_out("data-parallel", {}, (0, 1))
    whole = GRADIENTS // (25 * MIB)
    assert [described(one) for one in step.exchanges] == [
        ("allreduce", ((0, 1),), 25 * MIB, whole),
        ("allreduce", ((0, 1),), GRADIENTS - whole * 25 * MIB, 1),
    ]
    assert [one.what for one in step.exchanges] == ["gradients, buckets 1 to 51 of 52", "gradients, bucket 52 of 52"]
    assert step.payload_bytes == GRADIENTS
    assert {(one.redop, one.dtype) for one in step.exchanges} == {("sum", "float32")}


def test_a_bucket_beyond_the_gradients_is_one_bucket():
    (one,) = laid_out("data-parallel", {"model": "1000", "dtype": "bfloat16"}, (0, 0, 1)).exchanges
    assert described(one) == ("allreduce", ((0, 1, 2),), 1000 * 2, 1)
    assert one.what == "gradients, bucket 1 of 1"


def test_a_bucket_is_rounded_down_to_whole_numbers():
    step = laid_out("data-parallel", {"model": "100", "bucket": "43"}, (0, 1))
    assert [(one.size_bytes, one.times) for one in step.exchanges] == [(40, 10)]


@pytest.mark.parametrize("hosts", [(), (0,)])
def test_a_rank_alone_has_nothing_to_sum(hosts):
    with pytest.raises(UsageError, match=r"data-parallel over [01] ranks?: .*--ranks"):
        laid_out("data-parallel", {}, hosts)
