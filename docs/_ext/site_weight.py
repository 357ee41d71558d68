"""Makes the pages light after Sphinx has written them: from 2.5 MB each to less than 0.8 MB.

- The theme draws a dozen icons with Font Awesome, 1.7 MB of scripts and fonts. `site.css` has these
  icons as masks, and the rules of Font Awesome are left out of the theme's style sheet.
- Only the search page loads the search index, and only lessons load the styles of notebooks.
- Pictures load when they come into sight. A picture for the other theme is never in sight, because
  the theme is known before the first picture loads.
- Pictures are stored as lossless WebP, which needs half the bytes of PNG for the same pixels.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from PIL import Image  # matplotlib brings it

_ICON_SCRIPT = re.compile(r"\s*<script[^>]*scripts/fontawesome\.js[^>]*></script>")
_SEARCH_SCRIPT = re.compile(
    r"\s*<script[^>]*(?:searchtools|language_data|searchindex)\.js[^>]*></script>"
)
_NOTEBOOK_STYLES = re.compile(r"\s*<link[^>]*/mystnb\.[^>]*>")
# The theme sets "auto" and replaces it later, when pictures of both themes have been loaded.
_THEME = 'localStorage.getItem("theme") || "auto"'
_THEME_NOW = (
    'localStorage.getItem("theme") ||'
    ' (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")'
)
_IMAGE = re.compile(r'<img (?![^>]*loading=)([^>]*?src="([^":]+\.png)"[^>]*?)\s*/?>')
# A picture links to its file in full size.
_LINK = re.compile(r'href="([^":]+)\.png"')
_RULE = re.compile(r"[^{}]+\{[^{}]*\}")
# Files that no page loads any more, or that only developers of the theme load.
_UNUSED = ("**/*.map", "scripts/fontawesome.js*", "vendor/fontawesome/webfonts/*")


def as_webp(folder: Path) -> None:
    """Replaces each PNG in a folder by a WebP with the same pixels."""
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as picture:
            colours = "RGBA" if picture.has_transparency_data else "RGB"
            picture.convert(colours).save(path.with_suffix(".webp"), "WEBP", lossless=True)
        path.unlink()


def is_icon_rule(rule: str) -> bool:
    """Whether a rule of a style sheet is one of Font Awesome's.

    >>> is_icon_rule(".fa-sun{--fa:'x'}"), is_icon_rule(".fa-sun,.title{margin:0}")
    (True, False)
    >>> is_icon_rule("@font-face{font-family:Font Awesome 7 Free}")
    True
    """
    selector, _, body = re.sub(r"/\*.*?\*/", "", rule, flags=re.DOTALL).partition("{")
    if selector.strip() == "@font-face":
        return "Font Awesome" in body
    return all(re.match(r"\.fa[bsr]?\b", part.strip()) for part in selector.split(","))


def without_icon_rules(sheet: str) -> str:
    """A style sheet without the rules of Font Awesome.

    >>> without_icon_rules(".fa-sun{a:b}.title{a:b}@media print{.fa{a:b}}")
    '.title{a:b}@media print{}'
    """
    return _RULE.sub(lambda match: "" if is_icon_rule(match[0]) else match[0], sheet)


def lighter_page(text: str, folder: Path, is_search: bool) -> str:
    """The HTML of a page that loads less.

    Args:
        text: the HTML.
        folder: the folder of the page, from which its pictures are found.
        is_search: whether this is the search page, which needs the index.
    """
    text = _ICON_SCRIPT.sub("", text).replace(_THEME, _THEME_NOW)
    if not is_search:
        text = _SEARCH_SCRIPT.sub("", text)
    if 'class="cell' not in text:
        text = _NOTEBOOK_STYLES.sub("", text)

    def link(match: re.Match[str]) -> str:
        small = f"{match[1]}.webp"
        return f'href="{small}"' if (folder / small).is_file() else match[0]

    def lazy(match: re.Match[str]) -> str:
        small = match[2].removesuffix(".png") + ".webp"
        if not (folder / small).is_file():
            return match[0]
        with Image.open(folder / small) as picture:
            width, height = picture.size
        # The size reserves the room of a picture that is not loaded yet.
        words = match[1].replace(f'src="{match[2]}"', f'src="{small}"')
        return f'<img loading="lazy" width="{width}" height="{height}" {words}/>'

    return _IMAGE.sub(lazy, _LINK.sub(link, text))


def _finished(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.name != "html":
        return
    site = Path(app.outdir)
    as_webp(site / "_images")
    for page in site.rglob("*.html"):
        if page.relative_to(site).parts[0] not in ("_static", "explorers"):
            text = page.read_text(encoding="utf-8")
            light = lighter_page(text, page.parent, page == site / "search.html")
            if light != text:
                page.write_text(light, encoding="utf-8")
    for sheet in (site / "_static" / "styles").glob("pydata-*.css"):
        sheet.write_text(without_icon_rules(sheet.read_text("utf-8")), encoding="utf-8")
    for pattern in _UNUSED:
        for path in (site / "_static").glob(pattern):
            path.unlink()


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
