// @ts-check
// The Memory tab: live bytes over time, and the buffers alive at one moment.
// Below are the bytes of arguments, outputs and so on.
import { ChangesList } from "./changes.js";
import { muted, mutedNote } from "./collectives.js";
import { axisTag, button, fill, h, svg } from "./dom.js";
import { bytesText } from "./model_rows.js";
import { pairs } from "./report_tabs.js";
import { OUT_OF_DATE } from "./stages.js";

/**
 * @typedef {object} Memory
 * @property {[name: string, bytes: string][]} parts
 * @property {MemoryChart | null} chart The chart; null if the compiler reported no buffers.
 * @property {Estimate | null} estimate What the plan estimates; null without a plan.
 * @property {string} sentence
 * @property {boolean} over
 * @property {string} [target] The target of the report; missing without a report.
 */

/**
 * The data of the chart, from `memory_chart.py`. A column is an interval of the program, shown at
 * its peak.
 * @typedef {object} MemoryChart
 * @property {string} sentence
 * @property {number} peak The column with the peak.
 * @property {number} top The bytes at the upper edge of the chart.
 * @property {number} capacity 0 if unknown
 * @property {string[]} where
 * @property {[kind: string, bytes: number[]][]} kinds
 * @property {MemoryBuffer[]} buffers The largest buffers of each column.
 */

/**
 * A buffer that is alive from column `start` to column `end`, inclusive; `value` is "" if unknown.
 * @typedef {Record<"bytes" | "start" | "end", number> & Record<"shape" | "name" | "compiler" | "value" | "spec" | "source" | "about", string>} MemoryBuffer
 */

/**
 * The plan's estimate. `values` has the bytes, name, shape and line of what is saved for the
 * backward pass.
 * @typedef {{note: string, parts: [name: string, bytes: string][], values: string[][], more: number}} Estimate
 */

/** The shade of grey of each kind of buffer; colours are reserved for mesh axes. @type {Record<string, number>} */
const SHADES = {arguments: 38, outputs: 58, temporaries: 80, collectives: 100, constants: 68, padding: 24}; // prettier-ignore
const LINES = 4; // grid lines of the chart
const MOST_ALIVE = 16; // rows; Python sends at least this many buffers of each moment
const NOT_COMPILED = "Not compiled yet: a compile shows what each device holds.";

export class MemoryPanel {
  /** @param {import("./program_panel.js").ProgramPanel} program */
  constructor(program) {
    this.program = program;
    /** @type {[Memory?, boolean?, (object | null)?, (object | null)?]} */ this.shown = [];
    /** @type {MemoryChart | null} */ this.chart = null;
    /** Live bytes of each column. @type {number[]} */ this.totals = [];
    // The slider covers the chart; its thumb is the line at the selected moment.
    const on = { input: () => this.go(Number(this.slider.value)) };
    const name = { "aria-label": "Memory over time" };
    this.slider = h("input", { type: "range", min: "0", ...name, on });
    this.picture = h("div", { class: "sv-memchart" });
    /** A line over the chart for the lifetime of the expanded buffer. */
    this.life = line("", 8);
    this.list = h("div", { class: "sv-memlist", role: "group", "aria-label": "Buffers alive" });
    this.legend = h("div", { class: "sv-times" });
    this.changes = new ChangesList("What would lower it?", program.page);
    this.node = h("div", { class: "sv-memory" });
  }

  /**
   * @param {Memory} memory
   * @param {boolean} old true if the program or its target was edited since the compile
   * @param {import("./headline.js").HeadlineData | null} [planned] the plan's headline for the current program and target
   * @param {Estimate | null} [estimate] the estimate for the current program
   */
  show(memory, old, planned, estimate) {
    const anew = memory !== this.shown[0] || old !== this.shown[1];
    const now = /** @type {const} */ ([memory, old, planned, estimate]);
    if (now.every((one, i) => one === this.shown[i])) return;
    this.shown = [...now];
    const { chart, sentence, over, target, parts } = memory;
    const least = { sentence: planned?.memoryTitle ?? "", over: planned?.over };
    // The partitioner's report has no memory.
    const unknown = !chart && !parts.length;
    const verdict = unknown || old ? least : { sentence, over };
    const fits = h("b", { class: verdict.over ? "sv-bad" : "", text: verdict.sentence });
    if (unknown) return fill(this.node, fits, ...estimateRows(estimate, planned?.note));
    const about = old ? `  ${OUT_OF_DATE}. Below is the last one, for ${target}.` : `  ${target}`;
    const faded = { class: old ? "sv-faded" : "" };
    const peak = h("div", { ...faded, text: chart?.sentence });
    const words = h("div", null, fits, muted(about), peak);
    const head = h("div", { class: "sv-tlchosen" }, words, this.changes.button);
    const picture = h("div", { class: "sv-mempicture" }, this.picture, this.list);
    const shown = h("div", faded, ...(chart ? [picture, this.legend] : [pairs(parts)]));
    fill(this.node, head, this.changes.node, shown);
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
    // Match the slider: from the middle of the first column to the middle of the last column.
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
      this.list.append(mutedNote(`Smaller buffers: ${bytesText(unlisted)} in total.`));
  }

  /** A row for a buffer. When expanded, it shows details, and the chart shows the buffer's
   * lifetime. @param {MemoryBuffer} buffer */
  row({ bytes, shape, name, compiler, spec, source, about, value, start, end }) {
    const cells = [bytesText(bytes), name, shape, source];
    const more = [...cells, compiler === name ? "" : compiler, spec, about];
    const title = more.filter(Boolean).join(" · ");
    const to = value && button("Show in Values", () => this.program.openValue(value));
    const toggle = () => this.life.setAttribute("d", node.open ? `M${start} 1H${end + 1}` : "");
    const node = h(
      "details",
      { on: { toggle } },
      h("summary", { class: "sv-memrow", title }, ...cellsOf(cells)),
      h("div", { class: "sv-tlchosen sv-muted" }, h("div", { text: title }), to),
    );
    return node;
  }
}

/** The memory that a plan estimates, or why there is no plan. @param {Estimate | null} [estimate] @param {string} [why] */
function estimateRows(estimate, why) {
  if (!estimate) return [mutedNote(why || NOT_COMPILED)];
  const { note, parts, values, more } = estimate;
  const rows = values.map((cells) =>
    h("div", { class: "sv-memrow", title: cells.join(" · ") }, ...cellsOf(cells)),
  );
  if (more) rows.push(mutedNote(`And ${more} more.`));
  return [pairs(parts), mutedNote(note), ...rows];
}

/** @param {string[]} cells */
function cellsOf(cells) {
  return cells.map((text) => h("span", { text }));
}

/** Draws a line over the chart. @param {string} d its path @param {number} width in pixels */
function line(d, width) {
  const look = { "stroke-width": width, "vector-effect": "non-scaling-stroke" };
  return svg("path", { d, stroke: "currentColor", ...look });
}

/** Returns the grey of a kind of buffer. @param {string} kind */
function shade(kind) {
  return `color-mix(in srgb, var(--sv-muted) ${SHADES[kind]}%, var(--sv-paper))`;
}
