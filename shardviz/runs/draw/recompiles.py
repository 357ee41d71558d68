"""Draws the table of a watched function as HTML."""

from __future__ import annotations

from html import escape

from shardviz.base.format import cut, seconds_text
from shardviz.runs.recompiles import SignatureRow, WatchTable
from shardviz.runs.words.recompiles import (
    communication,
    headline,
    peak,
    why_compiled,
)

# Rows of the table; the latest are shown.
MOST_ROWS = 50
MOST_LETTERS = 160
_HEADS = ("", "calls", "compile time", "why compiled", "collectives", "peak")
# JupyterLab aligns cells to the right.
_CELL = "text-align:left;vertical-align:top"


def watch_html(table: WatchTable) -> str:
    """Draws the table as HTML, in the colours of the page around it.

    >>> watch_html(WatchTable("<lambda>", ())).count("<tr>")
    1
    """
    heads = "".join(f'<th style="{_CELL}">{head}</th>' for head in _HEADS)
    rows = "".join(map(_row, table.rows[-MOST_ROWS:]))
    return (
        f"<table><caption style='text-align:left'>{escape(headline(table))}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _row(row: SignatureRow) -> str:
    signature = escape(cut(row.signature, MOST_LETTERS))
    cells = (
        str(row.entry),
        f"{row.calls:,}",
        seconds_text(row.seconds) if row.compiles else "",
        f"{escape(why_compiled(row))}<br><code>{signature}</code>",
        escape(communication(row)),
        peak(row),
    )
    texts = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f"<tr>{texts}</tr>"
