"""A job: the command and its settings, and where its file goes: to the disk, or to the command that submits it."""

import errno
import os
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.deploy import job as handing
from collbench.plugins.deploy.job import ENV, EVERYWHERE, GPUS, NODES, RANKS, JobSetting, LauncherKind, LaunchJob, job_of, of_site, together
from collbench.plugins.deploy.kinds import settings
from tests.cli.command import one_sentence, run_here
from tests.plugins.deploy.recorded import program

KIND = LauncherKind("some", "a kind", EVERYWHERE, lambda job: "", "start FILE")


def job(*command: str, **said: object) -> LaunchJob:
    settings: dict[str, object] = {name.replace("_", "-"): value for name, value in said.items()}
    return job_of(KIND, command or ("allreduce",), settings)  # type: ignore[arg-type]


def test_the_last_value_of_a_variable_counts_and_a_default_that_is_typed_is_explicit() -> None:
    with pytest.raises(KeyError):
        job()["ranks-per-nod"]
    assert job(env=("A=1", "B=x=y", "A=2", "C=")).environment == {"A": "2", "B": "x=y", "C": ""}
    assert job(nodes=2).explicit == {"nodes"} and job(nodes=2).nodes == job().nodes
    with pytest.raises(UsageError, match=r"^--partition .*emit some"):
        job(partition="h100")


@pytest.mark.parametrize(("gpus", "said", "ranks"), [(0, None, 1), (8, None, 8), (8, 4, 4), (0, 6, 6), (1, None, 1)])
def test_a_rank_for_each_gpu_unless_the_number_is_given(gpus: int, said: int | None, ranks: int) -> None:
    assert job(gpus_per_node=gpus, **({"ranks_per_node": said} if said else {})).ranks == ranks


@pytest.mark.parametrize(("words", "out"), [
    ("allreduce", None), ("allreduce --out x", "x"), ("allreduce --out=x", "x"), ("allreduce --out= --sizes 8", ""),
    ("allreduce --out=x --out y", "y"), ("allreduce --out x --out=y", "y"), ("allreduce --outer x", None),
])  # fmt: skip
def test_the_run_folder_of_the_command(words: str, out: str | None) -> None:
    found = job(*words.split())
    assert found.out == out
    assert found.wants_out == (out is None)


@pytest.mark.parametrize("words", ["probe", "doctor", "allreduce --resume runs/x", "allreduce --resume=runs/x"])
def test_a_command_without_a_new_run_gets_no_folder(words: str) -> None:
    assert not job(*words.split()).wants_out


def refusal(setting: JobSetting, text: str) -> str:
    with pytest.raises(UsageError) as refused:
        setting.parse(text)
    return str(refused.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "two", "100001", "٣", "1e3", "9" * 5000, "0x2"])
def test_invalid_numbers_of_nodes(text: str) -> None:
    assert refusal(NODES, text).startswith(f"'{text}': ") and refusal(NODES, text).endswith("1 to 100000")


@pytest.mark.parametrize("text", ["a b", "a'b", 'a"b', "", "-a", "a;b", "$(a)", "a\nb", "`a`", "a,b", "a\\b"])
def test_images_with_blanks_and_quotes_are_rejected(text: str) -> None:
    assert refusal(handing.IMAGE, text).startswith(f"{text!r} ")


@pytest.mark.parametrize("text", [
    "nvcr.io/nvidia/pytorch:25.10-py3", "localhost:5000/a_b:latest", "a/b@sha256:" + "0f" * 32, "/images/x.sif", "./x.sqsh",
    "nvcr.io#a/b:1",
])  # fmt: skip
def test_valid_images(text: str) -> None:
    assert handing.IMAGE.parse(text) == text


def test_names_paths_and_variables() -> None:
    by_name = {setting.name: setting for setting in EVERYWHERE}
    assert by_name["name"].parse("night-2.x_y+1") == "night-2.x_y+1"
    for text in ("", "-x", "a b", "a/b", "a;b", "ä", ".x", "a\n"):
        assert refusal(by_name["name"], text).startswith(f"{text!r} ")
    assert by_name["runs"].parse("/images/the runs/'x'") == "/images/the runs/'x'"
    assert "./-x" in refusal(by_name["runs"], "-x")
    assert "missing" in refusal(by_name["runs"], "")
    for text in ("~/runs", "$HOME/runs"):
        assert refusal(by_name["program"], text).startswith(f"'{text}' ")
    assert "control" in refusal(by_name["program"], "a\nb")
    assert ENV.parse("NCCL_IB_HCA=mlx5_0,mlx5_1") == "NCCL_IB_HCA=mlx5_0,mlx5_1" and ENV.parse("A=") == "A="
    for text in ("A", "=x", "1A=x", "A B=x", "A-B=x", ""):
        assert refusal(ENV, text).startswith(f"{text!r} ") and "NAME=VALUE" in refusal(ENV, text)
    assert refusal(ENV, "A=x\ny")
    assert (NODES.parse("1"), NODES.parse(" 10000 "), GPUS.parse("0"), RANKS.parse("8")) == (1, 10000, 0, 8)
    assert refusal(GPUS, "65").endswith("0 to 64")


