"""The paths that NCCL uses: its log on each rank, its choices for a case in an untimed call, and RAS reports of a hang."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import astuple

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.machine.distance import BEST_FIRST, Capability, Distances, best_of, capability, not_used
from collbench.machine.model import Machine
from collbench.machine.readers.nccl_facts import GDR, network_path
from collbench.machine.readers.nccl_log import NcclLog, read_files
from collbench.machine.readers.text import Unreadable, printable, whole
from collbench.measuring import counters
from collbench.measuring.crossing import MovedByHost, MovedBytes
from collbench.operations.case import Case
from collbench.untrusted import parse_json

# Whether a run used GPUDirect RDMA, from the connections in NCCL's log, the ports' counters, and the machines' capabilities.
#
# A line in the log shows that a connection was opened. Only bytes on the ports show that it was used. If the log shows no connection,
# the capability of the machine decides between "not used" and "not possible".

_NET = "NET/"
_NO_CONNECTIONS = "NCCL's log lists no connections"
_MOST_HOSTS = 4


def state_of_run(facts: Mapping[str, Any], machines: Sequence[Machine], rdma_bytes: int | None = None) -> Capability:
    """Return the GPUDirect RDMA state of a run and the fact that decides it, for a row's evidence.

    facts       the result of `together` for all processes, or of `summary` for one
    machines    that the ranks are on
    rdma_bytes  what their RDMA ports moved meanwhile; None if nothing counted it
    """
    network = {name: count for name, count in (facts.get("transports") or {}).items() if name.startswith(_NET)}
    connections = sum(network.values())
    direct = sum(count for name, count in network.items() if name.endswith(GDR))
    if not direct:
        return _not_used(facts, machines, connections if network else None)
    if not (facts["gdr"]["send"] and facts["gdr"]["receive"]):
        direction = "[send]" if facts["gdr"]["send"] else "[receive]"
        return Capability("unknown", f"NCCL's log shows it only for {direction}: the lines of the other direction are missing")
    text = f"{direct} of {connections} network connections use GPUDirect RDMA"
    hosts = facts.get("hosts_without_gdr") or []
    if hosts:
        more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
        text += f"; not all on {', '.join(hosts[:_MOST_HOSTS])}{more}"
    if rdma_bytes == 0:
        return Capability("capable, not used", f"{text}, but no RDMA port moved any bytes: that path was not used")
    return Capability("proven used", text)


def _not_used(facts: Mapping[str, Any], machines: Sequence[Machine], connections: int | None) -> Capability:
    """Return the state if the log shows no direct connection. NCCL's own reason takes precedence over the machine's.

    connections    number of those over the network, in NCCL's log; None: it lists none
    """
    gdr = facts.get("gdr") or {}
    if connections is not None and gdr["refused"] and gdr["staged"]:
        return Capability("not capable", f"NCCL's log: GPU Direct RDMA Disabled for {', '.join(gdr['refused'][:_MOST_HOSTS])}")
    capable = _capability_of_machines(machines)
    if capable.state == "not capable":
        return capable
    if connections is not None:
        path = "staged through the host's memory" if gdr["staged"] else "over TCP sockets"
        return not_used(capable, f"NCCL's log shows {connections} network connections {path}; {capable.why}")
    if facts.get("transports"):
        return not_used(capable, f"no connection leaves the host; {capable.why}")
    return Capability("unknown", f"{facts.get('why') or _NO_CONNECTIONS}; {capable.why}")


def _capability_of_machines(machines: Sequence[Machine]) -> Capability:
    """Return the capability of the least capable GPU with its best NIC."""
    capabilities = []
    for machine in machines:
        nics = [nic for nic in machine.nics if nic.virtual is None and nic.rdma]
        distances = Distances(machine)
        for gpu in machine.gpus if nics else ():
            capabilities.append(best_of(capability(machine, gpu, nic, distances=distances) for nic in nics))
    if not capabilities:
        return Capability("unknown", "no machine with a GPU and an RDMA device is known")
    return max(capabilities, key=lambda gpu_capability: BEST_FIRST.index(gpu_capability.state))


# The logs of a job's ranks combined, for a row's evidence and run.json, with a summary in one sentence.

_MOST_WARNINGS = 20
_MOST_CHOICES = 256
_KEYS = ("collective", "bytes", "algorithm", "protocol", "channels")


def summary(log: NcclLog) -> dict[str, Any]:
    """Return the facts in one process's log, JSON-ready.

    transports  by name how many connections; channels: by transport the channels that use it
    nics        by NCCL's name the device's name: {"NET/IB/0": "mlx5_0:1/IB"}
    gdr         {"send", "receive"}: a line proves that direction; "staged": connections of RDMA without it; "refused": HCAs
    choices     see `choices_of`; stated: {"coll": 16}: how many channels NCCL reports
    tuning      the entries of NCCL's table that it may use: [collective, algorithm, protocol, microseconds, GB/s]
    """
    channels: dict[str, set[int]] = {}
    for connection, lines in log.connections.items():
        if lines.channels:
            channels.setdefault(connection.transport, set()).update(lines.channels)
    names = {number: name for (_, number), name in log.names.items()}  # a process is on one host, so a number identifies one device
    paths = [path for path in map(network_path, log.transports) if path]
    nics = {f"NET/{path.network}/{path.device}": names[path.device] for path in paths if path.device in names}
    return {
        "version": log.version, "net": log.net, "transports": dict(log.transports), "nics": nics,
        "channels": {transport: sorted(numbers) for transport, numbers in channels.items()},
        "gdr": {"send": log.gdr_send, "receive": log.gdr_receive, "staged": log.staged, "refused": list(log.gdr_refused)},
        "stated": dict(log.stated), "choices": choices_of(log), "warnings": list(log.warnings[:_MOST_WARNINGS]),
        "tuning": [list(entry) for entry in log.tuning if entry.gb_per_s],
    }  # fmt: skip


def choices_of(log: NcclLog) -> list[dict[str, Any]]:
    """Return [{"collective", "bytes", "algorithm", "protocol", "channels", "calls"}]; None for a value that NCCL does not log."""
    return [
        dict(zip(_KEYS, astuple(choice), strict=True)) | {"calls": calls} for choice, calls in islice(log.choices.items(), _MOST_CHOICES)
    ]


def together(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of all processes merged. The keys are those of `summary`, and these:

    processes   how many, `logs`: how many of them had a log; why the first of the others had none
    hosts_without_gdr   with connections between hosts that do not use GPUDirect RDMA
    nics        by NCCL's name all device names: hosts may number theirs differently
    sentence    "NET/IB/0/GDRDMA on 16 of 16 channels"
    tuning      that of rank 0, which writes it; empty if several processes have different ones
    """
    logs = [process for process in facts if "transports" in process]
    why = next((process["why"] for process in facts if process.get("why")), None)
    channels = _united(logs, "channels")
    parts = [log["gdr"] for log in logs]
    transports: Counter[str] = Counter()
    calls: Counter[tuple[Any, ...]] = Counter()
    stated: dict[str, int] = {}
    for log in logs:
        transports.update(log["transports"])
        stated |= {kind: max(number, stated.get(kind, 0)) for kind, number in log["stated"].items()}
        for choice in log["choices"]:  # equal ones once, with the calls of all processes
            calls[tuple(choice[name] for name in _KEYS)] += choice["calls"]
    ordered = sorted(calls.items(), key=lambda item: (str(item[0][0] or ""), item[0][1], -item[1]))
    choices = [dict(zip(_KEYS, key, strict=True)) | {"calls": count} for key, count in ordered[:_MOST_CHOICES]]
    gdr = {
        "send": any(part["send"] for part in parts), "receive": any(part["receive"] for part in parts),
        "staged": sum(part["staged"] for part in parts), "refused": sorted({name for part in parts for name in part["refused"]}),
    }  # fmt: skip
    tables = [log["tuning"] for log in logs if log["tuning"]]
    tuning = tables[0] if tables and all(table == tables[0] for table in tables) else []
    without_gdr = {log["host"] for log in logs if any(name.startswith(_NET) and not name.endswith(GDR) for name in log["transports"])}
    return {
        "processes": len(facts), "told": len(logs), "why": why, "versions": _all(logs, "version"), "nets": _all(logs, "net"),
        "transports": dict(transports.most_common()), "channels": channels, "nics": _united(logs, "nics"),
        "gdr": gdr, "hosts_without_gdr": sorted(without_gdr), "stated": dict(sorted(stated.items())), "choices": choices,
        "warnings": list(dict.fromkeys(text for log in logs for text in log["warnings"]))[:_MOST_WARNINGS],
        "sentence": sentence(channels) if channels else why or _NO_CONNECTIONS,
        "tuning": tuning,
    }  # fmt: skip


