"""What the site is made of, and, where it is built, that every link in it leads somewhere."""

import doctest
import importlib
import inspect
import re
from types import ModuleType

import pytest
from PIL import Image

import shardviz as sv
from shardviz import gallery, legacy
from tests.docs.made_pages import HOW, SITE, broken, extension
from tests.docs.pages import PAGES, ROOT
from tests.structure.names import undocumented

site_pages = extension("site_pages")
site_text = extension("site_text")
site_weight = extension("site_weight")
REFERENCE = {name: page for page, (_, names) in site_pages.reference().items() for name in names}
PUBLIC = [f"shardviz.{n}" for n in sv.__all__ if n != "__version__"]
PUBLIC += [f"{m.__name__}.{n}" for m in (gallery, legacy) for n in m.__all__]
EXAMPLES = doctest.DocTestFinder(recurse=True)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

needs_site = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason=HOW)


def value_of(name):
    module, _, short = name.rpartition(".")
    return getattr(importlib.import_module(module), short)


def test_every_public_name_is_in_the_reference_once():
    listed = [name for _, names in site_pages.reference().values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(PUBLIC) <= set(listed)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name):
    value = value_of(name)
    owner = value if inspect.isfunction(value) or inspect.isclass(value) else type(value)
    assert undocumented(name, value) == []
    assert inspect.unwrap(owner).__module__.startswith("shardviz.")
    assert any(test.examples for test in EXAMPLES.find(owner))


def pasted(name):
    """The examples of a name and of its members, with `sv` and nothing else at hand."""
    value = value_of(name)
    if isinstance(value, ModuleType):
        return []
    owner = value if inspect.isfunction(value) or inspect.isclass(value) else type(value)
    return [t for t in EXAMPLES.find(owner, name, globs={"sv": sv}) if t.examples]


# Aliases of types have no docstrings.
DOCUMENTED = [name for name in REFERENCE if not name.startswith("shardviz.base.typing.")]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_an_example_of_the_reference_runs_as_pasted(name, eight_devices):
    failures = []
    for example in pasted(name):
        doctest.DocTestRunner(optionflags=FLAGS).run(example, out=failures.append)
    assert not failures, "".join(failures)


def test_an_example_that_needs_another_name_is_found():
    parser, failures = doctest.DocTestParser(), []
    planted = parser.get_doctest(">>> MeshSpec\n1\n", {"sv": sv}, "planted", None, 0)
    doctest.DocTestRunner(optionflags=FLAGS).run(planted, out=failures.append)
    assert "NameError" in "".join(failures)


def test_pages_for_the_questions_that_people_ask():
    pages = sorted((ROOT / "docs" / "howto").glob("*.md"))
    index = (ROOT / "docs" / "howto" / "index.md").read_text()
    assert len(pages) >= 11
    for page in pages:
        if page.stem == "index":
            continue
        text = page.read_text()
        assert text.startswith('# "'), page.name  # as somebody would type it
        assert "## Repair" in text or page.stem in ("pmap", "ci-sharding"), page.name
        assert "```python" in text, page.name
        assert f"]({page.name})" in index
        assert f"\n{page.stem}\n" in index


def test_every_page_is_in_the_table_of_contents():
    index = (ROOT / "docs" / "index.md").read_text()
    tables = "".join(re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)).split("\n")
    for page in PAGES[1:]:
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        if "/" not in name and name != "index":
            assert name in tables, f"add {name} to a table of docs/index.md"
    for name in (n for n in tables if re.fullmatch(r"[\w/-]+", n)):
        at_root = name in ("reference/index", "changelog", "contributing")
        made = at_root or name.removeprefix("lessons/") in site_pages.PARTS
        assert made or (ROOT / "docs" / f"{name}.md").is_file(), name


def test_names_of_a_module_that_lists_none():
    module = ModuleType("planted")
    exec("def check(): ...\ndef _own(): ...\nfrom math import sin\nTABLE = {}", vars(module))  # noqa: S102
    assert site_pages._public(module) == ["check"]


