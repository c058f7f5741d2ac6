"""The bundle: what a GPU machine without network needs, in folders of at most 60 MiB."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_path.check import ROOT
from gpu_path.packages import COMMIT_FILE, TOOLS, commit, plain, project

BUNDLE_BYTES = 60 << 20
_SOURCE_ONLY = ("python-hostlist",)  # PyPI has no wheel of it: built here, in pure Python


def bundle(folder: Path, version: str, cuda_major: int, libraries: bool) -> int:
    """Write base/ (the sources and the wheels of the base install and the test tools) and, on request, libraries-N/ (cupy, NCCL, NVRTC)."""
    base = folder / "base"
    wheels = base / "wheels"
    wheels.mkdir(parents=True)
    for name in ("collbench", "cuda_kernels", "tools", "tests/testbeds", "tests/device", "tests/fake_gpu"):
        shutil.copytree(ROOT / name, base / "collbench" / name, ignore=shutil.ignore_patterns("__pycache__", "benchmarks"))
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE", "tests/conftest.py", "tests/helpers.py"):
        shutil.copy(ROOT / name, base / "collbench" / name)
    (base / "collbench" / COMMIT_FILE).write_text(f"{commit()}\n")
    download(wheels, version, [*project()["dependencies"], *TOOLS])
    sizes = {base: size_of(base)}
    if libraries:
        whole = folder / "whole"
        whole.mkdir()
        download(whole, version, project()["optional-dependencies"][f"cuda{cuda_major}"], "--no-deps")
        sizes |= {part: size_of(part) for part in split(whole, folder)}
        shutil.rmtree(whole)
    for part, size in sizes.items():
        print(f"{part}: {size / (1 << 20):.1f} MiB")
    print(
        "Copy these folders to the GPU machine and run base/collbench/tools/gpu_check there (with --libraries: add --wheels FOLDER, the "
        "folder that holds them all). cupy, NCCL and NVRTC are first searched in the Python that runs the check (an installed torch brings "
        "NCCL and NVRTC), then among the system's libraries, and only then installed from FOLDER."
    )
    large = [part for part, size in sizes.items() if size > BUNDLE_BYTES]
    if large:
        print(f"gpu_check: {large[0]} is larger than {BUNDLE_BYTES >> 20} MiB", file=sys.stderr)
    return 1 if large else 0


def download(folder: Path, version: str, requirements: Sequence[str], *options: str) -> None:
    """Fetch wheels for CPython of a version on x86-64 Linux. Raises SystemExit with pip's last line."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 24, 18, 17, 12)]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux2010_x86_64"]
    pip: list[str | Path] = [sys.executable, "-m", "pip"]
    constrained: list[str | Path] = ["-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    commands: list[list[str | Path]] = [
        [*pip, "wheel", *constrained, "--no-deps", "-w", folder, name]
        for name in _SOURCE_ONLY if any(plain(requirement) == name for requirement in requirements)
    ]  # fmt: skip
    target: list[str | Path] = ["--only-binary=:all:", f"--python-version={version}", *platforms, "--find-links", folder]
    commands.append([*pip, "download", *constrained, *target, *options, "-d", folder, *requirements])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"gpu_check: pip cannot fetch the wheels: {done.stderr.strip()[-400:]}")


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def split(whole: Path, folder: Path, limit: int = BUNDLE_BYTES - (1 << 20)) -> list[Path]:
    """Distribute wheels over folders libraries-1, libraries-2, … of at most `limit` bytes, larger ones in parts. Returns the folders."""
    pieces = []
    for file in sorted(whole.iterdir()):
        data = file.read_bytes()
        count = -(-len(data) // limit)
        names = [file.name] if count == 1 else [f"{file.name}.part{i + 1:02d}of{count:02d}" for i in range(count)]
        pieces += [(name, data[i * limit : (i + 1) * limit]) for i, name in enumerate(names)]
    folders: list[tuple[Path, int]] = []
    for name, data in sorted(pieces, key=lambda piece: -len(piece[1])):
        at = next((i for i, (_, used) in enumerate(folders) if used + len(data) <= limit), len(folders))
        if at == len(folders):
            folders.append((folder / f"libraries-{at + 1}", 0))
            folders[at][0].mkdir()
        folders[at][0].joinpath(name).write_bytes(data)
        folders[at] = (folders[at][0], folders[at][1] + len(data))
    return [place for place, _ in folders]
