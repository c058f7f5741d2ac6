"""Playbooks: one launch over ssh, or a command on every host with collected output, read by Ansible itself."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.deploy.job import job_of
from collbench.plugins.deploy.kinds.ansible import KIND
from tests.cli.command import ROOT, environment
from tests.plugins.deploy.playing import PLAY
from tests.plugins.deploy.texts import HOSTILE, texts

pytest.importorskip("ansible")
pytestmark = pytest.mark.contract  # Ansible itself reads them, and starts programs of the system when it is imported


def emitted(*command: str, **said: Any) -> str:
    return KIND.render(job_of(KIND, command, {name.replace("_", "-"): value for name, value in said.items()}))


def as_ansible_reads(text: str, folder: Path) -> list[dict[str, Any]]:
    from ansible.parsing.dataloader import DataLoader

    (folder / "playbook.yml").write_text(text)
    plays: list[dict[str, Any]] = DataLoader().load_from_file(str(folder / "playbook.yml"), cache="none", trusted_as_template=True)
    return plays


def filled_in(part: Any, **variables: Any) -> Any:
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar

    return Templar(loader=DataLoader(), variables=variables).template(part)


def task(text: str, name: str, folder: Path) -> dict[str, Any]:
    (play_of_all,) = as_ansible_reads(text, folder)
    (found,) = (task for task in play_of_all["tasks"] if task["name"] == name)
    return dict(found)


def argv(text: str, name: str, folder: Path) -> list[str]:
    words: list[str] = filled_in(task(text, name, folder)["ansible.builtin.command"]["argv"], run="RUN")
    return words


START, ASK = "Start all ranks", "Ask the host"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("read")


class TestJinjaAndYaml:
    """User input is never used as a template."""

    @pytest.mark.system
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(words=st.lists(texts, max_size=10), value=texts)
    @example(words=list(HOSTILE), value="{{ lookup('pipe', 'touch injected') }}")
    @example(words=["{{", "}}", "{", "{% if x %}", "{#", "{{ omit }}"], value="{{ 7 * 7 }}")
    def test_ansible_passes_user_input_unchanged(self, words: list[str], value: str, folder: Path) -> None:
        text = emitted("allreduce", *words, env=(f"A={value}",), program="/opt/{{ x }}/collbench")
        found = task(text, START, folder)
        assert argv(text, START, folder)[: 2 + len(words)] == ["/opt/{{ x }}/collbench", "allreduce", *words]
        assert filled_in(found["environment"]["A"]) == value
        assert found["ansible.builtin.command"]["expand_argument_vars"] is False

    @pytest.mark.system
    @pytest.mark.parametrize("runs", ["{{ runs }}", "a b # c", 'it\'s: "x"'])
    def test_the_run_folder_is_not_a_template(self, runs: str, folder: Path) -> None:
        (one,) = as_ansible_reads(emitted("allreduce", runs=runs), folder)
        actual = filled_in(one["vars"]["run"], runs=filled_in(one["vars"]["runs"]), operation="allreduce", begun="NOW")
        assert actual == f"{runs}/NOW-allreduce"


class TestOneLaunch:
    def test_each_of_the_first_hosts_starts_one_process_that_becomes_its_ranks_before_the_playbook_waits(self, tmp_path: Path) -> None:
        (one,) = as_ansible_reads(emitted("allreduce", nodes=4, group="gpu"), tmp_path)
        assert (one["hosts"], one["any_errors_fatal"]) == ("gpu[0:3]", True)
        text = emitted("allreduce", "--sizes", "1K", nodes=2, gpus_per_node=8)
        assert argv(text, START, tmp_path) == ["collbench", "allreduce", "--sizes", "1K", "--ranks-per-node", "8", "--out", "RUN"]
        found = task(text, START, tmp_path)["environment"]
        actual = filled_in(
            dict(found),
            ansible_play_hosts_all=["a", "b"],
            inventory_hostname="b",
            first="a",
            handed={"dest": "/h/s"},
            hostvars={"a": {}, "b": {}},
        )
        assert actual == {"RANK": 1, "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500", "COLLBENCH_SECRET_FILE": "/h/s"}
        assert filled_in(found["MASTER_ADDR"], first="a", hostvars={"a": {"ansible_host": "10.0.0.1"}}) == "10.0.0.1"
        text = emitted("allreduce", minutes=10)
        assert (task(text, START, tmp_path)["async"], task(text, START, tmp_path)["poll"]) == (600, 0)
        wait = task(text, "Wait for their end", tmp_path)
        assert wait["delay"] * wait["retries"] > 600

    @pytest.mark.parametrize("words", ["--out x", "--out=x", "--resume x"])
    def test_the_run_folder_of_the_command_is_collected(self, words: str, tmp_path: Path) -> None:
        text = emitted("allreduce", *words.split())
        assert as_ansible_reads(text, tmp_path)[0]["vars"]["run"] == "x"
        assert argv(text, START, tmp_path).count("--out") == words.startswith("--out x")

    def test_variables_for_the_address_of_rank_0_are_kept_and_the_secret_is_not_logged(self, tmp_path: Path) -> None:
        said = ("MASTER_ADDR=10.0.0.1", "MASTER_PORT=1234", "COLLBENCH_SECRET_FILE=/run/secret")
        found = task(emitted("allreduce", env=said), START, tmp_path)["environment"]
        assert {name: found[name] for name in found if name not in ("RANK", "WORLD_SIZE")} == dict(pair.split("=") for pair in said)
        assert task(emitted("allreduce", port=4000), START, tmp_path)["environment"]["MASTER_PORT"] == "4000"
        (one,) = as_ansible_reads(emitted("allreduce"), tmp_path)
        (draws,) = (task for task in one["tasks"] if "secret" in task.get("ansible.builtin.set_fact", {}))
        assert draws["no_log"] is True and draws["run_once"] is True
        handed = task(emitted("allreduce"), "Hand the secret out, without which no rank can join", tmp_path)
        assert handed["no_log"] is True and handed["ansible.builtin.copy"]["mode"] == "0600"
        assert "secret: " not in emitted("allreduce", env=("COLLBENCH_SECRET=0123456789abcdef",))

    @pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
    def test_a_variable_for_the_rank_is_rejected(self, name: str) -> None:
        with pytest.raises(UsageError, match=f"^--env {name} "):
            emitted("allreduce", env=(f"{name}=3",))


class TestOnEachHost:
    def test_every_host_by_default_prints_json(self, tmp_path: Path) -> None:
        assert as_ansible_reads(emitted("probe"), tmp_path)[0]["hosts"] == "all"
        assert as_ansible_reads(emitted("doctor", group="gpu"), tmp_path)[0]["hosts"] == "gpu"
        assert as_ansible_reads(emitted("probe", nodes=2), tmp_path)[0]["hosts"] == "all[0:1]"
        assert argv(emitted("probe"), ASK, tmp_path) == ["collbench", "probe", "--format", "json"]
        assert argv(emitted("probe", "--format=json"), ASK, tmp_path) == ["collbench", "probe", "--format=json"]

    def test_the_committed_playbook_is_what_is_written(self) -> None:
        assert (ROOT / "deploy/ansible/probe.yml").read_text() == emitted("probe", name="collbench-probe")


@pytest.mark.long
def test_ansible_finds_nothing_wrong_with_them(tmp_path: Path) -> None:
    files = {
        "launch.yml": emitted("allreduce", *HOSTILE, env=("A={{ b }}",)),
        "out.yml": emitted("pairs", "--out", "x"),
        "each.yml": emitted("doctor"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    env = environment({"ANSIBLE_HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"})
    line = [str(PLAY), "--syntax-check", "-i", "localhost,", *files]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line] == [f"playbook: {name}" for name in files]
