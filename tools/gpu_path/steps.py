"""The steps of the GPU check, in their order: what each runs, and what it must show."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_path.check import RESERVED_S, ROOT, TOTAL_S, Check, Failed, Held, NotPossible, Outcome, Result, StepEnded, TwoRanks, free_port

COPY_PERCENT, VERIFY_PERCENT = 90.0, 70.0  # of the memory's rate by its clock and width, which is the datasheet's
ENQUEUE_MORE_S = 0.2e-6
TELEMETRY_RATIO = 1.02
SHARED_GPU_VERSION = (2, 30)  # the first NCCL with NCCL_MULTI_RANK_GPU_ENABLE
RAS_VERSION = (2, 24)
NCCL = ("allreduce", "--backend", "nccl")
DTYPES = ("float32", "bfloat16", "int32")
GPU_TESTS = ("tests/device/inside.py",)


def backends(check: Check) -> str:
    """NCCL is found and can be used."""
    done = check.collbench("backends", "--format", "json", limit_s=30).expect(0)
    check.backends = {row["backend"]: row for row in done.rows()}
    nccl = check.backends.get("nccl", {})
    if not nccl.get("available"):
        raise Failed(f"nccl is not available: {nccl.get('why', 'it is not listed')}")
    code = check.run(check.python, "-P", "-c", _NCCL_FACTS, limit_s=30).expect(0)
    found = json.loads(code.out)
    check.nccl, check.nccl_path = tuple(found["version"]), found["path"]
    return f"NCCL {'.'.join(map(str, check.nccl))} at {check.nccl_path}"


_NCCL_FACTS = """
import json, os
from collbench.backends.nccl.library import load_nccl
library = load_nccl(os.environ)
print(json.dumps({"version": list(library.version), "path": library.path}))
"""


def probe(check: Check) -> str:
    """`collbench probe` reports the same GPUs as nvidia-smi."""
    expected = smi_gpus(check)
    machine = json.loads(check.collbench("probe", "--format", "json", limit_s=40).expect(0).out)["machines"][0]
    wrong = differences(expected, machine)
    if wrong:
        raise Failed("; ".join(wrong), f"{len(expected)} GPU(s) by nvidia-smi")
    return f"{len(expected)} GPU(s): address, model, memory, UUID, PCIe link and driver agree with nvidia-smi"


_GENERATIONS = {"1": 2.5, "2": 5.0, "3": 8.0, "4": 16.0, "5": 32.0, "6": 64.0}
_SMI_FIELDS = ("pci.bus_id", "name", "uuid", "memory.total", "pcie.link.gen.gpumax", "pcie.link.width.max", "driver_version")


def smi_gpus(check: Check) -> list[dict[str, str]]:
    """What nvidia-smi reports of each GPU by field; a field that it does not know is absent. Raises NotPossible without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        raise NotPossible("nvidia-smi is not installed")
    for fields in (_SMI_FIELDS, tuple(name for name in _SMI_FIELDS if name != "pcie.link.gen.gpumax")):
        done = check.run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", limit_s=20)
        if done.code == 0:
            rows = csv.reader(io.StringIO(done.out), skipinitialspace=True)
            return [{k: v.strip() for k, v in zip(fields, row, strict=False) if v.strip() and "[" not in v} for row in rows if row]
    raise NotPossible(f"nvidia-smi fails: {done.last_line()}")


def differences(expected: Sequence[dict[str, str]], machine: dict[str, Any]) -> list[str]:
    """Facts of a probed machine (one entry of probe's "machines") that nvidia-smi contradicts, a sentence each."""
    found = {gpu["address"]: gpu for gpu in machine["gpus"]}
    links = {device["address"]: device["link"] for device in machine["pci"]}
    wrong = []
    if len(found) != len(expected):
        wrong.append(f"probe found {len(found)} GPU(s), nvidia-smi {len(expected)}")
    for gpu in expected:
        domain, _, rest = gpu["pci.bus_id"].lower().partition(":")
        address = f"{int(domain, 16):04x}:{rest}"
        if address not in found:
            wrong.append(f"probe has no GPU {address}")
            continue
        mine, link = found[address], links.get(address) or {}
        pairs = [
            ("model", mine["model"], gpu.get("name")),
            ("UUID", mine["uuid"], gpu.get("uuid")),
            ("memory in MiB", mine["memory_bytes"] and mine["memory_bytes"] >> 20, number(gpu.get("memory.total"))),
            ("PCIe rate in GT/s", link.get("max_speed_gt_per_s"), _GENERATIONS.get(gpu.get("pcie.link.gen.gpumax", ""))),
            ("PCIe lanes", link.get("max_width"), number(gpu.get("pcie.link.width.max"))),
            ("driver", machine["system"]["driver"], gpu.get("driver_version")),
        ]
        wrong += [f"{what} of {address}: probe {ours}, nvidia-smi {theirs}" for what, ours, theirs in pairs if theirs and ours != theirs]
    return wrong


