// @ts-check
// The Memory tab: live bytes over time, the buffers alive at one moment, the bytes of each part, and
// the least times of operations.
import { ChangesList } from "./changes.js";
import { muted, mutedNote } from "./collectives.js";
import { OWN_KEYS, axisTag, button, fill, h, svg } from "./dom.js";
import { bytesText } from "./model_rows.js";
import { leastTimes, pairs } from "./report_tabs.js";
import { OUT_OF_DATE } from "./stages.js";

/**
 * @typedef {object} Memory
 * @property {[name: string, bytes: string][]} parts
 * @property {MemoryChart | null} chart Null if the compiler reported no buffers.
 * @property {string} sentence
 * @property {boolean} over
 * @property {import("./report_tabs.js").LeastTime[]} operations
 * @property {string} [target] Only with a report: the target.
 */

/**
 * `memory_chart.py`: a column is an interval of the program, shown at its fullest moment.
 * @typedef {object} MemoryChart
 * @property {string} sentence
 * @property {number} peak The column of the peak, and the bytes at the upper edge.
 * @property {number} top
 * @property {number} capacity 0 if unknown
 * @property {string[]} where
 * @property {[kind: string, bytes: number[]][]} kinds
 * @property {MemoryBuffer[]} buffers The largest of each column.
 */

/**
 * A buffer with its first and last column (inclusive); its value is "" if unknown.
 * @typedef {Record<"bytes" | "start" | "end", number> & Record<"shape" | "name" | "value" | "spec" | "source" | "about", string>} MemoryBuffer
 */

/** @typedef {{value: (name: string) => void} & import("./changes.js").Calls} Calls */

/** The bound of an operation, by the part of the least time in the headline. */
/** @type {Record<string, string>} */
const BOUNDS = { memory: "HBM", compute: "FLOP/s" };
/** Shades of grey, because colours mean mesh axes. @type {Record<string, number>} */
const SHADES = {arguments: 38, outputs: 58, temporaries: 80, collectives: 100, constants: 68, padding: 24}; // prettier-ignore
const LINES = 4; // grid lines of the chart
const MOST_ALIVE = 16; // Python sends at least this many buffers of each moment
const NOT_COMPILED = "Not compiled yet: a compile says what each device holds.";

export class MemoryPanel {
  /** @param {Calls} calls */
  constructor(calls) {
    this.calls = calls;
    /** @type {[Memory?, string?, boolean?, object?]} */ this.shown = [];
    /** @type {MemoryChart | null} */ this.chart = null;
    /** The live bytes of every column. @type {number[]} */ this.totals = [];
    // The slider covers the chart, and its thumb is the line at the chosen moment.
    const on = { input: () => this.go(Number(this.slider.value)) };
    const name = { "aria-label": "Memory over the program's order", ...OWN_KEYS };
    this.slider = h("input", { type: "range", min: "0", ...name, on });
    this.picture = h("div", { class: "sv-memchart" });
    /** The lifetime of an expanded buffer. */
    this.life = line("", 8);
    this.list = h("div", { class: "sv-memlist", role: "group", "aria-label": "Buffers alive" });
    this.legend = h("div", { class: "sv-times" });
    this.changes = new ChangesList("What would lower it?", calls);
    this.node = h("div", { class: "sv-memory" });
  }

  /**
   * @param {Memory} memory
   * @param {string} part the part whose operations are shown
   * @param {boolean} old true if the program or its target was edited since the compile
   * @param {import("./headline.js").HeadlineData} [planned] the plan's headline for the current program and target
   */
  show(memory, part, old, planned) {
    const anew = memory !== this.shown[0] || old !== this.shown[2];
    if (!anew && part === this.shown[1] && planned === this.shown[3]) return;
    this.shown = [memory, part, old, planned];
    const { chart, sentence, over, target, parts, operations } = memory;
    const least = { sentence: planned?.memoryTitle ?? "", over: planned?.over };
    const verdict = target === undefined || old ? least : { sentence, over };
    const fits = h("b", { class: verdict.over ? "sv-bad" : "", text: verdict.sentence });
    if (target === undefined) return fill(this.node, fits, mutedNote(NOT_COMPILED));
    const about = old ? `  ${OUT_OF_DATE}. Below is the last one, for ${target}.` : `  ${target}`;
    const words = h("div", null, fits, muted(about), h("div", { text: chart?.sentence }));
    const head = h("div", { class: "sv-tlchosen" }, words, this.changes.button);
    const picture = h("div", { class: "sv-mempicture" }, this.picture, this.list);
    fill(this.node, head, this.changes.node);
    this.node.append(...(chart ? [picture, this.legend] : [pairs(parts)]));
    const bound = BOUNDS[part];
    const shownOperations = operations.filter((op) => !bound || op.bound === bound);
    if (shownOperations.length) this.node.append(leastTimes(shownOperations));
    else if (bound) this.node.append(mutedNote(`No operation is known to be bound by ${bound}.`));
    // The operations of the part are listed below the chart.
    if (bound) this.node.querySelector(".sv-least")?.scrollIntoView();
    if (chart && anew) this.draw(chart);
  }

