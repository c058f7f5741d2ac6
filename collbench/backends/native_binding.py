"""Binds an operation's steps to C functions: addresses that can be sliced, words, and calls by function pointer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import SupportsInt

from collbench.operations.cell import Cell
from collbench.operations.program import NativeCall


class Address:
    """A place in memory, sliced in elements of `width` bytes: `address[k:]` is k elements further."""

    def __init__(self, base: int, width: int) -> None:
        self._base, self._width = base, width

    def __getitem__(self, part: slice) -> Address:
        return Address(self._base + (part.start or 0) * self._width, self._width)

    def __int__(self) -> int:
        return self._base


class NativeBinding:
    """What every C library's binding has in common; a backend adds its words (type, redop, comm, status …).

    integer   what the library takes its counts and displacements as, where it wants an array of them
    Raises AttributeError for a function that the library lacks; ask `has` first.
    """

    integer: type[ctypes.c_int] | type[ctypes.c_int64] = ctypes.c_int

    def __init__(self, library: ctypes.CDLL, cell: Cell, rank: int, n: int, count: int) -> None:
        self.library, self.cell, self.rank, self.n, self.count = library, cell, rank, n, count
        self.root = cell.root or 0
        self.keep: list[object] = []

    def call(self, name: str, *words: SupportsInt) -> NativeCall:
        """A call of the library's function `name` with word-sized arguments."""
        return NativeCall(name, self.pointer(name), tuple(int(word) for word in words))

    def pointer(self, name: str) -> int:
        """The function's address."""
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0

    def has(self, name: str) -> bool:
        """Whether the library has a function `name`."""
        return hasattr(self.library, name)

    def array(self, values: Sequence[int]) -> Address:
        """A C array of counts or displacements that lives as long as the program."""
        kept = (self.integer * len(values))(*values)
        self.keep.append(kept)
        return Address(ctypes.addressof(kept), ctypes.sizeof(self.integer))

    def room(self, n_bytes: int) -> int:
        """The address of zeroed memory that lives as long as the program (statuses, requests)."""
        kept = ctypes.create_string_buffer(n_bytes)
        self.keep.append(kept)
        return ctypes.addressof(kept)
