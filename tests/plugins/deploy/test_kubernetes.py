"""Manifests: accepted by Kubernetes, arguments passed unchanged, and errors in one sentence."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugins.deploy.job import Value, job_of
from collbench.plugins.deploy.kinds.kubernetes import KIND
from tests.cli.command import run_here
from tests.plugins.deploy.manifests import documents, expanded, pods, refused
from tests.plugins.deploy.recorded import program

IMAGE = "docker.io/example/collbench:1"
KINDS = ("job", "jobset", "trainjob", "mpijob")
EVERYTHING: dict[str, Value] = {
    "gpus-per-node": 8, "cpus-per-rank": 4, "minutes": 20, "namespace": "bench", "volume": "results.claim", "memory": "64Gi", "shm": "1Gi",
    "rdma": ("rdma/hca_shared_devices_a=1", "nvidia.com/mlnx_sriov=2"), "hugepages": ("2Mi=1Gi",), "env": ("NCCL_IB_HCA=mlx5", "A=$(B)"),
}  # fmt: skip
TRICKY = ["no", "1e3", "a: b", "*x", "{{x}}", "$(HOME)", "#", "$$", "$", "&a", "- b", "'", '"', "\\", "%", "", " ", "~", "0x1f", "ü😀", "|"]


def emitted(said: Mapping[str, Value] | None = None, *command: str) -> str:
    return KIND.render(job_of(KIND, command or ("allreduce",), {"image": IMAGE, **(said or {})}))


def indexed(text: str) -> Any:
    """The spec of the Job in a manifest of kind job or jobset."""
    last = documents(text)[-1]
    return last["spec"] if last["kind"] == "Job" else last["spec"]["replicatedJobs"][0]["template"]["spec"]


def container(text: str) -> Any:
    last = documents(text)[-1]
    if last["kind"] == "TrainJob":
        return last["spec"]["trainer"]
    if last["kind"] == "MPIJob":
        return last["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    return indexed(text)["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [1, 2, 512])
@pytest.mark.parametrize("said", [{}, EVERYTHING, {"volume": "results"}], ids=["least", "everything", "volume"])
def test_kubernetes_takes_every_field(kind: str, nodes: int, said: dict[str, Value]) -> None:
    found = documents(emitted({**said, "kind": kind, "nodes": nodes}))
    assert [each["kind"].lower() for each in found] == (["service", "job"] if (kind, nodes > 1) == ("job", True) else [kind])
    assert [refused(each) for each in found] == [[]] * len(found)


def test_the_check_detects_an_unknown_field() -> None:
    """Without it the test above could not fail."""
    for kind in KINDS:
        document = documents(emitted({"kind": kind}))[-1]
        assert refused({**document, "spec": {**document["spec"], "nodes": 2}})
        assert refused({**document, "spec": {}}) or kind == "jobset"  # a JobSet may be empty


def test_jobs_have_a_pod_for_each_node_and_mpijobs_start_every_rank() -> None:
    service, job = documents(emitted({"nodes": 4, "name": "fabric", "namespace": "bench", "minutes": 20}))
    assert service["spec"] == {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"batch.kubernetes.io/job-name": "fabric"},
    }  # fmt: skip
    assert service["metadata"] == job["metadata"] == {"name": "fabric", "namespace": "bench"}
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == ("Indexed", 4, 4, 0)
    assert (spec["activeDeadlineSeconds"], pod["subdomain"], pod["restartPolicy"]) == (1200, "fabric", "Never")
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == {"batch.kubernetes.io/job-name": "fabric"}
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert env == {"COLLBENCH_PODS": "4", "MASTER_ADDR": "fabric-0.fabric", "COLLBENCH_SECRET": None, "COLLBENCH_TIMEOUT": "600"}
    (job,) = documents(emitted({"kind": "mpijob", "ranks-per-node": 2, "env": ("A=$(B)",)}))
    spec, (launcher, worker) = job["spec"], (job["spec"]["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    assert (spec["slotsPerWorker"], worker["replicas"], spec["launcherCreationPolicy"]) == (2, 2, "WaitForWorkersReady")
    assert worker["template"]["spec"]["containers"][0]["command"][:2] == ["/usr/sbin/sshd", "-De"]
    assert [expanded(word, {"B": "x"}) for word in launcher["template"]["spec"]["containers"][0]["args"]] == [
        "mpirun", "-n", "4", "--hostfile", "/etc/mpi/hostfile", "--map-by", "ppr:2:node", "--bind-to", "core", "env", "A=$(B)",
        "collbench", "allreduce", "--format", "json", "--out", "/tmp/collbench-run",
    ]  # fmt: skip


def test_pods_request_their_hardware_and_get_their_name_alone() -> None:
    (box,) = indexed(emitted(EVERYTHING))["template"]["spec"]["containers"]
    assert box["resources"] == {
        "limits": {
            "nvidia.com/gpu": "8", "cpu": "32", "memory": "64Gi", "rdma/hca_shared_devices_a": "1", "nvidia.com/mlnx_sriov": "2",
            "hugepages-2Mi": "1Gi",
        }
    }  # fmt: skip
    assert box["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert box["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}, {"name": "results", "mountPath": "/results"}]
    assert indexed(emitted(EVERYTHING))["template"]["spec"]["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "results", "persistentVolumeClaim": {"claimName": "results.claim"}},
    ]
    spec = indexed(emitted({"nodes": 1}, "allreduce", "--timeout", "30"))["template"]["spec"]
    (box,) = spec["containers"]
    assert sorted(spec) == ["containers", "restartPolicy"]
    assert (sorted(box), [each["name"] for each in box["env"]]) == (["args", "command", "env", "image", "name"], ["COLLBENCH_PODS"])
    box = container(emitted({"volume": "v", "env": ("HOME=/root",)}, "p2p", "--sizes", "$(HOME)"))
    fields = {"metadata.name": "collbench-{index}-abcde", "metadata.labels['batch.kubernetes.io/controller-uid']": "0" * 36}
    first, second = pods(box, 2, fields)
    assert first.words == ["collbench", "p2p", "--sizes", "$(HOME)", "--out", "/results/runs/collbench-0-abcde"]
    assert (second.env["JOB_COMPLETION_INDEX"], second.env["POD_NAME"]) == ("1", "collbench-1-abcde")
    assert first.env["COLLBENCH_SECRET"] == second.env["COLLBENCH_SECRET"] == "0" * 36


@pytest.mark.parametrize(("said", "command", "started"), [
    ({}, ("allreduce",), ["collbench", "allreduce", "--format", "json", "--out", "/tmp/collbench-run"]),
    ({"gpus-per-node": 8}, ("pairs",), ["collbench", "pairs", "--ranks-per-node", "8", "--out", "/tmp/collbench-run"]),
    (
        {"gpus-per-node": 8, "ranks-per-node": 1},
        ("run", "quick", "--out", "x"),
        ["collbench", "run", "quick", "--out", "x", "--ranks-per-node", "1", "--format", "json"],
    ),
    ({"volume": "v"}, ("p2p",), ["collbench", "p2p", "--out", "/results/runs/$(POD_NAME)"]),
    ({"volume": "v", "runs": "/data"}, ("p2p",), ["collbench", "p2p", "--out", "/data/$(POD_NAME)"]),
    ({"volume": "v"}, ("p2p", "--out", "x"), ["collbench", "p2p", "--out", "x"]),
    ({"gpus-per-node": 8}, ("probe",), ["collbench", "probe"]),
    ({}, ("allreduce", "--format", "csv"), ["collbench", "allreduce", "--format", "csv", "--out", "/tmp/collbench-run"]),
])  # fmt: skip
def test_rows_go_to_the_volume_or_between_marks_in_the_log(said: dict[str, Value], command: tuple[str, ...], started: list[str]) -> None:
    box = container(emitted(said, *command))
    assert box.get("args", box["command"]) == started
    assert (box["command"][0] == "sh") == ("json" in started)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from(TRICKY) | st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"]))))
def test_arguments_with_a_meaning_in_yaml_or_kubernetes_are_passed_unchanged(kind: str, tricky: list[str]) -> None:
    text = emitted({"kind": kind, "env": tuple(f"V{number}={word}" for number, word in enumerate(tricky))}, "allreduce", *tricky)
    found = [expanded(word, {}) for word in container(text)["args"]]
    at = found.index("collbench")
    assert found[at : at + 2 + len(tricky)] == ["collbench", "allreduce", *tricky]
    if kind == "mpijob":
        assert found[at - len(tricky) : at] == [f"V{number}={word}" for number, word in enumerate(tricky)]
    else:
        actual = {each["name"]: expanded(each["value"], {}) for each in container(text)["env"] if "value" in each}
        assert [actual[f"V{number}"] for number in range(len(tricky))] == tricky


@pytest.mark.parametrize(
    ("kind", "added"), [("job", "-99"), ("jobset", "-pods-0-99-abcde"), ("trainjob", "-node-0-99-abcde"), ("mpijob", "-worker-99")]
)
def test_names_fit_with_their_suffix(kind: str, added: str) -> None:
    said: dict[str, Value] = {"kind": kind, "nodes": 100}
    longest = 63 - len(added)
    assert documents(emitted({**said, "name": "a" * longest}))
    with pytest.raises(UsageError, match=rf"^--name a+ .* {longest} .*{kind}"):
        emitted({**said, "name": "a" * (longest + 1)})


@pytest.mark.system
def test_submit_passes_the_manifest_to_kubectl(tmp_path: Path) -> None:
    program(tmp_path, "kubectl", '#!/bin/sh\necho "$@"\ncat >taken.yaml\n')
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = run_here(tmp_path, "emit", "kubernetes", "--image", IMAGE, "--submit", "--", "allreduce", env=path)
    assert (done.returncode, done.stdout) == (0, "create -f -\n")
    assert (tmp_path / "taken.yaml").read_text() == emitted()
