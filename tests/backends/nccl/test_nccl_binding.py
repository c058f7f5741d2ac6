"""How the steps of several ranks become one program, and iterations become graphs."""

import ctypes
from types import SimpleNamespace

import pytest

from collbench.backends.nccl.binding import GRAPH_ITERATIONS, Graphs, rotation, together
from collbench.backends.nccl.library import NcclFailed
from collbench.operations.program import NativeCall, PythonCall

LIBRARY = SimpleNamespace(address=lambda name: 7)
START, END = "ncclGroupStart", "ncclGroupEnd"


def steps(*names):
    return [NativeCall(name, 1, ()) for name in names]


def names(calls):
    return [call.name for call in calls]


def test_one_rank_s_steps_stay_as_they_are():
    assert names(together([steps("allreduce")], LIBRARY)) == ["allreduce"]


def test_the_same_call_of_several_ranks_is_one_group():
    assert names(together([steps("a0"), steps("a1"), steps("a2")], LIBRARY)) == [START, "a0", "a1", "a2", END]


def test_a_ping_pong_s_answer_goes_out_after_the_question():
    assert names(together([steps("send", "receive"), steps("receive", "send")], LIBRARY)) == [
        START, "send", "receive", END,
        START, "receive", "send", END,
    ]  # fmt: skip


def test_a_rank_s_own_groups_stay_whole_inside_the_common_one():
    first, second = steps(START, "s", "s", END, "ack"), steps(START, "r", "r", END, "send")
    assert names(together([first, second], LIBRARY)) == [
        START, START, "s", "s", END, START, "r", "r", END, END,
        START, "ack", "send", END,
    ]  # fmt: skip


def test_a_rank_with_fewer_steps_rests_at_the_end():
    assert names(together([steps("a", "b"), steps("c")], LIBRARY)) == [START, "a", "c", END, START, "b", END]


@pytest.mark.parametrize("slots", [1, 2, 3, 20, 21, 64, 1024])
def test_graphs_take_the_buffer_slots_in_turn_and_leave_none_out(slots):
    graphs = -(-slots // GRAPH_ITERATIONS)
    used = [slot for graph in range(graphs) for slot in rotation(slots, graph)]
    assert used == [turn % slots for turn in range(graphs * GRAPH_ITERATIONS)]
    assert set(used) == set(range(slots))


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
def refuse(_word):
    return 5


class FakeGpu:
    """A GPU with a capture that records nothing."""

    def capture(self, stream):
        from contextlib import nullcontext

        return nullcontext(SimpleNamespace(address=11))


RANK = SimpleNamespace(gpu=FakeGpu(), stream=SimpleNamespace(address=13))


def test_what_cannot_be_captured_is_reported():
    refusing = NativeCall("ncclAllReduce", ctypes.cast(refuse, ctypes.c_void_p).value, (1,))
    with pytest.raises(NcclFailed, match=r"ncclAllReduce .*graph: error 5"):
        Graphs((), "error {}".format).capture([RANK], [refusing], ("cuGraphLaunch", 3))
    with pytest.raises(NcclFailed, match=r"spin .*Python.*graph"):
        Graphs((), "error {}".format).capture([RANK], [PythonCall("spin", print)], ("cuGraphLaunch", 3))


def test_a_graph_s_launch_is_all_that_is_left():
    assert (
        Graphs((), "error {}".format).capture([RANK, RANK], [], launch=("cuGraphLaunch", 3))
        == (NativeCall("cuGraphLaunch", 3, (11, 13)),) * 2
    )
