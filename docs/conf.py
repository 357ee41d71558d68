"""How Sphinx makes the site: `make docs`, into docs/_build/html.

Lessons are shown with the outputs that are stored in them and are not executed. What is made at
build time is in `_ext`, and where it goes git ignores.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# The directives, the package, and the program of the home page.
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent), str(HERE)]

import shardviz  # noqa: E402  after its path
import shardviz.base.typing as aliases  # noqa: E402

project = "shardviz"
author = "the shardviz developers"
copyright = author
release = version = shardviz.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "site_pages",
    "site_figures",
]
exclude_patterns = ["_build", "_ext"]

# Where Colab finds the folder of the notebooks, as in
# "https://colab.research.google.com/github/OWNER/shardviz/blob/main/notebooks": every lesson then
# has a link to itself there. The project has no address yet.
lessons_colab = ""

# Prompts and outputs are not copied.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Notebooks and Markdown.
nb_execution_mode = "off"
nb_mime_priority_overrides = [
    ("html", "image/png", 0),
    ("html", "text/html", 1),
    ("html", "text/markdown", 2),
    ("html", "text/plain", 10),
]
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4

# The reference. Docstrings name code in single backticks.
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# Signatures name an alias of shardviz.base.typing, such as MeshLike, instead of its whole union.
autodoc_type_aliases = {name: name for name in aliases.__all__}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# What is loaded from elsewhere is no part of the site: it must work with the network blocked.
html_theme = "sphinx_book_theme"
html_title = "shardviz"
html_extra_path = ["_made/extra"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
html_show_sourcelink = False
html_domain_indices = False  # four modules need no index
html_copy_source = False
html_theme_options = {
    # Buttons that lead to a repository need its address; the project has none yet.
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],  # a second field to search in
    "show_toc_level": 2,
    "show_navbar_depth": 1,
}
