"""The kernels of cuda_kernels/ as g++ compiles them: the very bodies that a GPU runs, one thread after the other."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "cuda_kernels"
FILES = sorted(SOURCES.glob("*.cu"))
NONE = 2**64 - 1
Bytes = NDArray[np.uint8]


class Serial:
    """The compiled kernels. Arguments are numbers, or arrays, which are passed by address."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def __call__(self, name: str, *arguments: Any, blocks: int = 3, threads: int = 256, only: int | None = None) -> None:
        """Runs a grid, or `only` one block of it."""
        words = (ctypes.c_uint64 * 8)(*(word.ctypes.data if isinstance(word, np.ndarray) else int(word) for word in arguments))
        first, end = (0, blocks) if only is None else (only, only + 1)
        sizes = (ctypes.c_uint64(number) for number in (first, end, blocks, threads))
        self._library.launch(getattr(self._library, name), *sizes, words)

    def verify(self, memory: Bytes, table: Bytes, width: int, tolerance: int = 0, **launch: Any) -> tuple[int, int]:
        """(wrong elements, index of the first) after comparing memory with the repeated table."""
        result = np.zeros(2, np.uint64)
        self("no_errors", result, blocks=1)
        self("verify", memory, memory.nbytes, table, table.nbytes, width, tolerance, result, **launch)
        return int(result[0]), int(result[1])


def build(folder: Path) -> Path | None:
    """Return the shared object, or None without g++."""
    if not shutil.which("g++"):
        return None
    program = folder / "kernels.cpp"
    program.write_text("".join(f'#include "{file.name}"\n' for file in FILES))
    line = [
        "g++",
        "-std=c++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unknown-pragmas",
        "-shared",
        "-fPIC",
        "-include",
        HERE / "shim.h",
    ]
    subprocess.run([*line, "-I", SOURCES, program, "-o", folder / "kernels.so"], check=True)
    return folder / "kernels.so"


def aligned(n_bytes: int, offset: int = 0) -> Bytes:
    """Memory that begins `offset` bytes past a multiple of 16; 64 bytes on both sides of it are 0x5A."""
    whole = np.full(n_bytes + 160, 0x5A, np.uint8)
    begin = 64 + (-whole.ctypes.data) % 16 + offset
    return whole[begin : begin + n_bytes]


def untouched_around(memory: Bytes) -> bool:
    """Whether the bytes around memory from `aligned` are what they were."""
    whole = memory.base
    assert isinstance(whole, np.ndarray)
    begin = memory.ctypes.data - whole.ctypes.data
    return bool((whole[:begin] == 0x5A).all() and (whole[begin + len(memory) :] == 0x5A).all())
