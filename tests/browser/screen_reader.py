"""Reads every number on the Explorer's screen, with the thing that it is about.

`PLACES` lists the places of the page that show numbers; a number elsewhere is an error. For each
place, patterns name the things that its texts are about. What no pattern of a place matches is
about nothing that the Python API knows, such as the line of a file; it is compared with nothing,
but must not outlive the state that it belongs to.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from playwright.sync_api import Page

SIZE = r"(\d[\d.,]* (?:[KMGTPE]i)?B)"
TIME = r"(\d[\d.,]* (?:ns|µs|ms|s))\b"
COUNT = r"(\d[\d,]*)"


class Pattern(NamedTuple):
    """A pattern, and the thing that each of its groups is about.

    In a thing, `{0}` is the place's subject, and `{1}` its first word.
    """

    text: str
    things: tuple[str, ...]


class Place(NamedTuple):
    """A part of the page.

    Attributes:
        selector: its elements.
        subject: the element inside that names what it is about, or an attribute (`@title`).
        patterns: what its texts are about.
    """

    selector: str
    subject: str = ""
    patterns: tuple[Pattern, ...] = ()


class Item(NamedTuple):
    """A text with a number.

    Attributes:
        place: the selector of its place; "" if it is in none.
        subject: what the place is about.
        kind: `text`, `value` or the attribute's name.
        text: the text.
        old: whether the page marks it as older than the last edit.
        path: the classes of the elements around it.
    """

    place: str
    subject: str
    kind: str
    text: str
    old: bool
    path: str


class Figure(NamedTuple):
    """A number of a thing, and the item that shows it."""

    thing: str
    number: str
    item: Item


def _rows(*pairs: tuple[str, str]) -> tuple[Pattern, ...]:
    return tuple(Pattern(text, tuple(things.split("; "))) for text, things in pairs)


_STAGE = _rows(
    (rf"^propagated,? {COUNT} collectives?$", "collectives {1}"),
    (
        rf"^(?:partitioned|compiled),? {COUNT}(?: · {SIZE})?$",
        "collectives {1}; collective bytes {1}",
    ),
    (rf"^{COUNT} arrays?", "arrays"),
    (r"(?:^|, )(\d[\d,]* [a-z-]*-[a-z-]*)\b", "kinds {1}"),
    (rf"{SIZE} sent per device", "collective bytes {1}"),
    (rf"{COUNT} values, {COUNT} split", "values; values split"),
)  # fmt: skip
_LEAST = _rows(
    (rf"^≥ {TIME}", "least time"),
    (rf"At least {TIME} on (\S+):", "least time; least target"),
    (rf"\b(?:arithmetic) {TIME}", "least arithmetic"),
    (rf"\b(?:memory) {TIME}", "least memory"),
    (rf"\bcollectives {TIME}", "least collectives"),
    (rf"needs about {SIZE}(?: of {SIZE})?", "planned peak; capacity"),
    (rf"(?<!results )needs? {SIZE}(?: of {SIZE}(?! usable))?", "needed; capacity"),
    (rf"{SIZE} (?:of it )?usable", "usable"),
    (rf"About {SIZE} per device, from the plan without fusion", "planned peak"),
    (rf"arguments and results need {SIZE}", "held"),
    (rf"^(?:\w+: )?{SIZE} of {SIZE} per device", "needed; capacity"),
    (rf"^Does not fit: {SIZE} per device[^.]*before activations", "held"),
    (rf"^Does not fit: {SIZE} per device(?!.*before activations)", "needed"),
    (rf"\S has {SIZE}", "capacity"),
    (r"^on (.*?)(?:, from the plan)?$", "where"),
    (rf"^{SIZE} per device; the memory", "needed"),
    (rf"^Peak {SIZE}", "peak"),
)

#: In order: a text belongs to the first place that contains it.
PLACES = (
    Place(".sv-chip", "b", _rows(
        (rf"^\S+: {COUNT}-way", "axis {1}"),
        (rf"^Size of \S+: {COUNT}$", "axis {1}"),
    )),
    Place(".sv-axistools", "", _rows((r"^Mesh axes: (.*)$", "mesh"),)),
    Place(".sv-bar", "", _rows((rf"^Hosts: {COUNT}$", "hosts"),)),
    Place(".sv-problemchip", "", _rows(
        (rf"^✕ {COUNT} fails?$", "failures"),
        (rf"^{SIZE} of copies \({COUNT} arrays?\)$", "copies; arrays with copies"),
    )),
    Place(".sv-problemlist", "", ()),
    Place(".sv-compared [role=listitem]", "div", _rows(
        (rf"^bytes per device (?:.* → )?{SIZE}", "stored"),
    )),
    Place(".sv-cardhead", "@title", _rows(
        (r"^\S+ +(\w+\[.*?\]) +(.*)$", "type {1}; spec {1}"),
        (r"(?<= )(\w+\[.*?\])", "type {1}"),
        (rf"{SIZE} per device(?: · {COUNT} replicas)?", "per device {1}; replicas {1}"),
        (rf"^\S+ {SIZE} ", "bytes {1}"),
    )),
    Place(".sv-form", "@title", ()),
    Place(".sv-count", "", _rows(
        (rf"^{COUNT} devices?", "devices"),
        (rf"{COUNT} hosts?", "hosts"),
    )),
    Place(".sv-title, .sv-thumbname", "bdi", _rows((r"(\w+\[.*?\])$", "type {1}"),)),
    Place(".sv-sentence", "b", _rows(
        (rf"split into {COUNT} blocks of (\[.*?\]) , {SIZE} each",
         "blocks {1}; shard {1}; per device {1}"),
        (rf"{SIZE} each; {COUNT} devices hold each", "per device {1}; replicas {1}"),
        (rf"not split: {COUNT} devices? holds? all of it, {SIZE} each",
         "replicas {1}; per device {1}"),
    )),
    Place(".sv-pictures", "", ()),
    Place(".sv-whyline", "button", _rows((r"(\w+\[.*?\])$", "type {1}"),)),
    Place(".sv-remedy", "", _rows(
        (rf"the step sends {SIZE}", "sent"),
        (rf"needs about {SIZE}", "planned peak"),
    )),
    Place(".sv-rulebox", "", ()),
    Place(".sv-sheet", "", ()),
    Place(".sv-modelwords", "", _rows(
        (rf"^{COUNT} arrays?", "arrays"),
        (r"([\d.]+ ?[KMBT]?) (?:elements|parameters)", "elements"),
    )),
    Place(".sv-modelbar, .sv-modellegend b", "", _rows(
        (rf"^{SIZE}(?: of {SIZE})? per device", "stored; capacity"),
        (rf"{SIZE} of copies", "copies"),
    )),
    Place(".sv-modellegend", "", _rows((rf"^{SIZE} of copies$", "copies"),)),
    Place(".sv-modelrow", ".sv-leafname span + span", _rows(
        (rf" {SIZE}$", "leaf {1}"),
    )),
    Place(".sv-model", "", ()),
    Place('.sv-stage[aria-label^="requested"]', "", _rows(
        (rf"^{COUNT} arrays?", "arrays"), (rf"{SIZE} per device", "stored"),
    )),
    Place(".sv-stage", ".sv-stagename", _STAGE),
    Place(".sv-stagechange", "", ()),
    Place(".sv-hbar", ".sv-muted", _rows(
        (rf"{TIME}", "least {1}"),
    )),
    Place(".sv-headline", "", _LEAST),
    Place(".sv-tlschedules", "", _rows(
        (rf"One after another ≥ {TIME}", "serial time"),
        (rf"Perfect overlap ≥ {TIME}", "least time"),
    )),
    Place(".sv-timeline", "", ()),
    Place(".sv-crow", "@data-keys", _rows(
        (rf"^{SIZE}", "row {0}"),
    )),
    Place(".sv-cstrip", "", _rows(
        (rf"{SIZE} sent per device", "chosen"),
        (rf"· ≥ {TIME}", "chosen time"),
    )),
    Place(".sv-collectives", "", ()),
    Place(".sv-vrow", ".sv-vlabel", _rows(
        (r" ((?:bf|[fiuc])\d+\[[\d, ]*\])(?: |$)", "value {1}"),
    )),
    Place(".sv-values", "", _rows(
        (rf"^{COUNT} values, {COUNT} split", "values; values split"),
        (rf"{COUNT} collectives? estimated", "collectives propagated"),
    )),
    Place(".sv-memory .sv-tlchosen", "", _LEAST),
    Place(".sv-memory", "", _rows(
        (rf"arguments and results {SIZE}", "held"),
        (rf"^{SIZE}, the peak", "peak"),
    )),
    Place(".sv-programleft", "", ()),
    Place(".sv-rulesview, .sv-layout, .sv-program", "", ()),
)  # fmt: skip

_READ = """
(places) => {
  const root = document.querySelector(".shardviz-explorer");
  const seen = (e) => e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const words = (e) => {
    const walk = document.createTreeWalker(e, NodeFilter.SHOW_TEXT);
    const parts = [];
    for (let n = walk.nextNode(); n; n = walk.nextNode())
      if (seen(n.parentElement)) parts.push(n.data);
    return parts.map((part) => part.trim()).filter(Boolean).join(" ").replaceAll(/\\s+/g, " ");
  };
  const subject = (e, how) => {
    if (!e || !how) return "";
    if (how.startsWith("@")) return e.getAttribute(how.slice(1)) ?? "";
    const inner = e.querySelector(how);
    return inner ? words(inner) : "";
  };
  const rows = [], read = new Set();
  const add = (e, kind, text) => {
    if (!text || !/\\d/.test(text)) return;
    const at = places.findIndex(([selector]) => e.closest(selector));
    const [selector, how] = places[at] ?? ["", ""];
    const place = selector ? e.closest(selector) : null;
    if (kind === "text") {
      // A place without a subject is read in pieces, one line of it after the other.
      if (how && read.has(place)) return;
      if (how) { read.add(place); text = words(place); }
    }
    const old = Boolean(e.closest('.sv-older, .sv-faded, .sv-vold, [data-state="old"]'));
    const path = [];
    for (let n = e; n !== root && path.length < 5; n = n.parentElement)
      path.unshift(n.getAttribute("class") ?? n.localName);
    const about = subject(place, how);
    // The sentence that says that something is out of date, and what follows, is old.
    const outdated = text.indexOf("Out of date");
    const from = outdated < 0 ? text.length : text.lastIndexOf(". ", outdated) + 1;
    const put = (text, old) =>
      /\\d/.test(text) && rows.push([selector, about, kind, text.trim(), old, path.join(" > ")]);
    put(text.slice(0, from), old);
    put(text.slice(from), true);
  };
  const block = (e) => {
    const inline = /^inline/.test(getComputedStyle(e).display) && e.parentElement !== root;
    return inline ? block(e.parentElement) : e;
  };
  const lines = new Set();
  for (const e of root.querySelectorAll("*")) {
    if (!seen(e) || e.closest("option")) continue;
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && /\\d/.test(n.data));
    if (own) {
      const line = block(e);
      if (!lines.has(line)) { lines.add(line); add(e, "text", words(line)); }
    }
    for (const name of ["title", "aria-label", "aria-valuetext"])
      add(e, name, e.getAttribute(name));
    const value = e.matches("select") ? e.selectedOptions[0]?.textContent : e.value;
    if (e.matches("input, textarea, select"))
      add(e, "value", `${e.getAttribute("aria-label")}: ${value}`);
  }
  return rows;
}
"""


def read_screen(page: Page) -> list[Item]:
    """All texts with numbers that are in sight, tooltips and accessible names among them."""
    places = [[place.selector, place.subject] for place in PLACES]
    return [Item(*row) for row in page.evaluate(_READ, places)]


def figures(items: list[Item]) -> list[Figure]:
    """The numbers of items, with the things that they are about."""
    patterns = {place.selector: place.patterns for place in PLACES}
    read = list[Figure]()
    for item in items:
        subject = item.subject, *item.subject.split()[:1]
        for pattern in patterns.get(item.place, ()):
            for match in re.finditer(pattern.text, item.text, re.MULTILINE):
                shown = zip(pattern.things, match.groups(), strict=True)
                for thing, number in shown:
                    if number is not None:
                        read.append(Figure(thing.format(*subject), number, item))
    return read
