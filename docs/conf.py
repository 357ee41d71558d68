"""Settings with which Sphinx builds the site: `make docs` writes it to docs/_build/html.

The build shows lessons with their stored outputs and does not execute them. The modules in `_ext`
generate further pages and pictures, in folders that git ignores.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
# Paths of the directives, of the package, and of the home page's program.
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
    "site_text",
    "site_weight",
]
exclude_patterns = ["_build", "_ext"]

# The address of the notebooks' folder in Colab, as in
# "https://colab.research.google.com/github/OWNER/shardviz/blob/main/notebooks": every lesson then
# links to itself there. The project has no address yet.
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
add_module_names = True  # `site_pages` writes sv. in place of shardviz.
autodoc_member_order = "bysource"
autodoc_typehints = "both"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
# Signatures name an alias of shardviz.base.typing, such as MeshLike, instead of its whole union.
autodoc_type_aliases = {name: name for name in aliases.__all__}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# The site must work without a network, so its pages load files of the site only.
html_theme = "sphinx_book_theme"
html_title = "shardviz"
html_extra_path = ["_made/extra"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_use_index = False  # search and the reference list the same names
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