def number(text: str | None) -> int | None:
    """A whole number, None where the text is not one."""
    return int(text) if text and text.isdigit() else None


def kernels(check: Check) -> str:
    """The project's own kernels are right, and reach the memory's rate: copy 90 %, verify 70 %."""
    small = ("--size", "4K") if check.fake else ()
    rows = check.collbench("kernels", *small, "--format", "json", limit_s=80).expect(0).rows()
    wrong = [f"{row['kernel']}: {row['wrong']} wrong elements" for row in rows if row["wrong"]]
    if wrong or not rows:
        raise Failed("; ".join(wrong) or "no kernel was measured")
    figures, slow = [], []
    for kernel, least in (("copy", COPY_PERCENT), ("verify", VERIFY_PERCENT)):
        for row in rows:
            if row["kernel"] != kernel or row.get("bytes_per_s") is None:
                continue
            percent = row["percent_of_floor"]
            share = "no reference rate" if percent is None else f"{percent:.0f} % of {row['floor_bytes_per_s'] / 1e9:.0f} GB/s"
            figures.append(f"{kernel} {row['bytes_per_s'] / 1e9:.0f} GB/s ({share})")
            if percent is not None and percent < least:
                slow.append(f"{kernel} reaches {percent:.0f} % of the memory's rate, expected at least {least:.0f} %")
    figure = ", ".join(figures)
    if check.fake:
        return "all results right; rates of a test double are not judged"
    if slow:
        raise Failed("; ".join(slow), figure)
    if "no reference rate" in figure:
        raise NotPossible("the driver does not report the memory's clock and width, so the rates cannot be judged", figure)
    return figure


def verified(rows: Sequence[dict[str, Any]]) -> str:
    """How many rows were verified. Raises Failed for wrong or unverified data, NotPossible for rows without a measurement."""
    wrong = [f"{name_of(row)}: {row['wrong']} wrong elements" for row in rows if row["wrong"]]
    unchecked = [f"{name_of(row)}: not verified" for row in rows if row["na"] is None and not row["checked"]]
    if wrong or unchecked:
        raise Failed("; ".join((wrong + unchecked)[:3]), f"{len(rows)} cases")
    measured = [row for row in rows if row["na"] is None]
    figure = f"{len(measured)} cases verified, 0 wrong"
    missing = {f"{name_of(row)}: {row['na']}" for row in rows if row["na"] is not None}
    if missing:
        raise NotPossible("; ".join(sorted(missing)[:3]), figure)
    return figure


def name_of(row: dict[str, Any]) -> str:
    """Operation, type, size, and what else differs from the default."""
    more = [row[key] for key in ("registration", "algorithm", "protocol") if row.get(key) not in (None, "none")]
    return " ".join(map(str, [row["operation"], row["dtype"] or "", f"{row['size_bytes']} B", *more]))


def allreduce(check: Check) -> str:
    """One rank: correct data at every size."""
    rows = check.measure("allreduce", *NCCL, "-g", "1", "--sizes", check.sizes, "--max-time", f"{check.max_time:g}", limit_s=90)
    figure = verified(rows)
    first, last = (f(rows, key=lambda row: row["size_bytes"]) for f in (min, max))
    small, large = f"{first['time_s']['p50'] * 1e6:.2f} µs", f"{last['algbw_bytes_per_s'] / 1e9:.1f} GB/s"
    return f"{figure}; {first['size_bytes']} B {small}, {last['size_bytes']} B {large}"


