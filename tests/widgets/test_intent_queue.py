"""What the page does while it waits for the kernel, its clock in our hands."""

from __future__ import annotations

import json
from pathlib import Path

from shardviz.explorer import html_page
from tests.picture.javascript import run_script

MODULE = Path(html_page.HERE / "intents.js")
_SCRIPT = """
import { readFileSync } from "node:fs";
const timers = [];
globalThis.window = {
  setTimeout: (call) => timers.push(call),
  clearTimeout: (number) => number && (timers[number - 1] = null),
};
const { IntentQueue } = await import(%s);
const { answers } = JSON.parse(readFileSync(0, "utf8"));
const sent = [];
let drawn = 0;
const queue = new IntentQueue({ send: (message) => sent.push(message) }, () => drawn++);
queue.send({ kind: "edit", field: "shape", value: "8" });
queue.send({ kind: "edit", field: "shape", value: "80" });
queue.send({ kind: "edit", field: "shape", value: "800" });
const steps = [];
const step = () => steps.push([sent.length, drawn, queue.receive({ seq: 0 })]);
step();
for (const seq of answers) {
  if (seq === null) for (const call of timers.splice(0)) call?.();
  else queue.receive({ seq, client: queue.client });
  queue.flush();
  step();
}
console.log(JSON.stringify({ steps, sent: sent.map(({ seq, intents }) => [seq, intents]) }));
"""


_TYPED = """
const timers = [];
globalThis.window = {
  setTimeout: (call) => timers.push(call),
  clearTimeout: (number) => number && (timers[number - 1] = null),
};
const { IntentQueue } = await import(%s);
const sent = [];
const queue = new IntentQueue({ send: (message) => sent.push(...message.intents) }, () => {});
const edit = (field, value) => ({ kind: "edit", field, value });
const answer = () => queue.receive({ seq: queue.sent, client: queue.client });
const steps = [];
const step = () => {
  answer();
  queue.flush();
  const settled = answer();
  steps.push([sent.splice(0).map(({ kind, value }) => value ?? kind), settled]);
};
for (const text of ["8", "80", "800"]) queue.hold(edit("shape", text));
step();
for (const call of timers.splice(0)) call?.(); // nobody types any more
step();
queue.hold(edit("name", "w"));
queue.send({ kind: "cell" });
step();
queue.hold(edit("mesh", "data=4"));
step();
queue.send(edit("add", "add"));
step();
queue.hold(edit("mesh", "data=8"));
queue.commit();
step();
console.log(JSON.stringify(steps));
"""


def waiting(answers: list[int | None]) -> dict:
    """How many were sent and drawn after each answer (None: none came), and whether all is said."""
    return run_script(_SCRIPT % json.dumps(MODULE.as_uri()), {"answers": answers})


def shape(text: str) -> list[dict]:
    return [{"kind": "edit", "field": "shape", "value": text}]


def test_only_the_newest_text_waits_for_an_answer():
    assert waiting([1, 2]) == {
        "steps": [[1, 0, False], [2, 0, False], [2, 0, True]],
        "sent": [[1, shape("8")], [2, shape("800")]],
    }


def test_a_page_whose_answers_are_lost_is_drawn_again_and_waits_no_more():
    assert waiting([None, None])["steps"] == [[1, 0, False], [2, 1, False], [2, 2, True]]


def test_an_answer_that_came_is_not_given_up():
    assert waiting([1, 2, None])["steps"][-1] == [2, 0, True]


def test_a_text_is_sent_after_a_pause_at_enter_and_before_the_next_edit():
    assert run_script(_TYPED % json.dumps(MODULE.as_uri()), {}) == [
        [[], False],
        [["800"], True],
        [["cell"], False],
        [["w"], False],
        [["data=4", "add"], True],
        [["data=8"], True],
    ]
