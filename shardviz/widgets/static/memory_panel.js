// @ts-check
// The tab Memory: live bytes over the program's order, what is alive at a moment, what each part
// takes, and the least times of operations.
import { ChangesList } from "./changes.js";
import { muted, mutedNote } from "./collectives.js";
import { mix } from "./colours.js";
import { OWN_KEYS, axisTag, button, fill, h } from "./dom.js";
import { bytesText } from "./model_rows.js";
import { leastTimes, pairs } from "./report_tabs.js";
import { chartContext } from "./timeline.js";

/** @import { Memory, MemoryBuffer } from "./messages" */
/** @import { Theme } from "./colours.js" */
/** @typedef {{value: (name: string) => void} & import("./changes.js").Calls} Calls */

/** What bounds an operation, by the part of the least time that a bar of the headline shows. */
/** @type {Record<string, string>} */
const BOUNDS = { memory: "HBM", compute: "FLOP/s" };
/** Of grey: a colour would be a mesh axis. @type {Record<string, number>} */
const SHADES = {arguments: 0.38, outputs: 0.58, temporaries: 0.8, collectives: 1, constants: 0.68, padding: 0.24}; // prettier-ignore
const SPACE = { left: 64, top: 16, bottom: 6 }; // pixels around the chart
const LINES = 4; // across it
const HILL = 5; // pixels beside a click, of which the fullest moment is meant
const MOST_ALIVE = 16; // buffers of a moment that Python sends for certain
const CHOOSE = "Choose a moment in the chart, and a buffer to see its line and its value.";
const NOT_COMPILED = "Not compiled yet: press Compile to see what each device holds.";

