"""Chakra and Kineto traces of any content: what is read of a known file, and that a damaged one is one sentence."""

import gzip
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.traces import chakra, chakra_protobuf, files, json_records, kineto
from collbench.plugins.traces.c10d import rank_in_name
from collbench.plugins.traces.model import DTYPES, KINDS, REDOPS, UNKNOWN, Part
from collbench.plugins.traces.reading import read_traces
from tests.plugins.traces.torch_files import Call, Node, execution_trace, kineto_trace, protobuf_trace, varint

CALLS = (
    Call("allreduce", 1000, 1000, number=1), Call("_allgather_base", 10, 20, number=1), Call("broadcast", 7, 7, number=0),
    Call("wait", 0, 0, number=1), Call("all_to_allv", 30, 40, number=1, parts=((1, 2), (2, 2))), Call("send", 8, 8, number=0),
    Call("recv", 9, 9, number=0), Call("reduce", 5, 5, number=1, group="7", ranks=(1, 3)),
    Call("barrier", 0, 0, number=0, group="7", ranks=(1, 3)),
)  # fmt: skip
GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "group_size": 2},
    {"pg_name": "7", "pg_desc": "mesh_tp", "ranks": [1, 3], "group_size": 2},
]


def table(trace):
    return [
        (KINDS[x["kind"]], int(x["sent"]), int(x["received"]), int(x["root"]), trace.groups[x["group"]].ranks) for x in trace.operations
    ]


EXPECTED = [
    ("allreduce", 1000, 1000, UNKNOWN, (0, 1)), ("allgather", 10, 20, UNKNOWN, (0, 1)), ("broadcast", 7, 7, 0, (0, 1)),
    ("alltoallv", 30, 40, UNKNOWN, (0, 1)), ("send", 8, 0, 0, (0, 1)), ("recv", 0, 9, 0, (0, 1)), ("reduce", 5, 5, 3, (1, 3)),
    ("barrier", 0, 0, UNKNOWN, (1, 3)),
]  # fmt: skip