def compiled(check: Check, source: str, *options: str) -> Path:
    """A C program or library of this folder, built here. Raises NotPossible without a compiler."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise NotPossible("no C compiler is installed")
    made = check.out / "build" / Path(source).with_suffix(".so" if "-shared" in options else "").name
    made.parent.mkdir(exist_ok=True)
    done = check.run(compiler, "-O2", "-o", made, Path(__file__).with_name(source), *options, "-ldl")
    if done.code != 0:
        raise NotPossible(f"{source} does not compile: {done.last_line()}")
    return made


def enqueue(check: Check) -> str:
    """The host's time to enqueue a call is that of a plain C loop (nccl-tests' manner), at most 0.2 µs more."""
    check.needs_nccl()
    program = compiled(check, "enqueue.c")
    ours, theirs = [], []
    for turn in range(2 if check.fake else 5):
        rows = check.measure(f"enqueue-{turn}", *NCCL, "--sizes", "8", "--max-time", f"{check.max_time:g}",
                             "--evidence", "off", "--telemetry", "0")  # fmt: skip
        ours.append(rows[0]["evidence"]["enqueue_s"])
        theirs.append(json.loads(check.run(program, check.nccl_path, "8", "200").expect(0).out)["enqueue_s"])
    more = [a - b for a, b in zip(ours, theirs, strict=True)]
    figure = (
        f"collbench {statistics.median(ours) * 1e6:.2f} µs, C loop {statistics.median(theirs) * 1e6:.2f} µs; difference "
        f"{statistics.median(more) * 1e6:+.2f} µs ({min(more) * 1e6:+.2f} to {max(more) * 1e6:+.2f}, {len(more)} pairs)"
    )
    if check.fake:
        return f"{figure}; not judged on a test double"
    if statistics.median(more) > ENQUEUE_MORE_S:
        raise Failed(f"the enqueue cost exceeds the C loop's by more than {ENQUEUE_MORE_S * 1e6:g} µs", figure)
    return figure


def graph(check: Check) -> str:
    """CUDA graphs against the loop: data correct, ratio of the times."""
    figures = []
    times: dict[str, dict[int, list[float]]] = {"graph": {}, "pipelined": {}}
    for turn in range(1 if check.fake else 3):
        for mode, found in times.items():
            rows = check.measure(f"{mode}-{turn}", *NCCL, "--mode", mode, "--sizes", "8,64K,4M", "--max-time",
                                 f"{check.max_time:g}", "--telemetry", "0")  # fmt: skip
            verified(rows)
            for row in rows:
                found.setdefault(row["size_bytes"], []).append(row["time_s"]["p50"])
    for size in sorted(times["graph"]):
        ratios = [a / b for a, b in zip(times["graph"][size], times["pipelined"][size], strict=True)]
        figures.append(f"{size} B {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return f"graph / pipelined: {', '.join(figures)}"


def two_ranks(check: Check) -> str:
    """Two ranks on one GPU: every operation that moves data with three data types, verified."""
    check.needs_nccl()
    suite = check.out / "operations.toml"
    operations = json.loads(check.run(check.python, "-P", "-c", _OPERATIONS).expect(0).out)
    sizes = '["4K"]' if check.fake else '["4K", "1M"]'
    quoted = ", ".join(f'"{dtype}"' for dtype in DTYPES)
    suite.write_text(
        'schema = 1\ntitle = "every operation that moves data over NCCL"\n[run]\nmax_time = 0.1\n[[sweeps]]\nname = "all"\n'
        f'backends = ["nccl"]\noperations = {json.dumps(operations)}\ndtypes = [{quoted}]\nsizes = {sizes}\n'
    )
    tried = []
    for way in ways(check):
        check.two_ranks = way
        done = check.pair("two-ranks", "run", str(suite), "--timeout", "30", limit_s=90)
        if done.code in (0, 4) and done.rows():
            figure = verified([row for row in done.rows() if row["na"] is None])
            if {row["operation"] for row in done.rows() if row["na"] is None} != set(operations):
                missing = sorted({f"{row['operation']}: {row['na']}" for row in done.rows() if row["na"] is not None})
                raise Failed(f"operations without a measurement: {'; '.join(missing[:3])}", figure)
            return f"{figure}: {len(operations)} operations × {', '.join(DTYPES)}; {way.how}"
        tried.append(f"{way.how}: {'time limit reached' if done.code is None else done.last_line()}")
        check.runs.pop()
        shutil.rmtree(check.out / "runs/two-ranks", ignore_errors=True)
    check.two_ranks = None
    raise NotPossible("; ".join(tried))


_OPERATIONS = """
import json
from collbench.operations.registry import operations
print(json.dumps(sorted(name for name, one in operations().items() if one.steps_of("nccl", True) and not one.creates)))
"""


def ways(check: Check) -> Iterator[TwoRanks]:
    """How NCCL may be made to accept two ranks on one GPU, the best first."""
    if check.nccl and check.nccl >= SHARED_GPU_VERSION:
        yield TwoRanks("NCCL_MULTI_RANK_GPU_ENABLE=1", {"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    if shutil.which("nvidia-cuda-mps-control") and not check.fake:
        pipes, logs = check.out / "mps", check.out / "logs/mps"
        pipes.mkdir(exist_ok=True)
        logs.mkdir(exist_ok=True)
        check.mps = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
        if check.run("nvidia-cuda-mps-control", "-d", limit_s=15, **check.mps).code == 0:
            yield TwoRanks("MPS, a different NCCL_HOSTID per rank", host_ids=True)
            stop_mps(check)
        check.mps = {}
    yield TwoRanks("a different NCCL_HOSTID per rank, the GPU time-sliced", host_ids=True)


def stop_mps(check: Check) -> None:
    """End the MPS server that this check started."""
    if check.mps:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=check.environment | check.mps, timeout=15,
                       capture_output=True, check=False)  # fmt: skip
        check.mps = {}


def wrong_rank(check: Check) -> str:
    """A rank that contributes wrong data is detected: exit code 4, wrong elements counted."""
    check.needs_nccl()
    shim = compiled(
        check, "wrong_rank.c", "-shared", "-fPIC", "-Wl,--no-as-needed", check.nccl_path, f"-Wl,-rpath,{Path(check.nccl_path).parent}"
    )
    done = check.pair("wrong-rank", *NCCL, "--sizes", "4K,1M", "--max-time", "0.1", "--timeout", "30",
                      COLLBENCH_NCCL=str(shim), REAL_NCCL=check.nccl_path)  # fmt: skip
    check.runs.pop()
    wrong = {row["size_bytes"]: row["wrong"] for row in done.rows()}
    if done.code != 4 or not wrong or not all(wrong.values()):
        raise Failed(f"rank 1 sent wrong data, and collbench ended with exit code {done.code} and {wrong} wrong elements by size")
    return f"exit code 4; wrong elements by size: {wrong}"


def registration(check: Check) -> str:
    """Buffers registered with NCCL and in symmetric windows: data correct."""
    words = (*NCCL, "--registration", "none,registered,symmetric", "--sizes", "4K,1M", "--max-time", "0.1")
    if check.two_ranks is None:
        return f"{verified(check.measure('registration', *words))}; one rank"
    return f"{verified(check.pair('registration', *words, '--timeout', '30').expect(0, 4).rows())}; two ranks"


def hang(check: Check) -> str:
    """A stopped rank ends the launch with exit code 4 and a diagnosis, and leaves no process."""
    check.needs_nccl()
    timeout_s = 10 if not check.fake else 4
    ras_address = {"NCCL_RAS_ADDR": f"127.0.0.1:{free_port()}"}
    processes = check.start_pair("hang", *NCCL, "--sizes", "1M", "--max-time", "60", "-w", "20000000", "--timeout",
                                 str(timeout_s), **ras_address)  # fmt: skip
    run = check.runs.pop()
    pids = ranks_of(run, check)
    if len(pids) < 2:
        ended = [check.end(process, 1) for process in processes]
        raise Failed(f"the launch did not start: {ended[0].last_line()}")
    running = ras_answer(check, ras_address)
    while running["sentence"] is None and check.left_s() > timeout_s + 30:
        time.sleep(0.5)
        running = ras_answer(check, ras_address)
    os.kill(pids[1], signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        held = ras_answer(check, ras_address)  # none, where rank 1 is the one that serves RAS
        done, *_ = [check.end(process, timeout_s + 15) for process in processes]
        took = time.monotonic() - stopped
    finally:
        alive = [pid for pid in pids if is_alive(pid)]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()] if (run / "events.jsonl").exists() else []
    ends = [event["text"] for event in events if event["kind"] in ("hang", "abort")]
    check.held = Held(held["sentence"] or running["sentence"], running["why"], bool(ends))
    if alive:
        raise Failed(f"{len(alive)} rank process(es) were still running {took:.0f} s after rank 1 was stopped")
    if done.code is None or done.code == 0 or not ends:
        raise Failed(f"exit code {done.code} and {len(ends)} diagnoses, {took:.0f} s after rank 1 was stopped: {done.last_line()}")
    return f"exit code {done.code} after {took:.0f} s (--timeout {timeout_s}): {ends[0]}"


_ASK_RAS = """
import json, os
from msgspec import to_builtins
from collbench.measuring.nccl_paths import query_ras
print(json.dumps(to_builtins(query_ras(os.environ))))
"""


def ras_answer(check: Check, address: dict[str, str]) -> dict[str, str | None]:
    """What NCCL's RAS at an address answers: "sentence", or "why" there is none."""
    answer: dict[str, str | None] = json.loads(check.run(check.python, "-P", "-c", _ASK_RAS, limit_s=10, **address).expect(0).out)
    return answer


