"""Buckets: whole units, equal but for the last, which is filled up."""

import pytest

from collbench.errors import UsageError
from collbench.workloads.data_parallel import Bucket, buckets, filled_up
from collbench.workloads.step import Shape


def shape(parameters, bucket):
    return Shape("made up", parameters, "float32", 4, bucket, (0, 1))


@pytest.mark.parametrize(
    ("parameters", "bucket", "unit", "found"),
    [
        (10, 16, 1, [Bucket(4 * 4, 2, "buckets 1 to 2 of 3"), Bucket((10 - 8) * 4, 1, "bucket 3 of 3")]),
        (8, 16, 1, [Bucket(4 * 4, 2, "buckets 1 to 2 of 2")]),
        (6, 16, 1, [Bucket(4 * 4, 1, "bucket 1 of 2"), Bucket((6 - 4) * 4, 1, "bucket 2 of 2")]),
        (3, 16, 1, [Bucket(3 * 4, 1, "bucket 1 of 1")]),
        (10, 19, 1, [Bucket(4 * 4, 2, "buckets 1 to 2 of 3"), Bucket((10 - 8) * 4, 1, "bucket 3 of 3")]),
        (10, 28, 3, [Bucket(6 * 4, 2, "buckets 1 to 2 of 2")]),  # 12 with what fills them up
    ],
)
def test_as_many_equal_ones_as_fit_and_the_rest(parameters, bucket, unit, found):
    assert list(buckets(shape(parameters, bucket), unit)) == found


def test_what_fills_up_is_reported():
    assert filled_up(shape(10, 28), 3).startswith("the last bucket is padded by 2 of 3 ")
    assert filled_up(shape(9, 28), 3) == ""


def test_a_bucket_with_no_room():
    with pytest.raises(UsageError, match=r"--bucket 3 .*float32: .*4 bytes"):
        buckets(shape(10, 3))
