"""Pages of the formats that collbench reads and writes: the run folder, the JSON schemas, and the suites."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import collbench
from collbench.machine.peak.ceiling import Ceiling
from collbench.operations.suite import BUILT_IN, SCHEMA_FILE
from collbench.plugin import plugins
from collbench.report.explain import pages
from collbench.report.runs import ROW_METRICS
from collbench.report.verdict_formats import GATE_METRICS
from collbench.report.writers import csv_columns, metric_name
from collbench.results import folder
from collbench.results.row import SCHEMA, Row, Times
from site_pages.markdown import block, code, codes, escaped, page, paragraphs, table

_PACKAGE = Path(collbench.__file__).parent
SCHEMAS = {
    "suite": SCHEMA_FILE,
    "verdict": _PACKAGE / "gating/verdict.schema.json",
}
if "hunt" in plugins():
    SCHEMAS["recommendation"] = _PACKAGE / "plugins/hunt/recommendation.schema.json"


def described_lines(text: str) -> list[tuple[str, str]]:
    """Return the lines "name    meaning" of a docstring, with their continuations, as (name, meaning)."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if start := re.match(r"([\w.]+(?:, [\w.]+)*) {2,}(\S.*)$", line.strip()):
            found.append((start[1], start[2]))
        elif found and line.startswith("  ") and line.strip():
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def run_folder() -> str:
    """Return the page of a run's folder: its files, and the fields of a row."""
    about, _, _ = (folder.__doc__ or "").partition("\n\n")
    written = set(csv_columns())
    words = {
        name: each.means for each in pages() if each.group == "column" for name in (each.word, *each.names) if name in {each.word, *written}
    }
    rows = ((code(name), code(Row.__annotations__[name]), escaped(words.get(name, ""))) for name in Row.__struct_fields__)
    return page(
        "The run folder",
        paragraphs(about),
        "`collbench report DIR` shows a run again, `collbench runs` lists the runs in `runs/`. Readers accept files of earlier versions; "
        f"the schema of rows has version {SCHEMA}.",
        "## Files",
        table(["file", "content"], ((code(name), escaped(means)) for name, means in described_lines(folder.__doc__ or ""))),
        "## Fields of a row in cells.jsonl",
        "One JSON object per line. `null` means unknown or not applicable; times are in seconds, rates in bytes per second.",
        table(["field", "type", "meaning"], rows),
        block("\n".join((Row.__doc__ or "").splitlines()[2:])),
        "### time_s",
        paragraphs(Times.__doc__ or ""),
        table(["field", "type"], ((code(name), code(Times.__annotations__[name])) for name in Times.__struct_fields__)),
        "### ceiling and hard_bound",
        table(["field", "meaning"], ((codes(name.split(", ")), escaped(means)) for name, means in described_lines(Ceiling.__doc__ or ""))),
    )


def metrics() -> str:
    """Return the page of the metrics for Prometheus."""
    parts = [
        "All metrics are gauges. `collbench report --openmetrics FILE` writes those of rows and runs, `collbench gate --openmetrics FILE` "
        "those of a verdict. `collbench store serve-metrics` serves all: rows then have a label `node`, verdicts a label `baseline`.",
        "An unknown value has no sample. Times are in seconds, rates in bytes per second, shares from 0 to 1.",
    ]
    tables = {"Rows and runs": ROW_METRICS, "Gate": GATE_METRICS}
    if "store" in plugins():
        from collbench.plugins.store.metrics import STORE_METRICS

        tables["Store"] = STORE_METRICS
    for title, metrics in tables.items():
        rows = ((code(metric_name(name, metric.unit)), escaped(metric.means)) for name, metric in metrics.items())
        parts += [f"## {title}", table(["metric", "meaning"], rows)]
    return page("Metrics", *parts)


def schemas() -> str:
    """Return the page of the JSON schemas: a table of the fields of each."""
    parts = ["JSON Schema (draft 2020-12) of the files that other programs write or read. Use them in an editor or a validator."]
    for name, file in SCHEMAS.items():
        parts += _schema(name, json.loads(file.read_text(encoding="utf-8")))
    return page("JSON schemas", *parts)


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    parts: Mapping[str, Any] = schema.get("$defs", {})
    yield f"## {name}"
    yield f"{escaped(schema['title'])}. {escaped(schema.get('description', ''))}"
    yield f"File: [{name}.schema.json](schemas/{name}.schema.json)"
    yield from _objects("", schema, parts)
    for part, below in parts.items():
        if "properties" in below:
            yield f"### {name}: {part}"
            yield escaped(below.get("description", ""))
            yield from _objects("", below, parts)


def _objects(path: str, schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of an object's fields, and those of the objects inside it. Parts that are not objects are shown in place."""
    required = set(schema.get("required", ()))
    properties = {name: _resolved(each, parts) for name, each in schema.get("properties", {}).items()}
    rows = [
        (code(f"{path}{name}"), _type(each), "yes" if name in required else "", escaped(each.get("description", "")))
        for name, each in properties.items()
    ]
    yield table(["field", "type", "required", "meaning"], rows) if rows else ""
    for name, each in properties.items():
        below = each.get("items", each) if isinstance(each.get("items", each), dict) else {}
        if "properties" in below:
            yield from _objects(f"{path}{name}{'[]' if 'items' in each else ''}.", below, parts)


def _resolved(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with the part that it refers to, unless that is an object with a table of its own."""
    part = parts.get(str(schema.get("$ref", "")).rpartition("/")[2], {"properties": {}})
    return schema if "properties" in part else {**part, **{key: value for key, value in schema.items() if key != "$ref"}}


def _type(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        values = [json.dumps(each, ensure_ascii=False) for each in schema["enum"]]
        return codes(values[:12]) + (" …" if values[12:] else "")
    if "$ref" in schema:
        return escaped(str(schema["$ref"]).rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[several]))
    kind = schema.get("type", "any")
    kinds = [kind] if isinstance(kind, str) else list(kind)
    items = schema.get("items")
    return " or ".join(f"list of {_type(items)}" if each == "array" and isinstance(items, dict) else str(each) for each in kinds)


def suites() -> str:
    """Return the page of the built-in suites: what each measures, and its file."""
    parts = [
        "A suite is a TOML file with the cases of one launch: `collbench run quick`. `collbench run SUITE --dry-run` prints its cases and "
        "the estimated time. The fields are those of [the schema](schemas.md#suite)."
    ]
    for name in BUILT_IN:
        text = (SCHEMA_FILE.parent / f"{name}.toml").read_text(encoding="utf-8")
        parts += _suite(name, text, tomllib.loads(text))
    return page("Suites", *parts)


def _suite(name: str, text: str, document: Mapping[str, Any]) -> Iterator[str]:
    defaults = document.get("defaults", {})
    rows = (
        (escaped(each.get("name", "")), codes(each["operations"]), code(_sizes(each.get("sizes", defaults.get("sizes", "")))))
        for each in document["sweeps"]
    )
    yield f"## {name}"
    yield escaped(f"{document['title']}.")
    yield table(["sweep", "operations", "sizes"], rows)
    yield block(text, "toml")


def _sizes(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
