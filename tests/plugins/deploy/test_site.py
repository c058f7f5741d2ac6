"""A site file: what is the same for every job, by partition; strict about keys, partitions and values."""

import os
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.deploy.job import of_site, together
from collbench.plugins.deploy.kinds import settings

GOOD = """schema = 1
[defaults]
account = "infra"
minutes = 60
env = ["A=1", "B=1"]
[partitions.h100]
gpus-per-node = 8
account = "gpu"
env = "A=2"
[partitions."cpu long"]
nodes = "4"
"""


def site(folder: Path, text: str | bytes) -> Path:
    file = folder / "site.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def of(folder: Path, text: str | bytes, partition: str | None = None, *, named: bool = False) -> dict[str, object]:
    return dict(of_site(site(folder, text), partition, settings(), named=named))


def refusal(folder: Path, text: str | bytes, partition: str | None = None, *, named: bool = False) -> str:
    with pytest.raises(UsageError) as refused:
        of(folder, text, partition, named=named)
    said = str(refused.value)
    assert "\n" not in said
    return said.replace(f"{folder}/", "")


def test_settings_add_up_and_unknown_partitions_are_named(tmp_path: Path) -> None:
    assert of(tmp_path, GOOD) == {"account": "infra", "minutes": 60, "env": ("A=1", "B=1")}
    assert of(tmp_path, GOOD, "h100") == {"account": "gpu", "minutes": 60, "env": ("A=1", "B=1", "A=2"), "gpus-per-node": 8}
    assert of(tmp_path, GOOD, "cpu long") == {"account": "infra", "minutes": 60, "env": ("A=1", "B=1"), "nodes": 4}
    assert together({"nodes": 2, "env": ("A=1",)}, {}, {"nodes": 3, "env": ("A=2",)}, {"name": "x"}) == {
        "nodes": 3,
        "env": ("A=1", "A=2"),
        "name": "x",
    }


def test_unknown_partitions(tmp_path: Path) -> None:
    assert "'h200'" in refusal(tmp_path, GOOD, "h200")
    assert of(tmp_path, "schema = 1\n", "h100") == {}  # a partition of Slurm that is not in the file
    assert "'h100'" in refusal(tmp_path, "schema = 1\n", "h100", named=True)


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("schema = 1\n[defaults]\nacount = 'x'\n", "site.toml: [defaults]: unknown key 'acount'"),
        ("schema = 1\n[partitions.x]\nnode = 1\n", "site.toml: [partitions.x]: unknown key 'node'"),
        ('schema = 1\n[defaults]\n"a\\nb" = 1\n', "site.toml: [defaults]: unknown key 'a\\nb'"),
        ("schema = 1\nnodes = 2\n", "site.toml: unknown key 'nodes'"),
        ("[defaults]\n", "site.toml: missing schema = 1"),
        ("schema = 2\n", "site.toml: missing schema = 1"),
        ("schema = 1\ndefaults = 3\n", "site.toml: defaults "),
        ("schema = 1\npartitions = []\n", "site.toml: partitions "),
        ("schema = 1\n[partitions]\nh100 = 8\n", "site.toml: [partitions.h100] "),
        ("schema = 1\n[defaults]\nnodes = 0\n", "site.toml: [defaults] nodes: '0'"),
        ("schema = 1\n[partitions.x]\nnodes = -3\n", "site.toml: [partitions.x] nodes: '-3'"),
        ("schema = 1\n[defaults]\nnodes = 1.5\n", "site.toml: [defaults] nodes = 1.5: "),
        ("schema = 1\n[defaults]\nnodes = true\n", "site.toml: [defaults] nodes = True: "),
        ("schema = 1\n[defaults]\nnodes = [2]\n", "site.toml: [defaults] nodes = [2]: "),
        ("schema = 1\n[defaults]\nname = 2026-01-01\n", "site.toml: [defaults] name = datetime.date(2026, 1, 1): "),
        ("schema = 1\n[defaults]\nenv = [[]]\n", "site.toml: [defaults] env = [[]]: "),
        ("schema = 1\n[defaults]\nenv = ['A']\n", "site.toml: [defaults] env: 'A' "),
        ("schema = 1\n[defaults]\nimage = 'a b'\n", "site.toml: [defaults] image: 'a b' "),
        ("schema = 1\n[defaults]\nruns = \"a\\u0007\"\n", "site.toml: [defaults] runs: 'a\\x07' "),
        ("schema = 1\n[defaults\n", "--site site.toml: invalid TOML ("),
        ("schema = 1\nschema = 1\n", "--site site.toml: invalid TOML ("),
        (b"schema = 1 # \xff\n", "--site site.toml: invalid TOML ("),
        ("schema = 1\na = " + "[" * 5000, "--site site.toml: invalid TOML ("),
        ("schema = " + "9" * 9999, "--site site.toml: invalid TOML ("),
        ("#" * (1 << 20) + "\n", "--site site.toml: cannot be read (it is larger than 1 MiB)"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_one_sentence(text: str | bytes, begin: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, text).startswith(begin)


def test_a_mistake_in_another_partition_is_reported(tmp_path: Path) -> None:
    assert "'nods'" in refusal(tmp_path, "schema = 1\n[partitions.a]\n[partitions.b]\nnods = 1\n", "a")


def test_a_path_that_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("nowhere", "No such file or directory"), ("", "Is a directory"), ("pipe", "it is a pipe")):
        with pytest.raises(UsageError, match=rf"^--site {tmp_path / name}: cannot be read \(.*{why}.*\): use a TOML file$"):
            of_site(tmp_path / name, None, settings())
