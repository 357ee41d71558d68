// @ts-check
// Which two dimensions of an array are shown, and steps through the blocks of the others.
import { Choice } from "./controls.js";
import { button, fill, h } from "./dom.js";

/** @typedef {import("./messages").ArrayStep} ArrayStep */
/** @typedef {import("./messages").ArrayFacts} ArrayFacts */

export class ArraySteps {
  /** @param {import("./explorer.js").Edit} edit */
  constructor(edit) {
    this.edit = edit;
    this.key = "";
    this.node = h("div", { class: "sv-steps" });
  }

  /** @param {number} rank @param {ArrayFacts | undefined} facts */
  show(rank, facts) {
    const key = JSON.stringify([rank, facts]);
    if (key === this.key) return;
    this.key = key;
    fill(this.node, ...(rank > 2 && facts ? this.controls(rank, facts) : []));
  }

  /** @param {number} rank @param {ArrayFacts} facts */
  controls(rank, { dims, steps }) {
    const choose = (/** @type {string} */ v) => this.edit("dims", v.split(",").map(Number));
    const choice = new Choice("Shown dimensions", choose);
    choice.sync(dimensionPairs(rank), dims.join());
    const parts = [choice.node, ...steps.map((step) => this.stepper(step, steps))];
    if (steps.every(({ at }) => at === null)) return parts;
    const all = { class: "sv-link", "aria-label": "Show all blocks" };
    return [...parts, button("all", () => this.edit("at", null), all)];
  }

  /** @param {ArrayStep} step @param {ArrayStep[]} steps those of all dimensions not shown */
  stepper(step, steps) {
    const { dim, count, at } = step;
    const go = (/** @type {number} */ by) => {
      const next = at === null ? 0 : (at + by + count) % count;
      this.edit(
        "at",
        steps.map((other) => (other === step ? next : (other.at ?? 0))),
      );
    };
    const text = at === null ? `dim ${dim}: all ${count}` : `dim ${dim}: ${at + 1} of ${count}`;
    return h(
      "span",
      { class: "sv-step" },
      button("‹", () => go(-1), { "aria-label": `Previous block of dim ${dim}` }),
      h("span", { text }),
      button("›", () => go(1), { "aria-label": `Next block of dim ${dim}` }),
    );
  }
}

/** @param {number} rank */
function dimensionPairs(rank) {
  const pairs = [];
  for (let i = 0; i < rank; i++) {
    for (let j = 0; j < rank; j++) {
      if (i !== j) pairs.push({ value: `${i},${j}`, label: `dims ${i} × ${j}` });
    }
  }
  return pairs;
}
