"""The generated pages of the site: reference pages from the parsers, dataclasses and tables of the package. They are never stored."""

from __future__ import annotations

from collections.abc import Callable

from collbench.plugin import plugins
from site_pages import api, commands, facts, formats, interfaces

_MAKERS: dict[str, Callable[[], str]] = {
    "flags": facts.flags,
    "quality": facts.quality,
    "findings": facts.findings,
    "outcomes": facts.outcomes,
    "exit-codes": facts.exit_codes,
    "columns": facts.columns,
    "reasons": facts.reasons,
    "terms": facts.terms,
    "run-folder": formats.run_folder,
    "metrics": formats.metrics,
    "schemas": formats.schemas,
    "suites": formats.suites,
    "configuration": commands.configuration,
    "environment-variables": commands.environment_variables,
    "operations": interfaces.operations_page,
    "backends": interfaces.backends_page,
    "api": api.api_page,
    "python-api": interfaces.python_api,
}


def reference_pages() -> dict[str, str]:
    """Return the Markdown text of each generated page, by its path in the site: "reference/flags.md"; without those of absent plug-ins."""
    makers = dict(_MAKERS)
    if "store" in plugins():
        from site_pages.store import store

        makers["store"] = store
    return {**commands.command_pages(), **{f"reference/{name}.md": make() for name, make in makers.items()}}
