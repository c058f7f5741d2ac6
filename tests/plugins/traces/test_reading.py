"""Files and folders become the trace of one job; files that cannot be one end with one sentence."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.traces import files, joining, reading
from collbench.plugins.traces.matching import check_agreement, match
from collbench.plugins.traces.model import KINDS, UNKNOWN, ProcessGroup, RankTrace, empty
from tools.benchmarks import trace_files

UNNAMED = (ProcessGroup("0"),)


@pytest.mark.parametrize("form", trace_files.WRITERS)
def test_a_job_is_read_as_it_was_written_and_absent_ranks_are_listed(form, tmp_path):
    trace_files.WRITERS[form](tmp_path, 50, 4)
    trace = reading.read_traces([tmp_path])
    assert (trace.world, trace.absent, [rank.rank for rank in trace.ranks]) == (4, (), [0, 1, 2, 3])
    assert {group.ranks for group in trace.groups} == {(0, 1, 2, 3), (0, 2), (1, 3)}
    check_agreement(trace, match(trace))
    width = 4 if form == "NCCL Inspector" else 1  # which has bytes
    by_group = [[], []]
    for call in trace_files.calls(50, 4):
        n = len(trace_files.members(call.communicator, 3, 4))
        sent, received = call.count * (n if call.kind == "ReduceScatter" else 1), call.count * (n if call.kind == "AllGather" else 1)
        by_group[call.communicator].append((call.kind.lower(), sent * width, received * width))
    operations = trace.ranks[3].operations
    for ranks, expected in zip(((0, 1, 2, 3), (1, 3)), by_group, strict=True):
        own = operations[[trace.groups[number].ranks == ranks for number in operations["group"]]]
        read = [(KINDS[row["kind"]], int(row["sent"]), int(row["received"])) for row in own]
        assert [(kind, size) for kind, _, size in read] == [(kind, size) for kind, _, size in expected]
        assert all(one[1] in (UNKNOWN, other[1]) for one, other in zip(read, expected, strict=True))
    files = sorted(tmp_path.iterdir())
    trace = reading.read_traces([files[0], files[3]])
    assert (trace.world, trace.absent) == (4, (1, 2))
    check_agreement(trace, match(trace))


def test_of_a_folder_with_several_formats_the_preferred_one_is_read(tmp_path):
    log, records = ("NCCL log", "NCCL Inspector")
    for form in (log, records):
        (tmp_path / form).mkdir()
        trace_files.WRITERS[form](tmp_path / form, 5, 2)
    assert reading.read_traces([tmp_path], ["kineto", "inspector", "nccl-log"]).form == "inspector"
    logs = reading.read_traces([tmp_path], ["nccl-log", "inspector"])
    assert logs.form == "nccl-log" and {path.parent for path in logs.ignored} == {tmp_path / records}
    for prefer in ([], ["kineto"]):
        with pytest.raises(UsageError):
            reading.read_traces([tmp_path], prefer)


def test_compressed_files_and_other_files_in_a_folder(tmp_path):
    trace_files.nccl_log(tmp_path, 5, 2)
    first, second = sorted(tmp_path.iterdir())
    (tmp_path / "deep").mkdir()
    with gzip.open(tmp_path / "deep" / "rank0.log.gz", "wb") as file:
        file.write(first.read_bytes())
    first.unlink()
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / "empty.json").write_text("")
    assert len(reading.read_traces([tmp_path]).ranks) == 2
    assert len(reading.read_traces([tmp_path / "deep" / "rank0.log.gz", second]).ranks) == 2


class TestBadInput:
    @pytest.fixture
    def job(self, tmp_path):
        trace_files.inspector(tmp_path, 4, 2)
        return sorted(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("content", "words"), [("", "the file is empty"), ("hello", ""), (None, "line 4")], ids=["empty", "unknown", "cut"]
    )
    def test_a_file_that_is_no_whole_trace_is_named(self, job, content, words):
        whole = job[1].read_bytes()
        job[1].write_bytes(whole[:-20] if content is None else content.encode())
        with pytest.raises(UsageError, match=rf"{job[1].name}: .*{words}"):
            reading.read_traces(job)

    def test_a_missing_file_and_a_folder_without_traces_are_named(self, tmp_path):
        (tmp_path / "notes.txt").write_text("hello")
        for paths, words in (([tmp_path / "none.json"], r"none\.json"), ([tmp_path], tmp_path.name), ([], None)):
            with pytest.raises(UsageError, match=words):
                reading.read_traces(paths)

    def test_two_formats(self, job, tmp_path):
        (tmp_path / "log").mkdir()
        trace_files.nccl_log(tmp_path / "log", 4, 2)
        with pytest.raises(UsageError, match=r"inspector.*nccl-log"):
            reading.read_traces([job[0], tmp_path / "log"])

    def test_damaged_compression_and_a_bomb_are_one_sentence(self, job, tmp_path, monkeypatch):
        packed = tmp_path / "rank0.gz"
        packed.write_bytes(gzip.compress(job[0].read_bytes())[:-12])
        with pytest.raises(UsageError, match=r"rank0\.gz"):
            reading.read_traces([packed])
        bomb = tmp_path / "bomb.gz"
        bomb.write_bytes(gzip.compress(b'{"header":{"n_ranks":1},"dump_stats":' + b" " * (40 << 20)))
        with pytest.raises(UsageError, match=r"bomb\.gz: line 1"):
            reading.read_traces([bomb])
        monkeypatch.setattr(files, "_LINES", 1000)
        with pytest.raises(UsageError, match=r"bomb\.gz: it is larger"):
            list(files.line_blocks(bomb, 1 << 20))

    def test_a_rank_twice(self, job, tmp_path):
        trace_files.flight_recorder_json(tmp_path, 4, 2)
        shutil.copy(tmp_path / "dump_1", tmp_path / "copy_1")
        with pytest.raises(UsageError, match="rank 1 is there twice"):
            reading.read_traces(sorted(tmp_path.glob("*_*")))

    def test_a_folder_with_too_many_files(self, job, tmp_path, monkeypatch):
        monkeypatch.setattr(reading, "_MOST_FILES", 1)
        with pytest.raises(UsageError, match="more than 1 files"):
            reading.read_traces([tmp_path])


def rank(number, world=UNKNOWN, groups=UNNAMED, job=""):
    """A rank with an operation of each of its groups."""
    operations = empty(len(groups))
    operations["group"] = np.arange(len(groups))
    return RankTrace(number, world, Path(f"rank{number}"), groups, operations, job=job)


class TestJoined:
    def test_ranks_are_sorted_and_groups_unified(self):
        one = rank(1, 2, (ProcessGroup("half", (1,)), ProcessGroup("all", (0, 1), "default")))
        trace = joining.joined("test", [one, rank(0, 2, (ProcessGroup("all", (0, 1)),))])
        assert [each.rank for each in trace.ranks] == [0, 1]
        assert trace.groups == (ProcessGroup("all", (0, 1), "default"), ProcessGroup("half", (1,)))
        assert [each.operations["group"].tolist() for each in trace.ranks] == [[0], [1, 0]]
        assert one.operations["group"].tolist() == [0, 1]

    def test_groups_of_one_name_are_different_if_their_ranks_are_and_one_without_ranks_is_the_only_one(self):
        pairs = [ProcessGroup("tp", (0, 1)), ProcessGroup("tp", (2, 3))]
        trace = joining.joined("test", [rank(number, 4, (pairs[number // 2],)) for number in range(4)])
        assert trace.groups == tuple(pairs)
        trace = joining.joined("test", [rank(0, 2, (ProcessGroup("0", (0, 1)),)), rank(1, 2)])
        assert trace.groups == (ProcessGroup("0", (0, 1)),)
        assert joining.joined("test", [rank(0), rank(2)]).world == 3
        assert joining.joined("test", [rank(0, groups=(ProcessGroup("0", (0, 5)),))]).world == 6

    @pytest.mark.parametrize(("ranks", "what"), [
        ([rank(0, job="a"), rank(1, job="b")], "different jobs"), ([rank(0, 2), rank(1, 4)], "job of 4 ranks"),
        ([rank(0, 2), rank(0, 2)], "twice"), ([rank(2, 2)], "rank 2 is not in"), ([rank(-1, 2)], "rank -1 is not in"),
        ([rank(0, 1 << 40)], "not a valid number of ranks"), ([rank(0, 2, (ProcessGroup("0", (0, 7)),))], "contains rank 7"),
        ([rank(0, 2, (ProcessGroup("0", (0, 0)),))], "a rank twice"), ([rank(0, 2, (ProcessGroup("0", (1,)),))], "does not contain it"),
    ])  # fmt: skip
    def test_what_cannot_be_one_job(self, ranks, what):
        with pytest.raises(UsageError, match=what):
            joining.joined("test", ranks)


def test_sizes_are_not_negative_and_roots_and_peers_are_ranks_of_the_job():
    one = rank(0)
    one.operations["received"] = -5
    with pytest.raises(UsageError, match=r"operation 0 of rank 0: -5"):
        joining.joined("test", [one])
    one = rank(0)
    one.operations["root"] = 3
    assert joining.joined("test", [one]).world == 4
    with pytest.raises(UsageError, match="peer 3"):
        joining.joined("test", [replace(one, world=2)])


def test_a_run_of_collbench_is_not_a_trace(tmp_path):
    run = tmp_path / "runs/a"
    run.mkdir(parents=True)
    for name in ("run.json", "cells.jsonl"):
        (run / name).write_text('{"schema": 1}\n')
    for path in (tmp_path, run):
        with pytest.raises(UsageError, match=f"{run} is a run of collbench"):
            reading.read_traces([path])
