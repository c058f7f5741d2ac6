"""collbench probe --svg: a picture of each node that differs."""

import json
from pathlib import Path
from xml.etree import ElementTree

from collbench.machine.snapshot import topology_json
from tests.cli.command import run_here
from tests.cli.test_probe import cluster, node

__all__ = ["cluster"]


def test_pictures_of_nodes_are_written_where_they_can_be(tmp_path: Path, cluster: str) -> None:
    done = run_here(tmp_path, "probe", "--from", cluster, "--svg", "nodes.svg")
    assert done.returncode == 0 and [line.split()[-1] for line in done.stderr.splitlines()] == ["nodes-node1.svg", "nodes-node3.svg"]
    for name in ("nodes-node1.svg", "nodes-node3.svg"):
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")
    done = run_here(tmp_path, "probe", "--from", cluster, "--svg", "nowhere/x.svg")
    assert done.returncode == 2 and "nowhere/x-node1.svg" in done.stderr and done.stderr.count("\n") == 1


def test_a_host_name_cannot_move_a_picture_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "evil.json").write_text(json.dumps(topology_json([node("../../up"), node("b", 3)])))
    done = run_here(tmp_path, "probe", "--from", "evil.json", "--svg", "out.svg")
    assert done.returncode == 0 and (tmp_path / "out-.._.._up.svg").exists()
