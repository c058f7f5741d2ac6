"""Pages of the site: the generated ones have every fact of the package, links and names lead to what there is."""

import argparse
import inspect
import json
import re
from functools import cache
from pathlib import Path
from runpy import run_path

import pytest

from collbench.cli.configuration import settable_options
from collbench.cli.main import all_parsers
from collbench.cli.other_tools import OPTIONS
from collbench.cli.parser import actions_of, environment_name
from collbench.cli.variables import VARIABLES
from collbench.machine.doctor.finding import pages as finding_pages
from collbench.plugin import loaded, plugins
from collbench.report.explain import pages as words
from collbench.report.runs import ROW_METRICS
from collbench.report.verdict_formats import GATE_METRICS
from collbench.report.writers import csv_columns, metric_name
from collbench.results.flags import FLAGS
from collbench.results.quality import RULES
from collbench.results.row import Row
from site_pages import links, reference_pages
from site_pages.formats import SCHEMAS
from site_pages.interfaces import API
from site_pages.links import GENERATED, ROOT
from tests.pages import anchors

COMMANDS = sorted(all_parsers()[1])


@cache
def _pages() -> dict[str, str]:
    return reference_pages()


def _page(name: str) -> str:
    return _pages()[f"reference/{name}.md"]


def _first_cells(text: str) -> list[str]:
    """Return the first cell of each line of the page's tables."""
    return [cell.strip("`* ") for cell in re.findall(r"^\| (.*?) \|", text, re.MULTILINE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_a_command_has_its_options_and_examples(command: str) -> None:
    parser = all_parsers()[1][command]
    shown = [each for each in actions_of(parser) if each.help != argparse.SUPPRESS and each.dest not in ("help", "no_config")]
    missing = [
        option for each in shown for option in each.option_strings if not re.search(rf"`{re.escape(option)}[ `]", _page(f"cli/{command}"))
    ]
    assert not missing
    assert f"\ncollbench {command}" in _page(f"cli/{command}").partition("## Examples")[2]


def test_the_list_of_generated_pages_is_complete() -> None:
    headings = anchors(ROOT / GENERATED) - {"reference", "commands"}
    if "store" not in plugins():
        headings -= {"store"}
    others = {path for path in _pages() if not path.startswith("reference/cli/")}
    assert {f"reference/{name}.md" for name in headings} == others


def test_each_command_rule_and_metric_is_listed_once() -> None:
    listed = re.findall(r"^\| \[`([\w-]+)`\]\(\1\.md\) \| (.*) \|$", _page("cli/index"), re.MULTILINE)
    assert sorted(name for name, _ in listed) == COMMANDS
    assert all(summary for _, summary in listed)
    assert sum(cell in ("noisy", "unreliable") for cell in _first_cells(_page("quality"))) == len(RULES)
    tables = [ROW_METRICS, GATE_METRICS]
    if "store" in plugins():
        tables.append(loaded("collbench.plugins.store.metrics:STORE_METRICS"))
    served = {metric_name(name, metric.unit) for table in tables for name, metric in table.items()}
    assert served == {cell for cell in _first_cells(_page("metrics")) if cell.startswith("collbench_")}


def test_all_flags_findings_words_and_fields_are_there() -> None:
    assert [code for code in _first_cells(_page("flags")) if code in FLAGS] == list(FLAGS)
    assert re.findall(r"^## (CB\d+)$", _page("findings"), re.MULTILINE) == list(finding_pages())
    for group, name in (("outcome", "outcomes"), ("term", "terms"), ("reason", "reasons"), ("column", "columns"), ("exit", "exit-codes")):
        assert {each.word for each in words() if each.group == group} <= set(_first_cells(_page(name))), name
    assert _first_cells(_page("columns").partition("## Fields of CSV")[2])[2:] == csv_columns()
    assert set(inspect.signature(Row).parameters) <= set(_first_cells(_page("run-folder")))


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_all_fields_of_a_schema_are_there(name: str) -> None:
    schema = json.loads(SCHEMAS[name].read_text(encoding="utf-8"))
    own = _page("schemas").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert set(schema["properties"]) <= set(_first_cells(own))
    objects = {f"{name}: {part}" for part, below in schema.get("$defs", {}).items() if "properties" in below}
    assert objects == set(re.findall(r"^### (.*)$", own, re.MULTILINE))


def test_each_option_has_a_variable_and_a_key() -> None:
    settable = {long for name in COMMANDS for long in settable_options(all_parsers()[1][name])}
    longs = settable | {"--resume", "--no-config"}
    assert longs == {cell for cell in _cells(_page("environment-variables"), 1) if re.match(r"--\w", cell)}
    assert {environment_name(long) for long in longs} <= set(_first_cells(_page("environment-variables")))
    assert {long.removeprefix("--") for long in settable} == set(_first_cells(_page("configuration"))) - {"key", "---"}


def _cells(text: str, column: int) -> list[str]:
    return [line.split(" | ")[column].strip("`| ") for line in re.findall(r"^\| .* \|$", text, re.MULTILINE)]


def test_each_variable_in_the_code_is_described() -> None:
    sources = [*(ROOT / "collbench").rglob("*.py"), *(ROOT / "collbench").rglob("*.j2")]
    used = {name for file in sources for name in re.findall(r"\bCOLLBENCH_[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8"))}
    options = {environment_name(long) for name in COMMANDS for long in settable_options(all_parsers()[1][name])}
    assert used - options <= {each.name for each in VARIABLES}
    assert {each.name for each in VARIABLES if each.name.startswith("COLLBENCH_")} <= used | {"COLLBENCH_RANKS"}


def test_stored_runs_agree_with_the_table_of_operations_and_backends() -> None:
    table = _page("operations").partition("## Which backend")[2]
    head, _, *lines = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", table, re.MULTILINE)]
    supported = {(line[0], backend): cell != "–" for line in lines for backend, cell in zip(head[1:], line[1:], strict=True)}
    measured = {
        (row["operation"], row["backend"])
        for file in (ROOT / "reports").glob("*/cells.jsonl")
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines())
        if row.get("na") is None and "imported" not in row["flags"]
    }
    assert measured and not {pair for pair in measured if not supported.get(pair, True)}
    assert supported[("p2p_latency", "socket")] and not supported[("allreduce", "socket")]
    assert supported[("put_latency", "mpi")] and not supported[("put_latency", "gloo")]


