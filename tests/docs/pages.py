"""Reading the Markdown pages: their Python blocks and their tables."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MADE = ("changelog", "contributing")  # by `make docs`, of files at the root
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.stem not in MADE),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *sorted((ROOT / "docs" / "gallery").glob("*.md")),
]
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


class Block(NamedTuple):
    """One fenced block of Python, and the line of the page on which its code starts."""

    page: str
    line: int
    code: str

    def run(self, namespace: dict) -> None:
        """Runs it: as a doctest where it has prompts, else as it stands."""
        if ">>>" in self.code:
            self._run_doctest(namespace)
        else:
            text = "\n" * (self.line - 1) + self.code  # so that tracebacks show the page's lines
            exec(compile(text, self.page, "exec"), namespace)  # noqa: S102

    def _run_doctest(self, namespace: dict) -> None:
        test = doctest.DocTestParser().get_doctest(
            self.code, namespace, self.page, self.page, self.line - 1
        )
        failures: list[str] = []
        doctest.DocTestRunner(optionflags=_FLAGS).run(test, out=failures.append, clear_globs=False)
        namespace.update(test.globs)
        assert not failures, "".join(failures)


def blocks(page: str, text: str) -> list[Block]:
    """Every Python block of a page, in order."""
    return [
        Block(page, text[: m.start(1)].count("\n") + 1, m.group(1)) for m in _FENCE.finditer(text)
    ]


def table(text: str, first_header: str) -> list[list[str]]:
    """The rows below the header whose first cell is `first_header`, as lists of cells."""
    lines = iter(text.splitlines())
    rows = []
    for line in lines:
        if line.startswith(f"| {first_header} |"):
            next(lines)
            break
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


def spelled(page: str) -> str:
    """The first block of plain text of a page: what JAX or XLA prints."""
    text = (ROOT / "docs" / page).read_text()
    found = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return " ".join(found[1].split())


def says(shown: str, said: str) -> None:
    """That a page shows what was said; `...` on the page stands for anything."""
    pattern = re.escape(shown).replace(re.escape("..."), ".*")
    assert re.search(pattern, " ".join(said.split())), said