def ranks_of(run: Path, check: Check) -> list[int]:
    """The process ids of a launch's ranks by rank, once its run.json names them; [] at the step's limit."""
    while check.left_s() > 25:
        try:
            info = json.loads((run / "run.json").read_text())
        except (OSError, ValueError):
            time.sleep(0.1)
            continue
        return [place["pid"] for place in sorted(info["rank_map"], key=lambda place: place["rank"])]
    return []


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def ras(check: Check) -> str:
    """NCCL's RAS service answers during that launch, and the communicators are aborted."""
    if check.held is None:
        raise NotPossible("no launch was held, see the step `hang`")
    if not check.held.aborted:
        raise Failed("the launch did not end by an abort, see the step `hang`")
    if check.held.ras_sentence is None:
        known = check.nccl is not None and check.nccl >= RAS_VERSION
        raise (Failed if known and not check.fake else NotPossible)(str(check.held.ras_missing))
    return check.held.ras_sentence


def torch_nccl(check: Check) -> str:
    """NCCL through torch: data correct."""
    backend = check.backends.get("torch-nccl", {})
    if not backend.get("available"):
        raise NotPossible(backend.get("why") or "the backend torch-nccl is not listed")
    words = ("allreduce", "--backend", "torch-nccl", "--sizes", "8,64K,16M", "--max-time", f"{check.max_time:g}", "--ranks", "1")
    rows = check.collbench(*words, "--format", "json", "--quiet", "--out", check.folder("torch-nccl"), limit_s=60).expect(0).rows()
    return f"{verified(rows)}; {rows[0]['size_bytes']} B {rows[0]['time_s']['p50'] * 1e6:.1f} µs"