# Files that the command reads.


ROUTED = ("workload", "expert-parallel", "--experts", "4")


@pytest.mark.parametrize("words", [("--routing", "tokens.csv"), ("--routing=tokens.csv",)])
def test_the_job_has_the_absolute_path_of_a_routing_file(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "tokens.csv").touch()
    done = run_here(tmp_path, "emit", "slurm", "--nodes", "2", "--", *ROUTED, *words)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("srun "))
    assert f"{words[0].partition('=')[0]}{'=' if '=' in words[0] else ' '}{tmp_path / 'tokens.csv'} " in line


@pytest.mark.parametrize(("kind", "words"), [
    (("slurm",), (*ROUTED, "--routing", "absent.csv")), (("mpirun", "--hosts", "hosts"), ("alltoallv", "--traffic", "absent.csv")),
    (("kubernetes", "--image", "registry.example/collbench:1"), (*ROUTED, "--routing", "tokens.csv")),
])  # fmt: skip
def test_a_file_that_the_job_could_not_read_is_refused(kind: tuple[str, ...], words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "tokens.csv").touch()
    done = run_here(tmp_path, "emit", *kind, "--nodes", "2", "--", *words)
    assert (done.returncode, done.stdout) == (2, "")
    one_sentence(done)


@pytest.mark.parametrize(
    ("kind", "text"), [(("slurm",), "zipf:1.2"), (("kubernetes", "--image", "registry.example/collbench:1"), "/data/tokens.csv")]
)
def test_a_generator_and_a_file_of_an_image_stay_as_they_are(kind: tuple[str, ...], text: str, tmp_path: Path) -> None:
    done = run_here(tmp_path, "emit", *kind, "--nodes", "2", "--", *ROUTED, "--routing", text)
    assert done.returncode == 0 and text in done.stdout and str(tmp_path) not in done.stdout


# Output of an emitted file: to the disk, without replacing a file, or to the command that submits it.

TAKEN = LauncherKind("some", "a kind", (), lambda job: "", submit=("take", "-"), start="take FILE")
RUN_BY_HAND = LauncherKind("other", "a kind", (), lambda job: "", start="play FILE")


def command(folder: Path, lines: str, first: str = "#!/bin/sh") -> dict[str, str]:
    program(folder, "take", f"{first}\n{lines}\n")
    return {"PATH": f"{folder}:{os.environ['PATH']}", "OWN": "kept"}


def submit_refusal(kind: LauncherKind, env: dict[str, str], text: str = "job\n") -> str:
    with pytest.raises(UsageError) as refused:
        handing.submit(kind, text, env)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("text", "mode"), [("#!/bin/bash\n", 0o755), ("a: 計算\n", 0o644)])
def test_only_a_script_is_executable(text: str, mode: int, tmp_path: Path) -> None:
    handing.write(tmp_path / "file", text)
    assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_no_file_is_replaced_and_no_folder_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", ""):
        with pytest.raises(UsageError, match=f"^--write {tmp_path / name}: "):
            handing.write(tmp_path / name, "new")
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "nowhere").exists()
    with pytest.raises(UsageError, match=os.strerror(errno.ENOENT)):
        handing.write(tmp_path / "a/b", "new")


@pytest.mark.system
def test_the_command_reads_the_file_and_its_output_is_returned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    env = command(tmp_path, 'cat >"$0.got"; echo "job 7 $1 $OWN"; echo "warning: late" >&2')
    assert handing.submit(TAKEN, "text 計算\n", env) == "job 7 - kept"
    assert (tmp_path / "take.got").read_text(encoding="utf-8") == "text 計算\n"
    assert capfd.readouterr().err == "warning: late\n"


