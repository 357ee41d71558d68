// @ts-check
// The headline of a program: the least time it can take, what bounds it, and the memory it needs.
import { axisNumber, muted } from "./collectives.js";
import { axisColour } from "./colours.js";
import { OWN_KEYS, fill, h, toggle } from "./dom.js";
import { OUT_OF_DATE } from "./stages.js";

/** @typedef {import("./messages").Headline} Data */

const LOWER_BOUND = "A lower bound from published rates, not a measurement.";

export class Headline {
  /** @param {(part: string) => void} open shows the operations of a part */
  constructor(open) {
    this.open = open;
    this.node = h("div", { class: "sv-headline", role: "group", "aria-label": "Least time" });
    this.drawn = "";
  }

  /**
   * @param {Data} data
   * @param {Record<string, number>} axes the numbers of the mesh axes
   * @param {boolean} old whether the program was edited since
   */
  show(data, axes, old) {
    const key = JSON.stringify([data, axes, old]);
    if (key === this.drawn) return;
    this.drawn = key;
    const { parts, note, title, where } = data;
    toggle(this.node, "sv-faded", old);
    this.node.title = old ? OUT_OF_DATE : title;
    this.node.hidden = !parts.length && !note && !data.memory;
    if (!parts.length) return fill(this.node, muted(note), memory(data));
    const least = h("div", null, h("b", { text: `≥ ${data.seconds}` }), muted(` on ${where}`));
    const bound = h("div", null, `${data.bound} · `, memory(data));
    const facts = h("div", { class: "sv-hfacts" }, least, bound, muted(LOWER_BOUND));
    fill(
      this.node,
      facts,
      h("div", { class: "sv-hbars" }, ...parts.map((part) => this.bar(part, axes))),
    );
  }

  /** @param {Data["parts"][number]} part @param {Record<string, number>} axes */
  bar({ name, label, seconds, share, over }, axes) {
    const words = `${label}: at least ${seconds}`;
    const pieces = over.map(([names, share]) =>
      piece(
        names.map((name) => axisNumber(axes, name)),
        share,
      ),
    );
    const props = { type: "button", class: "sv-hbar", "aria-label": words, ...OWN_KEYS };
    const fillProps = { class: "sv-fill", style: { "--sv-share": share } };
    return h(
      "button",
      { ...props, title: `${words}. Shows its operations.`, on: { click: () => this.open(name) } },
      h("span", { class: "sv-muted", text: label }),
      h("span", null, h("span", fillProps, ...pieces), seconds),
    );
  }
}

/** What one set of mesh axes communicates. @param {number[]} axes @param {number} share */
function piece(axes, share) {
  const colours = axes.map((axis) => h("i", { style: { "--sv-axis-colour": axisColour(axis) } }));
  return h("i", { style: { flex: `${share} 0 0` } }, ...colours);
}

/** @param {Data} data */
function memory({ memory: text, memoryTitle: title, over }) {
  return h("span", { class: over ? "sv-hmemory sv-bad" : "sv-hmemory", text, title });
}
