"""A job: the command, and what was said of it, with defaults where nothing was."""

from __future__ import annotations

import pytest

from collbench.deploy.job import ENV, EVERYWHERE, GPUS, NODES, RANKS, JobSetting, LauncherKind, LaunchJob, job_of
from collbench.errors import UsageError

KIND = LauncherKind("some", "a kind", ".x", EVERYWHERE, lambda job: "", "start FILE")


def job(*command: str, **said: object) -> LaunchJob:
    settings: dict[str, object] = {name.replace("_", "-"): value for name, value in said.items()}
    return job_of(KIND, command or ("allreduce",), settings)  # type: ignore[arg-type]


def test_what_nobody_said_has_its_default() -> None:
    found = job()
    assert (found.nodes, found.gpus, found.ranks, found.name, found.program, found.runs) == (2, 0, 1, "collbench", "collbench", "runs")
    assert found.environment == {} and found.explicit == frozenset()
    assert found["ranks-per-node"] is None
    with pytest.raises(KeyError):
        found["ranks-per-nod"]


@pytest.mark.parametrize(("gpus", "said", "ranks"), [(0, None, 1), (8, None, 8), (8, 4, 4), (0, 6, 6), (1, None, 1)])
def test_a_rank_for_each_gpu_unless_somebody_says_else(gpus: int, said: int | None, ranks: int) -> None:
    assert job(gpus_per_node=gpus, **({"ranks_per_node": said} if said else {})).ranks == ranks


def test_of_a_variable_that_is_given_twice_the_last_value_holds() -> None:
    assert job(env=("A=1", "B=x=y", "A=2", "C=")).environment == {"A": "2", "B": "x=y", "C": ""}


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ("allreduce", None),
        ("allreduce --out x", "x"),
        ("allreduce --out=x", "x"),
        ("allreduce --out= --sizes 8", ""),
        ("allreduce --out=x --out y", "y"),
        ("allreduce --out x --out=y", "y"),
        ("allreduce --outer x", None),
    ],
)
def test_where_the_command_itself_leaves_its_run(words: str, out: str | None) -> None:
    found = job(*words.split())
    assert (found.out, found.has_out) == (out, out is not None)
    assert found.wants_out == (out is None)


@pytest.mark.parametrize("words", ["probe", "doctor", "allreduce --resume runs/x", "allreduce --resume=runs/x"])
def test_what_writes_no_run_of_its_own_is_given_no_folder(words: str) -> None:
    assert not job(*words.split()).wants_out


def test_a_setting_that_the_kind_has_no_use_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--partition does not apply to emit some"):
        job(partition="h100")


def test_what_was_said_is_told_from_defaults() -> None:
    assert job(nodes=2).explicit == {"nodes"} and job(nodes=2).nodes == job().nodes


def refusal(setting: JobSetting, text: str) -> str:
    with pytest.raises(UsageError) as refused:
        setting.parse(text)
    return str(refused.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "two", "100001", "٣", "1e3", "9" * 5000, "0x2"])
def test_numbers_of_nodes_that_cannot_be(text: str) -> None:
    assert refusal(NODES, text) == f"'{text}': not a whole number from 1 to 100000"


def test_numbers_that_can() -> None:
    assert (NODES.parse("1"), NODES.parse(" 10000 "), GPUS.parse("0"), RANKS.parse("8")) == (1, 10000, 0, 8)
    assert refusal(GPUS, "65") == "'65': not a whole number from 0 to 64"


IMAGE_REMEDY = "is not a valid image"


@pytest.mark.parametrize("text", ["a b", "a'b", 'a"b', "", "-a", "a;b", "$(a)", "a\nb", "`a`", "a,b", "a\\b"])
def test_images_with_blanks_and_quotes_are_refused(text: str) -> None:
    from collbench.deploy.job import IMAGE

    assert refusal(IMAGE, text).startswith(f"{text!r} {IMAGE_REMEDY}")


@pytest.mark.parametrize(
    "text",
    [
        "nvcr.io/nvidia/pytorch:25.10-py3",
        "localhost:5000/a_b:latest",
        "a/b@sha256:" + "0f" * 32,
        "/images/x.sif",
        "./x.sqsh",
        "nvcr.io#a/b:1",
    ],
)
def test_images_as_registries_and_file_systems_name_them(text: str) -> None:
    from collbench.deploy.job import IMAGE

    assert IMAGE.parse(text) == text


def test_names_and_paths() -> None:
    by_name = {setting.name: setting for setting in EVERYWHERE}
    assert by_name["name"].parse("night-2.x_y+1") == "night-2.x_y+1"
    for text in ("", "-x", "a b", "a/b", "a;b", "ä", ".x", "a\n"):
        assert refusal(by_name["name"], text).startswith(f"{text!r} is not a valid name")
    assert by_name["runs"].parse("/shared/the runs/'x'") == "/shared/the runs/'x'"
    assert "looks like an option: use ./-x" in refusal(by_name["runs"], "-x")
    assert refusal(by_name["runs"], "") == "missing path"
    for text in ("~/runs", "$HOME/runs"):
        assert refusal(by_name["program"], text).startswith(f"'{text}' is not expanded there")
    assert "control characters" in refusal(by_name["program"], "a\nb")


def test_variables() -> None:
    assert ENV.parse("NCCL_IB_HCA=mlx5_0,mlx5_1") == "NCCL_IB_HCA=mlx5_0,mlx5_1" and ENV.parse("A=") == "A="
    for text in ("A", "=x", "1A=x", "A B=x", "A-B=x", ""):
        assert refusal(ENV, text) == f"{text!r} is not NAME=VALUE, with a name of letters, digits and _"
    assert refusal(ENV, "A=x\ny")
