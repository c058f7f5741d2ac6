"""NVRTC with g++ as its compiler: a "cubin" is a shared library in which kernels are functions, see cuda/module.cpp.

`headers` lie beside the source while it compiles; the words of CUDA come from tests/cuda_kernels/shim.h.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path

_SHIM = Path(__file__).parents[4] / "cuda_kernels/shim.h"
_COMPILE = ("g++", "-std=c++17", "-O2", "-shared", "-fPIC", "-x", "c++", "-w")
_NAMES = {3: "NVRTC_ERROR_INVALID_INPUT", 4: "NVRTC_ERROR_INVALID_PROGRAM", 5: "NVRTC_ERROR_INVALID_OPTION", 6: "NVRTC_ERROR_COMPILATION"}


class NVRTCError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{_NAMES[status]} ({status})")


class _Program:
    def __init__(self, source: str, files: dict[str, str]) -> None:
        self.source, self.files = source, files
        self.log, self.cubin = "", b""


_programs: dict[int, _Program] = {}
_numbers = count(1)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def getVersion() -> tuple[int, int]:
    """A version that no real NVRTC has: what is cached for it is never taken for a real cubin."""
    return (99, 99)


def createProgram(src: str, name: str, headers: Sequence[str | bytes], include_names: Sequence[str | bytes]) -> int:
    """A program and the headers that it includes by name."""
    number = next(_numbers)
    _programs[number] = _Program(src, {_text(name): _text(text) for name, text in zip(include_names, headers, strict=True)})
    return number


def _program(prog: int) -> _Program:
    if prog not in _programs:
        raise NVRTCError(4)
    return _programs[prog]


def compileProgram(prog: int, options: Sequence[str]) -> None:
    """Of the options only -arch is looked at: "sm_90" as real GPUs have it."""
    program = _program(prog)
    arch = next((option.partition("=")[2] for option in options if option.startswith(("-arch=", "--gpu-architecture="))), "")
    if not arch.removeprefix("sm_").removeprefix("compute_").isdigit() or int(arch.rpartition("_")[2]) > 130:
        program.log = f"nvrtc: error: invalid value for --gpu-architecture (-arch): {arch}"
        raise NVRTCError(5)
    with tempfile.TemporaryDirectory(prefix="fake-nvrtc-") as folder:
        for name, text in program.files.items():
            (Path(folder) / name).write_text(text)
        source, made = Path(folder) / "program.cpp", Path(folder) / "program.so"
        source.write_text(program.source)
        done = subprocess.run([*_COMPILE, "-include", _SHIM, source, "-o", made], capture_output=True, text=True, check=False)
        program.log = done.stderr
        if done.returncode:
            raise NVRTCError(6)
        program.cubin = made.read_bytes()


def getCUBIN(prog: int) -> bytes:
    return _program(prog).cubin


def getPTX(prog: int) -> bytes:
    return b"// FAKE (test double): there is no PTX\n" if _program(prog).cubin else b""


def getProgramLog(prog: int) -> str:
    return _program(prog).log


def destroyProgram(prog: int) -> None:
    _programs.pop(prog, None)
