"""Every fact finds its words, and every table of words is found."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from shardviz.core import wording
from shardviz.core.display import Fact
from shardviz.core.program.uncertain import KINDS, Uncertain

FILES = [module.name for module in pkgutil.iter_modules(wording.__path__)]


def kinds_of(file: str) -> list[type]:
    words = vars(importlib.import_module(f"{wording.__name__}.{file}"))
    return [*words.get("SENTENCES", {}), *words.get("EXPLANATIONS", {})]


@pytest.mark.parametrize("file", FILES)
def test_the_words_of_a_file_are_found(file):
    for kind in kinds_of(file):
        module = kind.__module__.removeprefix("shardviz.core.")
        assert wording._FILES.get(module) == file, kind


@pytest.mark.parametrize("module", wording._FILES)
def test_every_fact_of_a_module_has_a_sentence(module):
    file = importlib.import_module(f"{wording.__name__}.{wording._FILES[module]}")
    facts = vars(importlib.import_module(f"shardviz.core.{module}")).values()
    own = [
        kind
        for kind in facts
        # A base of several facts is said as one of them.
        if isinstance(kind, type)
        and issubclass(kind, Fact)
        and kind.__module__.endswith(module)
        and not kind.__subclasses__()
    ]
    sentences = vars(file).get("SENTENCES", {})
    assert [kind for kind in own if not set(kind.__mro__) & set(sentences)] == []


def test_what_nothing_says_is_refused():
    with pytest.raises(LookupError):
        wording.sentence(object())


@pytest.mark.parametrize("code", sorted(KINDS))
def test_every_code_of_the_estimate_has_words(code):
    assert str(Uncertain(code, ("model",), 0)).endswith(".")
