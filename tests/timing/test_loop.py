"""The timed loop: the same calls in the same order in C and in Python, stopping at the first error with its place and words."""

import ctypes
import weakref

import numpy as np
import pytest

from collbench.backends.clock import MonotonicClock
from collbench.measuring import loop as loop_module
from collbench.measuring.loop import CallFailed, Loop, Timed, exit_skew
from collbench.native.library import NativeSlots, address, library
from collbench.operations.program import MAX_ARGS, NativeCall, Program, PythonCall

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * MAX_ARGS)


class Recorder:
    """Functions that write down their name and the words they got; the `fail_at`th call in all returns `code`."""

    def __init__(self, fail_at=None, code=15):
        self.seen, self.words, self._keep, self._fail_at, self._code = [], [], [], fail_at, code

    def native(self, name, *words):
        def function(*got):
            self.words.append(got)
            return self._note(name)

        made = FUNCTION(function)
        self._keep.append(made)
        return NativeCall(name, ctypes.cast(made, ctypes.c_void_p).value, words)

    def python(self, name):
        def function():
            if self._note(name):
                raise ValueError("no route")

        return PythonCall(name, function)

    def _note(self, name):
        self.seen.append(name)
        return self._code if len(self.seen) - 1 == self._fail_at else 0


def make(recorder, kind, slots=(("a", "b"),), sync=("s",), *, keep=None, progress=None):
    """A loop of native calls, of native calls without the C loop's help, or of Python calls."""
    call = recorder.python if kind == "python" else recorder.native
    program = Program(tuple(tuple(call(name) for name in slot) for slot in slots), (recorder, keep), lambda code: f"MPI_ERR_{code}")
    before = Program((tuple(call(name) for name in sync),), explain=lambda code: f"errno {code}") if sync else None
    return Loop(Timed(program, before, MonotonicClock(), progress or ctypes.c_int64(-1)))


@pytest.fixture(params=["native", "fallback", "python"])
def kind(request, monkeypatch):
    """The three ways a program can run."""
    if request.param == "fallback":
        monkeypatch.setattr(loop_module, "library", lambda: None)
    elif request.param == "native" and library() is None:
        pytest.skip("the native loop was not built")
    return request.param


def test_native_calls_run_in_the_c_loop_where_it_was_built(kind):
    loop = make(Recorder(), kind)
    assert (loop.native, loop.could_be_native) == {"native": (True, True), "fallback": (False, True), "python": (False, False)}[kind]


def test_the_synchronisation_comes_before_each_sample_or_batch_or_not_at_all(kind):
    recorder = Recorder()
    make(recorder, kind).run(3)
    assert recorder.seen == ["s", "a", "b"] * 3
    recorder = Recorder()
    samples = make(recorder, kind).run(2, batch=3)
    assert recorder.seen == ["s", *["a", "b"] * 3] * 2
    assert samples.shape == (1, 2)
    recorder = Recorder()
    make(recorder, kind, sync=None).run(2)
    assert recorder.seen == ["a", "b"] * 2


def test_slots_take_turns_alone_or_with_different_numbers_of_calls(kind):
    recorder = Recorder()
    loop = make(recorder, kind, slots=(("0",), ("1",), ("2",)), sync=None)
    loop.run(4)
    loop.run(1, batch=3)
    loop.run(1)
    assert recorder.seen == list("0120" + "120" + "1")
    loop.run(1, slot=2)
    loop.run(1)
    assert recorder.seen == list("0120" + "120" + "1" + "2" + "2")
    recorder = Recorder()
    make(recorder, kind, slots=(("a",), (), ("b", "c")), sync=None).run(4)
    assert recorder.seen == ["a", "b", "c", "a"]


def test_samples_are_seconds_and_progress_and_starts_are_kept(kind):
    samples = make(Recorder(), kind).run(5)
    assert samples.shape == (1, 5)
    assert samples.dtype == np.float64
    assert np.all(samples >= 0)
    assert np.all(samples < 1)
    progress = ctypes.c_int64(-1)
    loop = make(Recorder(), kind, progress=progress)
    loop.run(4)
    assert progress.value == 3
    loop.run(2, batch=5)
    assert progress.value == 9
    loop.run(4, batch=2)
    assert loop.starts_ns.shape == (1, 4)
    assert np.all(np.diff(loop.starts_ns[0]) > 0)


@pytest.mark.parametrize(("fail_at", "call", "iteration"), [(1, "a", 0), (5, "b", 1), (7, "a", 2)])
def test_the_first_error_stops_it_and_names_call_and_iteration(kind, fail_at, call, iteration):
    recorder = Recorder(fail_at)
    words = {"native": "MPI_ERR_15", "fallback": "OSError: MPI_ERR_15", "python": "ValueError: no route"}[kind]
    with pytest.raises(CallFailed, match=f"^{call} failed in iteration {iteration}: {words}$"):
        make(recorder, kind).run(10)
    assert len(recorder.seen) == fail_at + 1


def test_errors_in_a_batch_and_of_the_synchronisation_have_their_iteration_and_words(kind):
    with pytest.raises(CallFailed, match=r"^b failed in iteration 4: "):
        make(Recorder(fail_at=11), kind, sync=("s",)).run(4, batch=3)
    words = {"native": "errno 15", "fallback": "OSError: errno 15", "python": "ValueError: no route"}[kind]
    with pytest.raises(CallFailed, match=f"synchronisation failed in iteration 1: {words}$"):
        make(Recorder(fail_at=3), kind).run(3)