class TestExecutionTrace:
    def test_records_of_nccl(self, tmp_path):
        path = tmp_path / "trace.json"
        execution_trace(path, CALLS, GROUPS)
        [trace] = chakra.read(path)
        assert table(trace) == EXPECTED
        # Records have the number of the rank in the group: 1 in the group of all ranks, 0 in that of ranks 1 and 3.
        assert trace.rank == 1
        assert [group.what for group in trace.groups] == ["default_pg", "mesh_tp"]
        # 10 elements of float32 that are sent as rows, 1 and 2 of them, are 10 and 20 elements.
        assert trace.splits == (((10, 20), (20, 20)),)
        assert trace.operations["sequence"].tolist() == [3, 4, 5, 7, 8, 9, 10, 11]

    def test_a_wait_makes_later_operations_depend(self, tmp_path):
        path = tmp_path / "trace_0.json"
        execution_trace(path, [Call(), Call(), Call("wait"), Call()])
        data = json.loads(path.read_text())
        tensors = iter(range(100, 120))
        for node in data["nodes"][1:]:
            node["inputs"]["values"][0][0][1] = next(tensors)
            node["outputs"]["values"][0][0][1] = next(tensors)
        wait = data["nodes"][3]["inputs"]
        wait["values"] = [3, ["", ""], *wait["values"][3:]]  # the sequence number of the first operation
        path.write_text(json.dumps(data))
        [trace] = chakra.read(path)
        assert trace.after is not None
        offsets, indices = trace.after
        assert (offsets.tolist(), indices.tolist()) == ([0, 0, 0, 1], [0])
        assert Part.DEPENDENCIES in trace.missing  # there is no wait for the others

    def test_ranks_of_one_file_are_one_and_operations_in_the_order_of_their_numbers(self, tmp_path):
        path = tmp_path / "trace_0.json"
        execution_trace(path, [Call(sent=n) for n in range(5)])
        data = json.loads(path.read_text())
        data["nodes"][1:] = data["nodes"][:0:-1]
        path.write_text(json.dumps(data))
        assert chakra.read(path)[0].operations["sent"].tolist() == list(range(5))
        path = tmp_path / "trace.json"
        execution_trace(path, [Call(number=0), Call(number=1)])
        with pytest.raises(UsageError, match="ranks 0 and 1"):
            chakra.read(path)

    @pytest.mark.parametrize(("change", "what"), [
        (lambda node: node["inputs"]["values"].__setitem__(4, 5), "not valid"),
        (lambda node: node["inputs"]["values"][0][0].__setitem__(3, -4), "not valid"),
        (lambda node: node["inputs"]["values"][0][0].__setitem__(3, 10**30), "not valid"),
        (lambda node: node["inputs"]["values"].__setitem__(3, 9), "not in process group"),
        (lambda node: node["inputs"]["values"].__setitem__(3, 10**12), "not valid"),
        (lambda node: node["inputs"]["values"].__setitem__(1, 10**30), "too large"),
        (lambda node: node.__setitem__("id", 10**30), "node"), (lambda node: node.__setitem__("inputs", 7), "not valid"),
        (lambda node: node.__setitem__("name", None), "record 3 of 'nodes'"),
    ])  # fmt: skip
    def test_a_wrong_value_names_the_node(self, tmp_path, change, what):
        path = tmp_path / "trace.json"
        execution_trace(path, CALLS, GROUPS)
        data = json.loads(path.read_text())
        change(data["nodes"][3])
        path.write_text(json.dumps(data))
        with pytest.raises(UsageError) as error:
            chakra.read(path)
        assert str(path) in str(error.value) and what in str(error.value)

    @pytest.mark.parametrize(
        ("addresses", "rank", "ranks"), [([140_000_000], 1, (0, 1)), ([140_000_000], 2, ()), ([140_000_000, 150_000_000], 1, ())]
    )
    def test_the_schema_of_2023(self, addresses, rank, ranks, tmp_path):
        """Schema 1.0.1: inputs are a list, the caller is `parent`, and a group is the address of its object; the only one has all ranks."""
        path = tmp_path / f"dlrm_{rank}.json"
        tensor = [1, 2, 0, 64, 2, "cuda:2"]
        types = ["Tensor(c10::BFloat16)", *["Int"] * 3, "String", "GenericList[Int]", "GenericList[Int]"]
        record = {"name": "record_param_comms", "id": 5, "parent": 4, "input_types": types, "output_types": types[:1]}
        inputs = [[tensor, 9, address, rank, "all_to_allv", [1, 3], [2, 2]] for address in addresses]
        records = [record | {"id": id, "inputs": each, "outputs": [tensor], "parent": id - 1} for id, each in enumerate(inputs, 5)]
        call = {"name": "c10d::alltoall_base_", "id": 4, "parent": 1, "input_types": ["Object"], "inputs": ["<Object>"]}
        path.write_text(json.dumps({"schema": "1.0.1", "nodes": [call, *records]}))
        [trace] = chakra.read(path)
        assert (trace.rank, trace.world) == (rank, UNKNOWN)
        assert table(trace) == [("alltoallv", 64, 64, UNKNOWN, ranks)] * len(addresses)
        assert trace.splits == (((16, 48), (32, 32)),)
        assert DTYPES[trace.operations["dtype"][0]] == "bfloat16" and Part.GROUPS in trace.missing  # the group of all ranks is assumed

    def test_the_group_of_a_functional_collective(self, tmp_path):
        """Gloo's call has the group as an object; the functional collective around it has its name and the reduction op."""
        path = tmp_path / "trace_3.json"
        tensor = [1, 2, 0, 64, 4, "cpu"]
        groups = [{"pg_name": name, "ranks": ranks, "group_size": 4} for name, ranks in (("0", []), ("1", [2, 3]), ("2", [1, 3]))]
        values = {
            "## process_group:init ##": [json.dumps(groups)],
            "_c10d_functional::all_reduce": [tensor, "avg", "2"],
            "c10d::allreduce_": [[tensor], "<Object>", "<Object>", "<None>", True, -1],
            "_c10d_functional::wait_tensor": [tensor],
        }
        types = {"c10d::allreduce_": ["GenericList[Tensor(float)]", "Object", "Object", "None", "Bool", "Int"]}
        nodes = [
            {"id": number, "name": name, "ctrl_deps": number - 1, "inputs": {"values": each, "types": types.get(name, [])}}
            for number, (name, each) in enumerate(values.items(), 2)
        ]
        path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
        [trace] = chakra.read(path)
        assert (trace.rank, trace.world, table(trace)) == (3, 4, [("allreduce", 64, 64, UNKNOWN, (1, 3))])
        assert REDOPS[trace.operations["redop"][0]] == "avg"
        assert not trace.missing & {Part.REDOPS, Part.GROUPS, Part.DEPENDENCIES}


