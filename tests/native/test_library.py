"""Programs in the memory layout of loop.c."""

import pytest

from collbench.native.library import NativeSlots
from collbench.operations.program import NativeCall, Program, PythonCall


def test_each_slot_has_its_calls_in_order_with_all_words() -> None:
    first, second = NativeCall("first", 0x1000, (1, -1, 2**63)), NativeCall("second", 0x2000, (7,))
    structs = NativeSlots(Program(((first, second), (second,)))).structs
    assert [struct.n for struct in structs] == [2, 1]
    assert [structs[0].calls[index].call for index in range(2)] == [0x1000, 0x2000]
    assert list(structs[0].calls[0].words[:4]) == [1, 2**64 - 1, 2**63, 0]
    assert structs[1].calls[0].words[0] == 7


def test_a_call_of_python_cannot_be_in_it() -> None:
    with pytest.raises(TypeError, match="native loop"):
        NativeSlots(Program(((PythonCall("sum", lambda: None),),)))