  /** Stacks the live bytes of each kind; a column has width 1 and the chart height 1. @param {MemoryChart} chart */
  draw(chart) {
    const { kinds, where, top, capacity, peak } = chart;
    this.chart = chart;
    this.totals = where.map(() => 0);
    const paths = kinds.map(([kind, live]) => {
      let d = "";
      live.forEach((bytes, i) => {
        this.totals[i] += bytes;
        d += `M${i} ${1 - this.totals[i] / top}h1v${bytes / top}h-1z`;
      });
      return svg("path", { d, style: `fill: ${shade(kind)}` });
    });
    /** @type {Node[]} */
    const labels = [];
    const mark = (/** @type {number} */ high, /** @type {string} */ text, inside = {}) => {
      paths.push(line(`M0 ${1 - high}H${where.length}`, 0.3));
      const style = { top: `${100 * (1 - high)}%`, ...inside };
      labels.push(h("span", { class: "sv-muted", style, text }));
    };
    for (let n = 0; n <= LINES; n++) mark(n / LINES, bytesText((top * n) / LINES));
    if (capacity && capacity <= top)
      mark(capacity / top, "capacity", { right: 0, transform: "none" });
    // Like the slider, from the middle of the first column to the middle of the last.
    const viewBox = `0.5 0 ${Math.max(where.length - 1, 0.5)} 1`;
    const look = { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" };
    fill(this.picture, svg("svg", look, ...paths, this.life), ...labels, this.slider);
    this.slider.max = String(where.length - 1);
    this.go(peak);
  }

  /** Lists the buffers that are alive in a column. @param {number} at */
  go(at) {
    const { totals, slider } = this;
    const { kinds, where, buffers, peak } = /** @type {MemoryChart} */ (this.chart);
    const text = `${bytesText(totals[at])}${at === peak ? ", the peak" : ""} · ${where[at]}`;
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", text);
    this.life.removeAttribute("d");
    const parts = kinds.map(([kind, live]) => {
      return h("span", null, axisTag(kind, shade(kind)), ` ${bytesText(live[at])}`);
    });
    fill(this.legend, ...parts);
    const alive = buffers.filter(({ start, end }) => start <= at && at <= end);
    const listed = alive.slice(0, MOST_ALIVE);
    const unlisted = totals[at] - listed.reduce((sum, { bytes }) => sum + bytes, 0);
    const moment = h("div", { class: "sv-muted sv-cut", role: "status", title: text, text });
    fill(this.list, moment, ...listed.map((buffer) => this.row(buffer)));
    if (unlisted > 0)
      this.list.append(mutedNote(`And smaller ones, ${bytesText(unlisted)} in all.`));
  }

  /** A buffer; when expanded it shows its details, and the chart its lifetime. @param {MemoryBuffer} buffer */
  row({ bytes, shape, name, spec, source, about, value, start, end }) {
    const cells = [bytesText(bytes), name, shape, source];
    const title = [...cells, spec, about].filter(Boolean).join(" · ");
    const line = cells.map((text) => h("span", { class: "sv-cut", text }));
    const to = value && button("Show in Values", () => this.calls.value(value));
    const toggle = () => this.life.setAttribute("d", node.open ? `M${start} 1H${end + 1}` : "");
    const node = h(
      "details",
      { on: { toggle } },
      h("summary", { class: "sv-memrow", title }, ...line),
      h("div", { class: "sv-tlchosen sv-muted" }, h("div", { text: title }), to),
    );
    return node;
  }
}

/** A line over the chart. @param {string} d its path @param {number} width in pixels */
function line(d, width) {
  const look = { "stroke-width": width, "vector-effect": "non-scaling-stroke" };
  return svg("path", { d, stroke: "currentColor", ...look });
}

/** The grey of a kind of buffers. @param {string} kind */
function shade(kind) {
  return `color-mix(in srgb, var(--sv-muted) ${SHADES[kind]}%, var(--sv-paper))`;
}
