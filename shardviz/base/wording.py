"""Facts in English, from the `words` of the feature that a fact belongs to.

A value reports what it found with codes and fields. What it means in words, for a text,
a picture, the page or an error, is written once, in `words`. Nothing reads it back.

A file of words has the sentences of one subject, in two tables: `SENTENCES` has the one
sentence of a fact, and `EXPLANATIONS` a longer text of several lines.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# The module that defines a fact, and the one with its words, both below `shardviz`.
# Files are imported when the first of their facts is shown, to keep imports light.
_FILES = {
    "runs.agreement": "runs.words.agreement",
    "hardware.topology": "hardware.words.hardware",
    "axis_rules.fit": "axis_rules.words.fit",
    "move.restore": "move.words.restore",
    "move.process_rows": "move.words.process_rows",
    "move.reshard": "move.words.reshard",
    "axis_rules.audit": "axis_rules.words.trees",
    "axis_rules.optimizer_differences": "axis_rules.words.trees",
    "axis_rules.group_bytes": "axis_rules.words.trees",
    "compiled.memory": "compiled.words.memory",
    "move.movement": "move.words.movement",
    "move.movement_steps": "move.words.movement",
    "compiled.roofline": "compiled.words.roofline",
    "compiled.timeline": "compiled.words.timeline",
    "compiled.too_large": "compiled.words.too_large",
    "runs.cached": "runs.words.cached",
    "advise.advice": "advise.words.candidates",
    "advise.candidates": "advise.words.candidates",
    "advise.search": "advise.words.search",
    "programs.effects": "programs.words.effects",
    "advise.contracts": "advise.words.contracts",
    "base.cause": "base.words.causes",
    "compiled.comparison": "compiled.words.comparison",
    "advise.lock": "advise.words.lock",
    "compiled.stages": "compiled.words.comparison",
    "compiled.checks": "compiled.words.checks",
    "programs.failure": "programs.words.failures",
    "programs.refusals": "programs.words.refusals",
    "programs.notes": "programs.words.notes",
    "compiled.orders": "compiled.words.roofline",
    "hardware.targets": "hardware.words.hardware",
    "base.layout": "base.words.layout",
    "base.mesh_context": "base.words.layout",
    "base.partition_spec": "base.words.layout",
    "axis_rules.differences": "axis_rules.words.rule_uses",
    "axis_rules.path_rules": "axis_rules.words.rules",
    "axis_rules.remedies": "axis_rules.words.remedies",
    "axis_rules.requests": "axis_rules.words.trees",
    "axis_rules.resolution": "axis_rules.words.rules",
    "axis_rules.rule_uses": "axis_rules.words.rule_uses",
    "axis_rules.verdicts": "axis_rules.words.rules",
    "plans.uncertain": "plans.words.estimate",
    "plans.plan_causes": "plans.words.estimate",
    "plans.plan_values": "plans.words.plan",
    "plans.plan_notes": "plans.words.plan",
    "plans.explanation": "plans.words.plan",
    "plans.plan_difference": "plans.words.plan",
    "programs.constraints": "programs.words.constraints",
}


def sentence(fact: object) -> str:
    """A fact in one sentence.

    Raises:
        LookupError: nothing here says it.

    >>> from shardviz.plans.uncertain import Uncertain
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
        file = _FILES.get(kind.__module__.removeprefix("shardviz."))
        if file is None:
            continue
        words = vars(importlib.import_module(f"shardviz.{file}")).get(table, {})
        if kind in words:
            return words[kind]
    raise LookupError(f"No {table.lower()} for {type(fact).__qualname__}.")
