"""The lists of the benchmark match their descriptions, and expand to the right names. Times are not asserted: this machine may be busy."""

import pytest

from collbench.launch.slurm import detect
from tools.benchmarks import host_list


def test_it_prints_the_time_of_each_shape():
    outcome = host_list.measure(2, nodes=100)
    assert [figure.cases()[0].partition(",")[0] for figure in outcome.figures] == list(host_list.SHAPES)
    assert [figure.cases()[3] for figure in outcome.figures] == ["< 50.00 ms"] * 4
    assert [(each["shape"], each["nodes"]) for each in outcome.raw[:3]] == [("one range", 100), ("one range", 100), ("racks", 100)]


@pytest.mark.parametrize(("shape", "first", "last", "of_rank"), [
    ("one range", "gpu00001", "gpu10000", {8: "gpu00002", 79_999: "gpu10000"}),
    ("racks", "r000n01", "r249n40", {8 * 39: "r000n40", 8 * 40: "r001n01"}),
    ("names alone", "n0-ib", "n9999-ib", {7: "n0-ib", 8 * 5000: "n5000-ib"}),
])  # fmt: skip
def test_ten_thousand_names(shape, first, last, of_rank):
    text = host_list.SHAPES[shape](host_list.NODES)
    for rank, host in of_rank.items():
        found = detect(host_list.step(text, rank, host_list.NODES))
        assert found is not None
        assert (len(found.hosts), len(set(found.hosts)), found.hosts[0], found.hosts[-1]) == (10_000, 10_000, first, last)
        assert (found.rank, found.ranks, found.local_rank, found.local_ranks) == (rank, 80_000, rank % 8, 8)
        assert found.hosts[int(found.node)] == host


def test_gaps_are_kept():
    text = host_list.ragged(host_list.NODES)
    found = detect(host_list.step(text, 0, host_list.NODES))
    assert found is not None and list(found.hosts) == [f"gpu{number}" for number in text.removeprefix("gpu[").removesuffix("]").split(",")]
