"""The versions that a site keeps, and the constraints for pip."""

import re
from importlib.metadata import PackageNotFoundError, distribution, requires

import pytest

from deploy.install.kept import ON_NUMPY, constraints, kept
from tests.install.site import ROOT

TESTED = (ROOT / "constraints.txt").read_text()


def site(folder, **versions):
    """Make a folder with the metadata of these distributions."""
    folder.mkdir()
    for name, version in versions.items():
        (folder / f"{name}-{version}.dist-info").mkdir()
        (folder / f"{name}-{version}.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def seen(*folders):
    from importlib.metadata import distributions

    return kept(distributions(path=[str(folder) for folder in folders]))


KEPT = {"torch": "2.9.0a0", "mpi4py": "4.1.0", "nvidia_nccl_cu13": "2.28.9", "cupy_cuda13x": "14.0"}
BESIDE = {"rich": "13.0", "nvidia_ml_py": "12.0"}


@pytest.mark.parametrize(("versions", "names"), [
    ({**KEPT, **BESIDE}, {"cupy-cuda13x", "mpi4py", "nvidia-nccl-cu13", "torch"}),
    ({"numpy": "1.26.4", "torch": "2.8"}, {"numpy", "torch"}),  # built for it
    ({"numpy": "1.26.4", "mpi4py": "4.1"}, {"mpi4py"}),
])  # fmt: skip
def test_what_decides_the_numbers_is_kept_and_tools_are_not(versions, names, tmp_path):
    kept_versions = {name: version for name, (version, _) in seen(site(tmp_path / "a", **versions)).items()}
    of_site = {name.replace("_", "-"): version for name, version in versions.items()}
    assert kept_versions == {name: of_site[name] for name in names}


def test_the_first_of_two_is_reported_with_its_path(tmp_path):
    first, second = site(tmp_path / "a", torch="2.8"), site(tmp_path / "b", torch="2.7", mpi4py="4.1.1")
    assert seen(first, second) == {"torch": ("2.8", str(first)), "mpi4py": ("4.1.1", str(second))}


def test_pip_is_held_to_the_site_s_versions_and_else_to_the_tested_ones():
    lines = list(constraints(TESTED, {"torch": ("2.9+site", "/apps"), "mpi4py": ("4.1.0", "/apps")}))
    tested = [line for line in TESTED.splitlines() if "==" in line]
    assert lines[-2:] == ["torch==2.9+site", "mpi4py==4.1.0"]
    assert lines[:-2] == [line for line in tested if not re.match("(torch|mpi4py)==", line)]


def test_beside_another_numpy_what_is_built_on_it_is_left_to_pip():
    names = {line.partition("==")[0] for line in constraints(TESTED, {"numpy": ("1.26.4", "/apps"), "torch": ("2.5", "/apps")})}
    assert "numpy" in names and "ml_dtypes" not in names and "rich" in names
    tested = re.findall(r"^numpy==(\S+)", TESTED, re.MULTILINE)[0]
    assert "ml_dtypes" in {line.partition("==")[0] for line in constraints(TESTED, {"numpy": (tested, "/apps")})}


def test_those_built_on_numpy_are_those_that_say_so():
    """Of the tested versions; tools of `make test` and cupy, which is kept itself, apart."""
    ours = TESTED.partition("# CUDA 13")[0]
    built = set()
    for name in re.findall(r"^(\S+)==", ours, re.MULTILINE):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        if any(re.match(r"numpy\b", wanted) and "extra" not in wanted for wanted in requires(name) or []):
            built.add(name.replace("_", "-").lower())
    assert built == ON_NUMPY