def test_all_twelve_words_arrive(kind):
    if kind == "python":
        return
    recorder = Recorder()
    words = (0, 1, 2**31, 2**63, 2**64 - 1, -1, 7, 8, 9, 10, 11, 12)
    program = Program(((recorder.native("f", *words),),))
    Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64())).run(1)
    assert recorder.words == [tuple(word % 2**64 for word in words)]


def test_missing_words_are_zero_and_mixed_programs_run_in_python():
    recorder = Recorder()
    Loop(Timed(Program(((recorder.native("f", 5),),)), None, MonotonicClock(), ctypes.c_int64())).run(1)
    assert recorder.words == [(5, *[0] * 11)]
    recorder = Recorder()
    program = Program(((recorder.native("a"), recorder.python("b")),))
    loop = Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64()))
    loop.run(2)
    assert not loop.native
    assert not loop.could_be_native
    assert recorder.seen == ["a", "b"] * 2
    with pytest.raises(TypeError, match="native loop"):
        NativeSlots(Program(((PythonCall("f", print),),)))


def test_a_clock_that_is_not_the_c_loops_keeps_it_in_python():
    class Ticks:
        native, queued = False, True

        def __init__(self):
            self.now = 0

        def stamp(self):
            self.now += 1
            return self.now

        def elapsed(self, starts, ends):
            return np.array([np.subtract(ends, starts), np.subtract(ends, starts) * 2.0])

    recorder = Recorder()  # keeps the C function alive
    loop = Loop(Timed(Program(((recorder.native("a"),),)), None, Ticks(), ctypes.c_int64()))
    assert not loop.could_be_native
    assert loop.run(2).tolist() == [[1, 1], [2, 2]]
    assert loop.enqueue_s is not None and 0 < loop.enqueue_s < 0.1  # its calls only enqueue: what the host took for them


def test_a_million_empty_calls_take_no_time_worth_the_name():
    if library() is None:
        pytest.skip("the native loop was not built")
    nothing = NativeCall("nothing", address("collbench_nothing"), ())
    loop = Loop(Timed(Program(((nothing,),)), None, MonotonicClock(), ctypes.c_int64()))
    assert loop.run(1000, batch=1000).shape == (1, 1000)
    assert np.median(loop.run(100, batch=1000)) / 1000 < 1e-6  # 4 ns; a call through Python takes 500


def test_the_library_is_searched_for_only_beside_the_loop(monkeypatch, tmp_path):
    from collbench.native import library as native

    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    assert native.library.__wrapped__() is None
    (tmp_path / "_loop.so").write_text("not a library")
    assert native.library.__wrapped__() is None


def test_stamps_of_other_clocks_are_not_compared(monkeypatch):
    loop = make(Recorder(), "python")
    monkeypatch.setattr(MonotonicClock, "native", False)
    loop.run(2)
    assert np.isnan(loop.starts_ns).all()


@pytest.mark.parametrize(("starts", "skew_s"), [
    ([[100, 200], [130, 190]], [30e-9, 10e-9]),
    ([[5], [2**40 - 5], [0]], [10e-9]),  # the stamps wrap between two ranks
    ([[7, 8]], [0, 0]),
])  # fmt: skip
def test_skew_is_the_time_between_the_first_and_the_last_to_begin(starts, skew_s):
    assert exit_skew(np.array(starts, float)) == pytest.approx(skew_s)


def test_a_meeting_comes_before_the_first_sample_of_each_run(kind):
    recorder = Recorder()
    call = recorder.python if kind == "python" else recorder.native
    program, meeting = (Program(((call(name),),)) for name in ("a", "meet"))
    loop = Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64(-1), meeting))
    assert [loop.run(n).shape for n in (2, 3)] == [(1, 2), (1, 3)]
    assert recorder.seen == ["meet", "a", "a", "meet", "a", "a", "a"]


@pytest.mark.parametrize(("fail_at", "seen"), [(None, ["a", "a", "part"]), (1, ["a", "a", "part"]), (0, ["a", "part"])])
def test_a_parting_comes_after_the_last_sample_of_a_run_and_after_a_failure(kind, fail_at, seen):
    """A rank that waits for this one must not wait forever."""
    recorder = Recorder(**({} if fail_at is None else {"fail_at": fail_at}))
    call = recorder.python if kind == "python" else recorder.native
    program, parting = (Program(((call(name),),)) for name in ("a", "part"))
    loop = Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64(-1), parting=parting))
    if fail_at is None:
        assert loop.run(2).shape == (1, 2)
    else:
        with pytest.raises(CallFailed, match=f"a failed in iteration {fail_at}"):
            loop.run(2)
    assert recorder.seen == seen


def test_what_a_program_keeps_is_let_go_with_its_loop(kind):
    class Kept:
        pass

    kept = Kept()
    alive, loop = weakref.ref(kept), make(Recorder(), kind, keep=kept)
    loop.run(2)
    del kept, loop
    assert alive() is None  # and not only at the next garbage collection: the next case's buffers need the room
