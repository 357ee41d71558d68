// @ts-check
// Which two dimensions of an array are shown, and steps through the blocks of the others.
import { Choice, answers } from "./controls.js";
import { button, fill, h } from "./dom.js";

/** @typedef {import("./messages").ArrayStep} ArrayStep */
/** @typedef {import("./messages").ArrayFacts} ArrayFacts */

export class ArraySteps {
  /** @param {import("./explorer.js").Edit} edit */
  constructor(edit) {
    this.edit = edit;
    this.key = "";
    /**
     * Which blocks are shown once the kernel has answered: a second click goes on from there.
     * @type {ArrayStep["at"][]}
     */
    this.next = [];
    this.node = h("div", { class: "sv-steps" });
  }

  /** @param {number} rank @param {ArrayFacts | undefined} facts */
  show(rank, facts) {
    const steps = facts?.steps ?? [];
    if (answers.settled || this.next.length !== steps.length) this.next = steps.map((s) => s.at);
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
    const parts = [choice.node, ...steps.map((step, i) => this.stepper(step, i))];
    if (steps.every(({ at }) => at === null)) return parts;
    const all = { class: "sv-link", "aria-label": "Show all blocks" };
    return [...parts, button("all", () => this.edit("at", null), all)];
  }

  /** @param {ArrayStep} step @param {number} i its number among those not shown */
  stepper({ dim, count, at }, i) {
    const go = (/** @type {number} */ by) => {
      const now = this.next[i];
      this.next = this.next.map((other) => other ?? 0);
      this.next[i] = now === null ? 0 : (now + by + count) % count;
      this.edit("at", this.next);
    };
    const text =
      at === null ? `dimension ${dim}: all ${count}` : `dimension ${dim}: ${at + 1} of ${count}`;
    return h(
      "span",
      { class: "sv-step" },
      button("‹", () => go(-1), { "aria-label": `Previous block of dimension ${dim}` }),
      h("span", { text }),
      button("›", () => go(1), { "aria-label": `Next block of dimension ${dim}` }),
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
