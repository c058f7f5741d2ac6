"""NCCL's library, numbers, calls, graphs and communicators, without a GPU."""

import ctypes
import os
import re
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.backends.backend import Tuning
from collbench.backends.nccl import library as nccl
from collbench.backends.nccl.binding import GRAPH_ITERATIONS, Communicators, Graphs, grouped, rotation, together, tuned
from collbench.backends.unavailable import DoesNotLoad
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import NativeCall, PythonCall
from collbench.operations.sweep import REGISTRATIONS as NAMES
from collbench.operations.unsupported import DeviceApiUnsupported, OperationUnsupported, OptionUnsupported, VersionNeeded
from tests.backends.nccl.test_nccl import collbench


def places(monkeypatch, *folders):
    spec = SimpleNamespace(submodule_search_locations=[str(folder) for folder in folders]) if folders else None
    tried = []

    def refuse(name, mode):
        tried.append((name, bool(mode & os.RTLD_NOLOAD)))
        raise OSError(name)

    monkeypatch.setattr(nccl, "find_spec", lambda name: spec)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(nccl.NcclNotFound):
        nccl.load_nccl({})
    return tried


def test_what_the_process_has_loaded_comes_first_then_the_wheel_then_the_system(monkeypatch, tmp_path):
    wheel = tmp_path / "two/nccl/lib/libnccl.so.2"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert places(monkeypatch, tmp_path / "one", tmp_path / "two") == [("libnccl.so.2", True), (str(wheel), False), ("libnccl.so.2", False)]
    assert places(monkeypatch) == [("libnccl.so.2", True), ("libnccl.so.2", False)]


def test_a_chosen_library_is_never_replaced_by_another_one(tmp_path):
    (tmp_path / "broken.so").write_text("no library")
    with pytest.raises(nccl.NcclNotFound) as error:
        nccl.load_nccl({"COLLBENCH_NCCL": str(tmp_path / "broken.so")})
    assert isinstance(error.value.obstacle, DoesNotLoad) and error.value.obstacle.package == f"COLLBENCH_NCCL={tmp_path / 'broken.so'}"


@pytest.mark.parametrize(("tuning", "inside"), [
    (None, ("user's", None)), (Tuning("ring", "ll"), ("ring", "ll")), (Tuning(None, "simple"), ("user's", "simple")),
    (Tuning("tree", None), ("tree", None)),
])  # fmt: skip
def test_a_tuning_holds_inside_and_what_was_there_comes_back(monkeypatch, tuning, inside):
    monkeypatch.setenv("NCCL_ALGO", "user's")
    monkeypatch.delenv("NCCL_PROTO", raising=False)
    with pytest.raises(ZeroDivisionError), tuned(tuning):
        assert (os.environ.get("NCCL_ALGO"), os.environ.get("NCCL_PROTO")) == inside
        raise ZeroDivisionError
    assert (os.environ.get("NCCL_ALGO"), os.environ.get("NCCL_PROTO")) == ("user's", None)


class Recorder:
    def __init__(self):
        self.calls = []
        self.handle = SimpleNamespace(ncclGroupEnd=lambda: self.calls.append("given up"))

    def call(self, name):
        self.calls.append(name)


def test_a_group_is_ended_once_after_any_error_inside():
    library = Recorder()
    with grouped(library):
        library.call("a")
    with pytest.raises(nccl.NcclFailed), grouped(library):
        raise nccl.NcclFailed("b")
    assert library.calls == ["ncclGroupStart", "a", "ncclGroupEnd", "ncclGroupStart", "given up"]


def communicators_of(*free_bytes, last_error=""):
    """Communicators 7, 8 … on GPUs with these free bytes before and after, of an NCCL that counts no memory, or fails."""
    numbers = count(7)

    def call(name, *words):
        if name == "ncclCommInitRank" and last_error:
            raise nccl.NcclFailed("", last_error=last_error)
        if name == "ncclCommInitRank":
            ctypes.c_void_p.from_address(words[0]).value = next(numbers)

    handle = SimpleNamespace(ncclCommInitRank=SimpleNamespace(), ncclGroupEnd=lambda: None)
    communicators = Communicators(SimpleNamespace(handle=handle, has=lambda name: False, call=call))
    gpus = [SimpleNamespace(use=nullcontext, free_bytes=iter(each).__next__) for each in free_bytes]
    return communicators, communicators.make(gpus, range(len(gpus)), len(gpus), "00" * nccl.UNIQUE_ID_BYTES)


def test_an_old_driver_has_a_remedy_of_its_own():
    too_old = "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'"
    for last_error, remedy in ((too_old, "nvidia-nccl-cu12"), ("Connection refused", "NCCL_DEBUG=INFO")):
        with pytest.raises(nccl.NcclFailed, match=remedy):
            communicators_of((100, 100), last_error=last_error)


