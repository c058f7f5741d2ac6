"""Whether the backend `socket` gets out of one TCP stream what iperf3 gets: over loopback, and over a link shaped to 1 Gbit/s."""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tests.testbeds import Hosts
from tests.testbeds import Missing as NoBed
from tools.benchmarks.figures import RATIO, Figure, Outcome, Unit, timed
from tools.benchmarks.launches import LaunchFailed, Missing, collbench, environment_of_launch, pairs

_BLOCK = 128 * 1024  # what iperf3 writes at once
_SECONDS, _OMITTED_S, _INTERVAL_S = 1.5, 0.5, 0.1
_LOOPBACK_WINDOW, _LINK_WINDOW = 2048, 96  # messages per sample, which then takes about as long as an interval of iperf3's
_PATIENCE_S = 60
_LEAST = 0.9  # of iperf3's rate
GIGABYTES = Unit("GB/s", 1e-9)


@dataclass(frozen=True)
class Place:
    """Where both are run: the addresses of sender and receiver, what puts a command there, and messages per sample."""

    name: str
    addresses: tuple[str, str]
    there: tuple[list[str], list[str]]
    window: int


def measure(n: int = 12) -> Outcome:
    """n pairs at each place. Raises Missing without iperf3 or without a network namespace for a shaped link."""
    if not shutil.which("iperf3"):
        raise Missing("no iperf3: apt-get install iperf3")
    found = {place.name: pairs(partial(_socket, place), partial(_iperf3, place), n) for place in [_LOOPBACK]}
    try:
        with Hosts(2, "1gbit") as hosts:
            first, second = hosts.addresses
            link = Place("1 Gbit/s", (first, second), (hosts.on(0, []), hosts.on(1, [])), _LINK_WINDOW)
            found[link.name] = pairs(partial(_socket, link), partial(_iperf3, link), n)
    except NoBed as why:
        raise Missing(str(why)) from why
    return Outcome(
        "socket_iperf",
        f"One TCP stream between two processes, in blocks of {_BLOCK // 1024} KiB, in pairs of launches. iperf3: the receiver's median of "
        f"intervals of {_INTERVAL_S} s; `collbench p2p --backend socket`: p50 of samples that take about as long, the receiver's answer "
        "included.",
        [figure for name, those in found.items() for figure in _figures(name, those)],
        [{"place": name, "socket": ours, "iperf3": theirs} for name, those in found.items() for ours, theirs in those],
    )


def _figures(name: str, found: list[tuple[float, float]]) -> list[Figure]:
    return [
        timed(f"{name}: socket", (ours for ours, _ in found), GIGABYTES),
        timed(f"{name}: iperf3", (theirs for _, theirs in found), GIGABYTES),
        timed(f"{name}: iperf3 over socket, within pairs", (theirs / ours for ours, theirs in found), RATIO, below=1 / _LEAST),
    ]


def _socket(place: Place) -> float:
    """Bytes per second of p2p_bandwidth, sent by rank 0."""
    port = _free_port()
    options = ["--sizes", str(_BLOCK), "--window", str(place.window), "--iterations", "20", "--warmup", "5", "--max-time", "6"]
    words = ["p2p", "--backend", "socket", *options, "--format", "json", "--quiet"]
    lines = [[*place.there[rank], *_as_rank(rank, place.addresses[0], port), *collbench(*words)] for rank in (0, 1)]
    rows = [json.loads(line) for line in _together(lines)[0].splitlines()]
    return next(float(row["busbw_bytes_per_s"]) for row in rows if row["operation"] == "p2p_bandwidth" and not row["wrong"])


def _as_rank(rank: int, address: str, port: int) -> list[str]:
    actual = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": address, "MASTER_PORT": port}
    return ["env", *(f"{name}={value}" for name, value in actual.items())]


def _iperf3(place: Place) -> float:
    """Bytes per second at the receiver, without the intervals that were omitted."""
    port = str(_free_port())
    server = [*place.there[1], "iperf3", "-s", "-1", "-J", "-i", str(_INTERVAL_S), "-B", place.addresses[1], "-p", port]
    length = ["-t", str(_SECONDS), "-O", str(_OMITTED_S), "-l", str(_BLOCK), "-i", str(_INTERVAL_S)]
    client = [*place.there[0], "sh", "-c", 'for _ in 1 2 3 4 5 6; do sleep 0.2; "$@" && exit; done; exit 1', "iperf3"]
    said = _together([server, [*client, "iperf3", "-c", place.addresses[1], "-p", port, *length]])[0]
    intervals = [one["sum"] for one in json.loads(said)["intervals"]]
    return statistics.median(one["bits_per_second"] / 8 for one in intervals if not one["omitted"] and one["seconds"] > _INTERVAL_S / 2)


def _together(lines: Sequence[list[str]]) -> list[str]:
    """What commands print that run at the same time, each in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        pipe, env = subprocess.PIPE, environment_of_launch()
        started = [subprocess.Popen(["timeout", str(_PATIENCE_S), *line], stdout=pipe, stderr=pipe, text=True, cwd=folder, env=env)
                   for line in lines]  # fmt: skip
        said = [each.communicate() for each in started]
    for each, (_, wrong), line in zip(started, said, lines, strict=True):
        if each.returncode:
            raise LaunchFailed(f"{' '.join(line)} ended with code {each.returncode}: {wrong}")
    return [out for out, _ in said]


def _free_port() -> int:
    """Return a free port of this machine; between the hosts of a test bed all are free."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


_LOOPBACK = Place("loopback", ("127.0.0.1", "127.0.0.1"), ([], []), _LOOPBACK_WINDOW)
