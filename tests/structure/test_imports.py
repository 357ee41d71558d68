from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shardviz
from tests.structure.import_table import EXCEPTIONS, PARTS, violations
from tests.structure.imports import Import, file_cycles, folder_cycles, imports_of, python_files

ROOT = Path(shardviz.__file__).parent
FRONT = "from shardviz import api\n"


def planted(**sources: str) -> dict[str, ast.Module]:
    """A package of small files; `core__layout__mesh` is the file `core/layout/mesh.py`."""
    folders = {name.rpartition("__")[0] for name in sources}
    every = {f"{folder}__init" if folder else "init": "" for folder in folders} | sources
    return {_file(name): ast.parse(source) for name, source in every.items()}


def _file(name: str) -> str:
    path = name.replace("__", "/").removeprefix("/")
    return f"{path.removesuffix('init')}__init__.py" if path.endswith("init") else f"{path}.py"


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return imports_of(python_files(ROOT))


def test_every_file_imports_what_its_folder_may(imports):
    found = violations(imports)
    assert not found, "\n".join(found)


def test_no_files_and_no_folders_import_each_other(imports):
    assert file_cycles(imports) == []
    assert folder_cycles(imports) == []


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"core__layout__partition_spec": "import jax"}, "core.layout may import numpy"),
        ({"core__layout__mesh": "def f():\n    import jax.numpy"}, "in f imports jax.numpy"),
        ({"core__layout__mesh": "from jax.sharding import Mesh"}, "imports jax.sharding"),
        (
            {"core__layout__mesh": "def _partition_spec(s):\n    import jax.sharding"},
            "mesh.py:2 in _partition_spec imports jax.sharding",
        ),
        ({"core__layout__mesh": "import importlib\nimportlib.import_module('jax')"}, "imports jax"),
        ({"core__layout__mesh": "__import__('jax')"}, "imports jax"),
        ({"core__layout__mesh": "f = lambda n: __import__(n)"}, "a name made at run time"),
        ({"core__layout__mesh": "try:\n    import jax\nfinally:\n    x = 1"}, "imports jax"),
        ({"core__layout__mesh": "if False:\n    import jax"}, "imports jax"),
        ({"core__layout__mesh": "from ml_dtypes import bfloat16"}, "imports ml_dtypes"),
        ({"core__layout__mesh": "from ..program import report", "core__program__report": ""},
         "imports shardviz.core.program.report"),
        ({"core__program__plan": "import jax"}, "core.program may import numpy"),
        ({"core__xla__module": "def f():\n    import jax"}, "core.xla may import numpy"),
        ({"core__hardware__chips": "import jaxlib"}, "core.hardware may import numpy"),
        ({"core__program__plan": "from shardviz.core.xla import module", "core__xla__module": ""},
         "imports shardviz.core.xla.module"),
        ({"core__backend__run__here": "import matplotlib"}, "core.backend.run may import"),
        ({"core__backend__run__here": "import flax"}, "imports flax"),
        ({"core__backend__run__here": "from shardviz.picture import draw", "picture__draw": ""},
         "imports shardviz.picture.draw"),
        ({"core__backend__bridge": "from .run import here", "core__backend__run__here": ""},
         "imports shardviz.core.backend.run.here"),
        ({"picture__draw": "import jax"}, "imports jax"),
        ({"picture__draw": "import matplotlib.pyplot"}, "imports matplotlib"),
        ({"picture__draw": "from shardviz.core.backend.run import here",
          "core__backend__run__here": ""}, "imports shardviz.core.backend.run.here"),
        ({"legacy__call": "import jax"}, "in a call only"),
        ({"legacy__call": "from shardviz.core.backend import bridge", "core__backend__bridge": ""},
         "in a call only"),
        ({"widgets__planner": "from shardviz.core.backend import bridge",
          "core__backend__bridge": ""}, "in a call only"),
        ({"plots__paint": "from shardviz.widgets import session", "widgets__session": ""},
         "imports shardviz.widgets.session"),
        ({"plots__paint": "import anywidget"}, "imports anywidget"),
        ({"widgets__explorer": "from shardviz import plots", "plots__paint": ""},
         "imports shardviz.plots"),
        ({"widgets__explorer": "import jax"}, "imports jax"),
        ({"widgets__explorer": "import matplotlib"}, "imports matplotlib"),
        ({"widgets__session": "import traitlets"}, "imports traitlets"),
        ({"widgets__explorer": "x = 'shardviz.plots.paint'", "plots__paint": ""},
         "in <a string> imports shardviz.plots.paint"),
        ({"gallery__arrays": "import jax"}, "gallery may import numpy"),
        ({"gallery__functions": "import torch"}, "imports torch"),
        ({"gallery__arrays": FRONT, "api": ""}, "imports shardviz.api"),
        ({"gallery__arrays": "import shardviz as sv", "init": ""}, "gallery may import"),
        ({"api": "import jax"}, "api may import numpy"),
        ({"api": "def f():\n    import ipywidgets"}, "imports ipywidgets"),
        ({"init": FRONT, "api__init": ""}, "in a call only"),
        ({"init": "from shardviz.api import mesh", "api__mesh": ""}, "in a call only"),
        ({"init": "import jax"}, "imports jax"),
        ({"core__errors": "import numpy as np\nimport requests"}, "imports requests"),
    ],
)  # fmt: skip
def test_a_planted_import_is_found(sources: dict[str, str], words: str):
    assert words in "\n".join(violations(imports_of(planted(**sources))))