def sentence(channels: Mapping[str, Sequence[int]]) -> str:
    """Return a summary of transports: "NET/IB/0,1/GDRDMA on 16 of 16 channels, P2P/CUMEM on 16".

    channels: by transport its channels. The network comes first; devices with the same use are listed together.
    """
    all_channels = set().union(*map(set, channels.values()))
    devices: dict[tuple[str, str], list[int]] = defaultdict(list)  # by the name of the transport before and after the device
    used: dict[tuple[str, str], set[int]] = defaultdict(set)  # channels
    for transport, numbers in channels.items():
        path = network_path(transport)
        name = (transport, "")
        if path and path.device is not None:
            name = (f"NET/{path.network}/", path.suffix)
            devices[name].append(path.device)
        used[name].update(numbers)
    ordered = sorted(used, key=lambda name: (not name[0].startswith("NET"), -len(used[name]), name))
    parts = [f"{name[0]}{','.join(map(str, sorted(devices[name])))}{name[1]} on {len(used[name])}" for name in ordered]
    return ", ".join([f"{parts[0]} of {len(all_channels)} channel{'s' if len(all_channels) != 1 else ''}", *parts[1:]])


def _united(logs: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[Any]]:
    values_of: dict[str, set[Any]] = {}
    for log in logs:
        for key, value in log[name].items():
            values_of.setdefault(key, set()).update(value if isinstance(value, list) else [value])
    return {key: sorted(values) for key, values in sorted(values_of.items())}


