"""Criteria of a certificate: a TOML file per kind of system, which a site's own file extends."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from collbench.errors import UsageError
from collbench.units import parse_size
from collbench.untrusted import parse_toml, read_file

GROUP_STEPS = ("operations", "check")  # on the hosts that passed so far; the other steps run on all hosts
_KINDS = Path(__file__).parent / "kinds"
_LARGEST, _MOST_FILES = 1 << 20, 8


class Criterion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A criterion; kinds/cpu-cluster.toml explains the fields. `used`: whether it is judged at all."""

    evidence: Literal["doctor", "hunt", "losses", "operations", "check", "gate"]
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    operations: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    least_size: str = "4M"
    severity: Literal["severe", "warning", "note"] = "severe"
    step: str = ""
    required: bool = True
    used: bool = True


class Criteria(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The criteria and the commands of the steps by name, and the SHA-256 of each file that they are from."""

    schema: Literal[1]
    title: str
    criteria: dict[str, Criterion]
    steps: dict[str, str] = {}
    files: dict[str, str] = {}

    def of_hosts(self) -> Criteria:
        """Return the criteria of single hosts, which steps on all hosts measure."""
        chosen = {name: criterion for name, criterion in self.criteria.items() if criterion.step not in GROUP_STEPS}
        return msgspec.structs.replace(self, criteria=chosen)


def read_criteria(name: str) -> Criteria:
    """Return the criteria of a built-in kind or of a TOML file. Raises UsageError naming the file and what is wrong in it."""
    kinds = sorted(file.stem for file in _KINDS.glob("*.toml"))
    chain: list[tuple[Path, dict[str, Any]]] = []
    extended, folder = name, Path()
    while extended and len(chain) <= _MOST_FILES:
        path = _KINDS / f"{extended}.toml" if extended in kinds else folder / extended
        try:
            chain.append((path, parse_toml(read_file(path, _LARGEST).decode("utf-8"))))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"--criteria {path} cannot be read ({why}): name a TOML file, or one of {', '.join(kinds)}") from error
        extended, folder = str(chain[-1][1].pop("extends", "")), path.parent
    try:
        if len(chain) > _MOST_FILES:
            raise ValueError(f"more than {_MOST_FILES} files extend one another")
        document: dict[str, Any] = {}
        for _, table in reversed(chain):
            document = _merged(document, table)
        files = {path.name: hashlib.sha256(read_file(path, _LARGEST)).hexdigest() for path, _ in chain}
        criteria = msgspec.convert({**document, "files": files}, Criteria)
        for criterion in criteria.criteria.values():
            parse_size(criterion.least_size)
            if criterion.step and criterion.step not in criteria.steps:
                raise ValueError(f"[steps] lacks '{criterion.step}'")
        if not any(criterion.used and criterion.required for criterion in criteria.criteria.values()):
            raise ValueError("no criterion is required")
        for step, words in criteria.steps.items():
            if words and not shlex.split(words):
                raise ValueError(f"[steps] {step} is blank: leave it empty to leave the step out")
    except (ValueError, UsageError) as error:
        raise UsageError(f"--criteria {name}: {error}: see the comments in {_KINDS / 'cpu-cluster.toml'}") from error
    return criteria


def _merged(base: Any, changes: Any) -> Any:
    """Return the changes on top of the base: of two tables each key."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return {**base, **{key: _merged(base.get(key), value) for key, value in changes.items()}}
