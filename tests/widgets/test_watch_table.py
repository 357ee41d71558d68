"""The live table of a watched function: it follows the calls, and a button opens the Explorer."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.explorer import watch_table


@pytest.fixture
def notebook(monkeypatch) -> SimpleNamespace:
    """What a notebook shows."""
    page = SimpleNamespace(shown=[], updates=[])
    monkeypatch.setattr(watch_table, "get_ipython", lambda: SimpleNamespace(kernel=1))
    monkeypatch.setattr(watch_table, "display", lambda value, **_: page.shown.append(value))
    monkeypatch.setattr(
        watch_table, "update_display", lambda value, **_: page.updates.append(value)
    )
    return page


def wait(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def updating() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name == "shardviz-watch"}


def test_the_table_follows_the_calls(notebook):
    watched = sv.watch(lambda x: x + 1)
    watched(jnp.ones(3))
    watched._ipython_display_()
    bundle, box = notebook.shown
    assert bundle["text/html"].count("<tr>") == 2
    (buttons,) = box.children
    assert len(buttons.children) == 1
    watched(jnp.ones(4))
    wait(lambda: bool(notebook.updates) and len(buttons.children) == 2)
    assert notebook.updates[-1]["text/html"].count("<tr>") == 3
    buttons.children[1].click()
    explorer = box.children[1]
    assert explorer.session.program.arrays[0].shape == (4,)
    explorer.close()


def test_only_the_last_table_is_updated_and_it_ends_with_the_function(notebook):
    earlier = updating()  # of another test's function, which may end any time
    watched = sv.watch(lambda x: x + 1)
    watched._ipython_display_()
    watched._ipython_display_()
    wait(lambda: len(updating() - earlier) == 1)
    del watched
    gc.collect()
    wait(lambda: not updating() - earlier)


def test_outside_a_notebook_there_is_text_and_html():
    watched: Any = sv.watch(lambda x: x + 1)
    with pytest.raises(NotImplementedError):
        watched._ipython_display_()
    assert set(watched._repr_mimebundle_()) == {"text/plain", "text/html"}
