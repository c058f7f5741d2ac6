"""Kernels are compiled once for an architecture, stored, and never loaded from a file with other content than its name declares."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from collbench import compiled
from collbench.device import kernels
from collbench.device.kernels import cubin, source_folder
from collbench.errors import RunFailed, UsageError
from tests.conftest import ROOT, sample

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]


class NVRTCError(RuntimeError):
    """The error of the test double."""


class Compiler(ModuleType):
    """A test double of cupy.cuda.nvrtc: its cubins contain their input."""

    NVRTCError = NVRTCError

    def __init__(self) -> None:
        super().__init__("cupy.cuda.nvrtc")
        self.version, self.compiled, self.log = (13, 5), 0, ""

    def getVersion(self) -> tuple[int, int]:  # noqa: N802
        return self.version

    def createProgram(self, *program: Any) -> int:  # noqa: N802
        self.program = program
        return 1

    def compileProgram(self, _program: int, options: tuple[str, ...]) -> None:  # noqa: N802
        if self.log:
            raise NVRTCError
        self.compiled += 1
        self.options = options

    def getCUBIN(self, _program: int) -> bytes:  # noqa: N802
        return repr((self.program, self.options)).encode()

    def getProgramLog(self, _program: int) -> str:  # noqa: N802
        return self.log

    def destroyProgram(self, _program: int) -> None:  # noqa: N802
        pass


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    compiler = Compiler()
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cuda.nvrtc = compiler  # type: ignore[attr-defined]
    for module in (cupy, cuda, compiler):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("COLLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return compiler


def test_the_second_start_finds_what_the_first_compiled(nvrtc: Compiler, tmp_path: Path) -> None:
    first = cubin("sm_90")
    assert first.parent == tmp_path / "cache"
    assert (cubin("sm_90"), nvrtc.compiled) == (first, 1)
    assert nvrtc.options[0] == "-arch=sm_90"
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_another_architecture_compiler_or_source_is_another_cubin(nvrtc: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [cubin("sm_90"), cubin("sm_80")]
    nvrtc.version = (13, 6)
    found.append(cubin("sm_90"))
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in source_folder().iterdir():
        (changed / file.name).write_bytes(file.read_bytes() + b"// changed\n" * (file.name == "vectors.h"))
    monkeypatch.setattr(kernels, "source_folder", lambda: changed)
    found.append(cubin("sm_90"))
    assert (len({*found}), nvrtc.compiled) == (4, 4)


def test_a_broken_or_foreign_file_is_compiled_anew(nvrtc: Compiler, tmp_path: Path) -> None:
    first = cubin("sm_90")
    content = first.read_bytes()
    first.write_bytes(content[:-1])
    assert (cubin("sm_90"), first.read_bytes(), nvrtc.compiled) == (first, content, 2)
    first.chmod(0o666)
    assert (cubin("sm_90"), nvrtc.compiled) == (first, 3)
    assert first.stat().st_mode & 0o777 == 0o600
    elsewhere = tmp_path / "elsewhere"
    first.rename(elsewhere)
    first.symlink_to(elsewhere)
    assert (cubin("sm_90"), nvrtc.compiled, first.is_symlink()) == (first, 4, False)


def test_ranks_that_start_together_leave_one_whole_file(nvrtc: Compiler, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as ranks:
        found = {*ranks.map(cubin, ["sm_90"] * 8)}
    assert [*(tmp_path / "cache").iterdir()] == [*found]


def test_where_the_cache_cannot_be_written_a_temporary_folder_serves(nvrtc: Compiler, tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    found = cubin("sm_90")
    assert found.parent.parent == tmp_path / "tmp"
    assert found.parent.stat().st_mode & 0o777 == 0o700
    assert (cubin("sm_90"), nvrtc.compiled) == (found, 1)


@pytest.mark.usefixtures("nvrtc")
def test_nowhere_to_write_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tmp").rmdir()
    for name in ("cache", "tmp"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"cache: .* COLLBENCH_CACHE to a writable folder$"):
        cubin("sm_90")


@pytest.mark.usefixtures("nvrtc")
def test_the_cache_is_in_the_xdg_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cubin("sm_90").parent == tmp_path / "xdg/collbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cubin("sm_90").parent == tmp_path / "home/.cache/collbench"


def test_an_unknown_gpu_broken_kernels_and_a_missing_nvrtc_are_distinguished(nvrtc: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n"
    with pytest.raises(UsageError, match=r"NVRTC 13\.5 .*sm_130 .* nvidia-cuda-nvrtc"):
        cubin("sm_130")
    nvrtc.log = "verify.cu(3): error: expected a ';'"
    with pytest.raises(RunFailed, match=r"sm_90: verify.cu\(3\)"):
        cubin("sm_90")
    monkeypatch.setattr(nvrtc, "getVersion", Mock(side_effect=RuntimeError("libnvrtc.so.13 is not there")))
    with pytest.raises(UsageError, match=r"NVRTC.*\(libnvrtc.so.13 is not there\).*extra cuda13"):
        cubin("sm_90")


@pytest.mark.long
def test_nvrtc_itself_compiles_them(cuda_python: str, tmp_path: Path) -> None:
    program = "import sys; from collbench.device.kernels import cubin; [print(cubin(arch)) for arch in sys.argv[1:]]"
    words = [cuda_python, "-c", program, *sample(ARCHS, 1)]
    env = {"PYTHONPATH": str(ROOT), "COLLBENCH_CACHE": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    for path in done.stdout.split():
        assert Path(path).read_bytes()[:4] == b"\x7fELF"
