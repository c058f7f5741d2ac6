"""Removes what launchers and log collectors print before each line: mpirun, srun, pdsh, torchrun, Ray, kubectl, docker compose."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[\d:.,]{0,24}(?:Z|[+-]\d\d:?\d\d)?(?=\s)"
_POD = r"\[pod/[^\]\s]{1,512}\]"  # kubectl logs --prefix
# [1,0]<stdout>: of Open MPI, [0] of hydra's -l, [rank0]: and [default0]: of torchrun; always with a digit.
_BRACKET = r"\[(?=[^\]\s]{0,119}\d)[\w.,:@/-]{1,120}\](?:<std(?:out|err|diag)>)?\s?:?(?!\s?NCCL )"
_RAY = r"\((?=[^()]{0,200}\bpid=\d)[^()]{1,320}\)"  # (worker1, rank=1, pid=100, ip=10.0.0.2) of SkyPilot, (main pid=7) of Ray
_COMPOSE = r"[A-Za-z0-9][\w.-]{0,79}\s{1,40}\|(?=\s)"
# node01: of pdsh, 0: of srun -l. What follows must begin a table, a comment or JSON: "Final:" of ucx_perftest and "busbw:" are titles.
_LABEL = r"(?!(?:Final|algbw|busbw):)[A-Za-z0-9_.-]{1,80}:(?=\s{0,40}[#{|+]|\s{1,40}\d)"
_PREFIX = re.compile(rf"(?:\s*(?:{_STAMP}|({_POD}|{_BRACKET}|{_RAY}|{_COMPOSE}|{_LABEL})))")
_MOST_PREFIXES = 4  # kubectl before its time stamp before mpirun's tag, say
_REACH = 1024  # letters of a line that are looked at: a line of nothing but blanks would take long
_STARTS = re.compile(r"[\s\dA-Za-z\[(]")
_BARE_TAG = re.compile(r"\[\d{1,7}\]:?$")


class Tagged(NamedTuple):
    """A line without its prefixes, and what they were: lines of one writer have the same."""

    writer: str
    text: str


def split_prefix(line: str) -> Tagged:
    """The line without prefixes.

    A launcher whose program prints a line in several pieces repeats its tag inside the line: "[1,0]<stdout>: 8 2 float[1,0]<stdout>: 9.1".
    These are removed, too.
    """
    if line[:1] == "#" or not _STARTS.match(line):
        return Tagged("", line)
    at, tags = 0, list[str]()
    for _ in range(_MOST_PREFIXES):
        found = _PREFIX.match(line, at, _REACH)
        if found is None or found.end() == at:
            break
        at = found.end()
        if found[1]:
            tags.append(found[1].strip())
    if not tags:
        return Tagged("", line[at:])
    text, tag = line[at:], tags[-1]
    if tag[0] == "[" and tag in text and not (_BARE_TAG.match(tag) and "NCCL" in text):
        text = text.replace(tag, " ")
    return Tagged(" ".join(tags), text)


def without_prefixes(lines: Iterable[str]) -> list[str]:
    """The lines as their tool printed them; one blank after a prefix is part of the prefix."""
    return [text if text is line else text.removeprefix(" ") for line in lines for text in (split_prefix(line).text,)]
