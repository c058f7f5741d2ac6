"""The dashboards as Grafana reads them: the committed files, Grafana's types, and the layout."""

import enum
import json
import os
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.plugins.store.dashboards import DASHBOARDS
from collbench.plugins.store.grafana import PROMETHEUS, SOURCES, Dashboard, content, file_name, places, text_of, write_dashboards

ROOT = Path(__file__).parents[4]
FILES = ROOT / "deploy" / "grafana"
EACH = [pytest.param(each, source, id=f"{each.name}-{source}") for each in DASHBOARDS for source in SOURCES]


@pytest.mark.parametrize(("dashboard", "source"), EACH)
def test_the_committed_file_is_that_of_the_code(dashboard: Dashboard, source: str) -> None:
    path = FILES / file_name(dashboard, source)
    if os.environ.get("COLLBENCH_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text_of(dashboard, source))
    assert path.read_text() == text_of(dashboard, source)


@pytest.mark.parametrize(("dashboard", "source"), EACH)
def test_grafana_has_every_field_with_this_type(dashboard: Dashboard, source: str) -> None:
    """Grafana's own types (grafana-foundation-sdk) keep every field of the file, and each value has the declared type."""
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder", reason="grafana-foundation-sdk is not installed (extra test)")
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

    register_default_plugins()
    written = json.loads(text_of(dashboard, source))
    model = GrafanaDashboard.from_json(written)
    kept = json.loads(encoder.JSONEncoder().encode(model))
    assert not list(_lost(written, kept, "dashboard"))
    assert not list(_misfits(model, "dashboard"))


def test_the_check_of_types_detects_unknown_fields_and_wrong_types() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk is not installed (extra test)")
    from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

    assert list(_lost({"a": {"b": 1, "c": [1, {"d": 2}]}}, {"a": {"b": 1, "c": [1, {}]}}, "x")) == ["x.a.c[1].d"]
    wrong = GrafanaDashboard.from_json({**content(DASHBOARDS[0], PROMETHEUS), "title": 7})
    assert list(_misfits(wrong, "x")) == ["x.title: 7"]


def _lost(written: Any, kept: Any, where: str) -> typing.Iterator[str]:
    """Yield the places of values that a round trip through Grafana's types changed or lost."""
    if isinstance(written, dict) and isinstance(kept, dict):
        for name, value in written.items():
            if name in kept:
                yield from _lost(value, kept[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
        for number, (one, other) in enumerate(zip(written, kept, strict=True)):
            yield from _lost(one, other, f"{where}[{number}]")
    elif written != kept:
        yield where


def _misfits(model: Any, where: str) -> typing.Iterator[str]:
    """Yield the fields of a model whose value does not have the declared type."""
    for name, kind in typing.get_type_hints(type(model)).items():
        value = getattr(model, name, None)
        if not _fits(value, kind):
            yield f"{where}.{name}: {value!r}"
        for number, each in enumerate(value if isinstance(value, list) else [value]):
            if type(each).__module__.startswith("grafana_foundation_sdk") and not isinstance(each, enum.Enum):
                yield from _misfits(each, f"{where}.{name}[{number}]")


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a declared type; objects that Grafana's types do not describe further fit."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if value is None or not (origin or isinstance(kind, type)) or kind in (object, Any):
        return True
    if origin is typing.Union:
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if origin in (list, dict):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and all(_fits(each, parts[-1]) for each in items)
    if issubclass(kind, enum.Enum):
        return value in [*kind, *(each.value for each in kind)]
    plain = {float: int | float, int: int, str: str, bool: bool}.get(kind, kind | dict)
    return isinstance(value, plain) and isinstance(value, bool) == (kind is bool)


def test_names_titles_variables_and_places_of_panels_are_consistent() -> None:
    for dashboard in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel, column, row in places(dashboard.panels):
            own = {(column + x, row + y) for x in range(panel.width) for y in range(panel.height)}
            assert column + panel.width <= 24 and not taken & own, (dashboard.name, panel.title)
            taken |= own
        assert len({panel.title for panel in dashboard.panels}) == len(dashboard.panels)
        known = {each.name for each in dashboard.variables}
        texts = [panel.postgresql for panel in dashboard.panels]
        texts += [series.query for panel in dashboard.panels for series in panel.prometheus]
        for text in texts:
            assert {one or other for one, other in re.findall(r"\$\{(\w+)[:}]|\"\$(\w+)\"", text)} <= known, text
    assert len({each.name for each in DASHBOARDS}) == len(DASHBOARDS)
    made = {file_name(each, source) for each in DASHBOARDS for source in SOURCES}
    assert {path.name for path in FILES.glob("*.json")} == made


def test_files_are_written_into_a_new_folder(tmp_path: Path) -> None:
    assert len(write_dashboards(DASHBOARDS, PROMETHEUS, tmp_path / "a" / "b")) == len(DASHBOARDS)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"):
        write_dashboards(DASHBOARDS, PROMETHEUS, tmp_path / "file")