def test_memory_of_an_uncounted_communicator_is_what_is_no_longer_free():
    communicators, made = communicators_of((100, 70), (100, 50))
    assert (made, communicators.most_bytes(made)) == ((7, 8), (50, "free memory at its creation"))
    assert communicators.most_bytes([9]) is None


@pytest.fixture(scope="module")
def header(cuda_python):
    """The names that nccl.h gives numbers to."""
    (file,) = Path(cuda_python).parents[1].glob("lib/python3*/site-packages/nvidia/nccl/include/nccl.h")
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text(), flags=re.DOTALL)
    numbers = {name: int(value, 0) for name, value in re.findall(r"\b(nccl\w+)\s*=\s*(-?\w+)\s*[,}\n]", text) if value[-1].isdigit()}
    return numbers | {name: int(value, 0) for name, value in re.findall(r"#define\s+(NCCL_\w+)\s+(0x[0-9a-fA-F]+|\d+)\b", text)}


@pytest.mark.parametrize("word", [*nccl.DATATYPES.values(), *nccl.REDOPS.values(), *nccl.RESULTS.values()], ids=lambda word: word.name)
def test_every_word_has_the_number_of_the_header_from_its_version_on(header, word):
    assert header.get(word.name) == (word.number if word.since <= nccl.version_of(header["NCCL_VERSION_CODE"]) else None)


@pytest.mark.parametrize(
    ("count", "words"),
    [("ncclNumTypes", nccl.DATATYPES.values()), ("ncclNumOps", nccl.REDOPS.values()), ("ncclNumResults", nccl.RESULTS.values())],
)
def test_the_header_has_the_same_constants_and_no_word_that_the_table_lacks(header, count, words):
    assert header[count] == sum(word.since <= nccl.version_of(header["NCCL_VERSION_CODE"]) for word in words)
    assert header["NCCL_WIN_COLL_SYMMETRIC"] == nccl.SYMMETRIC_FLAG
    assert header["NCCL_UNIQUE_ID_BYTES"] == nccl.UNIQUE_ID_BYTES


def test_every_type_of_collbench_is_in_the_table_and_one_of_its_width_replaces_it():
    assert set(nccl.DATATYPES) == set(DTYPES)
    assert {DTYPES[name].size: name for name in nccl.SAME_WIDTH.values()} == nccl.SAME_WIDTH
    assert nccl.dotted((2, 32, 3)) == "2.32.3"


@pytest.mark.parametrize(("code", "version"), [(2708, (2, 7, 8)), (2832, (2, 8, 32)), (21003, (2, 10, 3)), (23203, (2, 32, 3))])
def test_versions_are_numbered_in_two_ways(code, version):
    assert (nccl.version_of(code), nccl.code_of(version)) == (version, code)


@pytest.mark.parametrize(("name", "version", "reduces", "number"), [
    ("float32", (2, 7, 8), True, 7), ("bfloat16", (2, 9, 9), True, None), ("bfloat16", (2, 10, 3), True, 9),
    ("bfloat16", (2, 9, 9), False, 6),  # moved as float16
    ("float8_e4m3fn", (2, 23, 4), True, None),
    ("float8_e4m3fn", (2, 23, 4), False, 1),  # moved as uint8
    ("float8_e5m2", (2, 24, 3), True, 11), ("complex64", (2, 32, 3), True, None),
])  # fmt: skip
def test_a_type_that_a_version_lacks_can_be_moved_but_not_reduced(name, version, reduces, number):
    assert nccl.datatype(name, DTYPES[name].size if name in DTYPES else 8, version, reduces) == number


LIBRARY = SimpleNamespace(address=lambda name: 7)
S, E = "ncclGroupStart", "ncclGroupEnd"


def steps(*names):
    return [NativeCall(name, 1, ()) for name in names]


TOGETHER = {
    "the steps of one rank stay as they are": ([["allreduce"]], ["allreduce"]),
    "the same call of several ranks is one group": ([["a0"], ["a1"], ["a2"]], [S, "a0", "a1", "a2", E]),
    "the answer of a ping-pong goes out after the question": (
        [["send", "receive"], ["receive", "send"]], [S, "send", "receive", E, S, "receive", "send", E]),
    "groups of a rank stay whole inside the common one": (
        [[S, "s", "s", E, "ack"], [S, "r", "r", E, "send"]], [S, S, "s", "s", E, S, "r", "r", E, E, S, "ack", "send", E]),
    "a rank with fewer steps rests at the end": ([["a", "b"], ["c"]], [S, "a", "c", E, S, "b", E]),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "calls"), TOGETHER.values(), ids=TOGETHER)
def test_the_steps_of_several_ranks_become_one_program(ranks, calls):
    assert [call.name for call in together([steps(*names) for names in ranks], LIBRARY)] == calls


