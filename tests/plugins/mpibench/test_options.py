"""Command lines of OSU and IMB are translated, or rejected with the equivalent."""

import argparse
import csv
from pathlib import Path

import pytest

from collbench import plugin
from collbench.cli import main
from collbench.errors import UsageError
from tests.cli.command import one_sentence, run, run_here


def parsed(line: str) -> argparse.Namespace:
    return main.parsed(line.split())


def test_without_the_plugin_options_are_refused_and_names_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_loaded", lambda: ({}, {}))
    with pytest.raises(UsageError, match="osu_allreduce: options of OSU and IMB need the plug-in mpibench"):
        parsed("osu_allreduce -f")
    assert parsed("osu_allreduce").command == "allreduce"


# OSU 7.4 and IMB 2021.8: (arguments, what the request has of them)

PEERS = [
    ("osu_allreduce -m 8:1024 -i 10 -x 2", {"minimum": "8", "maximum": "1024", "factor": "2", "iterations": 10, "warmup": 2}),
    ("osu_allreduce -m8:1024 -i10 -x2", {"minimum": "8", "maximum": "1024", "iterations": 10, "warmup": 2}),
    ("osu_allreduce --message-size=8:1024 --iterations 10 --warmup=2", {"minimum": "8", "maximum": "1024", "iterations": 10, "warmup": 2}),
    ("osu_allreduce -m 128", {"minimum": "1", "maximum": "128"}),
    ("osu_allreduce -m :128", {"minimum": "1", "maximum": "128"}),
    ("osu_allreduce -m 2:", {"minimum": "2", "maximum": "1M"}),
    ("osu_bw -m 2:", {"command": "p2p", "only": "bandwidth", "minimum": "2", "maximum": "4M"}),
    ("osu_latency D D", {"command": "p2p", "only": "latency", "device": "cuda"}),
    ("osu_latency -i 5 H H", {"device": "cpu", "iterations": 5}),
    ("osu_allreduce -d cuda", {"device": "cuda", "dtype": ["float32"]}),
    ("osu_allreduce -T mpi_char", {"dtype": ["int8"]}),
    ("osu_allreduce -T all", {"dtype": ["int8", "int32", "float32"]}),
    ("osu_allreduce -f", {"columns": "+min,max,n", "full": False}),
    ("osu_allreduce --full", {"columns": "+min,max,n", "full": False}),
    ("osu_allreduce -z50,95,99", {"columns": "+p95,p99"}),
    ("osu_allreduce -fcz50,99", {"columns": "+min,max,n,p99", "check": 1}),
    ("osu_allreduce -c -m 8:64", {"check": 1, "minimum": "8"}),
    ("osu_allreduce -l", {"in_place": True}),
    ("osu_bcast -k fixed:1", {"command": "broadcast", "root": ["1"]}),
    ("osu_bw -W 16 -b single", {"window": 16, "buffers": "fixed"}),
    ("osu_mbw_mr -p 2 -R 1", {"command": "multipair", "pairs": (2,)}),
    ("osu_put_latency -w allocate -s flush -i 7", {"command": "put", "iterations": 7}),
    ("osu_iallreduce -i 3", {"command": "allreduce", "calls": ["nonblocking"], "iterations": 3}),
    ("osu_allreduce -np 4 -x 2 --backend mpi -n 20", {"ranks": 4, "warmup": 2, "backend": ["mpi"], "iterations": 20}),
    ("osu_allreduce -v", {"version": True}),
    ("IMB-MPI1 Allreduce -iter 10 -msglog 3:10", {"command": "allreduce", "iterations": 10, "minimum": "8", "maximum": "1024"}),
    ("IMB-MPI1 -msglog 4 -iter 7 Bcast", {"command": "broadcast", "iterations": 7, "minimum": "1", "maximum": "16"}),
    ("IMB-MPI1 PingPong -npmin 2 -time 1.5", {"command": "p2p", "only": "latency", "npmin": 2, "max_time": 1.5}),
    ("IMB-MPI1 Uniband -off_cache -1", {"command": "multipair", "buffers": "rotating"}),
    ("IMB-MPI1 Allreduce -sync 0 -red_data_type double", {"mode": "pipelined", "dtype": ["float64"]}),
    ("IMB-MPI1 Allreduce -mem_alloc_type device", {"device": "cuda"}),
    ("imb-nbc Iallreduce -iter 4 --ranks 2", {"command": "allreduce", "calls": ["nonblocking"], "iterations": 4, "ranks": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "values"), PEERS, ids=[line for line, _ in PEERS])
def test_what_the_options_of_osu_and_imb_mean(line: str, values: dict[str, object]) -> None:
    found = vars(parsed(line))
    assert {name: found[name] for name in values} == values


# Rejected: (arguments, the nearest option that the sentence names)
NEAREST = [
    ("osu_allreduce -m 0:8", "-m MIN:MAX"), ("osu_allreduce -m 8K", "-m MIN:MAX"), ("osu_allreduce -m", "-m"),
    ("osu_allreduce -i ten", "-i 1000"), ("osu_allreduce -z", "-z50,95,99"), ("osu_allreduce -z90", "-z50,95,99"),
    ("osu_allreduce -d managed", "-d cuda"), ("osu_allreduce -b multiple", "--buffers rotating"), ("osu_allreduce -b 8", "-m MIN:MAX"),
    ("osu_allreduce -M 1000", "-m MIN:MAX"), ("osu_allreduce -u 5", "remove"), ("osu_allreduce -G tty", "--html"),
    ("osu_allreduce -P 1:papi", "--evidence"), ("osu_allreduce -I", "collbench init"), ("osu_iallreduce -t 100", "--overlap"),
    ("osu_bcast -k rotate", "--root"), ("osu_bw -V", "-W N"), ("osu_bw -D vect", "collbench kv"), ("osu_latency D H", "D D"),
    ("osu_latency M D", "D D"), ("osu_put_latency -w create", "-w allocate"), ("osu_put_latency -s fence", "-s flush"),
    ("IMB-MPI1", "IMB-MPI1 Allreduce"), ("IMB-MPI1 Allreduce Bcast", "collbench run"), ("IMB-MPI1 Allreduce -iter 10,40", "-iter N"),
    ("IMB-MPI1 Allreduce -msglog 3:99", "-msglog"), ("IMB-MPI1 Allreduce -npmin x", "-npmin 4"),
    ("IMB-MPI1 Allreduce -msglen sizes.txt", "--sizes"), ("IMB-MPI1 Allreduce -multi 0", "--split"),
    ("IMB-MPI1 Allreduce -npmin 2 --ranks 4 --backend simulated", "-npmin 4"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "nearest"), NEAREST, ids=[line for line, _ in NEAREST])
def test_what_collbench_does_not_have_of_osu_and_imb_is_rejected(line: str, nearest: str, tmp_path: Path) -> None:
    assert nearest in one_sentence(run_here(tmp_path, *line.split()))


@pytest.mark.system
def test_a_command_line_of_osu_measures(tmp_path: Path) -> None:
    line = "osu_allreduce -m 8:64 -i 3 -x 1 -f --ranks 2 --backend simulated --format csv"
    done = run(tmp_path, *line.split())
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert done.returncode == 0, done.stderr
    assert {(row["size_bytes"], row["n"]) for row in rows} == {("8", "3"), ("16", "3"), ("32", "3"), ("64", "3")}
