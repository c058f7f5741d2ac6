"""emit torchrun: the arguments of each node's torchrun, from a run of the script with a double of it."""

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.deploy.job import Value
from collbench.plugins.deploy.kinds.torchrun import ENDPOINT, KIND
from tests.plugins.deploy.recorded import COMMAND, program, recorded, text

pytestmark = pytest.mark.system

AT = {"endpoint": "n1.site"}
STATIC: dict[str, Value] = {**AT, "rendezvous": "static"}


class TestRendezvous:
    @pytest.mark.parametrize(("said", "node", "words"), [
        ({**AT, "nodes": 4, "ranks-per-node": 8}, "", "--nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint n1.site:29500 "
         "--rdzv-id collbench-0"),
        ({**STATIC, "nodes": 4, "gpus-per-node": 8, "port": 2000, "name": "nightly"}, "3", "--nnodes 4 --nproc-per-node 8 "
         "--rdzv-backend static --master-addr n1.site --master-port 2000 --node-rank 3 --rdzv-id nightly-0"),
        ({"nodes": 1, "ranks-per-node": 2}, "", "--nnodes 1 --nproc-per-node 2 --standalone"),
    ], ids=["c10d", "static", "one node"])  # fmt: skip
    def test_the_arguments(self, said: dict[str, Value], node: str, words: str, tmp_path: Path) -> None:
        end = ["--max-restarts", "0", "--no-python", "collbench", *COMMAND, "--out"]
        assert recorded(tmp_path, KIND, said, *filter(None, [node])).words[:-1] == [*words.split(), *end]

    def test_static_by_slurm_or_on_one_node(self, tmp_path: Path) -> None:
        found = recorded(tmp_path, KIND, STATIC, env={"SLURM_NODEID": "1", "SLURM_JOB_ID": "8"})
        assert (found.after("--node-rank"), found.after("--rdzv-id")) == ("1", "collbench-8")
        words = recorded(tmp_path, KIND, {"nodes": 1, "rendezvous": "static"}).words
        assert words[words.index("--master-addr") + 1] == "localhost" and "--node-rank" not in words

    @pytest.mark.parametrize(("said", "remedy"), [(STATIC, "number of this node"), ({"nodes": 2}, "--endpoint HOST")])
    def test_without_a_number_or_an_endpoint_nothing_starts(self, said: dict[str, Value], remedy: str, tmp_path: Path) -> None:
        found = recorded(tmp_path, KIND, said)
        assert found.code and not found.words and remedy in found.said


class TestEndpoint:
    def test_the_endpoint_is_the_first_host_of_a_file_or_of_slurms_job(self, tmp_path: Path) -> None:
        (tmp_path / "hosts").write_text("# ours\n\n  n7 slots=8\nn8\n")
        assert recorded(tmp_path, KIND, {"hosts": "hosts"}).after("--rdzv-endpoint") == "n7:29500"
        (tmp_path / "hosts").write_text("n7:8\nn8:8\n")
        assert recorded(tmp_path, KIND, {"hosts": "hosts"}).after("--rdzv-endpoint") == "n7:29500"
        lists = '#!/bin/sh\n[ "$*" = "show hostnames n[1-20000]" ] && seq -f n%.0f 20000\n'
        program(tmp_path, "scontrol", lists)  # more nodes than the buffer of a pipe takes
        found = recorded(tmp_path, KIND, {"nodes": 20_000}, env={"SLURM_JOB_NODELIST": "n[1-20000]"})
        assert (found.code, found.after("--rdzv-endpoint")) == (0, "n1:29500")

    @pytest.mark.parametrize(
        ("way", "option", "at"), [("c10d", "--rdzv-endpoint", "[fd00::1]:29500"), ("static", "--master-addr", "fd00::1")]
    )
    def test_at_an_ipv6_address(self, way: str, option: str, at: str, tmp_path: Path) -> None:
        assert recorded(tmp_path, KIND, {"nodes": 2, "endpoint": "fd00::1", "rendezvous": way}, "0").after(option) == at

    @pytest.mark.parametrize("host", ["n1:29500", "-n1", "n1-", "", "a b", "fe80::1", "fd00::1%$(id)", "[fd00::1]", "$(id)"])
    def test_invalid_hosts(self, host: str) -> None:
        with pytest.raises(UsageError, match="host"):
            ENDPOINT.parse(host)


class TestOtherOptions:
    def test_ranks_get_threads_the_path_of_the_program_and_no_restart(self, tmp_path: Path) -> None:
        assert recorded(tmp_path, KIND, AT).env["OMP_NUM_THREADS"] == "1"
        assert recorded(tmp_path, KIND, {**AT, "cpus-per-rank": 4}, env={"OMP_NUM_THREADS": "9"}).env["OMP_NUM_THREADS"] == "4"
        found = recorded(tmp_path, KIND, {**AT, "program": f"{tmp_path}/a b/collbench"})
        assert found.env["PATH"].startswith(f"{tmp_path}/a b:{tmp_path}:") and f"{tmp_path}/a b/collbench" in found.words
        assert recorded(tmp_path, KIND, AT, command=("probe", "--measure")).words[-2:] == ["probe", "--measure"]
        assert recorded(tmp_path, KIND, AT, env={"PET_MAX_RESTARTS": "3"}).after("--max-restarts") == "0"

    def test_the_file_begins_with_the_start_on_each_node_and_changes_no_path_for_a_plain_name(self) -> None:
        assert "PATH" not in text(KIND, AT)
        static = text(KIND, {**AT, "rendezvous": "static", "nodes": 4, "hosts": "my hosts"}).splitlines()
        assert static[1] == "# collbench by torchrun; nodes: 4, ranks on each: 1."
        assert static[3] == "#   srun --nodes=4 --ntasks-per-node=1 FILE"
        assert 'FILE %n"' in static[4] and 'FILE $n"' in static[5] and static[5].endswith("done < 'my hosts'; wait")
        assert "ON EACH" not in text(KIND, {"nodes": 1})