@pytest.mark.parametrize("slots", [1, 2, 3, 20, 21, 64, 1024])
def test_graphs_take_the_buffer_slots_in_turn_and_leave_none_out(slots):
    graphs = -(-slots // GRAPH_ITERATIONS)
    used = [slot for graph in range(graphs) for slot in rotation(slots, graph)]
    assert used == [turn % slots for turn in range(graphs * GRAPH_ITERATIONS)]
    assert set(used) == set(range(slots))


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
def refuse(_word):
    return 5


GPU = SimpleNamespace(capture=lambda stream: nullcontext(SimpleNamespace(address=11)))
RANK = SimpleNamespace(gpu=GPU, stream=SimpleNamespace(address=13))


def test_a_graph_s_launch_is_all_that_is_left_and_what_cannot_be_captured_is_reported():
    launches = Graphs((), "error {}".format).capture([RANK, RANK], [], launch=("cuGraphLaunch", 3))
    assert launches == (NativeCall("cuGraphLaunch", 3, (11, 13)),) * 2
    refusing = NativeCall("ncclAllReduce", ctypes.cast(refuse, ctypes.c_void_p).value, (1,))
    with pytest.raises(nccl.NcclFailed, match=r"ncclAllReduce .*graph: error 5"):
        Graphs((), "error {}".format).capture([RANK], [refusing], ("cuGraphLaunch", 3))
    with pytest.raises(nccl.NcclFailed, match=r"spin .*Python.*graph"):
        Graphs((), "error {}".format).capture([RANK], [PythonCall("spin", print)], ("cuGraphLaunch", 3))


OF_INIT = {"init_create", "init_first", "init_halves", "init_alternate", "init_nodes", "init_reform"}
QUICK = ("--backend", "nccl", "--max-time", "0.05", "-n", "3", "-w", "1", "--format", "json")


@pytest.mark.long
@pytest.mark.parametrize("each", [1, 2])
def test_groups_are_made_and_freed_by_processes_with_one_and_with_two_gpus(tmp_path, each):
    code, rows, stderr = collbench(tmp_path, "init", *QUICK, "--ranks", "2", "-g", str(each), gpus=4)
    rows = [row for row in rows if row["operation"] != "init_session"]  # NCCL has no sessions
    assert (code, {row["operation"] for row in rows if row["na"] is None}) == (0, OF_INIT), stderr
    assert {(row["ranks"], row["wrong"]) for row in rows} == {(2 * each, None)}
    assert all(row["time_s"]["p50"] > 0 for row in rows)
    assert {row["evidence"]["communicator"]["source"] for row in rows} == {"ncclCommMemStats"}


@pytest.mark.long
def test_what_an_older_library_lacks_is_not_measured(tmp_path):
    lacks = ("ncclCommSplit", "ncclCommShrink", "ncclCommMemStats")
    code, rows, stderr = collbench(tmp_path, "init", *QUICK, "--ranks", "2", nccl_version=21703, lacks=lacks)
    assert code == 0, stderr
    needs = {
        name: VersionNeeded("NCCL", function, ".".join(map(str, since)), "2.17.3") for name, (function, since) in nccl.CREATIONS.items()
    }
    refused = {row["operation"]: row["na"] for row in rows if row["na"]}
    needs["init_session"] = OperationUnsupported("nccl", "init_session")
    assert refused == {name: fact.render() for name, fact in needs.items()}
    assert not any("communicator" in row["evidence"] for row in rows)  # the double takes no memory for a communicator: unknown, not 0


@pytest.mark.long
def test_a_graph_of_calls_of_the_host_is_refused(tmp_path):
    code, rows, _ = collbench(tmp_path, "init", *QUICK, "--ranks", "2", "--mode", "graph")
    refusals = {name: OptionUnsupported(("--mode graph",), name, "operations that move data").render() for name in OF_INIT}
    refusals["init_session"] = OperationUnsupported("nccl", "init_session").render()
    assert (code, {row["operation"]: row["na"] for row in rows}) == (2, refusals)


@pytest.mark.long
def test_windows_are_registered_and_calls_of_kernels_are_refused_with_the_reason(tmp_path):
    words = ("--sizes", "1000", "--ranks", "2", "--buffers", "fixed", "--registration", ",".join(NAMES))
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, *words, gpus=2)
    assert (code, {row["registration"] for row in rows if row["wrong"] == 0}) == (0, {"none", *nccl.REGISTRATIONS}), stderr
    refused = {row["registration"]: row["na"] for row in rows if row["na"]}
    assert refused == {kind: DeviceApiUnsupported("NCCL", kind, "allreduce", "2.32.3").render() for kind in nccl.DEVICE_APIS}


class Library:
    def __init__(self, *functions, version=(2, 29, 7), dialect=nccl.NCCL):
        self.functions, self.version, self.dialect = functions, version, dialect

    def has(self, name):
        return name in self.functions


def test_parts_of_the_library_are_known_by_a_function_or_by_the_version():
    parts = {part.name: part.available for part in nccl.features_of(Library("ncclCommSplit", version=(2, 28, 3)))}
    assert (parts["split of a communicator"], parts["device API"], parts["network calls of kernels (GIN)"]) == (True, False, False)
    assert {part.available for part in nccl.features_of(Library()) if "GIN" in part.name} == {True}