export class MemoryPanel {
  /** @param {Calls} calls */
  constructor(calls) {
    this.calls = calls;
    /** @type {[Memory?, string?, string?]} */ this.shown = [];
    /** @type {import("./messages").MemoryChart | null} */ this.chart = null;
    /** @type {Theme | null} */ this.theme = null;
    /** The live bytes of every column. @type {number[]} */ this.totals = [];
    /** The column whose buffers are listed. */
    this.at = 0;
    /** @type {MemoryBuffer | null} */ this.buffer = null;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    const on = {
      keydown: (/** @type {KeyboardEvent} */ e) => this.press(e),
      click: (/** @type {MouseEvent} */ e) => this.go(this.hillAt(e)),
    };
    const name = { role: "slider", "aria-label": "Memory over the program's order", tabindex: "0" };
    this.picture = h("div", { class: "sv-tllanes", ...name, ...OWN_KEYS, on }, this.canvas);
    this.list = h("div", { class: "sv-memlist", role: "group", "aria-label": "Buffers alive" });
    this.legend = h("div", { class: "sv-times" });
    this.about = h("div", { class: "sv-tlchosen" });
    this.changes = new ChangesList("What would lower it?", calls);
    this.node = h("div", { class: "sv-memory" });
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.picture);
  }

  /** @param {Memory} memory @param {string} part whose operations are shown @param {Theme} theme */
  show(memory, part, theme) {
    const now = [memory, part, theme.name];
    if (now.every((one, i) => one === this.shown[i])) return;
    const anew = memory !== this.shown[0];
    Object.assign(this, { shown: now, theme, chart: memory.chart });
    const { chart, sentence, over, target, parts, cost, operations } = memory;
    if (target === undefined) return fill(this.node, mutedNote(NOT_COMPILED));
    const fits = h("b", { class: over ? "sv-bad" : "", text: sentence });
    const words = h("div", null, fits, muted(`  ${target}`), h("div", { text: chart?.sentence }));
    const head = h("div", { class: "sv-tlchosen" }, words, this.changes.button);
    const picture = h("div", { class: "sv-mempicture" }, this.picture, this.list);
    const bound = BOUNDS[part];
    const some = operations.filter((one) => !bound || one.bound === bound);
    fill(this.node, head, this.changes.node);
    this.node.append(...(chart ? [picture, this.legend, this.about] : [pairs(parts)]), pairs(cost));
    if (some.length) this.node.append(leastTimes(some));
    else if (bound) this.node.append(mutedNote(`No operation is known to be bound by ${bound}.`));
    // The operations of a part are under the chart.
    if (bound) this.node.querySelector(".sv-least")?.scrollIntoView();
    if (!chart) return;
    const all = (/** @type {number} */ i) => chart.kinds.reduce((n, [, live]) => n + live[i], 0);
    this.totals = chart.positions.map((_, i) => all(i));
    this.go(anew ? chart.peak : this.at);
  }

  /** Lists what is alive in a column. @param {number} to */
  go(to) {
    const { chart, picture, totals } = this;
    if (!chart) return;
    const at = (this.at = Math.max(0, Math.min(totals.length - 1, to)));
    const text = `${bytesText(totals[at])}${at === chart.peak ? ", the peak" : ""} · ${chart.where[at]}`;
    picture.setAttribute("aria-valuemax", String(totals.length - 1));
    picture.setAttribute("aria-valuenow", String(at));
    picture.setAttribute("aria-valuetext", text);
    const kinds = chart.kinds.map(([kind, live]) => {
      return h("span", null, axisTag(kind, this.shade(kind)), ` ${bytesText(live[at])}`);
    });
    fill(this.legend, ...kinds);
    const now = chart.positions[at];
    const alive = chart.buffers.filter(({ start, end }) => start <= now && now <= end);
    const listed = (this.listed = alive.slice(0, MOST_ALIVE));
    const rest = totals[at] - listed.reduce((n, { bytes }) => n + bytes, 0);
    const moment = h("div", { class: "sv-muted sv-cut", role: "status", title: text, text });
    fill(this.list, moment, ...listed.map((one) => this.row(one)));
    if (rest > 0) this.list.append(mutedNote(`And smaller ones, ${bytesText(rest)} in all.`));
    this.choose(listed.find((one) => one === this.buffer) ?? null);
  }

  /** @param {MemoryBuffer} buffer */
  row(buffer) {
    const { bytes, shape, name, spec, source, about } = buffer;
    const cells = [bytesText(bytes), name, shape, source];
    const label = [...cells, spec, about].filter(Boolean).join(", ");
    const look = { class: "sv-plain sv-memrow", "aria-label": label, title: label };
    const node = button("", () => this.choose(buffer), look);
    node.append(...cells.map((text) => h("span", { class: "sv-cut", text })));
    return node;
  }

  /** Says all of a buffer, and marks how long it lives. @param {MemoryBuffer | null} buffer */
  choose(buffer) {
    this.buffer = buffer;
    this.paint();
    this.list.querySelectorAll("button").forEach((row, i) => {
      row.setAttribute("aria-pressed", String(this.listed?.[i] === buffer));
    });
    if (!buffer) return fill(this.about, mutedNote(CHOOSE));
    const { name, value, bytes, shape, spec, source, about } = buffer;
    const facts = [bytesText(bytes), shape, spec, source].map((text) => h("span", { text }));
    const line = h("div", { class: "sv-tlline" }, h("b", { text: name }), ...facts);
    fill(this.about, h("div", null, line, h("div", { class: "sv-muted", text: about })));
    if (value) this.about.append(button("Show in Values", () => this.calls.value(value)));
  }

  /** The fullest column near a click. @param {MouseEvent} e */
  hillAt({ clientX }) {
    const { totals } = this;
    const { left, width } = this.canvas.getBoundingClientRect();
    const column = (/** @type {number} */ off) => {
      const part = (clientX + off - left - SPACE.left) / (width - SPACE.left);
      return Math.max(0, Math.min(totals.length - 1, Math.floor(part * totals.length)));
    };
    let best = column(0);
    for (let i = column(-HILL); i <= column(HILL); i++) if (totals[i] > totals[best]) best = i;
    return best;
  }

  /** @param {KeyboardEvent} e */
  press(e) {
    const { at, totals } = this;
    const keys = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: totals.length };
    const to = { ...keys, Enter: this.chart?.peak }[e.key];
    if (to === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
    this.go(to);
    e.preventDefault();
    e.stopPropagation();
  }

  /** @param {string} kind */
  shade(kind) {
    const { muted: grey, paper } = /** @type {Theme} */ (this.theme);
    return mix(grey, paper, SHADES[kind]);
  }

  paint() {
    const { canvas, chart, theme, totals, buffer } = this;
    const { clientWidth: width, clientHeight: height } = this.picture;
    if (!chart || !theme || !width || !height) return;
    const g = chartContext(canvas, width, height);
    const tall = height - SPACE.top - SPACE.bottom;
    const { positions, capacity, peak, top } = chart;
    const across = (width - SPACE.left) / totals.length;
    const x = (/** @type {number} */ at) => SPACE.left + at * across;
    const y = (/** @type {number} */ bytes) => SPACE.top + tall * (1 - bytes / top);
    const floor = totals.map(() => 0);
    for (const [kind, live] of chart.kinds) {
      g.fillStyle = this.shade(kind);
      for (let i = 0; i < live.length; i++) {
        const left = Math.floor(x(i));
        const high = (tall * live[i]) / top;
        g.fillRect(left, y(floor[i] + live[i]), Math.ceil(x(i + 1)) - left, high);
        floor[i] += live[i];
      }
    }
    g.textAlign = "right";
    g.fillStyle = theme.muted;
    for (let n = 0; n <= LINES; n++) {
      const bytes = (top * n) / LINES;
      const high = y(bytes);
      g.fillText(bytesText(bytes), SPACE.left - 6, Math.min(high, height - 6));
      g.globalAlpha = 0.25;
      g.fillRect(SPACE.left, Math.round(high), width - SPACE.left, 1);
      g.globalAlpha = 1;
    }
    // The capacity, the peak, the moment that is chosen, and how long its buffer lives.
    g.fillStyle = theme.text;
    const low = capacity > 0 && capacity <= top;
    if (low) g.fillRect(SPACE.left, Math.round(y(capacity)) - 1, width - SPACE.left, 2);
    g.fillRect(Math.round(x(this.at) + across / 2) - 1, SPACE.top, 2, tall);
    if (buffer) {
      const from = x(positions.findIndex((position) => position >= buffer.start));
      const to = x(positions.filter((position) => position <= buffer.end).length);
      g.fillRect(from, y(0) + 1, Math.max(2, to - from), 4);
    }
    const text = `peak ${bytesText(totals[peak])}${low ? ` · capacity ${bytesText(capacity)}` : ""}`;
    g.textAlign = "left";
    const right = width - g.measureText(text).width;
    g.fillText(text, Math.max(SPACE.left, Math.min(x(peak), right)), SPACE.top / 2);
  }

  destroy() {
    this.watch.disconnect();
  }
}