@pytest.mark.parametrize(
    "sources",
    [
        {"core__layout__mesh": "import json, numpy\nfrom . import spec", "core__layout__spec": ""},
        {"core__layout__mesh": "from typing import *\nif TYPE_CHECKING:\n    import jax"},
        {"core__layout__mesh": "import typing\nif typing.TYPE_CHECKING:\n    import jax"},
        {"core__layout__partition_spec": "def _partition_spec(s):\n    from jax.sharding import P"},
        {"core__backend__run__here": "import jax, numpy\nfrom ..layout import mesh",
         "core__layout__mesh": ""},
        {"core__backend__run__worker__run": "from .. import execute",
         "core__backend__run__here": ""},
        {"legacy__call": "def f():\n    import jax"},
        {"init": "def __getattr__(n):\n    from shardviz import api", "api": ""},
        {"init": "_NAMES = {'run': 'shardviz.api'}", "api": ""},
        {"api": "r('shardviz.widgets.explorer')", "widgets__explorer": "import anywidget"},
    ],
)  # fmt: skip
def test_a_lawful_import_is_not_found(sources: dict[str, str]):
    assert violations(imports_of(planted(**sources))) == []


def test_every_exception_is_still_needed(imports):
    assert {(i.file, i.inside, i.module) for i in imports} >= EXCEPTIONS


def test_the_table_names_every_folder():
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")} - {"."}
    named = {part.prefix.replace(".", "/") for part in PARTS}
    assert {folder for folder in folders if folder not in named} == set()


@pytest.mark.parametrize(
    ("sources", "rings"),
    [
        ({"a": "from shardviz import b", "b": "import shardviz.a"}, [["shardviz.a", "shardviz.b"]]),
        ({"a": "from . import b", "b": "from . import c", "c": "from .a import x"},
         [["shardviz.a", "shardviz.b", "shardviz.c"]]),
        ({"a": "from . import b", "b": "def f():\n    from . import a"},
         [["shardviz.a", "shardviz.b"]]),
        ({"a": "from . import b, c", "b": "from . import d", "c": "from . import d", "d": ""}, []),
        ({"a": "from . import b", "b": "if TYPE_CHECKING:\n    from . import a"},
         [["shardviz.a", "shardviz.b"]]),
    ],
)  # fmt: skip
def test_a_planted_ring_of_files_is_found(sources: dict[str, str], rings: list[list[str]]):
    assert file_cycles(imports_of(planted(**sources))) == rings


@pytest.mark.parametrize(
    ("sources", "rings"),
    [
        # Two folders that use each other, though no two of their files do.
        ({"p__a": "from ..q import b", "q__b": "", "q__c": "from ..p import d", "p__d": ""},
         [["shardviz.p", "shardviz.q"]]),
        ({"p__a": "def f():\n    from ..q import b", "q__b": "", "q__c": "from ..p import d",
          "p__d": ""}, [["shardviz.p", "shardviz.q"]]),
        # Deeper: neighbours below a folder.
        ({"r__p__a": "from ..q import b", "r__q__b": "", "r__q__c": "from ..p import d",
          "r__p__d": ""}, [["shardviz.r.p", "shardviz.r.q"]]),
        # A folder whose files use a subfolder that uses them.
        ({"p__a": "from .q import b", "p__q__b": "", "p__q__c": "from .. import d", "p__d": ""},
         [["shardviz.p", "shardviz.p.q"]]),
        # A file and a folder beside it.
        ({"r__a": "from .q import b", "r__q__b": "", "r__q__c": "from .. import a"},
         [["shardviz.r", "shardviz.r.q"], ["shardviz.r.a", "shardviz.r.q"]]),
        ({"p__a": "from ..q import b", "q__b": "from . import c", "q__c": ""}, []),
    ],
)  # fmt: skip
def test_a_planted_ring_of_folders_is_found(sources: dict[str, str], rings: list[list[str]]):
    assert folder_cycles(imports_of(planted(**sources))) == rings


def test_files_are_found_on_disk(tmp_path: Path):
    (tmp_path / "core" / "layout").mkdir(parents=True)
    (tmp_path / "core" / "layout" / "mesh.py").write_text("def f():\n    import jax\n")
    (found,) = violations(imports_of(python_files(tmp_path)))
    assert "shardviz/core/layout/mesh.py:2 in f imports jax" in found
