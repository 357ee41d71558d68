// @ts-check
// The headline of a program: least time, the bound of that time, and memory.
import { axisNumber, muted } from "./collectives.js";
import { axisColour } from "./colours.js";
import { button, fill, h, isNew } from "./dom.js";
import { OUT_OF_DATE } from "./stages.js";

/**
 * The least time of a program, from `report_view.py`; `parts` is empty if the time is unknown, and
 * `note` is the reason. `suggested` is the target of the least times, if it is not the chosen one,
 * and `costliest` are the collectives of one line that take longest.
 * @typedef {Record<"seconds" | "where" | "bound" | "note" | "title" | "memory" | "memoryTitle" |
 *   "suggested", string> & {parts: HeadlinePart[], over: boolean,
 *   costliest: {key: string, text: string} | null}} HeadlineData
 */

/**
 * For collectives, `over` is the share of each set of mesh axes, largest first.
 * @typedef {Record<"name" | "label" | "seconds", string> & {share: number,
 *   over: [axes: string[], share: number][]}} HeadlinePart
 */

const WAITING = "Least times are being added up…";

export class Headline {
  /** @param {import("./program_panel.js").ProgramPanel} program */
  constructor(program) {
    this.program = program;
    this.node = h("div", { class: "sv-headline", role: "group", "aria-label": "Least time" });
    this.key = "";
    this.high = 76; // pixels, once it has times
    this.byPlan = false;
  }

  /**
   * @param {HeadlineData} compiled
   * @param {HeadlineData | undefined | null} planned the headline from the plan, or why it has none,
   *   for the current program and target; null while it is being made
   * @param {Record<string, number>} axes the indices of the mesh axes
   * @param {boolean} old true if the program or its target was edited since the compile
   * @param {boolean} live whether a kernel answers
   */
  show(compiled, planned, axes, old, live) {
    if (!isNew(this, [compiled, planned, axes, old, live])) return;
    // A compile for this machine has no least times, so they are those of suggested hardware.
    const suggests = planned === null || planned?.suggested;
    const complete = compiled.parts.length || (compiled.memory && !suggests);
    // Ignore a compile for another program or target.
    const data = complete && !old ? compiled : planned;
    const { node } = this;
    this.byPlan = data === planned;
    // Below it, nothing moves while it waits.
    if (node.querySelector(".sv-hbars")) this.high = node.offsetHeight;
    node.style.minHeight = data === null ? `${this.high}px` : "";
    node.hidden = false;
    node.title = data?.title ?? "";
    if (data === null) return fill(node, muted(WAITING));
    if (!data && old) return fill(node, muted(OUT_OF_DATE));
    this.fillWith(data ?? compiled, axes, live);
  }

  /** @param {HeadlineData} data @param {Record<string, number>} axes @param {boolean} live */
  fillWith(data, axes, live) {
    const { parts, note, where, suggested } = data;
    this.node.hidden = !parts.length && !note && !data.memory;
    if (!parts.length) return fill(this.node, muted(note), this.memory(data));
    const link = { class: "sv-link", hidden: !suggested || !live };
    const choose = button(
      "Choose this target",
      () => this.program.page.edit("target", suggested),
      link,
    );
    const seconds = h("b", { text: `≥ ${data.seconds}` });
    const least = h("div", null, seconds, muted(` on ${where} `), choose);
    const bound = h("div", null, `${data.bound} · `, this.memory(data));
    const { key = "", text = "" } = data.costliest ?? {};
    const costliest =
      text && button(text, () => this.program.openPart(key), { class: "sv-plain sv-hmemory" });
    const facts = h("div", { class: "sv-hfacts" }, least, bound, costliest);
    const bars = parts.map((part) => this.bar(part, axes));
    fill(this.node, facts, h("div", { class: "sv-hbars" }, ...bars));
  }

  /** @param {HeadlinePart} part @param {Record<string, number>} axes */
  bar({ name, label, seconds, share, over }, axes) {
    const words = `${label}: at least ${seconds}`;
    // One segment for the communication over each set of mesh axes.
    const pieces = over.map(([names, part]) => {
      const colours = names.map((axis) => axisColour(axisNumber(axes, axis)));
      const stripes = colours.map((colour) => h("i", { style: { "--sv-axis-colour": colour } }));
      return h("i", { style: { flex: `${part} 0 0` } }, ...stripes);
    });
    const title = `${words}. Click to show the longest.`;
    const node = button("", () => this.program.openPart(name), {
      class: "sv-plain sv-hbar",
      "aria-label": words,
      title,
    });
    const bar = h("span", { class: "sv-fill", style: { "--sv-share": share } }, ...pieces);
    node.append(h("span", { class: "sv-muted", text: label }), h("span", null, bar, seconds));
    return node;
  }

  /** The memory of the program, as a button that opens its peak. @param {HeadlineData} data */
  memory({ memory: text, memoryTitle: title, over }) {
    const style = `sv-plain sv-hmemory ${over ? "sv-bad" : ""}`;
    return text ? button(text, () => this.program.openPart("peak"), { class: style, title }) : "";
  }
}