def telemetry(check: Check) -> str:
    """Sampling the GPU's state while measuring costs at most 2 %: launches with and without, in pairs."""
    ratios: dict[int, list[float]] = {}
    for turn in range(1 if check.fake else 4):
        found = {}
        for hz in ("5", "0") if turn % 2 else ("0", "5"):
            rows = check.measure(f"telemetry-{hz}-{turn}", *NCCL, "--sizes", "1M,64M" if not check.fake else "1M",
                                 "--max-time", f"{check.max_time:g}", "--telemetry", hz)  # fmt: skip
            found[hz] = {row["size_bytes"]: row["time_s"]["p50"] for row in rows}
        for size, time_s in found["5"].items():
            ratios.setdefault(size, []).append(time_s / found["0"][size])
    figure = "on / off: " + ", ".join(
        f"{size >> 20} MiB {statistics.median(r):.3f} ({min(r):.3f} to {max(r):.3f})" for size, r in ratios.items()
    )
    if check.fake:
        return f"{figure}; not judged on a test double"
    slow = [size for size, r in ratios.items() if statistics.median(r) > TELEMETRY_RATIO]
    if slow:
        raise Failed(
            f"telemetry makes {', '.join(f'{size >> 20} MiB' for size in slow)} slower by more than {TELEMETRY_RATIO - 1:.0%}", figure
        )
    return figure


def log(check: Check) -> str:
    """NCCL's real log is understood: version, algorithm, protocol, transport."""
    check.needs_nccl()
    run = next((run for run in check.runs if run.name == ("two-ranks" if check.two_ranks else "allreduce")), None)
    if run is None or not (run / "run.json").exists():
        raise NotPossible("no run with NCCL's log was measured")
    facts = json.loads((run / "run.json").read_text()).get("nccl_log", {}).get("nccl", {})
    choices = facts.get("choices", [])
    chosen = sorted({f"{each.get('algorithm')}/{each.get('protocol')}" for each in choices})
    figure = "; ".join(f"{what} {', '.join(values) or 'none'}" for what, values in (
        ("version", facts.get("versions", [])), ("transports", facts.get("transports", {})), ("choices", chosen)))  # fmt: skip
    raw = check.out / "logs/nccl.%h.%p.log"
    check.collbench(*NCCL, "--ranks", "1", "--sizes", "1M", "--max-time", "0.1", "--evidence", "off", "--quiet",
                    "--out", str(check.out / "runs/nccl-log"), NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,GRAPH,TUNING,ENV",
                    NCCL_DEBUG_FILE=str(raw))  # fmt: skip
    wanted = ".".join(map(str, check.nccl or ()))
    missing = [what for what, there in (
        (f"version {wanted}", wanted in facts.get("versions", [])),
        ("algorithm", any(each.get("algorithm") for each in choices)),
        ("protocol", any(each.get("protocol") for each in choices)),
        ("transport", bool(facts.get("transports"))),
    ) if not there]  # fmt: skip
    if missing == ["transport"] and check.two_ranks is None:
        raise NotPossible("one rank has no connection, so no transport is logged", figure)
    if missing:
        raise Failed(f"not recognised in the log: {', '.join(missing)}", figure)
    return figure


