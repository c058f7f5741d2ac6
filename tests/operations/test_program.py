"""Programs: plain calls per buffer slot, one after another when one process drives several groups."""

import pytest

from collbench.operations.program import NativeCall, Program, PythonCall, joined


def calls(*names):
    return tuple(PythonCall(name, print) for name in names)


def test_a_program_is_native_when_every_call_is_and_a_native_call_has_at_most_twelve_arguments():
    assert NativeCall("f", 1, tuple(range(12))).args == tuple(range(12))
    with pytest.raises(ValueError, match=r"MPI_Ialltoallw .*13"):
        NativeCall("MPI_Ialltoallw", 1, tuple(range(13)))
    native = NativeCall("f", 1, ())
    assert Program(((native,), (native,))).native
    assert not Program(((native,), (native, *calls("g")))).native
    assert Program(((),)).native


def test_the_names_of_one_iteration_and_an_error_code_without_a_librarys_words():
    assert list(Program((calls("a", "b"), calls("a", "b"))).calls()) == ["a", "b"]
    assert list(Program(()).calls()) == []
    assert Program(((),)).explain(15) == "error code 15"


def test_joined_programs_run_one_after_another_in_each_iteration_and_one_is_itself():
    one, two = Program((calls("a"), calls("b")), explain=lambda code: "first"), Program((calls("c"), calls("d", "e")), explain=str)
    both = joined([one, two])
    assert [[call.name for call in slot] for slot in both.slots] == [["a", "c"], ["b", "d", "e"]]
    assert both.explain(7) == "first"
    assert both.keep == [one, two]
    one = Program((calls("a"),))
    assert joined([one]) is one
