"""What step functions of C libraries see: addresses that can be sliced, calls by pointer, memory that lives as long as the program."""

import ctypes

import pytest

from collbench.backends.host import Address, NativeBinding
from tests.helpers import make_case

LIBC = ctypes.CDLL(None)


def binding():
    return NativeBinding(LIBC, make_case(root=3), 1, 4, 100)


def test_addresses_are_sliced_in_elements():
    address = Address(1000, 8)
    assert int(address) == 1000
    assert int(address[3:]) == 1024
    assert int(address[3:][2:]) == 1040
    assert int(address[:]) == 1000


def test_a_call_has_the_functions_address_and_plain_words():
    call = binding().call("getpid", Address(7, 1), 5, True)
    assert (call.name, call.args) == ("getpid", (7, 5, 1))
    assert call.pointer == ctypes.cast(LIBC.getpid, ctypes.c_void_p).value


def test_what_the_library_lacks_can_be_asked_for_first():
    assert binding().has("getpid")
    assert not binding().has("MPI_Frobnicate")
    with pytest.raises(AttributeError):
        binding().call("MPI_Frobnicate")


def test_numbers():
    x = binding()
    assert (x.rank, x.n, x.count, x.root, x.case.dtype.name) == (1, 4, 100, 3, "float32")


def test_arrays_and_rooms_stay_where_they_are():
    x = binding()
    counts = x.array([1, 2, 3])
    x.integer = ctypes.c_int64
    wide = x.array([2**40])
    room = x.room(256)
    assert list((ctypes.c_int * 3).from_address(int(counts))) == [1, 2, 3]
    assert int(counts[2:]) == int(counts) + 8
    assert ctypes.c_int64.from_address(int(wide)).value == 2**40
    assert bytes((ctypes.c_char * 256).from_address(room)) == bytes(256)
    assert len(x.keep) == 3
