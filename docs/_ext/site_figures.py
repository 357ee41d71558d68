"""Three directives: `picture` draws a value, `explorer` saves one, `examples` lists a gallery.

    ```{picture}
    sv.layout((512, 2048), "None, model", sv.mesh(data=4, model=2))
    ```

The content is Python, which the build runs; it draws the value of the last line. Options of the
picture follow as options of the directive: `:options: dims=(0, 2)`.

    ```{explorer} first-example
    programs.get("MLP")
    ```

The content is an Explorer, or a value that `sv.explore` opens; `:compile:` also compiles it for
simulated devices. The build saves the Explorer as a page, which needs no kernel and loads nothing,
and shows it in a frame.

    ```{examples} meshes
    ```

Lists every example of this gallery, with its sentence, its source and its picture. With
`:match: ^MLP`, a regular expression, it lists the examples whose names match.

Every figure is drawn twice, for the light and for the dark theme.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import io
import os
import re
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

from docutils import nodes
from docutils.parsers.rst import directives
from PIL import Image  # matplotlib brings it
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).resolve().parents[1]
MADE = DOCS / "_made"
EXTRA = MADE / "extra"  # copied to the site as it is
THEMES = ("light", "dark")
DPI = 144
COMPILE_SECONDS = 600


def evaluate(code: str) -> Any:
    """Runs lines of Python; the value of the last one, which is an expression."""
    import shardviz as sv
    from shardviz import gallery
    from shardviz.gallery import programs, puzzles

    names = {"sv": sv, "gallery": gallery, "programs": programs, "puzzles": puzzles}
    if "train_8b" in code:
        names["train_8b"] = importlib.import_module("train_8b")
    *before, last = ast.parse(code).body
    if not isinstance(last, ast.Expr):
        raise ValueError(f"The last line is no value: {ast.unparse(last)}")
    exec(compile(ast.Module(before, []), "<figure>", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "<figure>", "eval"), names)  # noqa: S307


def draw_both(value: Any, name: str, **options: Any) -> tuple[dict[str, Path], float]:
    """PNG files of a value in both themes, by theme; and the width in CSS pixels."""
    import shardviz as sv

    files, width = {}, 0.0
    for theme in THEMES:
        figure = sv.plot(value, theme=theme, **options)
        width = figure.get_figwidth() * 96
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=DPI, facecolor=figure.get_facecolor())
        path = MADE / "figures" / f"{name}-{theme}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        # A third of the bytes: pictures have few colours.
        drawn = Image.open(file).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)
        drawn.save(path, "PNG", optimize=True)
        files[theme] = path
    return files, width


def save_explorer(code: str, name: str, compiled: bool = False) -> Path:
    """Saves the Explorer of a value among the files of the site, and returns its path.

    Raises:
        ValueError: if the program does not compile.
    """
    import shardviz as sv

    value = evaluate(code)
    explorer = value if hasattr(value, "save_html") else sv.explore(value)
    path = EXTRA / "explorers" / f"{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if compiled:
            explorer.compile()
            report = explorer.wait(COMPILE_SECONDS)
            if report is None or report.error is not None:
                raise ValueError(f"{name} was not compiled: {report and report.error}")
        return explorer.save_html(path)
    finally:
        explorer.close()


def explorer_frame(name: str, root: str, height: int) -> str:
    """The HTML that shows a saved Explorer.

    Args:
        name: of its file.
        root: the way to the site's own root, as in `"../"`.
        height: of the frame, in pixels.
    """
    where = f"{root}explorers/{name}.html"
    return (
        '<div class="shardviz-explorer-frame">'
        f'<iframe class="shardviz-saved" src="{where}" title="The Explorer" loading="lazy"'
        f' style="height: {height}px"></iframe>'
        f'<p><a href="{where}">Open this Explorer in a separate page</a></p></div>'
    )


class _Figure(SphinxDirective):
    has_content = True

    def images(self, value: Any, name: str, alt: str = "", **options: Any) -> list[nodes.Node]:
        """A frame with a value's picture in each theme; the style sheet shows one of them."""
        from shardviz.pictures import draw

        files, width = draw_both(value, name, **options)
        words = alt or draw(value, **options).alt
        pictures = [self._image(files[theme], theme, words, width) for theme in THEMES]
        return [nodes.container("", *pictures, classes=["shardviz-picture"])]

    def _image(self, path: Path, theme: str, alt: str, width: float) -> nodes.image:
        where = f"/{path.relative_to(DOCS).as_posix()}"
        classes = [f"only-{theme}", "dark-light"]
        image = nodes.image(uri=where, alt=alt, width=f"{width:.0f}px", classes=classes)
        self.set_source_info(image)
        return image

    def code(self) -> str:
        return "\n".join(self.content)

    def failed(self, error: Exception) -> Exception:
        return self.error(f"{type(error).__name__}: {error}\n\n{self.code()}")


class PictureDirective(_Figure):
    """`picture`: a value as shardviz draws it, for the light and the dark theme."""

    option_spec = {"options": directives.unchanged, "alt": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        more = evaluate(f"dict({self.options.get('options', '')})")
        name = hashlib.sha256(f"{self.code()}{more}".encode()).hexdigest()[:16]
        try:
            images = self.images(evaluate(self.code()), name, self.options.get("alt", ""), **more)
        except Exception as error:  # Sphinx shows the example's error at its line
            raise self.failed(error) from error
        return list(images)


class ExamplesDirective(_Figure):
    """`examples`: everything that a gallery has, or the names that match."""

    has_content = False
    required_arguments = 1
    option_spec = {"match": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        kind = self.arguments[0]
        gallery = evaluate(f"getattr(gallery, {kind!r}, None) or {kind}")
        found: list[nodes.Node] = []
        for number, name in enumerate(gallery.names()):
            if re.search(self.options.get("match", ""), name):
                found += self.example(gallery, name, f"{kind}-{number}")
        return found

    def example(self, gallery: Any, name: str, file: str) -> list[nodes.Node]:
        """The heading, sentence, source and pictures of one example."""
        sources = "\n\n".join(gallery.sources(name))
        code = nodes.literal_block(sources, sources, language="python")
        return [
            nodes.rubric("", name),
            nodes.paragraph("", gallery.describe(name)),
            *([code] if sources else []),
            *self.images(gallery.get(name), file),
        ]


class ExplorerDirective(_Figure):
    """`explorer`: the Explorer in a frame, from a file that was saved when the site was built."""

    required_arguments = 1
    option_spec = {"height": directives.positive_int, "compile": directives.flag}

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        try:
            save_explorer(self.code(), name, "compile" in self.options)
        except Exception as error:  # Sphinx shows the example's error at its line
            raise self.failed(error) from error
        root = "../" * self.env.docname.count("/")
        frame = explorer_frame(name, root, self.options.get("height", 720))
        return [nodes.raw("", frame, format="html")]


def setup(app: Any) -> dict[str, Any]:
    """What Sphinx calls."""
    EXTRA.mkdir(parents=True, exist_ok=True)
    app.add_directive("picture", PictureDirective)
    app.add_directive("explorer", ExplorerDirective)
    app.add_directive("examples", ExamplesDirective)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
