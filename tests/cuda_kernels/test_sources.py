"""The sources compile with nvcc too, and are documented."""

import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.device import kernels
from tests.conftest import sample
from tests.cuda_kernels.serial import FILES, SOURCES

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
KERNEL = re.compile(r'^extern "C" __global__ void (?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(([^)]*)\)', re.MULTILINE)
DECLARED = {name: parameters for file in FILES for name, parameters in KERNEL.findall(file.read_text())}


def test_the_launcher_knows_every_kernel_and_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    module = SimpleNamespace(get_function=loaded.append)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=lambda path: module))
    monkeypatch.setattr(kernels, "cubin", lambda arch: Path("x.cubin"))
    monkeypatch.setattr(kernels, "cupy_runtime", lambda: SimpleNamespace(deviceGetAttribute=lambda attribute, index: 1))
    gpu: Any = SimpleNamespace(arch="sm_90", index=0, use=nullcontext)
    blocks_at_once = kernels.Kernels(gpu).at_once
    assert sorted(loaded) == sorted(DECLARED)
    header = (SOURCES / "vectors.h").read_text()
    assert re.findall(r"#define THREADS (\d+)", header) == [str(kernels.THREADS)]
    assert re.findall(r"#define BLOCKS_AT_ONCE (\d+)", header) == [str(blocks_at_once)]


def test_every_argument_is_one_word() -> None:
    for name, parameters in DECLARED.items():
        for parameter in parameters.split(","):
            assert "*" in parameter or parameter.strip().startswith("u64 "), f"{name}: {parameter}"


def test_no_header_of_cuda_and_no_shared_memory() -> None:
    for file in (*FILES, SOURCES / "vectors.h"):
        text = file.read_text()
        assert set(re.findall(r"#include\s+(\S+)", text)) <= {'"vectors.h"'}
        assert "__shared__" not in text and "__syncthreads" not in text


def test_the_readme_has_a_row_for_every_kernel() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (SOURCES / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(DECLARED)


@pytest.mark.long
@pytest.mark.parametrize("arch", sample(ARCHS, 1))
def test_nvcc_compiles_them_without_a_warning_or_a_spilled_register(arch: str, tmp_path: Path) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc here")
    program = tmp_path / "all.cu"
    program.write_text("".join(f'#include "{file.name}"\n' for file in FILES))
    line = ["nvcc", f"-arch={arch}", "-cubin", "-Werror", "all-warnings", "-Xptxas", "-v", "-I", SOURCES, program, "-o", tmp_path / "out"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"(\d+) bytes spill", done.stderr)) == {"0"}
