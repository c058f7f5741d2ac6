"""Read dumps of PyTorch's Flight Recorder that are pickles.

A pickle can call any function when it is loaded. Its codes are checked first, and only those of plain values are loaded.
Dumps that a program has written again with Python's pickle are read by `_PlainUnpickler`, which knows no other codes.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, ClassVar

from collbench.plugins.traces.model import DamagedTrace
from collbench.untrusted import list_of

# `_checked` accepts only the codes of plain values, so that nothing is left that could call or allocate something; a string's
# length is outside a regular expression, so the codes between two strings are checked at once. The codes: pickletools in Python's library.
# A tuple must not become part of another one without end: Python would overflow its stack at the hash of a very deep one.

_PUT, _GET = rb"(?:q.|r..[\x00-\x0f]\x00)", rb"(?:h.|j....)"
_LONGS = b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(9))
_PAIR = rb"\x86(?![qr])"
_PLAIN = (
    rb"(?:" + _GET + rb"(?:" + _GET + _PAIR + rb")?|[\]}]" + _PUT + rb"?\(?|[eas]|K.|M..|[N\x88\x89]|J....|\x8a(?:" + _LONGS + rb")|"
    + _PUT + rb"|G.{8})*+"
)  # fmt: skip
_CODES, _DICT = re.compile(_PLAIN, re.DOTALL), re.compile(_PLAIN + b"u", re.DOTALL)
_AFTER_TEXT = re.compile(_PUT + rb"?(" + _GET + rb"?" + _PAIR + rb")?", re.DOTALL)
_MOST_PAIRS = 1000  # of new texts: the groups of a job
_PROTOCOL, _TEXT, _STOP, _HOOK = b"\x80\x02", b"X", b".", b"Q"
_INCOMPLETE = "it is incomplete"
_BYTES_PER_CONTAINER = 12  # fewest; a dump of NCCL has 30. An empty list of one byte takes 64 bytes of memory


class _Unpickler(pickle.Unpickler):
    """An unpickler for codes that were checked. Each entry goes to `add`, and None stays in its place: a million do not fit into memory."""

    def __init__(self, codes: BytesIO, add: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(BufferedReader(codes, 1 << 20))  # of a BytesIO, it would read each code by a call
        self.add = add

    def persistent_load(self, value: Any) -> Any:
        """Return a complete dictionary, or None for an entry."""
        if type(value) is not dict or "profiling_name" not in value:
            return value
        self.add(value)
        value.clear()
        return None

    def find_class(self, module: str, name: str) -> Any:
        """Raise UnpicklingError."""
        raise pickle.UnpicklingError(module)


def read_pickle(path: Path, data: bytes, add: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
    """Return the dump without its entries, which go to `add`. Raises DamagedTrace."""
    codes = None if data[:2] != _PROTOCOL else _checked(path, data)
    if codes is None:
        dump = _PlainUnpickler(path, data).value()
        entries = dump.get("entries") if isinstance(dump, dict) else None
        if not isinstance(entries, list) or any(type(entry) is not dict for entry in entries):
            raise _invalid_pickle(path, "it holds something else")
        for entry in entries:
            add(entry)
        return {key: value for key, value in dump.items() if key in ("pg_config", "pg_status")}
    if (data.count(b"]") + data.count(b"}")) * _BYTES_PER_CONTAINER > len(data) + (1 << 20):
        raise _invalid_pickle(path, "it holds little else than empty lists")
    try:
        dump = _Unpickler(codes, add).load()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        raise _invalid_pickle(path, "it is damaged") from error
    if not isinstance(dump, dict) or any(entry is not None for entry in list_of(dump.get("entries"), object)):
        raise _invalid_pickle(path, "it holds something else")
    return dump


def damaged(path: Path, what: str, remedy: str = "write it again") -> DamagedTrace:
    """Return the error for a dump that is not valid."""
    return DamagedTrace(path, what, f"{path}: not a valid Flight Recorder dump ({what}): {remedy}")


def _invalid_pickle(path: Path, what: str) -> DamagedTrace:
    return damaged(path, what, "write it again, or give the dump as JSON")


def _checked(path: Path, data: bytes) -> BytesIO | None:
    """Return the pickle with a call of `persistent_load` after each dictionary; None for codes that PyTorch does not write.

    Raises DamagedTrace for a pickle that is incomplete.
    """
    codes = BytesIO()
    add = codes.write
    add(data[:2])
    at = 2
    pairs = 0
    while True:
        while complete := _DICT.match(data, at):
            add(complete[0])
            add(_HOOK)
            at = complete.end()
        end = _CODES.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        add(data[at:end])
        at = end
        code = data[end : end + 1]
        if code == _STOP:
            add(_STOP)
            codes.seek(0)
            return codes
        if not code:
            raise _invalid_pickle(path, _INCOMPLETE)
        if code != _TEXT:
            return None
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        after = _AFTER_TEXT.match(data, at)
        pairs += bool(after and after[1])
        if pairs > _MOST_PAIRS:
            return None
        at = after.end() if after else at
        add(data[end:at])


_PLAIN_CODES = b"N\x88\x89KMJG\x8a\x8cX\x8d\x94qrhj(aesu."
_LOADERS: Mapping[int, Any] = pickle._Unpickler.dispatch
_CONTAINER_CODES = b"]})\x85\x86\x87t"
_LARGEST_PLAIN = 64 << 20  # of such a pickle: about 100,000 calls, in 30 s
_LONGEST_TUPLE = 16


class _PlainUnpickler(pickle._Unpickler):
    """Loads pickles of Python, protocols 2 to 5, with dictionaries, lists, tuples of scalars, texts and numbers, and knows no other codes.

    It is that of the library written in Python, which looks up each code in `dispatch`.
    """

    dispatch: ClassVar[Any] = {}

    def __init__(self, path: Path, data: bytes) -> None:
        self.codes = BytesIO(data)
        super().__init__(self.codes)
        self.path, self.size, self.containers = path, len(data), 0

    def value(self) -> Any:
        """Return what the pickle holds. Raises DamagedTrace for another code, and for a pickle that is cut."""
        if not 2 <= self.codes.read(2)[1] <= 5 or self.size > _LARGEST_PLAIN:
            what = f"it was not written by PyTorch, and is not a pickle of protocol 2 to 5 of at most {_LARGEST_PLAIN >> 20} MiB"
            raise _invalid_pickle(self.path, what)
        try:
            value = self.load()
            if self.stack or self.metastack:  # type: ignore[attr-defined]
                raise ValueError
            return value
        except KeyError as error:
            what = f"it was not written by PyTorch: code 0x{error.args[0]:02x} at byte {self.codes.tell() - 1:,} is not a plain value"
            raise _invalid_pickle(self.path, what) from error
        except (EOFError, IndexError, struct.error, pickle.UnpicklingError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _invalid_pickle(self.path, _INCOMPLETE if self.codes.tell() >= self.size else "it is damaged") from error

    def load_container(self, code: int) -> None:
        """Load an empty list or dictionary, or a tuple of scalars: Python overflows its stack at the hash of a very deep one."""
        _LOADERS[code](self)
        made = self.stack[-1]  # type: ignore[attr-defined]
        if isinstance(made, tuple) and (len(made) > _LONGEST_TUPLE or any(isinstance(item, tuple | list | dict) for item in made)):
            raise ValueError
        self.containers += 1
        if self.containers * _BYTES_PER_CONTAINER > self.size + (1 << 20):
            raise _invalid_pickle(self.path, "it holds little else than empty lists")

    def load_frame(self) -> None:
        """Pass over the length of a frame."""
        self.codes.read(8)


_PlainUnpickler.dispatch |= {code: _LOADERS[code] for code in _PLAIN_CODES}
_PlainUnpickler.dispatch |= {code: partial(_PlainUnpickler.load_container, code=code) for code in _CONTAINER_CODES}
_PlainUnpickler.dispatch[0x95] = _PlainUnpickler.load_frame
