from __future__ import annotations

import ast
from pathlib import Path

import pytest

import shardviz
from tests.house.imports import cycles, imports_of, python_files
from tests.house.rooms import EXCEPTIONS, LAZY, is_lazy, violations

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


def test_every_file_imports_what_its_room_may():
    found = violations(python_files(ROOT))
    assert not found, "\n".join(found)


def test_no_module_imports_itself_in_a_circle():
    assert cycles(imports_of(python_files(ROOT))) == []


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"core__layout__spec": "import jax"}, "core.layout may import numpy"),
        ({"core__layout__spec": "def f():\n    import jax.numpy"}, "in f imports jax.numpy"),
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
        ({"core__program__runner": "import matplotlib"}, "core.program may import"),
        ({"core__program__runner": "import flax"}, "imports flax"),
        ({"core__program__runner": "from shardviz.picture import draw", "picture__draw": ""},
         "imports shardviz.picture.draw"),
        ({"picture__draw": "import jax"}, "imports jax"),
        ({"picture__draw": "import matplotlib.pyplot"}, "imports matplotlib"),
        ({"picture__draw": "from shardviz.core.program import runner", "core__program__runner": ""},
         "imports shardviz.core.backend.worker.run"),
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
        ({"gallery__mlp": "import torch"}, "imports torch"),
        ({"gallery__mlp": FRONT, "api": ""}, "imports shardviz.api"),
        ({"gallery__mlp": "import shardviz as sv", "init": ""}, "gallery may import"),
        ({"api": "import jax"}, "api may import numpy"),
        ({"api": "def f():\n    import ipywidgets"}, "imports ipywidgets"),
        ({"init": FRONT, "api__init": ""}, "in a call only"),
        ({"init": "from shardviz.api import mesh", "api__mesh": ""}, "in a call only"),
        ({"init": "import jax"}, "imports jax"),
        ({"core__errors": "import numpy as np\nimport requests"}, "imports requests"),
    ],
)  # fmt: skip
def test_a_planted_import_is_found(sources: dict[str, str], words: str):
    assert words in "\n".join(violations(planted(**sources)))


@pytest.mark.parametrize(
    "sources",
    [
        {"core__layout__mesh": "import json, numpy\nfrom . import spec", "core__layout__spec": ""},
        {"core__layout__mesh": "from typing import *\nif TYPE_CHECKING:\n    import jax"},
        {"core__layout__mesh": "import typing\nif typing.TYPE_CHECKING:\n    import jax"},
        {"core__layout__spec": "def _partition_spec(s):\n    from jax.sharding import P"},
        {"core__program__runner": "import jax, numpy\nfrom ..layout import mesh",
         "core__layout__mesh": ""},
        {"init": "def __getattr__(n):\n    from shardviz import api", "api": ""},
        {"init": "_ROOMS = {'run': 'shardviz.api'}", "api": ""},
        {"api": "r('shardviz.widgets.explorer')", "widgets__explorer": "import anywidget"},
    ],
)  # fmt: skip
def test_a_lawful_import_is_not_found(sources: dict[str, str]):
    assert violations(planted(**sources)) == []


def test_every_exception_is_still_needed():
    imports = imports_of(python_files(ROOT))
    assert {(i.file, i.inside, i.module) for i in imports} >= EXCEPTIONS
    assert {i.file for i in imports if i.inside and is_lazy(i)} == {file for file, _ in LAZY}


@pytest.mark.parametrize(
    ("sources", "rings"),
    [
        ({"a": "from shardviz import b", "b": "import shardviz.a"}, [["shardviz.a", "shardviz.b"]]),
        ({"a": "from . import b", "b": "from . import c", "c": "from .a import x"},
         [["shardviz.a", "shardviz.b", "shardviz.c"]]),
        ({"a": "from . import b", "b": "def f():\n    from . import a"}, []),
        ({"a": "from . import b, c", "b": "from . import d", "c": "from . import d", "d": ""}, []),
        ({"a": "import shardviz.a"}, [["shardviz.a"]]),
    ],
)  # fmt: skip
def test_a_planted_circle_is_found(sources: dict[str, str], rings: list[list[str]]):
    assert cycles(imports_of(planted(**sources))) == rings


def test_files_are_found_on_disk(tmp_path: Path):
    (tmp_path / "core" / "layout").mkdir(parents=True)
    (tmp_path / "core" / "layout" / "mesh.py").write_text("def f():\n    import jax\n")
    assert (
        "shardviz/core/layout/mesh.py:2 in f imports jax" in violations(python_files(tmp_path))[0]
    )
