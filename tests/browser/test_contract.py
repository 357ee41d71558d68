"""What any front end of anywidgets has to offer, and no more: one module, one model of six methods.

So the page works where nobody could try it: VS Code shows it in a webview whose policy allows no
network, Colab in a frame of its own with a widget manager of its own.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from shardviz.explorer import html_page
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.html_page import _without_bytes
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache
from tests.browser.views import play_largest, show_view

# The policy of a webview: only what the page brings itself, nothing from the network, no eval.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' blob:;"
    " img-src data: blob:"
)
FRAME = """<!doctype html><html><head>
<meta http-equiv="Content-Security-Policy" content="POLICY"></head>
<body><div id="host"></div></body></html>"""
LOAD = """
async ([source, styles, state, buffers, shadow]) => {
  const bytes = (text) => {
    const raw = atob(text);
    return new DataView(Uint8Array.from(raw, (letter) => letter.charCodeAt(0)).buffer);
  };
  const filled = (state, buffers) => {
    for (const [path, text] of buffers) {
      const last = path.pop();
      path.reduce((value, key) => value[key], state)[last] = bytes(text);
    }
    return state;
  };
  const traits = filled(state, buffers);
  const listeners = new Map();
  const plain = {
    get: (name) => traits[name],
    set: (name, value) => { traits[name] = value; },
    save_changes: () => {},
    send: (message) => window.sent.push(JSON.parse(JSON.stringify(message))),
    on: (event, listener) => listeners.set(event, [...(listeners.get(event) ?? []), listener]),
    off: (event, listener) => {
      const left = (listeners.get(event) ?? []).filter((other) => other !== listener);
      listeners.set(event, left);
    },
  };
  window.sent = [];
  window.asked = [];
  window.listening = () => [...listeners.values()].flat().length;
  window.receive = (changed, buffers) => {
    Object.assign(traits, filled(changed, buffers));
    for (const name of Object.keys(changed))
      for (const listener of listeners.get(`change:${name}`) ?? []) listener();
  };
  const model = new Proxy(plain, {
    get: (methods, name) => {
      if (!(name in methods)) window.asked.push(String(name));
      return methods[name];
    },
  });
  const host = document.getElementById("host");
  const root = shadow ? host.attachShadow({ mode: "open" }) : host;
  const style = document.createElement("style");
  style.textContent = styles;
  const el = document.createElement("div");
  root.append(style, el);
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  window.end = widget.render({ model, el });
}
"""

# What the page does when it has waited too long for an answer, to be called by a test.
PATIENCE = """() => {
  const later = window.setTimeout;
  window.setTimeout = (call, ms) => {
    if (ms !== 4000) return later(call, ms);
    window.lost = call;
  };
}"""
SENT = """() => new Promise((done) =>
  requestAnimationFrame(() => done(window.sent.splice(0))))"""


class Kernel:
    """An Explorer behind the page of a front end that only carries its messages."""

    def __init__(
        self, page: Page, shadow: bool = False, made: Explorer | None = None, answers: bool = True
    ):
        self.page = page
        page.set_content(FRAME.replace("POLICY", POLICY))
        session = Session(programs.get(), programs.DEFAULT)
        self.made = made or Explorer(session, ExecutableCache())
        self.made.send = lambda *args, **kwargs: None  # type: ignore[method-assign]
        self.sent = self.traits()
        state, buffers = self.packed(self.sent)
        source, styles = html_page.bundled_module(), html_page.bundled_styles()
        page.evaluate(LOAD, [source, styles, state, buffers, shadow])
        if answers:
            self.answer()

    def traits(self) -> dict[str, Any]:
        names = [n for n in self.made.traits(sync=True) if not n.startswith("_")]
        return {
            n: getattr(self.made, n) for n in names if n not in ("layout", "tabbable", "tooltip")
        }

    @staticmethod
    def packed(traits: dict[str, Any]) -> tuple[dict[str, Any], list[list[Any]]]:
        buffers: list[list[Any]] = []
        return _without_bytes(traits, [], buffers), buffers

    def answer(self) -> None:
        """Handles what the page has sent, and sends back what changed."""
        while sent := self.page.evaluate(SENT):
            for message in sent:
                self.made._receive(None, message, [])
            self.push()
        self.push()

    def push(self) -> None:
        now = self.traits()
        changed = {n: v for n, v in now.items() if v is not self.sent.get(n)}
        self.sent = now
        receive = "([state, buffers]) => window.receive(state, buffers)"
        self.page.evaluate(receive, list(self.packed(changed)))


@pytest.mark.parametrize("shadow", [False, True], ids=["in the page", "in a shadow root"])
def test_it_works_with_the_six_methods_of_a_model_alone(page: Page, complaints, shadow):
    kernel = Kernel(page, shadow)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    page.get_by_label("Mesh axes", exact=True).fill("data=2, model=4")
    page.keyboard.press("Enter")
    kernel.answer()
    expect(page.locator(".sv-chip b")).to_have_text(["data", "model"])
    expect(page.get_by_label("Size of model")).to_have_value("4")
    page.get_by_role("button", name="Undo").click()
    kernel.answer()
    expect(page.get_by_label("Mesh axes", exact=True)).to_have_value("data=4, model=2")
    show_view(page, "Rules")
    kernel.answer()
    rules = page.get_by_role("list", name="Rules for embed").get_by_role("listitem")
    expect(rules.filter(has_text="axis in use: rule 2 gave model to mlp")).to_be_visible()
    kernel.made.wait(120)
    kernel.answer()
    assert play_largest(page)
    kernel.answer()
    expect(page.locator(".sv-mdevice")).to_have_count(2)
    assert page.evaluate("() => window.asked") == [], "nothing but the six methods"
    page.evaluate("() => window.end()")
    assert page.evaluate("() => window.listening()") == 0, "nothing listens any longer"
    assert page.locator(".shardviz-explorer").count() == 0
    kernel.made.close()


def forbidden(source: str) -> list[str]:
    """What a module must not hold, comments left out."""
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    code = re.sub(r"^\s*//.*$", "", code, flags=re.MULTILINE)
    words = r"^import\b|\bimport\(|\brequire\(|\beval\(|new Function\b|innerHTML|Storage\b|fetch\("
    return re.findall(words, code, re.MULTILINE)


def test_the_module_imports_nothing_and_evaluates_nothing():
    source, styles = html_page.bundled_module(), html_page.bundled_styles()
    assert forbidden(source) == []
    assert forbidden(f"// a word\n{source}\nawait import('https://cdn')") == ["import("]
    # The themes of front ends are read where they are; nothing depends on their variables.
    for word in ("url(", "@import", "--jp-", "--vscode-"):
        assert word not in styles


def test_where_no_kernel_ever_answers_nothing_pretends_to_work(page: Page):
    page.evaluate(PATIENCE)
    kernel = Kernel(page, answers=False)
    page.wait_for_selector(".shardviz-explorer[data-seq]")
    banner = page.locator(".sv-banner")
    expect(banner).to_be_hidden()
    page.evaluate("() => window.lost()")
    expect(banner).to_contain_text("No kernel has answered yet")
    expect(page.get_by_label("Mesh axes", exact=True)).to_be_disabled()
    kernel.answer()  # it was only busy
    expect(banner).to_be_hidden()
    expect(page.get_by_label("Mesh axes", exact=True)).to_be_enabled()
    kernel.made.close()
