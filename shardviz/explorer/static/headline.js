// @ts-check
// The headline of a program: least time, the bound of that time, and memory.
import { axisNumber, muted } from "./collectives.js";
import { axisColour } from "./colours.js";
import { button, fill, h, isNew } from "./dom.js";
import { OUT_OF_DATE } from "./stages.js";

/**
 * The least time of a program, from `report_view.py`; `parts` is empty if the time is unknown.
 * @typedef {object} HeadlineData
 * @property {string} seconds
 * @property {string} where
 * @property {string} bound
 * @property {HeadlinePart[]} parts
 * @property {string} note Why there are no times.
 * @property {string} title
 * @property {string} memory
 * @property {string} memoryTitle
 * @property {boolean} over
 */

/**
 * @typedef {object} HeadlinePart
 * @property {string} name
 * @property {string} label
 * @property {string} seconds
 * @property {number} share
 * @property {[axes: string[], share: number][]} over For collectives: the share of each set of mesh
 *   axes, largest first.
 */

/** @typedef {HeadlineData} Data */

const LOWER_BOUND = "A lower bound from published rates, not a measurement.";

export class Headline {
  /** @param {(part: string) => void} open shows the operations of a part */
  constructor(open) {
    this.open = open;
    this.node = h("div", { class: "sv-headline", role: "group", "aria-label": "Least time" });
    this.key = "";
  }

  /**
   * @param {Data} compiled
   * @param {Data | undefined} planned the headline from the plan, for the current program and
   *   target
   * @param {Record<string, number>} axes the indices of the mesh axes
   * @param {boolean} old true if the program or its target was edited since the compile
   */
  show(compiled, planned, axes, old) {
    if (!isNew(this, [compiled, planned, axes, old])) return;
    const usesCompiled = !old && (compiled.parts.length > 0 || compiled.memory !== "");
    // Ignore a compile for another program or target.
    const data = usesCompiled ? compiled : planned;
    this.node.hidden = false;
    this.node.title = data?.title ?? "";
    if (!data && old) return fill(this.node, muted(OUT_OF_DATE));
    this.fillWith(data ?? compiled, axes);
  }

  /** @param {Data} data @param {Record<string, number>} axes */
  fillWith(data, axes) {
    const { parts, note, where } = data;
    this.node.hidden = !parts.length && !note && !data.memory;
    if (!parts.length) return fill(this.node, muted(note), memory(data, this.open));
    const least = h("div", null, h("b", { text: `≥ ${data.seconds}` }), muted(` on ${where}`));
    const bound = h("div", null, `${data.bound} · `, memory(data, this.open));
    const facts = h("div", { class: "sv-hfacts" }, least, bound, muted(note || LOWER_BOUND));
    const bars = parts.map((part) => this.bar(part, axes));
    fill(this.node, facts, h("div", { class: "sv-hbars" }, ...bars));
  }

  /** @param {Data["parts"][number]} part @param {Record<string, number>} axes */
  bar({ name, label, seconds, share, over }, axes) {
    const words = `${label}: at least ${seconds}`;
    // One segment for the communication over each set of mesh axes.
    const pieces = over.map(([names, part]) => {
      const colours = names.map((axis) => axisColour(axisNumber(axes, axis)));
      const stripes = colours.map((colour) => h("i", { style: { "--sv-axis-colour": colour } }));
      return h("i", { style: { flex: `${part} 0 0` } }, ...stripes);
    });
    const title = `${words}. Shows its operations.`;
    const node = button("", () => this.open(name), {
      class: "sv-plain sv-hbar",
      "aria-label": words,
      title,
    });
    const bar = h("span", { class: "sv-fill", style: { "--sv-share": share } }, ...pieces);
    node.append(h("span", { class: "sv-muted", text: label }), h("span", null, bar, seconds));
    return node;
  }
}

/** The memory of the program, as a button that opens its peak. @param {Data} data @param {(part: string) => void} open */
function memory({ memory: text, memoryTitle: title, over }, open) {
  const style = `sv-plain sv-hmemory ${over ? "sv-bad" : ""}`;
  return text ? button(text, () => open("peak"), { class: style, title }) : "";
}
