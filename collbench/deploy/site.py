"""A site file: what is the same for every job of a cluster, said once, by partition.

    schema = 1
    [defaults]
    account = "infra"
    [partitions.h100]
    gpus-per-node = 8
    env = ["NCCL_IB_HCA=mlx5"]

Its keys are the settings' names. `--partition h100` takes what that table says; what is typed wins, then the partition, then the defaults.
Of a setting that may be given several times all are taken, in the other order: of two values of one variable the typed one is the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collbench.deploy.job import Setting, Value
from collbench.errors import UsageError
from collbench.untrusted import parse_toml, read_file

_TOP = frozenset({"schema", "defaults", "partitions"})
_LARGEST_BYTES = 1 << 20


def of_site(file: Path, partition: str | None, known: Mapping[str, Setting], *, named: bool = False) -> dict[str, Value]:
    """What the file says of a job on this partition (None: none was named), by setting. `known`: every kind's settings, by name.

    `named`: the partition is nothing but a table's name, so that there has to be one. Raises UsageError for a file that cannot be read,
    an unknown key or partition, and a value that its setting refuses.
    """
    told = _read(file)
    defaults, partitions = told.get("defaults", {}), told.get("partitions", {})
    for where, table in (("defaults", defaults), ("partitions", partitions)):
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {where} has to be a table: write [{where}{'.NAME' if where == 'partitions' else ''}]")
    if partition is not None and (partitions or named) and partition not in partitions:
        others = f"choose from {', '.join(partitions)}, or " if partitions else ""
        raise UsageError(f"{file} has no partition {partition!r}: {others}add [partitions.{partition}]")
    tables = {"defaults": defaults, **{f"partitions.{name}": table for name, table in partitions.items()}}
    parsed = {where: _parsed(f"{file}: [{where}]", table, known) for where, table in tables.items()}
    return together(parsed["defaults"], parsed.get(f"partitions.{partition}", {}))


def together(*said: Mapping[str, Value]) -> dict[str, Value]:
    """What several places say: the last one's word, but all values of what may be given several times, in this order."""
    found: dict[str, Value] = {}
    for place in said:
        for name, value in place.items():
            before = found.get(name)
            found[name] = (*before, *value) if isinstance(before, tuple) and isinstance(value, tuple) else value
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        told = parse_toml(read_file(file, _LARGEST_BYTES).decode())
    except OSError as error:
        raise UsageError(f"--site {file} cannot be read ({error.strerror}): name a TOML file") from error
    except ValueError as error:
        raise UsageError(f"--site {file} is no TOML ({error}): mend it there") from error
    unknown = sorted(set(told) - _TOP)
    if unknown:
        raise UsageError(f"{file}: {unknown[0]!r} is unknown: there are schema, [defaults] and [partitions.NAME]")
    if told.get("schema") != 1:
        raise UsageError(f"{file}: schema = 1 is missing: write it in the first line")
    return told


def _parsed(where: str, table: Any, known: Mapping[str, Setting]) -> dict[str, Value]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} has to be a table")
    return {name: _value(where, name, said, known) for name, said in table.items()}


def _value(where: str, name: str, said: Any, known: Mapping[str, Setting]) -> Value:
    if name not in known:
        from collbench.operations.suite import nearest

        raise UsageError(f"{where} key {name!r} is unknown: {nearest(name, known)}")
    setting = known[name]
    each = said if setting.many and isinstance(said, list) else [said]
    if not all(isinstance(one, str | int) and not isinstance(one, bool) for one in each):
        raise UsageError(f"{where} {name} = {said!r} is neither a text nor a whole number{', nor a list of texts' * setting.many}")
    parsed = tuple(parse_setting(setting, str(one), f"{where} {name}") for one in each)
    return tuple(map(str, parsed)) if setting.many else parsed[0]


def parse_setting(setting: Setting, text: str, where: str) -> str | int:
    """The setting's value. Raises UsageError that begins with `where`."""
    try:
        return setting.parse(text)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
