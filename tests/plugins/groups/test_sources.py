"""Groups of hosts from Slurm's files, kubectl's JSON, plain lists, scontrol and NVLink cliques; each malformed text is one error."""

import json

import pytest

from collbench.errors import UsageError
from collbench.plugins.groups import sources
from collbench.plugins.groups.sources import groups_of
from collbench.plugins.groups.topology import read_levels
from collbench.plugins.hunt.managers import CommandOutcome

HOSTS = [f"node{number:02}" for number in range(1, 9)]
HALVES = {name: "leaf1" if number < 4 else "leaf2" for number, name in enumerate(HOSTS)}
TREE = (
    "SwitchName=leaf1 Nodes=node[01-04]  # comment\nswitchname = leaf2 nodes=node[05-08] LinkSpeed=1\nSwitchName=spine Switches=leaf[1-2]\n"
)
SCONTROL = (
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=node[01-04]\nSwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=node[05-08]\n"
    "SwitchName=spine Level=1 LinkSpeed=1 Nodes=node[01-08] Switches=leaf[1-2]\n"
)
YAML = """\
---
# Slurm 25.05
- topology: other
  cluster_default: false
  block:
    block_sizes: [4, 8]
    blocks:
      - block: b1
        nodes: node[01-06]
      - block: b2
        nodes: "node[07-08]"
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[1-2]
      - switch: leaf1
        nodes: node[01-04]
      -  switch: leaf2
         nodes: node[05-08]
- topology: none
  flat: true
"""
BLOCKS = "BlockName=b1 Nodes=node[01-02]\nBlockName=b2 Nodes=node[03-04]\nBlockName=b3 Nodes=node[05-06]\nBlockSizes=2,4\n"


def labelled(**groups):
    items = []
    for rack, names in groups.items():
        for name in names:
            labels = {"kubernetes.io/hostname": name, "example.com/rack": rack, "topology.kubernetes.io/zone": "z"}
            items.append({"metadata": {"name": name, "labels": labels}})
    return json.dumps({"kind": "List", "items": items})


@pytest.fixture
def source(tmp_path):
    def write(text):
        path = tmp_path / "groups"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("text", [
    TREE, SCONTROL, YAML, TREE.replace("Nodes", "\\\n Nodes"), "leaf1: node[01-04]\nleaf2: node[05-08].cluster.example\n",
    "\ufeffleaf1: node[01-04]\nleaf2: node[05-08]\n", labelled(leaf1=HOSTS[:4], leaf2=HOSTS[4:]),
], ids=["topology.conf", "scontrol", "topology.yaml", "continued", "plain", "with a byte order mark", "kubectl"])  # fmt: skip
def test_each_format_gives_the_same_groups(text, source):
    groups = groups_of(source(text), HOSTS, {}, None)
    assert groups.of_host == HALVES
    assert len(groups.sentences) == 1


def test_block_sizes_give_aggregated_blocks_and_of_a_yaml_file_the_default_topology_or_else_the_first_counts():
    levels = read_levels(BLOCKS)
    assert [set(owners.values()) for _, owners in levels] == [{"b1", "b2", "b3"}, {"blocks-1", "blocks-2"}]
    assert levels[1][1]["node04"] == "blocks-1" and levels[1][1]["node05"] == "blocks-2"
    assert dict(read_levels(YAML))["leaf switch"] == HALVES
    first = dict(read_levels(YAML.replace("cluster_default: true", "cluster_default: false")))
    assert first["block"]["node06"] == "b1" and first["block"]["node07"] == "b2"


def test_the_finest_level_with_two_groups_of_two_hosts_counts(source):
    leaves = "".join(f"SwitchName=leaf{number} Nodes=node{number:02}\n" for number in range(1, 9))
    text = f"{leaves}SwitchName=a Switches=leaf[1-4]\nSwitchName=b Switches=leaf[5-8]\nSwitchName=top Switches=a,b\n"
    groups = groups_of(source(text), HOSTS, {}, None)
    assert set(groups.of_host.values()) == {"a", "b"}


