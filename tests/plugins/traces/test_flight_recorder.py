"""Dumps of the Flight Recorder: recorded ones, those of NCCL, and hostile ones."""

import gzip
import json
import os
import pickle
import resource
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.traces import flight_recorder
from collbench.plugins.traces.model import DTYPES, KINDS, STATES, UNKNOWN, Part
from collbench.plugins.traces.reading import reader_of
from tests.plugins.traces.dumps import document, entries, pickled

# A job of three ranks over Gloo: DDP, a subgroup of ranks 0 and 1, collectives of each kind, FSDP2; at last a call that rank 2 skips.
RECORDED = Path(__file__).parents[3] / "reports/hang-dumps"
_HEAD = b"\x80\x02}(X\x07\x00\x00\x00entriesq\x00"


def read_one(path):
    assert reader_of(path) is flight_recorder
    (rank,) = flight_recorder.read(path)
    return rank


def read_dump(folder, dump, name="dump_0"):
    path = folder / name
    path.write_bytes(dump if isinstance(dump, bytes) else json.dumps(dump).encode())
    return read_one(path)


def test_a_recorded_job_has_its_groups_operations_and_states():
    rank = read_one(RECORDED / "dump_rank_1")
    assert (rank.rank, rank.world) == (1, 3)
    assert [(group.name, group.what, group.ranks) for group in rank.groups] == [("0", "default_pg", ()), ("1", "sub pair", ())]
    kinds = [KINDS[kind] for kind in rank.operations["kind"]]
    assert kinds[:5] == ["allgather", "broadcast", "broadcast", "allreduce", "allreduce"]
    assert set(kinds) == {"allgather", "broadcast", "allreduce", "reduce", "barrier", "gather", "scatter", "alltoall"}
    assert rank.operations["group"].tolist()[3:6] == [0, 1, 0]
    assert rank.operations["sequence"].tolist()[:6] == [1, 2, 3, 4, 1, 5]
    first, summed = rank.operations[0], rank.operations[3]
    assert (first["sent"], first["received"], DTYPES[first["dtype"]]) == (1, 3, "int64")
    assert (summed["sent"], summed["received"], DTYPES[summed["dtype"]]) == (340, 340, "float32")
    assert [STATES[state] for state in rank.operations["state"][-2:]] == ["retired", "scheduled"]
    assert {Part.REDOPS, Part.ROOTS, Part.DURATIONS, Part.GROUPS} <= rank.missing
    assert not {Part.START_TIMES, Part.BEGINNING, Part.SEQUENCES} & rank.missing


def test_compressed_and_json_dumps_are_the_same_and_an_overwritten_buffer_has_no_beginning(tmp_path):
    one, other = read_one(RECORDED / "dump_rank_1"), read_one(Path(__file__).with_name("json_rank_1.json"))
    assert (one.operations == other.operations).all()
    assert (one.groups, one.world, one.missing) == (other.groups, other.world, other.missing)
    assert one.progress == other.progress == {0: (23, 22), 1: (1, 1)}
    dump = json.dumps(document(entries([("all_reduce", 4)]), {"0": range(8)})).encode()
    rank = read_dump(tmp_path, gzip.compress(dump), "trace_7.json.gz")
    assert (rank.rank, rank.world, rank.groups[0].ranks) == (7, 8, tuple(range(8)))
    calls = entries([("all_reduce", 4)], begin=900)
    calls[0]["record_id"] = 899
    assert Part.BEGINNING in read_dump(tmp_path, document(calls)).missing


@pytest.mark.parametrize(("name", "kind"), [
    ("nccl:_all_gather_base", "allgather"), ("nccl:_reduce_scatter_base", "reducescatter"), ("nccl:all_reduce_barrier", "barrier"),
    ("nccl:allreduce_coalesced", "allreduce"), ("nccl:reduce_scatter_tensor_coalesced", "reducescatter"),
    ("nccl:all_gather_into_tensor_coalesced", "allgather"), ("nccl:_broadcast_oop", "broadcast"), ("nccl:_reduce_oop", "reduce"),
    ("nccl:all_to_allv", "alltoallv"), ("xccl:all_to_all", "alltoall"), ("nccl:ALLGATHER_coalesced", "allgather"), ("nccl:new", "other"),
])  # fmt: skip
def test_names_of_nccl(tmp_path, name, kind):
    entry = {**entries([("all_reduce", 4)])[0], "profiling_name": name}
    assert [KINDS[each] for each in read_dump(tmp_path, document([entry])).operations["kind"]] == [kind]


def test_messages_have_the_peer_as_a_rank_of_the_job_and_batches_are_one_call(tmp_path):
    calls = entries([("send 1->0", 8), ("recv 1<-0", 8), ("coalesced", 0), ("all_reduce", 4), ("all_reduce", 4)], "7", "pipeline")
    for entry in calls[:2]:
        entry |= {"is_p2p": True, "p2p_seq_id": 5}
    calls[4]["collective_seq_id"] = calls[3]["collective_seq_id"]
    rank = read_dump(tmp_path, document(calls, {"0": range(4), "7": (2, 3)}), "dump_3")
    assert [KINDS[kind] for kind in rank.operations["kind"]] == ["send", "recv", "allreduce", "allreduce"]
    assert rank.operations["root"].tolist() == [2, 2, UNKNOWN, UNKNOWN]
    first, second, third, fourth = rank.operations["batch"].tolist()
    assert first == second != third == fourth and UNKNOWN not in (first, third)
    assert rank.world == 4


