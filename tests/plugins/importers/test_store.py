"""Tables become run folders that read back; what belongs together is one, what comes again is another launch."""

import pytest

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import ceiling_from_rate
from collbench.machine.peak.limits import NicLimit
from collbench.machine.peak.links import Link, unknown
from collbench.machine.peak.node import Job, Node
from collbench.plugins.importers.importer import ImportedTable
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, with_ceilings
from collbench.plugins.importers.store import FileTable, Source, store, together
from collbench.results.imported import import_notes
from collbench.results.reader import read_run
from tests.results.rows import make_row

SOURCE = Source("run.log", 100, "ab" * 32, "nccl-tests")


def rows(operation="allreduce", sizes=(1024, 2048)):
    kind = RowKind(operation, "nccl", "nccl", "float32", 8, 1, "the mean", "cuda", "sum" if operation == "allreduce" else None)
    return [kind.row(size, size / 1e9, count=size // 4, line=7) for size in sizes]


def table(operation="allreduce", hosts=("a", "b"), **changes):
    known = {"missing": lacks(MissingItem.SAMPLES), "doubts": [], "facts": {}} | changes
    return FileTable(SOURCE, ImportedTable("nccl-tests", "2.19.6", f"{operation}_perf", "the mean", rows(operation), hosts, **known))


def test_operations_are_one_run_and_a_table_that_comes_again_fills_the_first_run_that_lacks_it():
    found = together([table(), table("allgather"), table(), table("broadcast", hosts=("c", "d")), table("allgather")])
    assert [[each.run.program for each in run.tables] for run in found] == [
        ["allreduce_perf", "allgather_perf"], ["allreduce_perf", "allgather_perf"], ["broadcast_perf"],
    ]  # fmt: skip
    order = ["allreduce", "allreduce", "allgather", "allreduce", "allgather", "broadcast", "allgather", "broadcast"]
    found = together(map(table, order))
    assert [[each.run.program.removesuffix("_perf") for each in run.tables] for run in found] == [
        ["allreduce", "allgather", "broadcast"], ["allreduce", "allgather", "broadcast"], ["allreduce", "allgather"],
    ]  # fmt: skip
    assert [run.operation for run in found] == ["import"] * 3


def test_several_are_launches_of_the_allocation_that_is_named(tmp_path):
    paths = store(together([table(), table()]), tmp_path, ["import"], "night", None)
    infos = [read_run(path).info for path in paths]
    assert [path.name for path in paths] == ["launch-1", "launch-2"]
    assert [(info["allocation_id"], info["launch_index"], info["launches"]) for info in infos] == [("night", 1, 2), ("night", 2, 2)]
    with pytest.raises(UsageError, match="already has launches"):
        store(together([table()]), tmp_path, ["import"], None, None)


def test_a_log_of_many_tables_reports_the_first_of_them():
    tables = [{"tool": "osu", "file": "x", "program": f"p{i % 20}", "statistic": "s", "rows": 2} for i in range(40)]
    skipped = [{"file": "x", "line": 7, "reason": "the table at line 7 is cut"}]
    info = {"imported": {"tables": tables, "missing": None, "doubts": [3, "a"], "skipped": skipped}}
    said = import_notes(info)
    listed = ", ".join(f"4 rows of p{i}" for i in range(12))
    assert said == [
        f"imported from osu: {listed}, and 8 more programs (x); a time is s", "doubtful: a",
        "skipped a table of x: the table at line 7 is cut",
    ]  # fmt: skip
    assert import_notes({}) == import_notes({"imported": "x"}) == []


def test_a_ceiling_gives_a_percentage_and_a_missing_one_its_reason():
    busbw = 1.75  # GB/s
    row = with_ceilings(rows(), lambda ranks, nodes, device: Job((), ceiling_from_user=2e9))[0]
    assert (row.ceiling, row.percent_of_ceiling, row.flags) == (ceiling_from_rate(2.0), pytest.approx(100 * busbw / 2), ("imported",))

    def nobody(ranks, nodes, device):
        raise UsageError(f"{ranks} ranks do not spread evenly over 3 nodes")

    row = with_ceilings(rows(), nobody)[0]
    assert (row.ceiling.bytes_per_s, row.percent_of_ceiling) == (None, None)
    assert row.ceiling.limited_by == "8 ranks do not spread evenly over 3 nodes"
    row = with_ceilings([of_pairs(8.0, 4, "p2p_latency")], two_hosts)[0]
    assert row.ceiling.bytes_per_s == 12.5e9


def of_pairs(total, pairs, operation="p2p_bandwidth"):
    """An imported row of several pairs at once, with their average, of this many GB/s together."""
    groups = {"count": pairs, "ranks": 2, "total_busbw_bytes_per_s": total * 1e9}
    return make_row(operation=operation, ranks=2 * pairs, nodes=2, device="cpu", busbw_bytes_per_s=total * 1e9 / pairs, groups=groups)


def two_hosts(ranks, nodes, device):
    """Two nodes with one NIC of 100 Gb/s each."""
    nic = Link.of(12.5e9, NicLimit(ports=((1, 100e9),)))
    return Job((Node(ranks // 2, unknown("memory"), nic, neighbours=unknown("memory")),) * (nodes or 1))


@pytest.mark.parametrize("operation", ["p2p_bandwidth", "p2p_bidirectional"])
@pytest.mark.parametrize("pairs", [2, 8])
def test_pairs_at_once_are_compared_with_the_nic_together(operation, pairs):
    row = with_ceilings([of_pairs(12.0, pairs, operation)], two_hosts)[0]
    assert row.percent_of_ceiling == pytest.approx(96)
    assert row.ceiling.limited_by == f"NIC 1×100 Gb/s shared by {pairs} pairs"
    given = with_ceilings([of_pairs(12.0, pairs, operation)], lambda *_: Job((), ceiling_from_user=12.5e9))[0]
    assert given.percent_of_ceiling == pytest.approx(96)
    assert given.ceiling.limited_by == f"the ceiling given shared by {pairs} pairs"
