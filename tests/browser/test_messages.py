"""Python sends what `messages.d.ts` declares; and a message that it does not would be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardviz.core.layout.mesh import make_mesh
from shardviz.widgets.targets import target_view
from tests.browser.messages import as_typescript, errors, find_node, find_tsc, messages

TARGET = target_view(make_mesh(data=4), "")


@pytest.fixture(scope="module")
def compiler() -> tuple[Path, str]:
    tsc, node = find_tsc(), find_node()
    if tsc is None or node is None:
        pytest.skip("TypeScript is not installed: `make check` installs it and checks the same")
    return tsc, node


def test_python_sends_what_is_declared(compiler):
    assert errors(messages(), *compiler) == ""


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({**TARGET, "surplus": 1}, "surplus"),
        ({k: v for k, v in TARGET.items() if k != "value"}, "value"),
        ({**TARGET, "value": 3}, "number"),
    ],
    ids=["a key too many", "a key too few", "another type"],
)
def test_what_is_not_as_declared_is_found(compiler, wrong, word):
    assert word in errors([("Target", wrong)], *compiler)


def test_a_message_becomes_typescript():
    text = as_typescript([("LinkView", {"key": "0:0", "words": 'a "b"', "picture": None})])
    assert text.splitlines()[1] == (
        'export const value0: m.LinkView = {"key": "0:0", "words": "a \\"b\\"", "picture": null};'
    )