def _all(logs: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    return sorted({log[name] for log in logs if log[name]})


# A rank's own NCCL log: requested before NCCL is loaded, stored on the node, read at the end, and then removed.
#
# NCCL_DEBUG_SUBSYS is INIT,NET,GRAPH, which NCCL logs at the start and when it connects, but not during calls. TUNING is different: since
# 2.20 the enqueuing thread writes one line per call (until 2.23: per call of rank 0), and flushes the file after every line
# (src/debug.cc). That adds a microsecond or more to the timed path, so TUNING is off during timed calls. NCCL's choices come from a
# `witness`: one untimed call with TUNING on, for which the library reads its settings again. Libraries before 2.27 cannot do that safely.
# For them `tuning=True` (`--evidence tuning`) keeps TUNING on, also in timed calls. NCCL opens and empties its file whenever it reads its
# settings, so each time needs a new name.

RESET = "ncclResetDebugInit"
RESET_SAFE_SINCE = 22703  # ncclGetVersion's number: 2.24 to 2.26 close the file while another thread may write to it
_LEVEL = "NCCL_DEBUG"
_SUBSYS = "NCCL_DEBUG_SUBSYS"
_FILE = "NCCL_DEBUG_FILE"
_STARTING = "INIT,NET,GRAPH"
_CALLING = "INIT,NET,GRAPH,TUNING"
_WITNESS = "TUNING"
_PREFIX = "collbench-nccl-"
_START_FOLDER = "COLLBENCH_LOCAL"  # the folder of a start on this host
_ENOUGH = ("INFO", "TRACE")


class DebugLog:
    """The log that NCCL writes for this process. Without a readable log, `why` is a sentence with the reason and remedy."""

    def __init__(
        self, env: MutableMapping[str, str], *, folder: Path | None = None, file: Path | None = None, why: str | None = None
    ) -> None:
        self.why = why
        self._env = env
        self._folder = folder
        self._file = file
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True) if folder else None  # also at the end of Python
        self._before: dict[str, str | None] = {}
        self._choices: list[dict[str, Any]] = []
        self._files = 0

    def request(self, subsystems: str) -> None:
        """Set the subsystems that NCCL logs, and a new file for the log."""
        assert self._folder is not None
        self._files += 1
        pattern = f"{self._folder}/{self._files}.".replace("%", "%%") + "%h.%p.log"
        variables = {_LEVEL: "INFO", _FILE: pattern, _SUBSYS: subsystems}
        for name in variables:  # the user's value: None if it is unset or was set by another log of collbench
            value = self._env.get(name)
            is_own = _is_own(self._env) and (name != _SUBSYS or value in (_STARTING, _CALLING, _WITNESS))
            self._before.setdefault(name, None if is_own else value)
        self._env.update({name: value for name, value in variables.items() if name != _SUBSYS or not self._before[_SUBSYS]})

    @contextmanager
    def witness(self, reset: Callable[[], object] | None) -> Iterator[list[dict[str, Any]]]:
        """Yield a list around an untimed call of each kind; afterwards it holds NCCL's choices, as `choices` in `facts`.

        `reset` is the library's ncclResetDebugInit (see `resetter`). Without it, or without a log of collbench, the
        list stays empty.
        """
        choices: list[dict[str, Any]] = []
        if reset is None or self._folder is None:
            yield choices
            return
        self.request(_WITNESS)
        reset()
        number = self._files
        try:
            yield choices
        finally:
            self.request(_STARTING)
            reset()
            choices += self._read_choices(number)
            self._choices += choices

    def facts(self) -> dict[str, Any]:
        """Return the content of this process's log, JSON-ready (see `summary`), or {"host", "why"}. Reads the files; never raises."""
        host = {"host": socket.gethostname().partition(".")[0]}
        if self.why:
            return {**host, "why": self.why}
        files = [self._file] if self._file else []
        if self._folder:
            files = sorted(self._folder.glob("*.log"))
        written = [file for file in files if _size(file)]
        if not written:
            return {**host, "why": "NCCL wrote no log: it was not loaded, or the library is not NVIDIA's or AMD's"}
        try:
            facts = summary(read_files(written, "NCCL's log"))
        except Unreadable as error:
            return {**host, "why": str(error)}
        return {**host, **facts, "choices": [*facts["choices"], *self._choices]}

    def of_user(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return `env` as the user set it, without the variables for this log. These are not a difference between two runs."""
        kept = {name: value for name, value in env.items() if name not in self._before}
        return kept | {name: value for name, value in self._before.items() if value is not None}

    def close(self) -> None:
        """Remove the folder and restore the environment. May be called twice."""
        if _is_own(self._env, self._folder):
            for name, value in self._before.items():
                self._env.pop(name, None)
                if value is not None:
                    self._env[name] = value
        if self._remove:
            self._remove()

    def _read_choices(self, number: int) -> list[dict[str, Any]]:
        """Return the choices in one file, and remove the file."""
        files = list(self._folder.glob(f"{number}.*.log")) if self._folder else []
        try:
            return choices_of(read_files([file for file in files if _size(file)], "NCCL's log"))
        except Unreadable:
            return []
        finally:
            for file in files:
                file.unlink(missing_ok=True)


def prepare(env: MutableMapping[str, str], *, tuning: bool = False) -> DebugLog:
    """Request a log from NCCL through `env` (os.environ), before NCCL is loaded. Close the result at the end.

    Settings of the user stay; their log is read where that is possible. Each library needs a log of its own: call again
    before another one is loaded. `tuning`: also log a line per call, in the timed path. The environment takes
    precedence over NCCL's configuration files. The folder is inside the one that a local start removes, so that a
    killed rank leaves no files.
    """
    level = env.get(_LEVEL)
    file = env.get(_FILE)
    if (level or file) and not _is_own(env):
        return _log_of_user(env, level, file)
    try:
        log = DebugLog(env, folder=Path(tempfile.mkdtemp(prefix=_PREFIX, dir=env.get(_START_FOLDER) or None)))
    except OSError as why:
        return DebugLog(env, why=f"no folder for NCCL's log in {tempfile.gettempdir()} ({why.strerror}): make room, or set TMPDIR")
    log.request(_CALLING if tuning else _STARTING)
    return log


def resetter(library: Any, version: int) -> Callable[[], object] | None:
    """Return the library's (ctypes) function that makes it read NCCL_DEBUG again; None if it has none, or an unsafe one."""
    return getattr(library, RESET, None) if version >= RESET_SAFE_SINCE else None


def _log_of_user(env: MutableMapping[str, str], level: str | None, file: str | None) -> DebugLog:
    if not level:
        return DebugLog(env, why=f"{_FILE} is set without {_LEVEL}, so NCCL writes no log: unset it, or set {_LEVEL}=INFO")
    if level.strip().upper() not in _ENOUGH:
        return DebugLog(env, why=f"{_LEVEL}={printable(level)} is set, which logs no paths: unset it, or set INFO")
    if not file or file.startswith("/dev/"):
        return DebugLog(env, why=f"{_LEVEL} is set and is written to the output: unset it, or set {_FILE}=/tmp/nccl.%h.%p.log, too")
    if "%p" not in file.replace("%%", ""):
        return DebugLog(env, why=f"{_FILE}={printable(file)} has no %p, so the ranks of a host overwrite each other's log: add %p")
    return DebugLog(env, file=Path(_expanded(file)))


def _expanded(pattern: str) -> str:
    """Expand NCCL's placeholders in a file name: %h the host, %p the process, %% a %."""
    values = {"h": socket.gethostname().partition(".")[0], "p": str(os.getpid()), "%": "%"}
    return re.sub("%([hp%])", lambda match: values[match[1]], pattern)


def _is_own(env: Mapping[str, str], folder: Path | None = None) -> bool:
    """Return whether the file in the environment is one that `prepare` named; in this folder, if one is given."""
    folder_in_env = Path(env.get(_FILE, "").replace("%%", "%")).parent
    return folder_in_env.name.startswith(_PREFIX) and folder in (None, folder_in_env)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


# NCCL's own view of a hanging job: its RAS service (2.24 and newer) reports which ranks lag, do not answer, or have ended.
#
# Every process listens at NCCL_RAS_ADDR (localhost:28028); one process of a host answers for the whole job. The protocol is lines of text,
# or JSON if the server supports "SET FORMAT json" (2.28.7 and newer). Query it before the abort. Source: src/ras/client.cc and
# client_support.cc of NCCL.

DEADLINE_S = 3.0
_PORT = 28028
_MOST_BYTES = 16 << 20  # of a reply: 20 communicators of 1024 ranks
_MOST_TEXT = 400  # characters of a sentence
_MOST_NAMED = 4
_LINE = 4096
_OFF = frozenset({"0"})
_ADDRESS = re.compile(r"^(?:\[([^\[\]]{1,200})\]|([^:\[\]]{1,253})):(\d{1,5})$")
_SECTION = re.compile(r"^(Errors|Warnings)\s*\n=+\s*$", re.MULTILINE)


class RasReply(msgspec.Struct, frozen=True):
    """The reply of RAS. `sentence`: its report, None when it could not be reached, with the reason in `why`."""

    sentence: str | None
    why: str | None = None


def query_ras(env: Mapping[str, str], deadline_s: float = DEADLINE_S) -> RasReply:
    """Return the report of NCCL's RAS about the job of this host. Never raises; nothing in the reply is trusted.

    It ends at the deadline; resolving a host name may take longer.
    """
    if env.get("NCCL_RAS_ENABLE") in _OFF:
        return RasReply(None, "NCCL_RAS_ENABLE=0 turned NCCL's RAS off")
    match = _ADDRESS.match((env.get("NCCL_RAS_ADDR") or f"localhost:{_PORT}").strip())
    if match is None or not 0 < int(match[3]) < 65536:
        return RasReply(None, f"NCCL_RAS_ADDR={printable(env['NCCL_RAS_ADDR'], 80)} is not a valid HOST:PORT")
    host = match[1] or match[2]
    port = int(match[3])
    address = f"{printable(host, 80)}:{port}"
    try:
        with _Client((host, port), deadline_s) as client:
            return RasReply(_sentence(client.status()))
    except TimeoutError:
        return RasReply(None, f"NCCL's RAS at {address} did not answer within {deadline_s:g} s")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return RasReply(None, f"NCCL's RAS at {address} cannot be reached ({printable(why, 120)}); NCCL has RAS since 2.24")


class _Client:
    """One connection to RAS. Every step ends at the same deadline."""

    def __init__(self, address: tuple[str, int], deadline_s: float) -> None:
        self._deadline = time.monotonic() + deadline_s
        self._socket = socket.create_connection(address, deadline_s)
        self._buffer = b""

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def status(self) -> str:
        """Return the whole reply, or the part that arrived. Raises TimeoutError without any, ValueError for a server of another kind."""
        greeting = self._request("CLIENT PROTOCOL 2")
        if not greeting.upper().startswith("SERVER PROTOCOL"):
            raise ValueError(f"answers {greeting[:60]!r}")
        self._request("TIMEOUT 1")  # its default of 5 s for queries to other processes exceeds the deadline
        self._request("SET FORMAT json")
        self._send("VERBOSE STATUS")
        try:
            while len(self._buffer) < _MOST_BYTES and self._receive():
                pass
        except TimeoutError:
            if not self._buffer.strip():
                raise
        return self._buffer.decode("utf-8", "replace")

    def _request(self, command: str) -> str:
        self._send(command)
        while b"\n" not in self._buffer and len(self._buffer) < _LINE and self._receive():
            pass
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def _send(self, command: str) -> None:
        self._wait()
        self._socket.sendall(f"{command}\n".encode())

    def _receive(self) -> bool:
        self._wait()
        received = self._socket.recv(1 << 16)
        self._buffer += received
        return bool(received)

    def _wait(self) -> None:
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._socket.settimeout(remaining_s)


def _sentence(answer: str) -> str:
    if not answer.strip():
        raise ValueError("sends an empty answer")
    try:
        document = parse_json(answer)
    except (ValueError, RecursionError):
        if answer.lstrip().startswith("{"):
            raise ValueError("sends an incomplete answer") from None
        # text: the non-empty lines below "Errors" and "Warnings"
        match = _SECTION.search(answer)
        if match is None and "Job summary" not in answer:
            return f"NCCL's RAS: {_short(answer)}"
        lines = [line.strip() for line in answer[match.end() :].splitlines()] if match else []
        text = [line for line in lines if line.strip(" =") and line not in ("Errors", "Warnings")]
        return f"NCCL's RAS: {_short('; '.join(text))}" if text else "NCCL's RAS reports no errors"
    if not isinstance(document, dict) or not isinstance(document.get("communicators"), list):
        raise ValueError("sends an answer of an unknown form")
    communicators = _dicts(document, "communicators")
    faults = [fault for communicator in communicators for fault in _faults(communicator)]
    if faults:
        more = f"; and {len(faults) - _MOST_NAMED} more" if len(faults) > _MOST_NAMED else ""
        return f"NCCL's RAS: {_short('; '.join(faults[:_MOST_NAMED]))}{more}"
    ranks = max((len(_dicts(communicator, "ranks")) for communicator in communicators), default=0)
    return f"NCCL's RAS reaches all {ranks} ranks, and none is behind" if ranks else "NCCL's RAS lists no communicators"


def _faults(communicator: dict[str, Any]) -> Iterator[str]:
    """Yield a clause on each rank that does not answer, has an error, or has launched fewer calls of a collective than the furthest."""
    for rank in _dicts(communicator, "missing_ranks"):
        status = rank.get("status")
        dead = isinstance(status, dict) and status.get("considered_dead") is True
        yield f"{_name(rank)} {'is considered dead' if dead else 'does not answer'}"
    ranks = _dicts(communicator, "ranks")
    for rank in ranks:
        status = rank.get("status")
        error = whole(str(status.get("async_error"))) if isinstance(status, dict) else None
        if error and error != 7:  # 7 means in progress
            yield f"{_name(rank)} has asynchronous error {error}"
    calls_of_ranks = [(rank, rank["collective_counts"]) for rank in ranks if isinstance(rank.get("collective_counts"), dict)]
    kinds = dict.fromkeys(kind for _, calls in calls_of_ranks for kind in calls)
    for kind in list(kinds)[:64]:
        launched = [(rank, calls[kind]) for rank, calls in calls_of_ranks if type(calls.get(kind)) is int]
        most = max((count for _, count in launched), default=0)
        complete = sum(count == most for _, count in launched)
        for rank, count in sorted(launched, key=lambda pair: pair[1]):
            if count < most:
                ranks_with_all = f"{complete} of {len(launched)} ranks have all"
                yield f"{_name(rank)} lags: {count} of {most} {printable(kind, 30)} launched ({ranks_with_all})"


def _dicts(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values = document.get(name)
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _name(rank: dict[str, Any]) -> str:
    host = rank.get("host")
    return f"rank {printable(str(rank.get('rank', '?')), 12)}" + (f" on {printable(str(host), 80)}" if host else "")


def _short(text: str) -> str:
    return printable(" ".join(text.split()), _MOST_TEXT)


_SHOWN = ("sentence", "transports", "nics", "gdr", "hosts_without_gdr", "why")
_MEETING = ("allreduce", 4)  # the backend's own synchronization
Choices = list[dict[str, Any]]


class NcclPaths(msgspec.Struct):
    """The NCCL log of one backend on this rank. `facts`: of all ranks together after the last case, at rank 0.

    tuning   whether NCCL writes a line per call all the time, as `--evidence tuning` requests
    """

    log: DebugLog
    facts: dict[str, Any] = msgspec.field(default_factory=dict)

    @classmethod
    def begin(cls, tuning: bool) -> NcclPaths:
        """Request a log from NCCL, before it is loaded. Close the result at the end."""
        return cls(prepare(os.environ, tuning=tuning))

    @contextmanager
    def witness(self, backend: Backend, case: Case) -> Iterator[Choices]:
        """Yield a list around untimed calls of a case; afterwards it holds the algorithms and protocols that NCCL chose for them.

        Choices for the synchronization before the calls are left out, unless the case is the same operation and size.
        """
        reset = resetter(*backend.nccl) if backend.nccl else None
        with self.log.witness(reset) as choices:
            yield choices
        if (case.operation, case.size_bytes) != _MEETING:
            choices[:] = [choice for choice in choices if (str(choice["collective"]).lower(), choice["bytes"]) != _MEETING]

    def evidence(self, world: World, choices: Choices, machines: Sequence[Machine], moved: MovedBytes | None) -> dict[str, Any]:
        """Return a row's evidence at rank 0: paths of all ranks so far, choices for this case, GPUDirect state. All ranks call."""
        log_here: dict[str, Any] = {"facts": self.log.facts(), "choices": choices}
        logs = world.gather(log_here, "reading NCCL's log")
        if logs is None:
            return {}
        self.facts = together([log["facts"] for log in logs])
        first_choices: Choices = next((log["choices"] for log in logs if log["choices"]), [])
        state = state_of_run(self.facts, machines, rdma_bytes(moved.hosts.values() if moved else ()))
        return {"nccl": {name: self.facts[name] for name in _SHOWN} | {"choices": first_choices}, "gpudirect": msgspec.to_builtins(state)}

    def close(self) -> None:
        """Remove the log and restore the environment."""
        self.log.close()


def rdma_bytes(hosts: Collection[MovedByHost]) -> int | None:
    """Return the bytes that the RDMA ports of these hosts sent; None if no port counts them or a count is missing."""
    sent = [counters.moved(counts, "tx") for host in hosts for counts in host.ports.values()]
    if None in sent:
        return None
    total = sum(count for count in sent if count)
    return total if total or any(host.idle_ports for host in hosts) else None


def describe_ras() -> str:
    """Return the RAS report about ranks that are behind or have ended, or the reason why there is none."""
    answer = query_ras(os.environ)
    return answer.sentence or answer.why or "NCCL's RAS reports nothing"
