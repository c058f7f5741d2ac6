"""The hook of mkdocs.yml: adds the generated pages and the files of the repository, and shows the version."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from mkdocs.structure.files import File, Files

from site_pages import reference_pages
from site_pages.commands import grouped_commands
from site_pages.formats import SCHEMAS
from site_pages.links import DOCS, FOLDER, repository_files, rewritten
from site_pages.notebooks import notebook_pages, notebook_pictures

_COMMANDS = "reference/cli/index.md"
_FOUND = ("deploy/", "slurm/", "reports/", "cuda_kernels/", "SECURITY", "CONTRIBUTING")  # of the repository, in the search


def on_config(config: Any) -> Any:
    """Show the version in the title, and list the pages of all commands in the navigation."""
    config.site_name = f"collbench {version('collbench')}"
    config.nav = _with_commands(config.nav)
    return config


def _with_commands(nav: Any) -> Any:
    """Return the navigation with the pages of all commands after the page that lists them."""
    if isinstance(nav, dict):
        return {title: _with_commands(below) for title, below in nav.items()}
    if not isinstance(nav, list):
        groups = ({title: [{name: f"reference/cli/{name}.md"} for name in names]} for title, names in grouped_commands().items())
        return [nav, *groups] if nav == _COMMANDS else nav
    return [_with_commands(each) for each in nav]


def on_files(files: Any, config: Any) -> Any:
    """Return the files with the generated pages, the schemas, and the files of the repository that pages link to."""
    generated: dict[str, Any] = {**reference_pages(), **notebook_pages()}
    written = {path: File.generated(config, path, content=text) for path, text in generated.items()}
    pictures = {path: File.generated(config, path, content=png) for path, png in notebook_pictures().items()}
    schemas = {f"reference/schemas/{name}.schema.json": file for name, file in SCHEMAS.items()}
    pages = [(each.src_uri, (DOCS / each.src_uri).read_text(encoding="utf-8")) for each in files if each.src_uri.endswith(".md")]
    pages += [(path, file.content_string) for path, file in written.items()]
    copied = {path: File.generated(config, path, abs_src_path=str(file)) for path, file in {**schemas, **repository_files(pages)}.items()}
    return Files([*files, *written.values(), *pictures.values(), *copied.values()])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page's text with its links to files of the repository rewritten."""
    if page.file.src_uri.startswith(f"{FOLDER}/"):  # results of tests, and texts that have a page of their own, are found by links
        page.meta["search"] = {"boost": 0.3} if page.file.src_uri.removeprefix(f"{FOLDER}/").startswith(_FOUND) else {"exclude": True}
    return rewritten(markdown, page.file.src_uri)
