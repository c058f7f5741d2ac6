"""Links of pages to files of the repository, and files that pages include."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_pages import links


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
])  # fmt: skip
def test_a_link_of_a_page(written: str, in_the_site: str, repository: Path) -> None:
    assert links.rewritten(written, "guides/a.md") == in_the_site


@pytest.mark.parametrize(("written", "in_the_site"), [
    ("[f](../reference/README.md#flags)", "[f](../reference/flags.md)"),
    ("[c](../reference/README.md#commands)", "[c](../reference/cli/index.md)"),
    ("[n](../notebooks/n.ipynb)", "[n](../notebooks/n.md)"),
])  # fmt: skip
def test_a_link_to_a_generated_page(written: str, in_the_site: str, repository: Path) -> None:
    assert links.rewritten(written, "guides/a.md") == in_the_site


def test_a_link_of_a_file_of_the_repository_leads_back_to_the_page(repository: Path) -> None:
    text = (repository / "README.md").read_text()
    assert "(../guides/a.md#part)" in links.rewritten(text, "repository/README.md")
    assert "(data/x.json)" in links.rewritten(text, "repository/README.md")


def test_the_files_that_pages_link_to_are_part_of_the_site_with_those_that_they_link_to(repository: Path) -> None:
    found = links.repository_files(
        [("guides/a.md", "[r](../../README.md) `[c](../../code.py)`\n```\n[c](../../code.py)\n```\n[e](../../empty)")]
    )
    assert found == {"repository/README.md": repository / "README.md", "repository/data/x.json": repository / "data/x.json"}


def test_a_file_that_is_too_large_is_not(repository: Path) -> None:
    with (repository / "data/x.json").open("wb") as file:
        file.truncate((4 << 20) + 1)
    assert links.repository_files([("guides/a.md", "[x](../../data/x.json)")]) == {}


def test_an_included_page_has_no_title_and_links_that_fit(repository: Path) -> None:
    text = links.expanded('Before.\n\n--8<-- "README.md"\n\nAfter.', "docs/guides/a.md")
    assert text.startswith("Before.\n\n") and text.endswith("\n\nAfter.") and "# Title" not in text
    assert "(a.md#part)" in text and "(../../data/x.json)" in text


def test_included_code_is_unchanged(repository: Path) -> None:
    code = (repository / "code.py").read_text()
    assert links.expanded('```python\n# --8<-- "code.py"\n```', "docs/guides/a.md") == f"```python\n{code}```"
