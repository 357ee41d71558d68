"""Every fact finds its words, and every table of words is found."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import shardviz
from shardviz.base import wording
from shardviz.base.display import Fact
from shardviz.plans.uncertain import KINDS, Uncertain

ROOT = Path(shardviz.__file__).parent
FILES = sorted({*wording._FILES.values()})


def kinds_of(file: str) -> list[type]:
    words = vars(importlib.import_module(f"shardviz.{file}"))
    return [*words.get("SENTENCES", {}), *words.get("EXPLANATIONS", {})]


def test_every_table_of_sentences_is_found():
    tables = set()
    for path in ROOT.rglob("*.py"):
        if "\nSENTENCES" in path.read_text() or "\nEXPLANATIONS" in path.read_text():
            tables.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert tables == set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_the_words_of_a_file_are_found(file):
    for kind in kinds_of(file):
        module = kind.__module__.removeprefix("shardviz.")
        assert wording._FILES.get(module) == file, kind


@pytest.mark.parametrize("module", wording._FILES)
def test_every_fact_of_a_module_has_a_sentence(module):
    file = importlib.import_module(f"shardviz.{wording._FILES[module]}")
    facts = vars(importlib.import_module(f"shardviz.{module}")).values()
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
