"""Facts in English, from the `words` of the feature that defines them.

A value reports its findings as codes and fields. Their English, for a text, a picture,
the page or an error, is written once, in `words`. Nothing reads it back.

A module of words covers one subject, in two tables that lead from the class of a fact to
a function: `SENTENCES` for the one sentence of a fact, and `EXPLANATIONS` for a longer
text of several lines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any


def sentence(fact: object) -> str:
    """The sentence of a fact.

    Raises:
        LookupError: if no table has one for its class.

    >>> from shardviz.plans.uncertain import Uncertain
    >>> sentence(Uncertain("along", ("model",), "fft"))[:35]
    'The estimate is uncertain here: fft'
    """
    return _words_of(type(fact), "SENTENCES")(fact)


def explanation(value: object) -> str:
    """A value explained in several lines, as its `explain()` returns it.

    Raises:
        LookupError: if no table has an explanation for its class.
    """
    return _words_of(type(value), "EXPLANATIONS")(value)


@cache
def _words_of(kind: type, table: str) -> Callable[[Any], str]:
    # A class without words of its own has those of its nearest base.
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
    """The modules with the sentences of a feature; `()` for a feature without facts.

    They are imported when the first fact of the feature is shown, so that importing
    shardviz stays fast.
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
                memory,
                roofline,
                timeline,
                too_large,
            )

            return checks, comparison, memory, roofline, timeline, too_large
        case "runs":
            from shardviz.runs.words import agreement, cached

            return agreement, cached
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
