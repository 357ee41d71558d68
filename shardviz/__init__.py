"""shardviz: how is my array, my model, my program laid out over these devices, and why?

The public names are listed in `__init__.pyi`. Importing shardviz imports nothing
heavier than numpy: a name imports its module when it is first used (PEP 562).
PYTEST_DONT_REWRITE: the package contains a pytest plugin, and pytest would otherwise
warn if shardviz is imported before the plugin.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from shardviz.base.display import Displayed, Words

__version__ = "0.1.0"


def _modules_of_names() -> dict[str, str]:
    """Reads the module of each public name from `__init__.pyi`."""
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = re.findall(r"^from (\S+) import (\w+) as \w+$", stub, re.MULTILINE)
    return {name: module for module, name in imports}


_MODULE_OF = _modules_of_names()
__all__ = sorted([*_MODULE_OF, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'shardviz' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    # Later lookups find this global and don't call __getattr__.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def _mimebundle(value: Any) -> dict[str, Any]:
    from shardviz.draw.public.show import mimebundle

    return mimebundle(value)


def _sentence(fact: Any) -> str:
    from shardviz.wording import sentence

    return sentence(fact)


def _explanation(value: Any) -> str:
    from shardviz.wording import explanation

    return explanation(value)


Displayed.renderer = staticmethod(_mimebundle)
Words.sentence = staticmethod(_sentence)
Words.explanation = staticmethod(_explanation)
