"""The Python that runs the check: which packages it lacks, and a virtual environment that adds them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_path.check import ROOT

TOOLS = ("pytest", "pytest-timeout", "hypothesis")  # run the tests
COMMIT_FILE = "COMMIT"  # in a bundle, which is not a git checkout
_IMPORTS = {
    "python-hostlist": "hostlist", "pyzmq": "zmq", "nvidia-ml-py": "pynvml", "pytest-timeout": "pytest_timeout", "Jinja2": "jinja2",
}  # fmt: skip


def commit() -> str:
    """The commit that is checked: git's, or that of the bundle; "unknown" without either."""
    if (ROOT / COMMIT_FILE).exists():
        return (ROOT / COMMIT_FILE).read_text().strip()
    if not shutil.which("git"):
        return "unknown"
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def driver_cuda() -> int | None:
    """The CUDA version that the driver supports as 1000·major + 10·minor; None where no driver loads."""
    try:
        library, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return None
    return version.value if library.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def first_gpu() -> str | None:
    """The first GPU's name as CUDA has it; None without one."""
    library, device, count, name = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    if library.cuDeviceGet(ctypes.byref(device), 0) or library.cuDeviceGetName(name, 256, device):
        return None
    return name.value.decode(errors="replace")


def project() -> dict[str, Any]:
    """The [project] table of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = tomllib.load(file)["project"]
    return table


def plain(requirement: str) -> str:
    """The name of a requirement without its version."""
    return requirement.partition(">")[0].partition("=")[0].strip()


def importable(requirement: str) -> bool:
    """Whether this interpreter has a requirement."""
    name = plain(requirement)
    return find_spec(_IMPORTS.get(name, name.replace("-", "_"))) is not None


def loads(soname: str) -> bool:
    """Whether the system's loader finds a library."""
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def in_wheel(folder: str) -> bool:
    """Whether a library of NVIDIA's Python packages is installed ("nccl" is nvidia/nccl/lib)."""
    spec = find_spec("nvidia")
    return any((Path(place) / folder).is_dir() for place in (spec.submodule_search_locations or ())) if spec else False


def functional_libraries() -> set[str]:
    """Which of "nvrtc" and "runtime" cupy finds and can call, wherever they come from; a process of its own asks."""
    code = "import cupy.cuda.{0} as one; print(one.{1}())"
    calls = {"nvrtc": code.format("nvrtc", "getVersion"), "runtime": code.format("runtime", "runtimeGetVersion")}
    if not importable("cupy"):
        return set()
    return {name for name, text in calls.items() if _runs(text)}


def _runs(code: str) -> bool:
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, timeout=60, check=False).returncode == 0


def missing_packages(cuda_major: int) -> list[str]:
    """Requirements that this interpreter lacks: the base install, the GPU libraries that nothing else provides, the tools."""
    needed = [one for one in project()["dependencies"] if not importable(one)]
    extra = {plain(one): one for one in project()["optional-dependencies"][f"cuda{cuda_major}"]}
    works = functional_libraries()
    found = {
        "cupy": importable("cupy"),
        "nccl": in_wheel("nccl") or loads("libnccl.so.2"),
        "nvrtc": "nvrtc" in works,
        "runtime": "runtime" in works,
    }
    needed += [one for name, one in extra.items() if not next(there for kind, there in found.items() if kind in name)]
    return needed + [tool for tool in TOOLS if not importable(tool)]


def interpreter(out: Path, wheels: Path | None, missing: Sequence[str]) -> tuple[str, list[str]]:
    """The Python that has all packages, and what could not be installed; a virtual environment over this one where any is missing."""
    if not missing:
        return sys.executable, []
    folder = out / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    python = str(folder / "bin/python")
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    )
    seen = dict.fromkeys(p for p in [*sys.path, sysconfig.get_path("purelib")] if "-packages" in p)
    Path(purelib.stdout.strip(), "borrowed.pth").write_text("".join(f"{path}\n" for path in seen))
    source = ["--no-index", "--find-links", str(joined(wheels, out))] if wheels else ["-c", str(ROOT / "constraints.txt")]
    left = []
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir", *source]
    with (out / "logs/install.log").open("w") as file:
        whole = subprocess.run([*pip, *missing], stdout=file, stderr=file, timeout=150, check=False).returncode
        if whole:  # one that is not to be had does not keep the others away
            left = [one for one in missing if subprocess.run([*pip, one], stdout=file, stderr=file, timeout=60, check=False).returncode]
    return python, left


def joined(wheels: Path, out: Path) -> Path:
    """The folder of wheels; those that a bundle holds in parts are joined first."""
    parts: dict[str, list[Path]] = {}
    for file in wheels.rglob("*.whl.part*"):
        parts.setdefault(file.name.rpartition(".part")[0], []).append(file)
    if not parts:
        return wheels
    folder = out / "wheels"
    folder.mkdir(exist_ok=True)
    for file in wheels.rglob("*.whl"):
        shutil.copy(file, folder)
    for name, files in parts.items():
        with (folder / name).open("wb") as whole:
            for part in sorted(files):
                whole.write(part.read_bytes())
    return folder


def build_loop() -> str:
    """Build the native timing loop where it is missing, as setup.py does but without setuptools; what was done."""
    library, sources = ROOT / "collbench/native/_loop.so", sorted((ROOT / "collbench/native").glob("*.c"))
    if library.exists():
        return "native loop: already built"
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        return "native loop: not built (no C compiler), so times are taken in Python"
    subprocess.run([compiler, "-O2", "-fPIC", "-shared", "-o", library, *sources], capture_output=True, timeout=60, check=False)
    return "native loop: built here" if library.exists() else "native loop: does not compile, so times are taken in Python"
