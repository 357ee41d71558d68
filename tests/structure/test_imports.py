from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shardviz
from tests.structure.import_table import EXCEPTIONS, FEATURES, module_at, violations
from tests.structure.imports import Import, file_cycles, imports_of, python_files

ROOT = Path(shardviz.__file__).parent
FRONT = "from shardviz.runs import public\n"


def planted(**sources: str) -> dict[str, ast.Module]:
    """A package of small files; `core__layout__mesh` is the file `base/mesh.py`."""
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


def test_no_files_import_each_other(imports):
    assert file_cycles(imports) == []


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"base__partition_spec": "import jax"}, "base.partition_spec may import numpy"),
        ({"base__mesh": "def f():\n    import jax.numpy"}, "in f imports jax.numpy"),
        ({"base__mesh": "from jax.sharding import Mesh"}, "imports jax.sharding"),
        (
            {"base__mesh": "def _partition_spec(s):\n    import jax.sharding"},
            "mesh.py:2 in _partition_spec imports jax.sharding",
        ),
        ({"base__mesh": "import importlib\nimportlib.import_module('jax')"}, "imports jax"),
        ({"base__mesh": "__import__('jax')"}, "imports jax"),
        ({"base__mesh": "f = lambda n: __import__(n)"}, "a name made at run time"),
        ({"base__mesh": "try:\n    import jax\nfinally:\n    x = 1"}, "imports jax"),
        ({"base__mesh": "if False:\n    import jax"}, "imports jax"),
        ({"base__mesh": "from ml_dtypes import bfloat16"}, "imports ml_dtypes"),
        ({"base__errors": "import numpy as np\nimport requests"}, "imports requests"),
        ({"base__mesh": "from ..compiled import report", "compiled__report": ""},
         "compiled is above base"),
        ({"base__mesh": "if TYPE_CHECKING:\n    from ..compiled import report",
          "compiled__report": ""}, "compiled is above base"),
        ({"plans__plan": "import jax"}, "plans.plan may import numpy"),
        ({"plans__plan": "from shardviz.compiled import module", "compiled__module": ""},
         "compiled is above plans"),
        ({"plans__words__plan": "from shardviz.runs import cache", "runs__cache": ""},
         "runs is above plans"),
        ({"compiled__module": "def f():\n    import jax"}, "compiled.module may import numpy"),
        ({"hardware__chips": "import jaxlib"}, "hardware.chips may import numpy"),
        ({"axis_rules__rules": "from shardviz.axis_rules.words import rules",
          "axis_rules__words__rules": ""},
         "values may not import words"),
        ({"axis_rules__rules": "from shardviz.axis_rules.draw import audit",
          "axis_rules__draw__audit": ""},
         "values may not import draw"),
        ({"axis_rules__rules": "from shardviz.draw import tables", "draw__tables": ""},
         "values may not import the drawing toolkit"),
        ({"axis_rules__words__rules": "from shardviz.draw import tables", "draw__tables": ""},
         "words may not import the drawing toolkit"),
        ({"plans__words__plan": "from shardviz.plans.draw import plan", "plans__draw__plan": ""},
         "words may not import draw"),
        ({"plans__plan": "def f():\n    from shardviz.plans.backend import reader",
          "plans__backend__reader": ""}, "values may not import backend"),
        ({"plans__plan": "from shardviz.plans.backend import reader", "plans__backend__reader": ""},
         "in a call only"),
        ({"runs__backend__here": "import matplotlib"}, "runs.backend.here may import"),
        ({"runs__backend__here": "import flax"}, "imports flax"),
        ({"runs__backend__here": "from shardviz.draw import picture", "draw__picture": ""},
         "backend may not import the drawing toolkit"),
        ({"runs__backend__here": "from shardviz.runs.words import run", "runs__words__run": ""},
         "backend may not import words"),
        ({"programs__backend__trace": "from shardviz.runs.backend import here",
          "runs__backend__here": ""}, "runs is above programs"),
        ({"draw__page": "import jax"}, "imports jax"),
        ({"draw__page": "import matplotlib.pyplot"}, "imports matplotlib"),
        ({"draw__page": "from shardviz.base.mesh import x\nfrom shardviz.axis_rules import rules",
          "base__mesh": "", "axis_rules__rules": ""}, "axis_rules is above draw"),
        ({"plans__draw__plan": "from shardviz.plans.backend import reader",
          "plans__backend__reader": ""}, "in a call only"),
        ({"legacy__call": "import jax"}, "in a call only"),
        ({"legacy__call": "from shardviz.programs.backend import bridge",
          "programs__backend__bridge": ""}, "in a call only"),
        ({"explorer__planner": "from shardviz.programs.backend import bridge",
          "programs__backend__bridge": ""}, "in a call only"),
        ({"axis_rules__panel__model_view": "from shardviz.plans.backend import reader",
          "plans__backend__reader": ""}, "in a call only"),
        ({"axis_rules__rules": "from shardviz.axis_rules.panel import view",
          "axis_rules__panel__view": ""},
         "explorer is above axis_rules"),
        ({"draw__paint": "from shardviz.explorer import session", "explorer__session": ""},
         "explorer is above draw"),
        ({"draw__paint": "import anywidget"}, "imports anywidget"),
        ({"explorer__explorer": "import jax"}, "imports jax"),
        ({"explorer__explorer": "import matplotlib"}, "imports matplotlib"),
        ({"base__mesh": "x = 'shardviz.draw.paint'", "draw__paint": ""},
         "in <a string> imports shardviz.draw.paint"),
        ({"gallery__arrays": "import jax"}, "gallery.arrays may import numpy"),
        ({"gallery__functions": "import torch"}, "imports torch"),
        ({"gallery__arrays": FRONT, "runs__public": ""}, "public is above gallery"),
        ({"gallery__arrays": "import shardviz as sv", "init": ""}, "the package's front is above"),
        ({"runs__public": "import jax"}, "runs.public may import numpy"),
        ({"draw__public__show": "from shardviz.draw import paint", "draw__paint": ""},
         "in a call only"),
        ({"draw__public__show": "from shardviz import figures", "figures": ""}, "in a call only"),
        ({"draw__public": "def f():\n    import ipywidgets"}, "imports ipywidgets"),
        ({"init": "import jax"}, "imports jax"),
        ({"things__mesh": ""} | {"things__mesh": "import json"}, "belongs to no feature"),
    ],
)  # fmt: skip
def test_a_planted_import_is_found(sources: dict[str, str], words: str):
    assert words in "\n".join(violations(imports_of(planted(**sources))))


