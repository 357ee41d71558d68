"""Python sends what `messages.d.ts` declares; and a message that it does not would be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.messages import errors, find_node, find_tsc, messages


@pytest.fixture(scope="module")
def compiler() -> tuple[Path, str]:
    tsc, node = find_tsc(), find_node()
    if tsc is None or node is None:
        pytest.skip("TypeScript is not installed: `make check` installs it and checks the same")
    return tsc, node


def test_python_sends_what_is_declared(compiler):
    assert errors(messages(), *compiler) == ""