def test_the_options_of_nccl_tests_and_the_interface_of_plug_ins_are_documented() -> None:
    for module, names in API.items():
        assert all(inspect.getdoc(getattr(module, name)) for name in names)
        assert all(f"\n### {name}\n" in _page("python-api") for name in names)
    listed = set(re.findall(r"(?<!\w)-\w", (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")))
    assert {each.names[0] for each in OPTIONS} <= listed


def test_no_page_has_html_of_its_own_or_private_words() -> None:
    """A value such as <seconds> in a help text would disappear from the page."""
    findings = run_path(str(ROOT / "tools/words"))["findings"]
    for path, text in _pages().items():
        plain = re.sub(r"```.*?```|`[^`\n]*`|<https?://[^>]*>", "", text, flags=re.DOTALL)
        assert not re.findall(r"<[a-zA-Z/][^>]*>", plain), path
        assert list(findings(text)) == [], path


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(links, "ROOT", tmp_path)
    for name, text in {
        "docs/guides/a.md": "", "data/x.json": "{}",
        "README.md": "# Title\n\nSee [the guide](docs/guides/a.md#part) and [data](data/x.json).\n",
        "data/README.md": "[x](x.json)", "code.py": "x = y[0](1)  # [no](link)\n", "empty/file": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("written", "in_the_site"), [
    ("[r](../../README.md#title)", "[r](../repository/README.md#title)"),
    ("[d](../../data)", "[d](../repository/data/README.md)"),
    ("![p](../../data/x.json)", "![p](../repository/data/x.json)"),
    ('<img src="../../data/x.json">', '<img src="../repository/data/x.json">'),
    ("[folder](../../empty)", "folder"),
    ("[b](b.md) [u](https://example.com/x) [m](mailto:a@example.com) [here](#part)",) * 2,
    ("[typing error](../../REEDME.md)",) * 2,
    ("```\n[r](../../README.md)\n```",) * 2,
    pytest.param("[f](../reference/README.md#flags)", "[f](../reference/flags.md)", id="a generated page"),
    pytest.param("[c](../reference/README.md#commands)", "[c](../reference/cli/index.md)", id="the generated list of commands"),
    pytest.param("[n](../notebooks/n.ipynb)", "[n](../notebooks/n.md)", id="a notebook"),
])  # fmt: skip
def test_a_link_of_a_page(written: str, in_the_site: str, repository: Path) -> None:
    assert links.rewritten(written, "guides/a.md") == in_the_site


def test_files_that_pages_link_to_are_part_of_the_site_unless_they_are_too_large(repository: Path) -> None:
    found = links.repository_files(
        [("guides/a.md", "[r](../../README.md) `[c](../../code.py)`\n```\n[c](../../code.py)\n```\n[e](../../empty)")]
    )
    assert found == {"repository/README.md": repository / "README.md", "repository/data/x.json": repository / "data/x.json"}
    text = (repository / "README.md").read_text()
    assert "(../guides/a.md#part)" in links.rewritten(text, "repository/README.md")
    assert "(data/x.json)" in links.rewritten(text, "repository/README.md")
    with (repository / "data/x.json").open("wb") as file:
        file.truncate((4 << 20) + 1)
    assert links.repository_files([("guides/a.md", "[x](../../data/x.json)")]) == {}


def test_an_included_page_has_no_title_and_links_that_fit_and_code_is_unchanged(repository: Path) -> None:
    text = links.expanded('Before.\n\n--8<-- "README.md"\n\nAfter.', "docs/guides/a.md")
    assert text.startswith("Before.\n\n") and text.endswith("\n\nAfter.") and "# Title" not in text
    assert "(a.md#part)" in text and "(../../data/x.json)" in text
    code = (repository / "code.py").read_text()
    assert links.expanded('```python\n# --8<-- "code.py"\n```', "docs/guides/a.md") == f"```python\n{code}```"


def test_the_tests_of_each_defect_of_the_page_exist() -> None:
    text = (ROOT / "docs/develop/testing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", text, re.MULTILINE)
    assert [number for number, _ in rows] == [str(number) for number in range(1, 13)]
    for _, tests in rows:
        for entry in tests.split(";"):
            file, *names = re.findall(r"`([^`]+)`", entry)
            folder, _, inside = file.partition("/")
            if folder == "plugins" and inside.partition("/")[0] not in plugins():
                continue
            code = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert [name for name in names if not re.search(rf"\b(?:def|class) {name}\b", code)] == []
