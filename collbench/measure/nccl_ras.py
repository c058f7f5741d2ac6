"""NCCL's own view of a job that hangs: its RAS service (2.24 and newer) is asked which ranks lag, are silent or dead.

Every process listens at NCCL_RAS_ADDR (localhost:28028); one of a host answers for the whole job. Lines in, text out; JSON where the
server knows "SET FORMAT json" (2.28.7 on). Source: src/ras/client.cc and client_support.cc of NCCL. To be asked before the abort.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from collbench.machine.readers.text import printable, whole

DEADLINE_S = 3.0
_PORT = 28028
_MOST_BYTES = 16 << 20  # of an answer: 20 communicators of 1024 ranks
_MOST_TEXT = 400  # characters of a sentence
_MOST_NAMED = 4
_LINE = 4096
_OFF = frozenset({"0"})
_ADDRESS = re.compile(r"^(?:\[([^\[\]]{1,200})\]|([^:\[\]]{1,253})):(\d{1,5})$")
_SECTION = re.compile(r"^(Errors|Warnings)\s*\n=+\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """`sentence`: what RAS says, None when it could not be asked, with the reason in `why`."""

    sentence: str | None
    why: str | None = None


def ask(env: Mapping[str, str], deadline_s: float = DEADLINE_S) -> Answer:
    """What NCCL's RAS says about the job of this host. Never raises, trusts nothing it reads.

    It takes no longer than the deadline; to find the address of a host's name may take longer.
    """
    if env.get("NCCL_RAS_ENABLE") in _OFF:
        return Answer(None, "NCCL_RAS_ENABLE=0 turned NCCL's RAS off")
    place = _place(env.get("NCCL_RAS_ADDR") or f"localhost:{_PORT}")
    if place is None:
        return Answer(None, f"NCCL_RAS_ADDR={printable(env['NCCL_RAS_ADDR'], 80)} is no HOST:PORT")
    where = f"{printable(place[0], 80)}:{place[1]}"
    try:
        with _Client(place, deadline_s) as client:
            return Answer(_sentence(client.status()))
    except TimeoutError:
        return Answer(None, f"NCCL's RAS at {where} did not answer within {deadline_s:g} s")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Answer(None, f"NCCL's RAS at {where} could not be asked ({printable(why, 120)}); NCCL has it since 2.24")


class _Client:
    """One connection; every step ends at the same deadline."""

    def __init__(self, place: tuple[str, int], deadline_s: float) -> None:
        self._ending = time.monotonic() + deadline_s
        self._socket = socket.create_connection(place, deadline_s)
        self._buffer = b""

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def status(self) -> str:
        """The whole answer, or as much as came. Raises TimeoutError when nothing did, ValueError for a server of another kind."""
        greeting = self._asked("CLIENT PROTOCOL 2")
        if not greeting.upper().startswith("SERVER PROTOCOL"):
            raise ValueError(f"answers {greeting[:60]!r}")
        self._asked("TIMEOUT 1")  # for its questions to other processes: the default of 5 s is beyond our deadline
        self._asked("SET FORMAT json")
        self._send("VERBOSE STATUS")
        try:
            while len(self._buffer) < _MOST_BYTES and self._receive():
                pass
        except TimeoutError:
            if not self._buffer.strip():
                raise
        return self._buffer.decode("utf-8", "replace")

    def _asked(self, command: str) -> str:
        """The line that answers a command."""
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
        more = self._socket.recv(1 << 16)
        self._buffer += more
        return bool(more)

    def _wait(self) -> None:
        left = self._ending - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


def _place(address: str) -> tuple[str, int] | None:
    match = _ADDRESS.match(address.strip())
    port = int(match[3]) if match else 0
    return (match[1] or match[2], port) if match and 0 < port < 65536 else None


def _sentence(answer: str) -> str:
    """Of JSON or of text."""
    if not answer.strip():
        raise ValueError("says nothing")
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        if answer.lstrip().startswith("{"):
            raise ValueError("its answer ends early") from None
        return _of_text(answer)
    if not isinstance(document, dict) or not isinstance(document.get("communicators"), list):
        raise ValueError("says something unknown")
    return _of_json(document["communicators"])


def _of_text(answer: str) -> str:
    """The lines below "Errors" and "Warnings", without the empty ones."""
    found = [answer[match.end() :] for match in _SECTION.finditer(answer)]
    if not found:
        return "NCCL's RAS reports no errors" if "Job summary" in answer else f"NCCL's RAS: {_short(answer)}"
    told = [line.strip() for line in found[0].splitlines() if line.strip(" =") and line.strip() not in ("Errors", "Warnings")]
    return f"NCCL's RAS: {_short('; '.join(told))}" if told else "NCCL's RAS reports no errors"


def _of_json(communicators: list[Any]) -> str:
    known = [each for each in communicators if isinstance(each, dict)]
    parts = [part for each in known for part in (*_missing(each), *_wrong(each), *_lagging(each))]
    if parts:
        more = f"; and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
        return f"NCCL's RAS: {_short('; '.join(parts[:_MOST_NAMED]))}{more}"
    ranks = max((len(_ranks(each, "ranks")) for each in known), default=0)
    return f"NCCL's RAS hears all {ranks} ranks, and none lags behind" if ranks else "NCCL's RAS knows no communicator"


def _missing(communicator: dict[str, Any]) -> Iterator[str]:
    for each in _ranks(communicator, "missing_ranks"):
        status = each.get("status")
        dead = isinstance(status, dict) and status.get("considered_dead") is True
        yield f"{_name(each)} {'is considered dead' if dead else 'does not answer'}"


def _wrong(communicator: dict[str, Any]) -> Iterator[str]:
    for each in _ranks(communicator, "ranks"):
        status = each.get("status")
        error = whole(str(status.get("async_error"))) if isinstance(status, dict) else None
        if error and error != 7:  # 7: in progress
            yield f"{_name(each)} has asynchronous error {error}"


def _lagging(communicator: dict[str, Any]) -> Iterator[str]:
    """Ranks that have launched fewer calls of a collective than the one that is furthest."""
    ranks = _ranks(communicator, "ranks")
    counts = {id(each): each.get("collective_counts") for each in ranks}
    kinds = dict.fromkeys(kind for each in counts.values() if isinstance(each, dict) for kind in each)
    for kind in list(kinds)[:64]:
        launched = [(each, number) for each in ranks if (number := _count(counts[id(each)], kind)) is not None]
        most = max((number for _, number in launched), default=0)
        behind = sorted((number, index) for index, (_, number) in enumerate(launched) if number < most)
        for number, index in behind:
            yield f"{_name(launched[index][0])} lags: {number} of {most} {printable(kind, 30)} launched{_how_many(launched, most)}"


def _how_many(launched: list[tuple[dict[str, Any], int]], most: int) -> str:
    return f" ({Counter(number for _, number in launched)[most]} of {len(launched)} ranks have all)"


def _count(counts: Any, kind: str) -> int | None:
    value = counts.get(kind) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ranks(communicator: dict[str, Any], name: str) -> list[dict[str, Any]]:
    listed = communicator.get(name)
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _name(rank: dict[str, Any]) -> str:
    host = rank.get("host")
    return f"rank {printable(str(rank.get('rank', '?')), 12)}" + (f" on {printable(str(host), 80)}" if host else "")


def _short(text: str) -> str:
    return printable(" ".join(text.split()), _MOST_TEXT)
