"""The tokens of a lowered module, read from its text; knows no jax."""

from __future__ import annotations

import re

from shardviz.core.program.effects.values import Token

_MAIN = re.compile(r"func\.func public @main\((.*)\{$", re.MULTILINE)
_TOKEN = re.compile(r"!stablehlo\.token|tensor<0xi1>")
_SHARDING = re.compile(
    r'(?:sdy\.sharding = #sdy\.sharding<(.*?)>(?=[,}])|mhlo\.sharding = "(.*?)")'
)


def read_tokens(text: str) -> tuple[Token, ...]:
    """The tokens that a lowered module takes and returns, and their shardings as it writes them.

    >>> main = "func.func public @main(%arg0: !stablehlo.token) -> (!stablehlo.token) {"
    >>> [str(t) for t in read_tokens(main)]
    ['token in 0: on every device', 'token out 0: on every device']
    """
    found = _MAIN.search(text)
    if found is None:
        return ()
    taken, _, returned = found[1].strip().partition(") -> ")
    return (*_tokens("in", taken.rstrip(")")), *_tokens("out", returned.strip("()")))


def takes_arrays(text: str) -> bool:
    """Whether a lowered module takes any argument but tokens: those that go unused are dropped.

    >>> takes_arrays("func.func public @main(%arg0: !stablehlo.token) -> (!stablehlo.token) {")
    False
    """
    found = _MAIN.search(text)
    taken = found[1].strip().partition(") -> ")[0] if found else ""
    return any("%arg" in p and not _TOKEN.search(p.partition("{")[0]) for p in _parts(taken))


def _tokens(place: str, listed: str) -> list[Token]:
    tokens = []
    for index, part in enumerate(_parts(listed)):
        if _TOKEN.search(part.partition("{")[0]):
            said = _SHARDING.search(part)
            tokens.append(Token(place, index, (said[1] or said[2]) if said else ""))
    return tokens


def _parts(listed: str) -> list[str]:
    """The text split at the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(listed):
        depth += (letter in "({[<") - (letter in ")}]>")
        if letter == "," and depth == 0:
            parts.append(listed[start:i])
            start = i + 1
    return [*parts, listed[start:]]