class TestKineto:
    def test_records_kernels_and_computing(self, tmp_path):
        path = tmp_path / "trace.json.gz"
        calls = [call for call in CALLS if call.collective != "wait"]
        kineto_trace(path, calls, rank=1, world=4)
        [trace] = kineto.read(path)
        assert table(trace) == EXPECTED and (trace.rank, trace.world) == (1, 4)
        assert trace.operations["start"].tolist() == [1000 + 100_000 * n + 20_500 for n in range(8)]
        assert trace.operations["end"].tolist() == [1000 + 100_000 * n + 80_500 for n in range(8)]
        assert set(trace.operations["queue"].tolist()) == {20}
        assert trace.compute.tolist() == [[1000 + 100_000 * n + 1250, 1000 + 100_000 * n + 11_250] for n in range(8)]
        assert trace.missing == {Part.REDOPS, Part.STEPS, Part.DEPENDENCIES}

    def test_a_cut_list_of_ranks_comes_from_the_job(self, tmp_path):
        path = tmp_path / "trace.json"
        kineto_trace(path, [Call(ranks=tuple(range(40)))], world=40)
        data = json.loads(path.read_text())
        data["traceEvents"][0]["args"]["Process Group Ranks"] = "[0, 1, ..., 39]"
        path.write_text(json.dumps(data))
        assert kineto.read(path)[0].groups[0].ranks == () and Part.GROUPS in kineto.read(path)[0].missing
        data["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 40, "ranks": list(range(40))}]
        path.write_text(json.dumps(data))
        assert kineto.read(path)[0].groups[0].ranks == tuple(range(40))

    @pytest.mark.parametrize(("key", "value"), [
        ("ts", 1e300), ("dur", -5), ("args", 7), ("args", {"Collective name": "allreduce", "In msg nelems": -9}), ("ts", "now"),
        ("args", {"Collective name": "send", "Dst Rank": 1 << 80}), ("args", {"Collective name": "broadcast", "Rank": 1 << 40}),
    ])  # fmt: skip
    def test_a_wrong_value_names_the_event(self, tmp_path, key, value):
        path = tmp_path / "trace.json"
        kineto_trace(path, CALLS)
        data = json.loads(path.read_text())
        data["traceEvents"][3][key] = value
        path.write_text(json.dumps(data))
        with pytest.raises(UsageError) as error:
            kineto.read(path)
        assert str(path) in str(error.value) and ("event 4" in str(error.value) or "record 3" in str(error.value))


class TestProtobuf:
    def test_nodes_attributes_and_dependencies(self, tmp_path):
        path = tmp_path / "job.3.et"
        nodes = [
            Node(1, 4),
            Node(2, 7, [1], [("comm_type", 0), ("comm_size", 4000), ("pg_name", "0"), ("stream", 20)], types="['Tensor(float)']"),
            Node(3, 4, [2]),
            Node(4, 7, [3], [("comm_type", 2), ("comm_size", 64)], start=5, duration=2),
            Node(5, 5, [], [("comm_size", 10), ("comm_dst", 1), ("comm_src", 3)]),
            Node(6, 6, [5, 2], [("comm_size", 11), ("comm_src", 1)]),
            Node(7, 7, [4], [("is_cpu_op", 1)]),
        ]
        protobuf_trace(path, [nodes[0], *nodes[:0:-1]])
        [trace] = chakra.read(path)
        x = trace.operations
        assert chakra.recognizes(path, path.read_bytes()) and not kineto.recognizes(path, path.read_bytes())
        assert trace.rank == 3
        assert [KINDS[kind] for kind in x["kind"]] == ["allreduce", "allgather", "send", "recv"]
        assert (x["sent"].tolist(), x["received"].tolist()) == ([1000, 64, 10, 0], [1000, UNKNOWN, 0, 11])
        assert x["root"].tolist() == [UNKNOWN, UNKNOWN, 1, 1] and x["queue"].tolist()[0] == 20
        assert (x["start"].tolist()[1], x["end"].tolist()[1], x["duration"].tolist()[1]) == (5000, 7000, 2000)
        assert trace.after is not None
        offsets, indices = trace.after
        assert [indices[a:b].tolist() for a, b in pairwise(offsets)] == [[], [0], [], [0, 2]]
        assert trace.missing >= {Part.DTYPES, Part.GROUPS, Part.SIZES}

    def test_a_file_whose_first_length_is_a_brace_and_the_groups_of_the_converter(self, tmp_path):
        path = tmp_path / "job.0.et"
        protobuf_trace(path, [Node(1, 7, [], [("comm_type", 0), ("comm_size", 8)])], version="v" * 121)
        assert path.read_bytes()[:2] == b"{\n" and chakra.recognizes(path, path.read_bytes())
        assert chakra.read(path)[0].operations["sent"].tolist() == [8]
        path = tmp_path / "job.0.et"
        text = str([json.dumps([{"pg_name": "5", "ranks": [0, 2], "group_size": 2}])])
        groups = Node(1, 1, name="## process_group:init ##", values=text)
        protobuf_trace(path, [groups, Node(2, 7, [], [("comm_type", 2), ("comm_size", 8), ("pg_name", "5")])])
        [trace] = chakra.read(path)
        assert trace.groups[0].ranks == (0, 2) and trace.operations["received"].tolist() == [16]

    @pytest.mark.parametrize("nodes", [
        [Node(1, 7, [2], [("comm_type", 0), ("comm_size", 8)]), Node(2, 4, [1])], [Node(1, 4), Node(1, 4)],
        [Node(1, 7, [], [("comm_type", 99), ("comm_size", 8)])], [Node(1, 7, [], [("comm_type", 0), ("comm_size", -8)])],
        [Node(1, 5, [], [("comm_size", 8), ("comm_dst", 1 << 60)])], [Node(1, 5, [], [("comm_size", 8), ("comm_src", 3)])],
        [Node(1, 4, start=1 << 63), Node(2, 7, [], [("comm_type", 0), ("comm_size", 8)], start=(1 << 63) - 1)],
    ])  # fmt: skip
    def test_wrong_values_are_one_sentence(self, tmp_path, nodes):
        path = tmp_path / "job.7.et"
        protobuf_trace(path, [*nodes, Node(100, 5, [], [("comm_size", 8), ("comm_src", 7)])])
        with pytest.raises(UsageError, match=r"job\.7\.et"):
            chakra.read(path)

    def test_without_protobuf_it_is_one_sentence_with_the_remedy(self, tmp_path, monkeypatch):
        path = tmp_path / "job.0.et"
        protobuf_trace(path, [Node(1, 7, [], [("comm_type", 0), ("comm_size", 8)])])
        chakra_protobuf._parsers.cache_clear()
        monkeypatch.setitem(sys.modules, "google.protobuf", None)
        with pytest.raises(UsageError) as error:
            read_traces([tmp_path])
        assert str(error.value) == f"{path}: reading an .et file needs protobuf: pip install 'collbench[traces]'"
        assert error.value.exit_code == 2

    @pytest.mark.parametrize(
        ("key", "value"),
        [(field << 3, b"\x08") for field in (7, 9, 11, 13, 27)]
        + [(field << 3, b"\x10") for field in (15, 17)]
        + [(field << 3 | 5, b"\x08\x00\x00\x00") for field in (19, 23)]
        + [(field << 3 | 1, b"\x08" + b"\x00" * 7) for field in (21, 25)],
    )
    def test_a_size_of_any_type_of_integer(self, tmp_path, key, value):
        path = tmp_path / "job.0.et"
        protobuf_trace(path, [])
        kind, size = b"\n\x09comm_type\x48\x00", b"\n\x09comm_size" + varint(key) + value
        node = b"\x08\x01\x18\x07" + b"".join(b"\x52" + varint(len(attribute)) + attribute for attribute in (kind, size))
        path.write_bytes(path.read_bytes() + varint(len(node)) + node)
        assert chakra.read(path)[0].operations["sent"].tolist() == [8]

    def test_too_many_attributes(self, tmp_path):
        path = tmp_path / "job.0.et"
        protobuf_trace(path, [Node(1, 7, [], [("comm_type", 0)] * 70000)])
        with pytest.raises(UsageError, match=r"job\.0\.et: message 2: it has 70000 attributes"):
            chakra.read(path)


def write(kind, folder):
    path = folder / {"chakra": "t_0.json", "kineto": "k_0.json", "et": "t.0.et"}[kind]
    if kind == "chakra":
        execution_trace(path, CALLS[:3])
    elif kind == "kineto":
        kineto_trace(path, CALLS[:3])
    else:
        protobuf_trace(path, [Node(n, 7, [n - 1] if n else [], [("comm_type", 0), ("comm_size", 8)]) for n in range(5)])
    return path


def reader_of(kind):
    return kineto if kind == "kineto" else chakra


@pytest.mark.parametrize("kind", ["chakra", "kineto", "et"])
def test_files_that_are_something_else(tmp_path, kind):
    path = write(kind, tmp_path)
    good, key = path.read_bytes(), {"chakra": "nodes", "kineto": "traceEvents", "et": ""}[kind]
    for content in (
        good[: len(good) // 2], b"", b"{}", b"[]", b"{" * 100_000, b"\x1f\x8b\x08garbage", gzip.compress(good)[:-20],
        varint(1 << 40) + b"x", b'{"' + key.encode() + b'": 7}', b'{"' + key.encode() + b'": [7]}', b'{"x": ' + b"[" * 100_000,
        b"\xff" * 1000,
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(UsageError, match=path.name):
            reader_of(kind).read(path)
    path.unlink()
    with pytest.raises(UsageError, match=path.name):
        reader_of(kind).read(path)


def test_a_gzip_bomb_takes_little_memory(tmp_path, monkeypatch):
    path = tmp_path / "trace_0.json"
    monkeypatch.setattr(json_records, "_MOST_REST", 1 << 20)
    monkeypatch.setattr(json_records, "BLOCK", 1 << 18)
    with gzip.open(path, "wb") as file:
        file.write(b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1, "name": "' + b"a" * (16 << 20))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        chakra.read(path)


@pytest.mark.parametrize("indent", ["", "\n  "])
@pytest.mark.parametrize("kind", ["chakra", "kineto"])
def test_blocks_give_what_the_whole_gives(tmp_path, monkeypatch, kind, indent):
    path = tmp_path / "trace_0.json"
    (execution_trace if kind == "chakra" else kineto_trace)(path, [Call(sent=n) for n in range(300)], indent=indent)
    [whole] = reader_of(kind).read(path)
    for block in (2000, 10_001):
        monkeypatch.setattr(json_records, "BLOCK", block)
        monkeypatch.setattr(files, "_READ", 1500)
        [blocks] = reader_of(kind).read(path)
        assert (blocks.operations == whole.operations).all() and blocks.operations["sent"].tolist() == list(range(300))
        content = path.read_bytes()
        for damaged in (content[:-1200], content.replace(b'"id": 250', b'"id": x', 1), content.replace(b'"ts": 25000.0', b'"ts": []', 1)):
            if damaged != content:
                (tmp_path / "damaged_0.json").write_bytes(damaged)
                with pytest.raises(UsageError, match="record"):
                    reader_of(kind).read(tmp_path / "damaged_0.json")


def test_the_rank_of_a_name():
    names = {"trace_3.json": 3, "et.12.et": 12, "rank-7.Jul_15.pt.trace.json.gz": 7, "worker_rank4_x.json": 4, "0.json": 0}
    names["resnet_2gpu.json"] = UNKNOWN
    assert {name: rank_in_name(Path(name)) for name in names} == names


@pytest.mark.system
def test_fetching_public_traces_without_them_is_one_sentence(tmp_path):
    script = Path(__file__).parents[3] / "tools" / "traces"
    done = subprocess.run([sys.executable, script, tmp_path / "new", "--clones", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("mlcommons/chakra: ") and len(done.stderr.splitlines()) == 1
