"""Turns facts into English, using the `words` modules of each feature.

Values store their findings as typed facts. The `words` modules contain the only English
version, for text, pictures, the page and errors. No code parses these sentences.

A `words` module covers one subject. Its tables map the class of a fact to a function:
`SENTENCES` to one that returns a sentence, `EXPLANATIONS` to one that returns several
lines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any


def sentence(fact: object) -> str:
    """Returns the sentence for a fact.

    Raises:
        LookupError: if no table has a sentence for its class.

    >>> from shardviz.plans.uncertain import Uncertain
    >>> sentence(Uncertain("along", ("model",), "fft"))[:35]
    'The estimate is uncertain here: fft'
    """
    return _words_of(type(fact), "SENTENCES")(fact)


def explanation(value: object) -> str:
    """Explains a value in several lines; its `explain()` returns this text.

    Raises:
        LookupError: if no table has an explanation for its class.
    """
    return _words_of(type(value), "EXPLANATIONS")(value)


@cache
def _words_of(kind: type, table: str) -> Callable[[Any], str]:
    # A class without an entry uses the entry of its nearest base class.
    for base in kind.__mro__:
        package, _, module = base.__module__.partition(".")
        if package != "shardviz":
            continue
        for words in modules_of_words(module.partition(".")[0]):
            functions = vars(words).get(table, {})
            if base in functions:
                return functions[base]
    raise LookupError(f"No {table.lower()} for {kind.__qualname__}.")


def modules_of_words(feature: str) -> tuple[ModuleType, ...]:
    """Imports a feature's modules of sentences; `()` for a feature without facts.

    Importing them only when the feature's first fact is shown keeps `import shardviz`
    fast.
    """
    match feature:
        case "base":
            from shardviz.base.words import causes, layout

            return causes, layout
        case "hardware":
            from shardviz.hardware.words import hardware

            return (hardware,)
        case "axis_rules":
            from shardviz.axis_rules.words import fit, remedies, rule_uses, rules, trees

            return fit, remedies, rule_uses, rules, trees
        case "programs":
            from shardviz.programs.words import (
                constraints,
                effects,
                failures,
                notes,
                refusals,
            )

            return constraints, effects, failures, notes, refusals
        case "plans":
            from shardviz.plans.words import estimate, plan

            return estimate, plan
        case "compiled":
            from shardviz.compiled.words import (
                checks,
                comparison,
                measured,
                memory,
                roofline,
                timeline,
                too_large,
            )

            return checks, comparison, measured, memory, roofline, timeline, too_large
        case "runs":
            from shardviz.runs.words import agreement, recompiles

            return agreement, recompiles
        case "move":
            from shardviz.move.words import movement, process_rows, reshard, restore

            return movement, process_rows, reshard, restore
        case "advise":
            from shardviz.advise.words import (
                candidates,
                contracts,
                edits,
                lock,
                problems,
                search,
            )

            return candidates, contracts, edits, lock, problems, search
    return ()
