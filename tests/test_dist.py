"""The files of a release: built from a tag, complete, for every Python, and working in an empty environment."""

import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email.parser import HeaderParser
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

from tests.install.site import ROOT, measuring, offline, repack

pytestmark = pytest.mark.system

LOOP = "collbench/native/_loop.so"


@pytest.fixture(scope="module")
def script() -> SimpleNamespace:
    """Return the functions of tools/dist."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tools/dist")))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout's files, those that git tracks or will track, with one commit and the tag v1.2.3."""
    if not shutil.which("gcc"):
        pytest.skip("no gcc: apt-get install gcc libc6-dev")
    folder = tmp_path_factory.mktemp("tagged") / "collbench"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("this is no checkout of git")
    for name in listed.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("reports/", "tests/", "tools/benchmarks/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for part in ("reports", "tests", "tools/benchmarks"):
        (folder / part).mkdir()
        (folder / part / "file.py").touch()
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@localhost", "commit", "-qm", "Add all files")
    git(folder, "tag", "v1.2.3")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, timeout=60, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def dist(checkout: Path) -> Path:
    """Return the folder with the built files."""
    done = subprocess.run([sys.executable, "tools/dist", "build"], cwd=checkout, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return checkout / "dist"


def wheels(dist: Path) -> tuple[Path, Path]:
    """Return the wheel with the loop and the one without."""
    (pure,) = dist.glob("*-none-any.whl")
    (native,) = set(dist.glob("*.whl")) - {pure}
    return native, pure


@pytest.mark.system
def test_a_release_has_an_archive_and_two_wheels_with_the_version_of_the_tag(dist: Path) -> None:
    assert len(list(dist.iterdir())) == 3
    native, pure = wheels(dist)
    assert (dist / "collbench-1.2.3.tar.gz").exists() and pure.name == "collbench-1.2.3-py3-none-any.whl"
    assert re.fullmatch(r"collbench-1\.2\.3-py3-none-(manylinux\w+\.)*manylinux_2_\d+_\w+\.whl", native.name)


@pytest.mark.system
def test_wheels_and_archive_have_the_version_and_the_commit(dist: Path, checkout: Path) -> None:
    wanted = {"__version__": "1.2.3", "COMMIT": git(checkout, "rev-parse", "HEAD")}
    with tarfile.open(dist / "collbench-1.2.3.tar.gz") as archive:
        file = archive.extractfile("collbench-1.2.3/collbench/_version.py")
        assert file is not None
        texts = [file.read().decode()]
    texts += [ZipFile(wheel).read("collbench/_version.py").decode() for wheel in wheels(dist)]
    for text in texts:
        found: dict[str, str] = {}
        exec(text, found)
        assert {name: found[name] for name in wanted} == wanted


@pytest.mark.system
def test_a_wheel_has_every_file_of_the_package_and_the_manual_page_and_nothing_else(dist: Path) -> None:
    ours = {
        str(path.relative_to(ROOT)) for path in (ROOT / "collbench").rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    ours |= {f"collbench/{path.relative_to(ROOT)}" for path in (ROOT / "cuda_kernels").iterdir() if path.is_file()}
    for wheel, loop in zip(wheels(dist), ({LOOP}, set()), strict=True):
        names = {name for name in ZipFile(wheel).namelist() if not name.endswith("/")}
        package = {name for name in names if name.startswith("collbench/")}
        assert package == ours | loop | {"collbench/_version.py"}
        assert {name.partition("/")[2] for name in names - package} == {
            *("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"),
            "licenses/collbench/report/html/vendor/uPlot.LICENSE",
            "data/share/man/man1/collbench.1",
        }


def test_the_tags_inside_a_wheel_are_those_of_its_name(dist: Path) -> None:
    for wheel in wheels(dist):
        (name,) = (name for name in ZipFile(wheel).namelist() if name.endswith(".dist-info/WHEEL"))
        inside = HeaderParser().parsestr(ZipFile(wheel).read(name).decode()).get_all("Tag") or []
        assert {tag.split("-")[2] for tag in inside} == set(wheel.stem.split("-")[4].split("."))
        assert {tuple(tag.split("-")[:2]) for tag in inside} == {("py3", "none")}


def test_an_archive_has_what_builds_the_package_and_no_tests_or_reports(dist: Path) -> None:
    with tarfile.open(dist / "collbench-1.2.3.tar.gz") as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    tops = {name.split("/")[0] for name in names}
    assert {"LICENSE", "README.md", "collbench", "cuda_kernels", "pyproject.toml", "tools", "setup.py"} <= tops
    assert not {"tests", "reports", "slurm", "deploy", "docs", ".github", ".ci"} & tops
    assert {name for name in names if name.startswith("tools/")} == {"tools/man_page"}


@pytest.mark.parametrize("damage", ["no such wheel", "unexpected file", "no loop"])
def test_a_damaged_set_of_wheels_is_reported_in_one_sentence(
    damage: str, dist: Path, script: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    native, pure = (Path(shutil.copy(wheel, tmp_path)) for wheel in wheels(dist))
    script.check_wheels(tmp_path)
    if damage == "no such wheel":
        pure.unlink()
    elif damage == "unexpected file":
        with ZipFile(pure, "a") as opened:
            opened.writestr("tests/test_x.py", "")
    else:
        shutil.copy(pure, native)
    with pytest.raises(SystemExit) as error:
        script.check_wheels(tmp_path)
    assert error.value.code == 2 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.long  # 30 s; CI always runs `make dist`, which does the same with every Python
def test_collbench_check_measures_in_an_empty_environment(
    dist: Path, script: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    for name in measuring("mpich"):
        repack(name, index)
    for name, value in offline(index).items():
        monkeypatch.setenv(name, value)
    script.try_wheel(tmp_path, sys.executable, wheels(dist)[0], has_loop=True)
    assert " rows; " in capsys.readouterr().out


@pytest.mark.parametrize(("tag", "commits", "wanted"), [("v1.2.3", 0, "1.2.3"), ("v1.2.3", 4, "1.2.4.dev4"), ("", 0, "0.1.0.dev0")])
def test_a_copy_without_git_has_the_version_of_the_tag_or_the_fallback(tag: str, commits: int, wanted: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if tag:
        (tmp_path / ".git_archival.txt").write_text(f"describe-name: {tag}-{commits}-gabcdef0\n")  # as install.sh writes it
    done = subprocess.run(
        [sys.executable, "-P", "-m", "setuptools_scm"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip().partition("+")[0] == wanted


def test_the_fallback_is_the_version_of_a_checkout() -> None:
    text = (ROOT / "collbench/__init__.py").read_text()
    fallback = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"]["fallback_version"]
    assert re.findall(r'__version__, COMMIT = "(.*?)"', text) == [fallback]