@pytest.mark.parametrize(("inputs", "outputs", "sizes"), [
    ([[8]], [[8], [8], [8]], (24, 8)), ([[8]], [[0]], (0, 8)),  # the root with NCCL, and another rank
    ([[8], [8], [8]], [[8]], (24, 8)), ([], [[8]], (0, 8)),  # with Gloo
])  # fmt: skip
def test_sizes_of_a_scatter(tmp_path, inputs, outputs, sizes):
    entry = {**entries([("scatter", 8)])[0], "input_sizes": inputs, "output_sizes": outputs}
    (operation,) = read_dump(tmp_path, document([entry])).operations
    assert (operation["sent"], operation["received"]) == sizes


def test_the_place_in_the_program_is_the_innermost_that_is_not_of_pytorch(tmp_path):
    frames = [("/x/torch/distributed/c10d.py", 7, "wrapper"), ("/home/me/train.py", 41, "step"), ("/home/me/train.py", 90, "main")]
    entry = {**entries([("all_reduce", 4)])[0], "frames": [{"filename": file, "line": line, "name": name} for file, line, name in frames]}
    assert read_dump(tmp_path, pickled(document([entry]))).notes == {0: "train.py:41 (step)"}


class _Attack:
    def __reduce__(self):
        return os.mkdir, ("attacked",)


_HOSTILE = {
    "a function": pickle.dumps({"entries": [_Attack()]}, protocol=2),
    "a function, protocol 4": pickle.dumps({"entries": [_Attack()]}, protocol=4),
    "a class": _HEAD + b"ccollections\nOrderedDict\nu.", "own hook": _HEAD + b"](Ku.Qeu.",
    "a memo of gigabytes": _HEAD + b"](Nr\xff\xff\xff\x7feu.", "a tuple in a tuple": _HEAD + b"N" + b"N\x86" * 200_000 + b"Nu.",
    "stored tuples": _HEAD + b"h\x00h\x00\x86q\x01" + b"h\x01h\x00\x86q\x01" * 200_000 + b"u.",
    "tuples of texts": _HEAD + b"h\x00h\x00\x86" + b"X\x01\x00\x00\x00aq\x01\x86" * 2000 + b"u.",
    "empty lists": _HEAD + b"](" + b"]" * 3_000_000 + b"eu.", "a text of gigabytes": _HEAD + b"X\xff\xff\xff\x7fabc",
    "a list as a key": _HEAD + b"Nu}(](e" + b"Nu.", "only marks": _HEAD + b"(" * 100_000,
    "nested lists": _HEAD + b"](" * 30_000 + b"e" * 30_000 + b"u.", "nothing": b"\x80\x02entries",
    "no dictionary": b"\x80\x02X\x07\x00\x00\x00entriesq\x00.", "another entry": pickled(document([{"profiling_name": 7}])),
    "a size of another type": pickled(document([{**entries([("all_reduce", 4)])[0], "input_sizes": [["x"]]}])),
    "a number of another type": pickled(document([{**entries([("all_reduce", 4)])[0], "collective_seq_id": "many"}])),
    "json: truncated": json.dumps(document(entries([("all_reduce", 4)] * 9))).encode()[:-40],
    "json: deep": b'{"entries": [], "pg_status": ' + b"[" * 100_000,
    "json: deep entry": b'{"pg_config": {}, "entries": [{"profiling_name": ' + b"[" * 3000 + b"]" * 3000 + b"}]}",
    "json: no list": b'{"pg_config": {}, "entries": 5}',
    "json: large number": b'{"pg_config": {}, "entries": [{"profiling_name": "x", "pg_id": 1, "collective_seq_id": 99999999999999999999}]}',
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_dump_that_python_has_pickled_is_read(tmp_path, protocol):
    call = entries([("all_reduce", 4)])[0]
    pair = ("0", "default_pg")  # a tuple that is stored once, and used twice
    dump = document([{**call, "process_group": pair}, {**call, "process_group": pair, "record_id": 1}], {"0": range(2)})
    rank = read_dump(tmp_path, pickle.dumps(dump, protocol))
    assert (len(rank.operations), rank.groups[0].ranks, rank.groups[0].what) == (2, (0, 1), "default_pg")


@pytest.mark.parametrize("ranks", ["[0, x", "[0, 18446744073709551616]", "[-1, 0]", "[0, 4294967296]", [0, "x"], 7])
def test_damaged_ranks_of_a_group(tmp_path, ranks):
    path = tmp_path / "dump_rank_0.json"
    path.write_text(json.dumps({**document(entries([("all_reduce", 4)])), "pg_config": {"0": {"name": "0", "ranks": ranks}}}))
    with pytest.raises(UsageError, match=r"dump_rank_0\.json: .*the ranks of process group '0' are damaged"):
        flight_recorder.read(path)


@pytest.mark.parametrize("data", _HOSTILE.values(), ids=_HOSTILE)
def test_hostile_dumps_are_one_error_and_run_nothing(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump_rank_0"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError) as raised:
        flight_recorder.read(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "attacked").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


@pytest.mark.parametrize("name", ["dump", "dump_rank_x", "dump_99999999999"])
def test_a_name_without_a_rank_is_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes((RECORDED / "dump_rank_0").read_bytes())
    with pytest.raises(UsageError):
        flight_recorder.read(path)