@pytest.mark.parametrize(
    "sources",
    [
        {"base__mesh": "import json, numpy\nfrom . import spec", "base__spec": ""},
        {"base__mesh": "from typing import *\nif TYPE_CHECKING:\n    import jax"},
        {"base__mesh": "import typing\nif typing.TYPE_CHECKING:\n    import jax"},
        {"base__partition_spec": "def _jax_sharding(s):\n    from jax import sharding"},
        {"runs__backend__here": "import jax, numpy\nfrom shardviz.base import mesh",
         "base__mesh": ""},
        {"runs__backend__worker__run": "from .. import here", "runs__backend__here": ""},
        {"plans__draw__plan": "from shardviz.draw import tables\nfrom ..words import plan",
         "draw__tables": "", "plans__words__plan": ""},
        {"draw__paint": "import matplotlib"},
        {"axis_rules__panel__view": "from shardviz.explorer import document",
         "explorer__document": ""},
        {"explorer__explorer": "from shardviz.axis_rules.panel import view\nimport anywidget",
         "axis_rules__panel__view": ""},
        {"figures": "from shardviz.draw import paint", "draw__paint": ""},
        {"legacy__call": "def f():\n    import jax"},
        {"init": "def __getattr__(n):\n    from shardviz.runs import public", "runs__public": ""},
        {"init": "_NAMES = {'run': 'shardviz.runs.public'}", "runs__public": ""},
        {"explorer__public": "def f():\n    from shardviz.explorer import explorer",
         "explorer__explorer": "import anywidget"},
    ],
)  # fmt: skip
def test_a_lawful_import_is_not_found(sources: dict[str, str]):
    assert violations(imports_of(planted(**sources))) == []


def test_every_exception_is_still_needed(imports):
    assert {(i.file, i.inside, i.module) for i in imports} >= EXCEPTIONS


def test_every_folder_is_a_feature_or_a_role():
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__")
        assert module_at(name.rstrip(".")).feature in FEATURES


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


def test_files_are_found_on_disk(tmp_path: Path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "mesh.py").write_text("def f():\n    import jax\n")
    (found,) = violations(imports_of(python_files(tmp_path)))
    assert "shardviz/base/mesh.py:2 in f imports jax" in found
