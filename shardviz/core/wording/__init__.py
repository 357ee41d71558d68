"""Facts in English: the only folder that writes sentences.

A value of `core` says what it found with codes and fields. What it is in words, for a
text, a picture, the page or an error, is written here, once. Nothing reads it back.

A file here has the sentences of one subject, in two tables: `SENTENCES` has the one
sentence of a fact, and `EXPLANATIONS` a longer text of several lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# The module that defines a fact, below `shardviz.core`, and the file with its words.
# Files are imported when the first of their facts is shown, to keep imports light.
_FILES = {
    "program.agreement": "agreement",
    "hardware.topology": "hardware",
    "layout.fit": "fit",
    "layout.transfer.restore": "restore",
    "layout.transfer.process_rows": "process_rows",
    "layout.transfer.reshard": "reshard",
    "layout.trees.audit": "trees",
    "layout.trees.differences": "trees",
    "layout.trees.group_bytes": "trees",
    "program.memory": "memory",
    "program.movement": "movement",
    "program.movement_steps": "movement",
    "program.roofline": "roofline",
    "program.timeline": "timeline",
    "program.too_large": "too_large",
    "program.cached": "cached",
    "program.advice": "candidates",
    "program.candidates": "candidates",
    "program.search": "search",
    "program.effects": "effects",
    "program.contracts": "contracts",
    "layout.cause": "causes",
    "program.comparison": "comparison",
    "program.lock": "lock",
    "program.stages": "comparison",
    "program.checks": "run",
    "program.failure": "failures",
    "program.refusals": "refusals",
    "program.notes": "notes",
    "program.orders": "roofline",
    "hardware.targets": "hardware",
    "layout.layout": "layout",
    "layout.mesh_context": "layout",
    "layout.partition_spec": "layout",
    "layout.rules.differences": "rule_uses",
    "layout.rules.path_rules": "rules",
    "layout.rules.remedies": "remedies",
    "layout.rules.requests": "trees",
    "layout.rules.resolution": "rules",
    "layout.rules.rule_uses": "rule_uses",
    "layout.rules.verdicts": "rules",
    "program.uncertain": "estimate",
    "program.plan_causes": "estimate",
    "program.plan_values": "plan",
    "program.plan_notes": "plan",
    "program.explanation": "plan",
    "program.plan_difference": "plan",
    "program.constraints": "constraints",
}


def sentence(fact: object) -> str:
    """A fact in one sentence.

    Raises:
        LookupError: nothing here says it.

    >>> from shardviz.core.program.uncertain import Uncertain
    >>> sentence(Uncertain("along", ("model",), "fft"))[:35]
    'The estimate is uncertain here: fft'
    """
    return _words("SENTENCES", fact)(fact)


def explanation(value: object) -> str:
    """A value explained in several lines, as its `explain()` returns it.

    Raises:
        LookupError: nothing here explains it.
    """
    return _words("EXPLANATIONS", value)(value)


def _words(table: str, fact: object) -> Callable[[Any], str]:
    # A subclass of a fact is said as its base is, where it has no words of its own.
    for kind in type(fact).__mro__:
        file = _FILES.get(kind.__module__.removeprefix("shardviz.core."))
        if file is None:
            continue
        words = vars(importlib.import_module(f"{__name__}.{file}")).get(table, {})
        if kind in words:
            return words[kind]
    raise LookupError(f"No {table.lower()} for {type(fact).__qualname__}.")
