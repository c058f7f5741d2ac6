"""Pages of the words that collbench prints: flags, quality, findings, outcomes, exit codes, columns, reasons and terms."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

from collbench import errors
from collbench.report.explain import WordPage, pages
from collbench.report.writers import csv_columns
from collbench.results.flags import FLAGS
from collbench.results.quality import QUALITIES, REMEDIES, RULES
from site_pages.markdown import block, code, codes, escaped, page, paragraphs, sentence, table


def _of(group: str) -> list[WordPage]:
    return [each for each in pages() if each.group == group]


def flags() -> str:
    """Return the page of the flags of rows."""
    rows = (
        (f"`{flag.code}`", escaped(flag.name), sentence(flag.text), sentence(flag.action), "yes" if flag.doubtful else "")
        for flag in FLAGS.values()
    )
    return page(
        "Flags of rows",
        "A flag is a fact about a row that affects what its figures mean. Tables show flags with `-v` by name; CSV, JSON and stored rows "
        "have the code. [Quality](quality.md) is the summary in one word. `collbench explain FLAG` prints one entry of this table.",
        table(["code", "name in tables", "meaning", "remedy", "time or interval may be wrong"], rows),
    )


def quality() -> str:
    """Return the page of the quality words: the rules, their flags and remedies."""
    (described,) = (each for each in _of("column") if each.word == "quality")
    rows = sorted(
        (
            (rule.word, escaped(REMEDIES[rule.remedy].cause), codes(sorted(rule.flags)), sentence(REMEDIES[rule.remedy].action))
            for rule in RULES
        ),
        key=lambda row: -QUALITIES.index(row[0]),
    )
    return page(
        "Quality of rows",
        paragraphs(re.sub(r"\n(?=\w+:)", "\n\n", described.means)),
        escaped(described.remedy),
        "## Rules and remedies",
        "A row has the worst quality of the rules that apply to it. A rule without flags applies to the figures of the row: "
        "the width of its confidence interval, the number of samples, the start skew.",
        table(["quality", "the cause that the summary names", "flags", "remedy"], rows),
    )


def findings() -> str:
    """Return the page of the findings of doctor, probe and hunt."""
    found = _of("finding")
    parts = [
        "`collbench doctor` and `collbench probe` print findings with these codes. `collbench explain CODE` prints one of them.",
        table(["code", "finding"], ((f"[{each.word}](#{each.word.lower()})", escaped(each.title)) for each in found)),
    ]
    return page("Findings", *parts, *(part for each in found for part in _finding(each)))


def _finding(each: WordPage) -> Iterator[str]:
    yield f"## {each.word}"
    yield f"**{sentence(each.title)}** {escaped(each.means)}"
    if each.check:
        yield f"Check by hand:\n\n{block(each.check)}"
    if each.remedy:
        yield f"Remedy: {escaped(each.remedy)}"
    if each.sources:
        yield "Sources: " + ", ".join(f"<{url}>" for url in each.sources)


def outcomes() -> str:
    """Return the page of the outcomes of compare, gate, hunt and check."""
    return _words("Outcomes", "The words in which `compare`, `gate`, `hunt`, `pairs` and `check` state a result.", _of("outcome"))


def terms() -> str:
    """Return the page of the terms."""
    return _words("Terms", "Words of messages, tables and reports. The [glossary](../glossary.md) introduces them.", _of("term"))


def _words(title: str, about: str, found: Iterable[WordPage]) -> str:
    rows = (
        (f"**{escaped(each.word)}**", codes(each.names), escaped(each.means), escaped(each.remedy))
        for each in found
    )  # fmt: skip
    return page(title, f"{about} `collbench explain WORD` prints one of them.", table(["word", "also written", "meaning", "remedy"], rows))


def exit_codes() -> str:
    """Return the page of the exit codes, and the errors behind them."""
    rows = ((code(each.word), escaped(each.means)) for each in sorted(_of("exit"), key=lambda each: int(each.word)))
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.CollbenchError)]
    return page(
        "Exit codes",
        "All ranks of a launch end with the same exit code.",
        table(["exit code", "meaning"], rows),
        "## Errors in Python",
        "collbench raises these exceptions of `collbench.errors`. Each ends a command with one sentence on stderr.",
        table(
            ["exception", "exit code", "meaning"],
            ((code(kind.__name__), code(str(kind.exit_code)), escaped((kind.__doc__ or "").split("\n\n")[0])) for kind in kinds),
        ),
    )


def columns() -> str:
    """Return the page of the columns of tables, and the fields of CSV."""
    found = _of("column")
    owners = {name: each.word for each in found for name in (each.word, *each.names)}
    rows = ((f"**{escaped(each.word)}**", codes(each.names), escaped(each.means), escaped(each.remedy)) for each in found)
    return page(
        "Columns and fields",
        "`--columns` selects columns of tables. `collbench explain WORD` prints one entry.",
        table(["word", "columns and fields", "meaning", "remedy"], rows),
        "## Fields of CSV",
        "`--csv FILE` writes these fields, in this order. Units are in the names: `_s` is seconds, `_bytes_per_s` is bytes per second.",
        table(["field", "see"], ((code(field), escaped(owners.get(field, ""))) for field in csv_columns())),
    )


def reasons() -> str:
    """Return the page of reasons, limits and notes: the facts that JSON has under `kind`."""
    rows = ((code(each.word), escaped(each.means.split("\n\n")[0])) for each in _of("reason"))
    return page(
        "Reasons, limits and notes",
        "Code decides on facts with fields, and renders each as one sentence. JSON has a fact as an object with its `kind` and its fields. "
        "`collbench explain KIND` prints one entry.",
        table(["kind", "meaning"], rows),
    )
