"""Every fact finds its words, and every table of words is found."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import shardviz
from shardviz import wording
from shardviz.base.display import Fact
from shardviz.plans.uncertain import KINDS, Uncertain
from tests.structure.import_table import FEATURES

ROOT = Path(shardviz.__file__).parent
WORDS = [module for feature in FEATURES for module in wording.modules_of_words(feature)]


def dotted(path: Path) -> str:
    return ".".join(("shardviz", *path.relative_to(ROOT).with_suffix("").parts))


def kinds_of(module) -> set[type]:
    return {*vars(module).get("SENTENCES", {}), *vars(module).get("EXPLANATIONS", {})}


def test_every_table_of_sentences_is_found():
    tables = set()
    for path in ROOT.rglob("*.py"):
        if "\nSENTENCES" in path.read_text() or "\nEXPLANATIONS" in path.read_text():
            tables.add(dotted(path))
    assert tables == {module.__name__ for module in WORDS}


@pytest.mark.parametrize("module", WORDS, ids=lambda module: module.__name__)
def test_words_belong_to_the_feature_of_their_facts(module):
    feature = module.__name__.split(".")[1]
    assert {kind.__module__.split(".")[1] for kind in kinds_of(module)} == {feature}


def test_a_kind_has_words_in_one_module():
    kinds = [kind for module in WORDS for kind in kinds_of(module)]
    assert len(kinds) == len(set(kinds))


def test_every_fact_has_a_sentence():
    for path in ROOT.rglob("*.py"):
        if re.search(r"^class \w+\(.*\bFact\b", path.read_text(), re.MULTILINE):
            importlib.import_module(dotted(path))
    facts, missing = [Fact], []
    while facts:
        kind = facts.pop()
        facts += kind.__subclasses__()
        # A base of several facts is shown as one of them.
        if kind.__module__.startswith("shardviz.") and not kind.__subclasses__():
            try:
                wording._words_of(kind, "SENTENCES")
            except LookupError:
                missing.append(kind)
    assert missing == []


def test_what_nothing_says_is_refused():
    with pytest.raises(LookupError):
        wording.sentence(object())


@pytest.mark.parametrize("code", sorted(KINDS))
def test_every_code_of_the_estimate_has_words(code):
    assert str(Uncertain(code, ("model",), 0)).endswith(".")