@pytest.mark.system
def test_the_error_has_the_output_of_the_command(tmp_path: Path) -> None:
    refused = submit_refusal(TAKEN, command(tmp_path, "printf 'error: no\\n partition\\n' >&2; exit 1"))
    assert refused == "take failed: error: no partition"
    assert submit_refusal(TAKEN, command(tmp_path, "echo full; exit 3")) == "take failed: full"
    assert submit_refusal(TAKEN, command(tmp_path, "exit 3")) == "take failed: exit code 3"
    assert submit_refusal(TAKEN, command(tmp_path, "printf '\\377' >&2; exit 1")).endswith(": \ufffd")
    assert submit_refusal(TAKEN, command(tmp_path, "exit 1"), "x" * 1_000_000).endswith(" 1")  # it does not read its input


@pytest.mark.system
def test_a_command_that_is_missing_or_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for env in ({"PATH": str(tmp_path)}, {}):
        assert submit_refusal(TAKEN, env) == "--submit: take not found: write the file with --write, then run: take FILE"
    by_hand = "--submit is not supported by emit other: write the file with --write, then run: play FILE"
    assert submit_refusal(RUN_BY_HAND, {}) == by_hand
    broken = submit_refusal(TAKEN, command(tmp_path, "", "#!/nowhere"))
    assert broken.startswith(f"{tmp_path}/take ") and broken.endswith("take FILE")
    monkeypatch.setattr(handing, "_TIMEOUT_S", 0.2)
    late = "take did not end within 0.2 s: check whether the job was submitted"
    assert submit_refusal(TAKEN, command(tmp_path, "exec sleep 5")) == late


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


def of(folder: Path, text: str | bytes, partition: str | None = None, *, named: bool = False) -> dict[str, object]:
    site = folder / "site.toml"
    site.write_bytes(text if isinstance(text, bytes) else text.encode())
    return dict(of_site(site, partition, settings(), named=named))


def rejection_of(folder: Path, text: str | bytes, partition: str | None = None, *, named: bool = False) -> str:
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
        "nodes": 3, "env": ("A=1", "A=2"), "name": "x",
    }  # fmt: skip
    assert "'h200'" in rejection_of(tmp_path, GOOD, "h200")
    assert of(tmp_path, "schema = 1\n", "h100") == {}  # a partition of Slurm that is not in the file
    assert "'h100'" in rejection_of(tmp_path, "schema = 1\n", "h100", named=True)
    assert "'nods'" in rejection_of(tmp_path, "schema = 1\n[partitions.a]\n[partitions.b]\nnods = 1\n", "a")


@pytest.mark.parametrize(("text", "begin"), [
    ("schema = 1\n[defaults]\nacount = 'x'\n", "site.toml: [defaults]: unknown key 'acount'"),
    ("schema = 1\n[partitions.x]\nnode = 1\n", "site.toml: [partitions.x]: unknown key 'node'"),
    ('schema = 1\n[defaults]\n"a\\nb" = 1\n', "site.toml: [defaults]: unknown key 'a\\nb'"),
    ("schema = 1\nnodes = 2\n", "site.toml: unknown key 'nodes'"), ("[defaults]\n", "site.toml: missing schema = 1"),
    ("schema = 2\n", "site.toml: missing schema = 1"), ("schema = 1\ndefaults = 3\n", "site.toml: defaults "),
    ("schema = 1\npartitions = []\n", "site.toml: partitions "), ("schema = 1\n[partitions]\nh100 = 8\n", "site.toml: [partitions.h100] "),
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
    ("schema = 1\n[defaults\n", "--site site.toml: invalid TOML ("), ("schema = 1\nschema = 1\n", "--site site.toml: invalid TOML ("),
    (b"schema = 1 # \xff\n", "--site site.toml: invalid TOML ("), ("schema = 1\na = " + "[" * 5000, "--site site.toml: invalid TOML ("),
    ("schema = " + "9" * 9999, "--site site.toml: invalid TOML ("),
    ("#" * (1 << 20) + "\n", "--site site.toml: cannot be read (it is larger than 1 MiB)"),
])  # fmt: skip
def test_an_invalid_file_is_one_sentence(text: str | bytes, begin: str, tmp_path: Path) -> None:
    assert rejection_of(tmp_path, text).startswith(begin)


def test_a_path_that_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("nowhere", "No such file or directory"), ("", "Is a directory"), ("pipe", "it is a pipe")):
        with pytest.raises(UsageError, match=rf"^--site {tmp_path / name}: cannot be read \(.*{why}.*\): use a TOML file$"):
            of_site(tmp_path / name, None, settings())
