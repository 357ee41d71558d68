// @ts-check
// The tab Memory: what each device holds against what it has, the cost, the least time of each part.
import { h } from "./dom.js";

/**
 * @param {any} memory as `view_memory.py` makes it
 * @param {boolean} known whether there is a report
 * @returns {Node[]}
 */
export function memoryBody(memory, known) {
  if (!known)
    return [
      h("p", {
        class: "sv-muted",
        text: "Not compiled yet: press Compile to see what each device holds.",
      }),
    ];
  const parts = [];
  if (memory.parts.length) parts.push(...memoryBar(memory));
  else parts.push(h("p", { class: "sv-muted", text: "The compiler gave no memory figures." }));
  if (memory.cost.length)
    parts.push(
      h(
        "div",
        { class: "sv-times" },
        ...memory.cost.map((/** @type {string[]} */ c) =>
          h("span", null, h("span", { class: "sv-muted", text: `${c[0]} ` }), c[1]),
        ),
      ),
    );
  if (memory.times.length)
    parts.push(
      h("p", { class: "sv-muted", text: memory.timesNote }),
      leastTimes(memory.times, "of what"),
    );
  if (memory.operations.length)
    parts.push(leastTimes(memory.operations, "of which operation, before XLA fuses it"));
  return parts;
}

/**
 * One bar a device: the parts side by side, to the scale of what it has.
 * @param {any} memory
 */
function memoryBar(memory) {
  const bar = h(
    "div",
    {
      class: memory.over ? "sv-membar sv-over" : "sv-membar",
      role: "img",
      "aria-label": memory.sentence,
    },
    ...memory.parts.map((/** @type {any} */ p, /** @type {number} */ i) =>
      h("span", {
        class: `sv-mempart sv-mem${i}`,
        style: { width: `${p.share * 100}%` },
        title: `${p.name}: ${p.bytes}`,
      }),
    ),
    memory.capacity > 0 && memory.capacity < 1
      ? h("span", {
          class: "sv-memcap",
          style: { left: `${memory.capacity * 100}%` },
          title: "what the device has",
        })
      : null,
  );
  const legend = h(
    "div",
    { class: "sv-times" },
    ...memory.parts.map((/** @type {any} */ p, /** @type {number} */ i) =>
      h(
        "span",
        null,
        h("span", { class: `sv-memdot sv-mem${i}` }),
        h("span", { class: "sv-muted", text: `${p.name} ` }),
        p.bytes,
      ),
    ),
  );
  return [
    h(
      "p",
      { class: memory.over ? "sv-bad" : "" },
      h("b", { text: memory.sentence }),
      h("span", { class: "sv-muted", text: `  ${memory.target}` }),
    ),
    bar,
    legend,
  ];
}

/** @param {any[]} times @param {string} what */
function leastTimes(times, what) {
  const rows = times.map((t) =>
    h(
      "tr",
      null,
      h(
        "td",
        { class: "sv-cbytes" },
        h(
          "span",
          { class: "sv-barcell" },
          h("span", { class: "sv-fill", style: { width: `${Math.max(1, t.share * 100)}%` } }),
        ),
        t.seconds,
      ),
      h("td", { text: t.name }),
      h("td", { class: "sv-muted", text: t.bound }),
      h("td", { class: "sv-muted sv-mono", text: t.source }),
    ),
  );
  const head = h(
    "tr",
    null,
    ...["least time", what, "bound by", "line"].map((t) => h("th", { text: t, scope: "col" })),
  );
  return h(
    "table",
    { class: "sv-table sv-least" },
    h("thead", null, head),
    h("tbody", null, ...rows),
  );
}