@pytest.mark.parametrize(
    ("link", "file", "page", "made"),
    [
        ("[a](../notebooks/02_run_it.ipynb)", "docs/x.md", None, "[a](lessons/02_run_it.ipynb)"),
        ("[a](../../CHANGELOG.md#x)", "docs/howto/x.md", None, "[a](../changelog.md#x)"),
        ("[a](docs/stages.md)", "CHANGELOG.md", "changelog.md", "[a](stages.md)"),
        ("[a](CHANGELOG.md)", "CONTRIBUTING.md", "contributing.md", "[a](changelog.md)"),
        ("[a](LICENSE)", "CHANGELOG.md", "changelog.md", "[a](../LICENSE)"),
        ("[a](https://x.org/docs)", "CHANGELOG.md", "changelog.md", "[a](https://x.org/docs)"),
        ("values[0](docs)(x)", "CHANGELOG.md", "changelog.md", "values[0](docs)(x)"),
        ("values[0](w, x)", "docs/x.md", None, "values[0](w, x)"),
        ("[a](missing.md)", "docs/x.md", None, "[a](missing.md)"),
    ],
)
def test_links_lead_to_the_pages_that_are_made(link, file, page, made):
    assert site_pages.with_site_links(link, file, page) == made


@pytest.mark.parametrize("module", [site_pages, site_text, site_weight], ids=lambda m: m.__name__)
def test_examples_of_the_modules_that_make_pages(module):
    results = doctest.testmod(module)
    assert results.failed == 0
    assert results.attempted >= 2


def test_functions_and_classes_have_pages_of_their_own():
    pages = site_pages.reference()
    for name in sv.__all__:
        if name != "__version__":
            page = site_pages.page_name(f"shardviz.{name}")
            assert pages[page] == (f"sv.{name}", [f"shardviz.{name}"])
    # They differ in more than capitals, which some file systems ignore.
    assert len({page.lower() for page in pages}) == len(pages)


def test_pictures_and_keywords_belong_to_names_and_pages():
    assert set(site_pages.PICTURES) <= set(REFERENCE)
    for page in site_pages.KEYWORDS:
        folder, _, name = page.rpartition("/")
        place = ROOT / "notebooks" if folder == "lessons" else ROOT / "docs" / folder
        suffix = ".ipynb" if folder == "lessons" else ".md"
        assert (place / f"{name}{suffix}").is_file(), page


def test_a_notebook_as_markdown_has_its_code_and_text_outputs():
    task = cell("1 + 1", "2")
    words = {"cell_type": "markdown", "source": ["# Sums\n", "[b](02_b.ipynb)"]}
    text = site_text.of_notebook({"cells": [words, task]})
    assert text == "# Sums\n[b](02_b.md)\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n"