def test_names_of_the_scheduler_missing_hosts_and_hosts_in_one_group_are_no_error_but_a_missing_file_is(source):
    nodes = {f"pod-{number}": name for number, name in enumerate(HOSTS)}
    groups = groups_of(source(TREE), [*nodes, "other"], nodes, None)
    assert [groups.of_host[pod] for pod in nodes] == list(HALVES.values())
    assert groups.of_host["other"] == "" and len(groups.sentences) == 2
    groups = groups_of(source(TREE), HOSTS[:4], {}, None)
    assert set(groups.of_host.values()) == {"leaf1"} and len(groups.sentences) == 2
    with pytest.raises(UsageError, match="cannot be read"):
        groups_of("/nowhere/groups", HOSTS, {}, None)


def test_nvlink_cliques_and_scontrol(monkeypatch):
    assert groups_of("nvlink", HOSTS, {}, HALVES).of_host == HALVES
    assert set(groups_of("nvlink", HOSTS, {}, None).of_host.values()) == {""}
    with pytest.raises(UsageError):
        groups_of("nvlink", HOSTS, {}, {})
    monkeypatch.setattr(sources, "run_here", lambda words, env: CommandOutcome(0, SCONTROL))
    assert groups_of("slurm", HOSTS, {}, None).of_host == HALVES
    monkeypatch.setattr(sources, "run_here", lambda words, env: CommandOutcome(1, "", "Unable to contact slurm controller"))
    with pytest.raises(UsageError, match="Unable to contact"):
        groups_of("slurm", HOSTS, {}, None)


@pytest.mark.parametrize(("text", "where"), [
    ("", "empty"), ("leaf1 node01\n", "line 1: "), ("leaf1: node[01-\n", "line 1: "), ("a: node01\n\nb: node01\n", "line 3: "),
    ("SwitchName=leaf1\n", "line 1: "), ("SwitchName=leaf1 Nodes=\n", "line 1: "), ("SwitchName=leaf1 node01\n", "line 1: "),
    ("SwitchName=leaf1 Node=node01\n", "line 1: "), (f"{TREE}SwitchName=leaf1 Nodes=node09\n", "line 4: "),
    (f"{TREE}SwitchName=leaf3 Nodes=node[04-06]\n", "line 4: "), ("SwitchName=spine Switches=leaf[1-2]\n", "line 1: "),
    ("SwitchName=c Nodes=node01\nSwitchName=a Switches=b,c\nSwitchName=b Switches=a\n", "contain one another"),
    ("BlockName=b1 Nodes=node01\nBlockSizes=four\n", "line 2: "), ("BlockSizes=4\n", "exactly one"), (f"{TREE}{BLOCKS}", "exactly one"),
    ("BlockName=b1 Nodes=node01\nBlockName=b2 Nodes=node[01-02]\n", "line 2: "), ("BlockName=b1\n", "line 1: "),
    ("- topology: a\n  flat: true\n", "no topology"), ("- topology: a\n  tree: {switches: []}\n", "line 2: |no topology"),
    ("- topology: a\n  tree:\n    switches:\n      - switch: s1\n", "line 4: "), ("- switch: s1\n", "line 1: "),
    ("- topology: a\n  nodes: n1\n", "line 2: "), ("- topology: a\n\ttree:\n\t\t!!python\n", "line 3: "),
    (YAML.replace("[01-04]", "[01-05]"), "line 20: "), ("{", "groups file"), ('{"items": []}', "label"), ("[1]", "line 1: "),
    (TREE.replace("node[", "host["), "none of the hosts"), ("a: node[1-99999999]\n", "line 1: "),
    ("leaf1: node[01-04]\nleaf2: NODE01,node[05-08]\n", "is in leaf1 and in leaf2"),
    ("leaf1: node[01-04]\nleaf2: node01.example.org,node[05-08]\n", "is in leaf1 and in leaf2"),
    ("leaf1: node[01-04]\nleaf2: node[05-08]\\", "the file was cut"),
])  # fmt: skip
def test_a_malformed_text_is_one_error_with_its_place(text, where, source):
    with pytest.raises(UsageError, match=where) as error:
        groups_of(source(text), HOSTS, {}, None)
    assert str(error.value).isprintable()
