"""Emitted playbooks over hosts that are reached as by ssh: probe on every host, and one launch over two of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import run_here
from tests.launchers.stored import measured
from tests.plugins.deploy.playing import messages, play
from tests.plugins.deploy.recorded import program
from tests.testbeds import Hosts

pytest.importorskip("ansible")

ABSENT = "absent ansible_host=127.0.0.1 ansible_port=1 ansible_ssh_executable=ssh"


@pytest.mark.hosts
@pytest.mark.long
@pytest.mark.timeout(150)
class TestOverHosts:
    @pytest.fixture
    def bed(self, hosts: Callable[..., Hosts]) -> Hosts:
        return hosts(3, "1gbit")

    def written(self, folder: Path, *words: str) -> Path:
        """Write the playbook to a folder of the controller that is not a working folder of a host."""
        (folder / "controller").mkdir()
        done = run_here(folder, "emit", "ansible", "--write", "controller/play.yml", *words)
        assert done.returncode == 0, done.stderr
        return folder / "controller/play.yml"

    def test_probe_is_collected_and_a_missing_host_is_reported(self, bed: Hosts, tmp_path: Path) -> None:
        done = play(bed, tmp_path, self.written(tmp_path, "--", "probe"), more=[ABSENT])
        (folder,) = (tmp_path / "controller/runs").glob("*-probe")
        assert done.returncode == 4, done.stdout  # Ansible's own, for unreachable hosts
        assert sorted(path.name for path in folder.iterdir()) == [f"{name}.json" for name in bed.names]
        assert f"3 of 4 hosts are in {folder}" in done.stdout
        assert "Connection refused" in messages(done)["absent"] and list(messages(done)) == ["absent"]
        actual = json.loads(run_here(tmp_path, "doctor", "--from", str(folder), "--format", "json").stdout)
        assert sorted(actual["hostnames"]) == bed.names
        actual = json.loads(run_here(tmp_path, "probe", "--from", str(folder), "--format", "json").stdout)
        assert sorted(machine["hostname"] for machine in actual["machines"]) == bed.names

    def test_doctor_fails_on_a_severe_finding_after_all_is_collected(self, bed: Hosts, tmp_path: Path) -> None:
        says = r'echo "{\"host\": \"$(hostname)\", \"args\": \"$*\"}"'
        severe = program(tmp_path, "collbench", f'#!/bin/sh\n{says}\n[ "$(hostname)" != {bed.names[1]} ]\n')
        done = play(bed, tmp_path, self.written(tmp_path, "--program", str(severe), "--", "doctor"))
        (folder,) = (tmp_path / "controller/runs").glob("*-doctor")
        actual = {path.stem: path.read_text() for path in folder.iterdir()}
        assert actual == {name: f'{{"host": "{name}", "args": "doctor --format json"}}\n' for name in bed.names}
        assert done.returncode == 2
        assert {host: text.split()[-1] for host, text in messages(done).items()} == {bed.names[1]: f"{folder}/{bed.names[1]}.json"}

    def test_a_launch_with_one_fork_measures_and_is_collected(self, bed: Hosts, tmp_path: Path) -> None:
        words = ["--nodes", "2", "--ranks-per-node", "2", "--group", "nodes", "--env", "A={{ b }} $HOME"]
        inner = ["allreduce", "--backend", "gloo", "--sizes", "1K,64K", "--allocation", "{{ x }} $HOME $(id) # : '"]
        done = play(bed, tmp_path, self.written(tmp_path, *words, "--", *inner), forks=1)
        assert done.returncode == 0, done.stdout
        (there,) = (tmp_path / "runs").iterdir()
        (here,) = (tmp_path / "controller/runs").iterdir()
        assert here.name == there.name and here.name.endswith("Z-allreduce")
        found = read_run(here)
        assert found.finished and [(row.size_bytes, row.ranks, row.nodes, row.wrong) for row in found.rows] == [
            (size, 4, 2, 0) for size in sorted((1024, 65536), key=[row.size_bytes for row in found.rows].index)
        ]
        assert sorted(found.info["hosts"]) == sorted(bed.names[:2]) and found.info["allocation_id"].endswith("{{ x }} $HOME $(id) # : '")
        assert measured(found)["gloo"] == (4, 2, 0)
        assert not list(tmp_path.glob(".collbench-secret*"))
        assert "64 KiB  gloo" in done.stdout and f"collected into {here}" in done.stdout

    def test_a_failed_launch_has_the_error_of_collbench(self, bed: Hosts, tmp_path: Path) -> None:
        playbook = self.written(tmp_path, "--", "allreduce", "--backend", "gloo", "--sizes", "1K", "--out", "/proc/nowhere")
        done = play(bed, tmp_path, playbook)
        said = messages(done)
        assert done.returncode == 2 and set(said) == set(bed.names[:2]), done.stdout
        assert "exit code 2: collbench: " in said[bed.names[0]] and "/proc/nowhere" in said[bed.names[0]]
        assert "exit code 2: " in said[bed.names[1]] and "/proc/nowhere" not in said[bed.names[1]]

    @pytest.mark.parametrize(("words", "more", "said"), [
        (["--nodes", "5"], [], "5 hosts"), (["--nodes", "4"], [ABSENT], "Connection refused"),
        (["--program", "/no/where"], [], "/no/where "),
    ], ids=["too few", "one unreachable", "no collbench"])  # fmt: skip
    def test_no_rank_is_started_where_a_host_is_missing(self, words, more, said, bed, tmp_path):
        playbook = self.written(tmp_path, "--group", "nodes", *words, "--", "allreduce", "--backend", "gloo", "--sizes", "1K")
        done = play(bed, tmp_path, playbook, more=more)
        assert done.returncode == (4 if more else 2) and messages(done), done.stdout
        assert all(said in each for each in messages(done).values()), messages(done)
        assert "Start all ranks" not in done.stdout and not (tmp_path / "runs").exists()
