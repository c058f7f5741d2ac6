"""A site file: what is the same for every job of a cluster, said once, by partition.

    schema = 1
    [defaults]
    account = "infra"
    [partitions.h100]
    gpus-per-node = 8
    env = ["NCCL_IB_HCA=mlx5"]

Its keys are the settings' names. `--partition h100` takes what that table says; what is typed wins, then the partition, then the defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collbench.emit.job import Setting, Value
from collbench.errors import UsageError

_TOP = frozenset({"schema", "defaults", "partitions"})
_LARGEST_BYTES = 1 << 20


def of_site(file: Path, partition: str | None, known: Mapping[str, Setting]) -> dict[str, Value]:
    """What the file says of a job on this partition (None: none was named), by setting. `known`: every kind's settings, by name.

    Raises UsageError for a file that cannot be read, an unknown key or partition, and a value that its setting refuses.
    """
    told = _read(file)
    defaults, partitions = told.get("defaults", {}), told.get("partitions", {})
    for where, table in (("defaults", defaults), ("partitions", partitions)):
        if not isinstance(table, dict):
            raise UsageError(f"{file}: {where} has to be a table: write [{where}{'.NAME' if where == 'partitions' else ''}]")
    if partition is not None and partitions and partition not in partitions:
        raise UsageError(f"{file} has no partition '{partition}': {', '.join(partitions)}; or add [partitions.{partition}]")
    tables = {"defaults": defaults, **{f"partitions.{name}": table for name, table in partitions.items()}}
    parsed = {where: _parsed(f"{file}: [{where}]", table, known) for where, table in tables.items()}
    return {**parsed["defaults"], **parsed.get(f"partitions.{partition}", {})}


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"--site {file} is larger than 1 MiB: that is no site file")
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--site {file} cannot be read as TOML: {error}") from error
    unknown = sorted(set(told) - _TOP)
    if unknown:
        raise UsageError(f"{file}: '{unknown[0]}' is unknown: there are schema, [defaults] and [partitions.NAME]")
    if told.get("schema") != 1:
        raise UsageError(f"{file}: schema = 1 is missing: write it in the first line")
    return told


def _parsed(where: str, table: Any, known: Mapping[str, Setting]) -> dict[str, Value]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} has to be a table")
    return {name: _value(where, name, said, known) for name, said in table.items()}


def _value(where: str, name: str, said: Any, known: Mapping[str, Setting]) -> Value:
    if name not in known:
        from collbench.suite.form import nearest

        raise UsageError(f"{where} key '{name}' is unknown: {nearest(name, known)}")
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
