"""CB28xx: packages that break one another or do not load, an mpiexec of another MPI; in folders like those of installed packages."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collbench.launch import explain
from collbench.launch.explain import MpiLibrary
from collbench.machine.doctor import host
from collbench.machine.doctor.finding import Finding
from tests.cli.command import run

pytestmark = pytest.mark.contract

# What torch 2.13's distributed_c10d.py does as it is imported: it forgives an ImportError, and nothing else.
AS_TORCH_DOES = "try:\n    from torchcomms import new_comm\nexcept ImportError:\n    pass\n"
OTHER_TORCH = "raise OSError('libtorchcomms.so: undefined symbol: _ZN5torch4Work')\n"
OPEN_MPI, MPICH = "mpirun (Open MPI) 5.0.11", "MPICH Version:      5.0.2\n"


def made_up_package(site: Path, name: str, version: str, **modules: str) -> Path:
    """A package that pip would take for installed, with these modules ("torch__distributed" for torch/distributed)."""
    record = site / f"{name.replace('-', '_')}-{version}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for module, text in modules.items():
        file = site.joinpath(*module.split("__"), "__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return site


def made_up_torch(site: Path, torchcomms: str, distributed: str = AS_TORCH_DOES) -> Path:
    """A fake torch that imports torchcomms as torch does, and a torchcomms with this text."""
    made_up_package(site, "torch", "2.13.0", torch="", torch__distributed=distributed)
    return made_up_package(site, "torchcomms", "0.3.0", torchcomms=torchcomms)


def found_on(site: Path, **env: str) -> list[Finding]:
    return host.examined_software("node1", {"PATH": "", "PYTHONPATH": str(site), **env}, [str(site)])


def test_a_torchcomms_for_another_torch_breaks_torch(tmp_path: Path) -> None:
    (finding,) = found_on(made_up_torch(tmp_path, OTHER_TORCH))
    assert (finding.code, finding.severity, finding.hostname) == ("CB2801", "severe", "node1")
    assert "torchcomms 0.3.0" in finding.what
    assert finding.evidence.endswith("ends with: OSError: libtorchcomms.so: undefined symbol: _ZN5torch4Work")
    assert finding.remedy.startswith("pip uninstall torchcomms; ")


NO_FAULT = {
    "one that works": ("new_comm = print\n", AS_TORCH_DOES),
    "PyPI's placeholder, which torch forgives": ("raise ImportError('see README')\n", AS_TORCH_DOES),
    "a torch that is broken by itself": ("new_comm = print\n", "raise OSError('libtorch_cpu.so: no such file')\n"),
}


@pytest.mark.parametrize(("torchcomms", "distributed"), NO_FAULT.values(), ids=NO_FAULT)
def test_a_torch_that_works_or_is_broken_by_itself_is_no_finding(tmp_path: Path, torchcomms: str, distributed: str) -> None:
    assert found_on(made_up_torch(tmp_path / "torchcomms-trial", torchcomms, distributed)) == []


def test_one_that_does_not_answer_in_time_is_accused_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_SOFTWARE_PATIENCE_S", 0.3)
    assert found_on(made_up_torch(tmp_path, "import time; time.sleep(60)\n")) == []


def test_nothing_is_imported_where_there_is_no_torchcomms(tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    assert found_on(made_up_package(tmp_path, "torch", "2.13.0", torch=f"open({str(imported)!r}, 'w')\n")) == []
    assert not imported.exists()


def test_two_wheels_of_cupy(tmp_path: Path) -> None:
    made_up_package(tmp_path, "cupy-cuda12x", "14.2.0")
    assert found_on(tmp_path) == []
    (finding,) = found_on(made_up_package(tmp_path, "cupy-cuda13x", "14.1.0"))
    assert (finding.code, finding.severity) == ("CB2803", "warning")
    assert "cupy-cuda12x and cupy-cuda13x" in finding.what
    assert "cupy-cuda12x 14.2.0 and cupy-cuda13x 14.1.0" in finding.evidence
    assert finding.remedy.startswith("pip uninstall -y cupy-cuda12x cupy-cuda13x; ")


def built_oneccl(site: Path, lacks: str = "") -> Path:
    """A package oneccl-cpu with a libccl.so.1, which needs a library that is not there if it `lacks` one. Skips without a compiler."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    made_up_package(site, "oneccl-cpu", "2021.17.2")
    (site / "oneccl_cpu-2021.17.2.dist-info/RECORD").write_text("lib/libccl.so.1,,\n")
    (site / "lib").mkdir()
    needed = []
    if lacks:
        subprocess.run(["cc", "-shared", "-x", "c", os.devnull, "-o", str(site / lacks), f"-Wl,-soname,{lacks}"], check=True)
        needed = ["-Wl,--no-as-needed", str(site / lacks)]
    subprocess.run(["cc", "-shared", "-x", "c", os.devnull, "-x", "none", *needed, "-o", str(site / "lib/libccl.so.1")], check=True)
    if lacks:
        (site / lacks).unlink()
    return site


def test_a_oneccl_that_lacks_a_library(tmp_path: Path) -> None:
    (finding,) = found_on(built_oneccl(tmp_path, lacks="libmade_up_ccl.so.2"))
    assert (finding.code, finding.severity, finding.hostname) == ("CB2810", "warning", "node1")
    assert "oneccl-cpu 2021.17.2" in finding.what
    assert finding.evidence.startswith(f"{tmp_path}/lib/libccl.so.1: libmade_up_ccl.so.2: cannot open shared object file")
    assert "oneccl-cpu<2021.17" in finding.remedy


def test_a_oneccl_that_loads_and_one_without_records_are_no_finding(tmp_path: Path) -> None:
    assert found_on(made_up_package(tmp_path / "without", "oneccl-cpu", "2021.17.2")) == []
    assert found_on(built_oneccl(tmp_path / "loads")) == []


@pytest.mark.parametrize(("says", "codes"), [(OPEN_MPI, ["CB2802"]), ("HYDRA build details:\n    Version:  5.0.2", [])])
def test_an_mpiexec_of_another_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, codes: list[str]) -> None:
    monkeypatch.setattr(explain, "library", lambda env: MpiLibrary(MPICH, "/opt/libmpi.so", "4.1.2"))
    (tmp_path / "mpiexec").write_text(f"#!/bin/sh\necho '{says}'\n")
    (tmp_path / "mpiexec").chmod(0o755)
    findings = list(host.mixed_mpiexec("node1", {"PATH": str(tmp_path)}))
    assert [finding.code for finding in findings] == codes
    for finding in findings:
        assert finding.severity == "warning"
        assert finding.what.startswith(f"mpiexec in {tmp_path}, ")
        assert finding.remedy


def test_no_process_is_asked_for_mpi_where_path_leads_to_no_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "library", lambda env: pytest.fail("mpi4py was asked"))
    assert list(host.mixed_mpiexec(None, {"PATH": ""})) == []


@pytest.mark.system
def test_the_command_finds_them_in_the_environment_it_runs_in(tmp_path: Path) -> None:
    site = made_up_torch(tmp_path / "site", OTHER_TORCH)
    made_up_package(site, "cupy-cuda12x", "14.2.0")
    made_up_package(site, "cupy-cuda13x", "14.2.0")
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "PATH": os.defpath}
    done = run(tmp_path, "doctor", "--format", "json", program=(sys.executable, "-m", "collbench"), env=env)
    assert done.returncode == 1, done.stderr
    actual = {finding["code"]: finding["severity"] for finding in json.loads(done.stdout)["findings"]}
    assert (actual["CB2801"], actual["CB2803"]) == ("severe", "warning")
