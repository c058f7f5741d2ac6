"""The kernels of cuda_kernels/ as a cubin for one GPU architecture: compiled by NVRTC at run time, kept on disk for the next start.

A cubin holds the architecture's own machine code, so nothing is left for the driver to compile when a measurement starts. A kept
file is loaded only if it is ours and its content is what its name says. Ranks that start together may compile it several times;
each file appears whole or not at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any

from collbench.errors import RunFailed, UsageError

_FILES = ("verify.cu", "bandwidth.cu", "peer.cu", "sync.cu")
_HEADERS = ("vectors.h",)
_PROGRAM = "".join(f'#include "{name}"\n' for name in _FILES)
_OPTIONS = ("-std=c++17",)
_WRITABLE_BY_OTHERS = 0o022
Sources = Mapping[str, bytes]


def cubin(arch: str) -> Path:
    """The file with all kernels for `arch` ("sm_90"), as cupy.RawModule(path=…) loads it.

    Raises UsageError where NVRTC is missing or too old for the GPU, or no folder takes the file; RunFailed if the kernels do not compile.
    """
    sources = _sources()
    key = _key(arch, sources)
    for folder in _folders(os.environ):
        if found := _kept(folder, key):
            return found
    return _keep(_compiled(arch, sources), key)


def source_folder() -> Path:
    """Where the .cu files are: in an installed package inside it, in a checkout beside it. Raises RunFailed where they are not."""
    package = Path(__file__).parents[1]
    for folder in (package / "cuda_kernels", package.parent / "cuda_kernels"):
        if (folder / _FILES[0]).is_file():
            return folder
    raise RunFailed(f"the sources of the CUDA kernels are missing beside {package}: install collbench again")


def _sources() -> Sources:
    folder = source_folder()
    return {name: (folder / name).read_bytes() for name in (*_FILES, *_HEADERS)}


def _key(arch: str, sources: Sources) -> str:
    """A name for all that the cubin follows from."""
    version = ".".join(map(str, _nvrtc().getVersion()))
    parts = [arch.encode(), version.encode(), repr((_PROGRAM, _OPTIONS)).encode(), *sources.values()]
    return f"kernels-{arch}-{sha256(b''.join(sha256(part).digest() for part in parts)).hexdigest()[:32]}"


def _nvrtc() -> Any:
    """cupy's NVRTC, which answers. Raises UsageError where there is none."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # the library is loaded at the first call, and cupy has several errors for its absence
        raise UsageError(
            f"NVRTC, which compiles the kernels that fill and verify GPU memory, does not load ({error}): "
            "install collbench with its extra cuda13 (or cuda12)"
        ) from error
    return nvrtc


def _folders(env: Mapping[str, str]) -> Iterator[Path]:
    """Where compiled kernels are kept: the user's cache; where that cannot be written, a folder of the user's among temporary files."""
    if given := env.get("COLLBENCH_CACHE"):
        yield Path(given)
    elif base := env.get("XDG_CACHE_HOME"):
        yield Path(base) / "collbench"
    elif (home := Path("~").expanduser()).is_absolute():
        yield home / ".cache/collbench"
    yield Path(tempfile.gettempdir()) / f"collbench-cache-{os.getuid()}"


def _kept(folder: Path, key: str) -> Path | None:
    """A file of ours for `key` whose content is what its name says; others are passed over."""
    try:
        return next((path for path in sorted(folder.glob(f"{key}-*.cubin")) if _sound(path, key)), None)
    except OSError:
        return None


def _sound(path: Path, key: str) -> bool:
    status = path.lstat()
    ours = S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & _WRITABLE_BY_OTHERS
    return ours and path.name == _name(key, path.read_bytes())


def _name(key: str, content: bytes) -> str:
    return f"{key}-{sha256(content).hexdigest()[:32]}.cubin"


def _keep(content: bytes, key: str) -> Path:
    """Writes the cubin into the first folder that takes it."""
    refusals = []
    for folder in _folders(os.environ):
        try:
            return _written(folder, _name(key, content), content)
        except OSError as error:
            refusals.append(f"{folder}: {error.strerror or error}")
    raise UsageError(f"no folder takes the compiled kernels ({'; '.join(refusals)}): name a writable one in COLLBENCH_CACHE")


def _written(folder: Path, name: str, content: bytes) -> Path:
    """The file appears under its name when it is whole."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=folder, prefix="part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return Path(part).replace(folder / name)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _compiled(arch: str, sources: Sources) -> bytes:
    nvrtc = _nvrtc()
    headers = [(name.encode(), text) for name, text in sources.items()]
    program = nvrtc.createProgram(_PROGRAM, "collbench.cu", [text for _, text in headers], [name for name, _ in headers])
    try:
        nvrtc.compileProgram(program, (f"-arch={arch}", *_OPTIONS))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise _refusal(arch, nvrtc, nvrtc.getProgramLog(program).strip() or str(error)) from error
    finally:
        nvrtc.destroyProgram(program)


def _refusal(arch: str, nvrtc: Any, log: str) -> RunFailed | UsageError:
    version = ".".join(map(str, nvrtc.getVersion()))
    if "gpu-architecture" in log:
        return UsageError(
            f"NVRTC {version} does not know the architecture {arch} of this GPU: bring nvidia-cuda-nvrtc up to date (extras cuda12 and "
            "cuda13), or for an old GPU take the one of an older CUDA"
        )
    return RunFailed(f"NVRTC {version} does not compile collbench's kernels for {arch}: {log}")
