"""CB2811 and CB2812: a UCC that cannot be used, and one whose UCX has no RDMA; on made-up libraries and folders like those of a host."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.plugins.libraries.ucc.findings import examined_ucc, no_rdma
from collbench.plugins.libraries.ucc.library import CHOSEN


def test_hosts_without_ucc_or_with_a_missing_one(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libucc.so.1")
    except OSError:
        assert examined_ucc("node1", {}) == []
    else:
        pytest.skip("the loader finds a UCC here")
    (finding,) = examined_ucc("node1", {CHOSEN: str(tmp_path / "libucc.so.1")})
    assert (finding.code, finding.severity, finding.hostname) == ("CB2811", "warning", "node1")
    assert finding.evidence == f"{CHOSEN}={tmp_path / 'libucc.so.1'}"
    root, modules = made_up_host(tmp_path, "4: ACTIVE", "libuct_cma.so.0", "libuct_cuda.so.0")
    (finding,) = no_rdma("node1", modules, root)
    assert (finding.code, finding.severity) == ("CB2812", "warning")
    assert "mlx5_0" in finding.what


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_library_that_is_not_ucc(tmp_path: Path) -> None:
    path = tmp_path / "libother.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(path)], input="int other;", text=True, check=True)
    (finding,) = examined_ucc("node1", {CHOSEN: str(path)})
    assert finding.code == "CB2811"
    assert "is not UCC" in finding.what


def made_up_host(root: Path, state: str, *modules: str) -> tuple[Path, Path]:
    port = root / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    folder = root / "lib/ucx"
    folder.mkdir(parents=True)
    for name in modules:
        (folder / name).write_text("")
    return root, folder


@pytest.mark.parametrize(
    ("state", "modules"),
    [
        ("4: ACTIVE", ("libuct_cma.so.0", "libuct_ib.so.0")),
        ("4: ACTIVE", ("libuct_cma.so.0", "libuct_ib_mlx5.so.0")),
        ("1: DOWN", ("libuct_cma.so.0",)),
        ("4: ACTIVE", ()),  # not a folder of modules: unknown
    ],
)
def test_a_ucx_with_rdma_or_without_a_use_for_it_is_no_finding(tmp_path: Path, state: str, modules: tuple[str, ...]) -> None:
    root, folder = made_up_host(tmp_path, state, *modules)
    assert list(no_rdma("node1", folder, root)) == []
    assert list(no_rdma("node1", None, root)) == []