def measure(check: Check) -> str:
    """`probe --measure`: the channels of this machine."""
    done = check.collbench("probe", "--measure", "--max-time", f"{min(0.3, check.max_time):g}", "--format", "json", limit_s=60).expect(0, 1)
    channels = json.loads(done.out)["channels"]
    shown = [f"{each['channel']} {each['bytes_per_s'] / 1e9:.1f} GB/s" for each in channels if each["bytes_per_s"]]
    if not {"h2d", "d2h"} <= {each["channel"] for each in channels if each["bytes_per_s"]}:
        raise Failed("the channels between host and GPU were not measured", ", ".join(shown))
    return ", ".join(shown)


def gpu_tests(check: Check) -> str:
    """The project's GPU tests, against the real libraries."""
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"), "--timeout=60")
    ready = check.run(check.python, "-P", "-c", "import hypothesis, pytest, pytest_timeout, tests; print(*tests.__path__)", limit_s=20)
    if ready.code != 0:
        raise NotPossible(f"the test tools are not installed: {ready.last_line()}")
    if str(ROOT / "tests") not in ready.out.split():
        raise NotPossible(f"another package called `tests` is installed ({ready.out.strip()}) and hides the project's")
    done = check.run(check.python, *words, *(str(ROOT / test) for test in GPU_TESTS), limit_s=120)
    summary = next((line.strip("= ") for line in reversed(done.out.splitlines()) if " in " in line), done.last_line())
    if done.code != 0:
        first = next((line for line in done.out.splitlines() if line.startswith(("FAILED", "ERROR"))), done.last_line())
        raise Failed(f"{first}", summary)
    return summary


def report(check: Check) -> str:
    """All runs as one HTML page."""
    runs = [str(run) for run in check.runs if (run / "cells.jsonl").exists()]
    if not runs:
        raise NotPossible("no run was stored")
    page = check.out / "report.html"
    check.collbench("report", *runs, "--html", str(page), limit_s=20).expect(0)
    return f"{page.name}, {page.stat().st_size >> 10} KiB, {len(runs)} runs"


@dataclass(frozen=True)
class Step:
    """A step of the check: its name, its function, and the seconds it may take."""

    name: str
    run: Callable[[Check], str]
    limit_s: float


STEPS = (
    Step("backends", backends, 60), Step("probe", probe, 40), Step("kernels", kernels, 80), Step("allreduce", allreduce, 90),
    Step("enqueue", enqueue, 75), Step("graph", graph, 60), Step("two ranks", two_ranks, 120), Step("wrong rank", wrong_rank, 40),
    Step("registration", registration, 40), Step("hang", hang, 70), Step("ras", ras, 5), Step("torch-nccl", torch_nccl, 60),
    Step("telemetry", telemetry, 60), Step("log", log, 30), Step("measure", measure, 60), Step("tests", gpu_tests, 120),
    Step("report", report, RESERVED_S - 3),
)  # fmt: skip


def carried_out(check: Check, step: Step) -> Result:
    """Run one step within its limit and what is left of the whole."""
    began = time.monotonic()
    ends = check.began + TOTAL_S - (3 if step.name == "report" else RESERVED_S)
    check.step_ends = min(began + step.limit_s, ends)
    outcome, figure, reason = Outcome.PASSED, "", ""
    try:
        if check.left_s() < 2:
            raise NotPossible(f"the {TOTAL_S:.0f} s of the whole check were used up by earlier steps")
        figure = step.run(check)
    except StepEnded as ended:
        outcome, figure, reason = ended.outcome, ended.figure, str(ended)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        outcome, reason = Outcome.FAILED, f"unexpected output: {type(error).__name__}: {error}"
    return Result(step.name, outcome, figure, reason, time.monotonic() - began)
