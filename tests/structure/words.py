"""Words that the project does not use, and the names and lines that use them anyway.

One thing has one word, and it is the field's.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.structure.imports import parsed

# Made up here once; they appear nowhere any more.
MADE_UP = frozenset(
    re.findall(
        r"\w+",
        """
rung rungs climb climbed climbs door doors room rooms house parcel parcels yardstick
yardsticks standing endings told
""",
    )
)
STAND_IN = re.compile(r"(?i)stand[-_]?ins?(?![a-z])")
# These mean something else in plain English, so sentences may use them; names may not.
NOT_IN_NAMES = MADE_UP | frozenset(
    re.findall(
        r"\w+",
        """
walk walks travels captures capture reading draft drafts story stories tell texts whole
turns boxes cut cuts piece pieces orders meeting asked given links transfers signs ink hue
hues wire newest opening shelf shelves team site sites
""",
    )
)
TEXT = {".py", ".js", ".ts", ".css", ".md", ".toml", ".ipynb", ".cff"}


def subwords(text: str) -> list[str]:
    """The words of a text, those inside of identifiers included, in small letters.

    >>> subwords("a LinkPictures.link_words")
    ['a', 'link', 'pictures', 'link', 'words']
    """
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text)
    return [word.lower() for word in found]


def made_up_words(text: str) -> list[str]:
    """The made-up words of a text, each once, in order."""
    found = [word for word in subwords(text) if word in MADE_UP]
    found += ["stand-in"] * bool(STAND_IN.search(text))
    return list(dict.fromkeys(found))


def lines_with_made_up_words(root: Path, files: list[Path]) -> list[str]:
    """One entry a line of a text file that uses one; what a notebook shows counts as well."""
    found = []
    for path in files:
        for number, line in enumerate(_lines(path), 1):
            if words := made_up_words(line):
                place = path.relative_to(root).as_posix()
                found.append(f"{place}:{number}: {', '.join(words)}: {line.strip()[:80]}")
    return found


def _lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text.splitlines()
    lines: list[str] = []
    for cell in json.loads(text)["cells"]:
        parts = [cell["source"]]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            parts += [output.get("text", ""), data.get("text/plain", "")]
        lines += [line for part in parts for line in "".join(part).splitlines()]
    return lines


def names_with_left_hand_words(root: Path) -> list[str]:
    """The files, classes and public names below `root` that are made of a word not for names."""
    found = []
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        names = [(1, file), *_names(parsed(path.read_text(encoding="utf-8")))]
        for line, name in names:
            plain = name.replace("ici_links", "").replace("network_links", "")  # the field's own
            if words := [w for w in subwords(plain) if w in NOT_IN_NAMES]:
                found.append(f"{file}:{line}: {name} ({', '.join(words)})")
    return found


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every class, and every public function, method and constant, with its line."""
    for node in [
        *tree.body,
        *(n for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for n in c.body),
    ]:
        names: list[str] = []
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [node.name]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        elif isinstance(node, ast.Assign):
            names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        yield from ((node.lineno, name) for name in names if not name.startswith("_"))