def test_a_light_page_loads_no_icon_font_and_no_picture_that_is_not_in_sight(tmp_path):
    Image.new("RGB", (640, 480), "teal").save(tmp_path / "a.png")
    site_weight.as_webp(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.webp"]
    page = (
        '<script defer src="_static/scripts/fontawesome.js?digest=1"></script>'
        '<script src="searchindex.js"></script><a href="a.png"></a><a href="gone.png"></a>'
        '<img alt="a" src="a.png" style="width: 9px" />'
        '<img alt="b" src="gone.png"/>'
    )
    light = site_weight.lighter_page(page, tmp_path, is_search=False)
    assert light == (
        '<a href="a.webp"></a><a href="gone.png"></a>'
        '<img loading="lazy" width="640" height="480" alt="a" src="a.webp" style="width: 9px"/>'
        '<img alt="b" src="gone.png"/>'
    )
    assert site_weight.lighter_page(light, tmp_path, is_search=False) == light
    assert "searchindex" in site_weight.lighter_page(page, tmp_path, is_search=True)


def test_a_picture_keeps_its_pixels_as_webp(tmp_path):
    for colours in ("RGB", "RGBA", "P"):
        picture = Image.effect_noise((40, 30), 90).convert(colours)
        picture.save(tmp_path / "a.png")
        site_weight.as_webp(tmp_path)
        with Image.open(tmp_path / "a.webp") as small:
            assert small.convert("RGBA").tobytes() == picture.convert("RGBA").tobytes()


def cell(code, text):
    data = {"text/plain": text}
    output = {"output_type": "execute_result", "data": data, "metadata": {}}
    return {"cell_type": "code", "source": [code], "outputs": [output]}


def test_tasks_of_exercises_are_markdown_and_other_outputs_stay():
    task, other = cell('exercises.task("arrays/memory")', "**a**"), cell("1 + 1", "2")
    made = site_pages._site_outputs("".join(task["source"]), task["outputs"])
    assert made[0]["data"]["text/markdown"] == "**a**"
    assert site_pages._site_outputs("1 + 1", other["outputs"]) == other["outputs"]


@pytest.mark.parametrize("colab", ["", "https://colab.example/notebooks/"])
def test_a_lesson_links_to_its_notebook_and_to_colab_where_there_is_an_address(colab):
    notebook = {"cells": [{"source": ["# Run it\n", "\n", "Text."]}]}
    site_pages._add_links(notebook, "02_run_it.ipynb", colab)
    text = "".join(notebook["cells"][0]["source"])
    assert text.startswith("# Run it\n\n{download}")
    assert text.endswith("\n\nText.")
    assert "<../../notebooks/02_run_it.ipynb>" in text
    assert ("https://colab.example/notebooks/02_run_it.ipynb" in text) == bool(colab)


def test_every_notebook_is_in_one_list_and_new_ones_need_no_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(site_pages, "DOCS", tmp_path)
    lessons = [
        site_pages.Lesson(name, name[:2], name, "15 minutes")
        for name in ("01_see", "14_debug", "20_shard_map", "28_explicit", "a1_pod")
    ]
    site_pages.write_lists(lessons)
    pages = {part: (tmp_path / "lessons" / f"{part}.md").read_text() for part in site_pages.PARTS}
    listed = {part: re.findall(r"^\S+ \S+ <(.*)>$", text, re.M) for part, text in pages.items()}
    assert listed == {
        "index": ["01_see", "14_debug"],
        "short": ["20_shard_map", "28_explicit"],
        "appendix": ["a1_pod"],
    }
    site_pages.write_lists(lessons[:1])
    assert [p.name for p in (tmp_path / "lessons").iterdir()] == ["index.md"]


def test_a_planted_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a> <a href="b.html#gone">x</a> <a href="c.html">x</a>'
        '<a href="https://x.org">x</a> <script src="https://x.org/x.js"></script>'
        '<link rel="stylesheet" href="//x.org/x.css"> <img src="data:image/png;base64,AA">'
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    assert broken(tmp_path) == [
        "a.html: //x.org/x.css: loaded from elsewhere",
        "a.html: b.html#gone: no such anchor",
        "a.html: c.html: no such file",
        "a.html: https://x.org/x.js: loaded from elsewhere",
    ]


@needs_site
def test_every_link_inside_the_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere():
    assert broken(SITE) == []


@needs_site
def test_the_site_has_every_page_lesson_and_public_name():
    for page in PAGES[1:]:
        assert (SITE / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page
    for lesson in (ROOT / "notebooks").glob("*.ipynb"):
        assert (SITE / "lessons" / f"{lesson.stem}.html").is_file(), lesson
    for name, page in REFERENCE.items():
        if name in PUBLIC:
            assert f'id="{name}"' in (SITE / "reference" / f"{page}.html").read_text(), name
    for page in (SITE / "reference").glob("*.html"):
        # Names are written as users write them, after `import shardviz as sv`.
        assert '<span class="pre">shardviz.</span>' not in page.read_text(), page


@needs_site
def test_every_page_has_a_copy_in_markdown_and_llms_txt_lists_them():
    for page in PAGES[1:]:
        copy = (SITE / page.relative_to(ROOT / "docs")).read_text()
        assert copy.startswith("# "), page
        assert not re.search(r"^```\{", copy, re.M), page
    listed = re.findall(r"\]\((.*)\.md\)", (SITE / "llms.txt").read_text())
    assert {"first-steps", "lessons/01_see_a_sharding", "howto/out-of-memory"} <= set(listed)
    assert all((SITE / f"{name}.md").is_file() for name in listed)
