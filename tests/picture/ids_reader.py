"""Reads back the ids from text that `ids_text` wrote: the proof that the text loses none."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\s*(?:(\d+)(?:–(\d+)(?: step (-?\d+))?)?|([(),…]))")


def read_ids(text: str) -> list[int]:
    """The ids that a text of `ids_text` (without a limit, or one that sufficed) stands for."""
    if text == "no device":
        return []
    return _Reader(text.replace(" · ", ", ")).whole()


class _Reader:
    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.token: re.Match[str] | None = None
        self.step()

    def step(self) -> None:
        self.token = _TOKEN.match(self.text, self.at) if self.at < len(self.text) else None
        if self.token is None and self.at < len(self.text):
            raise AssertionError(f"cannot read {self.text[self.at :]!r} in {self.text!r}")
        self.at = self.token.end() if self.token else self.at

    def whole(self) -> list[int]:
        ids = [v for item in self.sequence() for v in item]
        assert self.token is None, self.text
        return ids

    def sequence(self) -> list[list[int]]:
        items = [self.item()]
        while self.token and self.token[4] in (",", "…"):
            goes_on = self.token[4] == "…"
            self.step()
            item = self.item()
            if goes_on:
                items += _between(items[-2], items[-1], item)
            items.append(item)
        return items

    def item(self) -> list[int]:
        token = self.token
        assert token is not None, self.text
        self.step()
        if token[4] == "(":
            inside = [v for item in self.sequence() for v in item]
            assert self.token is not None, self.text
            assert self.token[4] == ")", self.text
            self.step()
            return inside
        first = int(token[1])
        if token[2] is None:
            return [first]
        step = int(token[3] or 1)
        return list(range(first, int(token[2]) + (1 if step > 0 else -1), step))


def _between(before: list[int], last: list[int], end: list[int]) -> list[list[int]]:
    step = last[0] - before[0]
    count = (end[0] - last[0]) // step
    assert step * count == end[0] - last[0]
    assert [v - end[0] for v in end] == [v - last[0] for v in last]
    return [[v + k * step for v in last] for k in range(1, count)]
