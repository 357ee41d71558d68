// @ts-check
// The tab Timeline: least times in program order, a lane for arithmetic and memory, and one for
// each set of mesh axes that communicates.
import { mutedNote } from "./collectives.js";
import { axisColour, mix, textOn } from "./colours.js";
import { OWN_KEYS, axisTag, button, fill, h, setText } from "./dom.js";

/** @typedef {import("./messages").TimelineData} TimelineData */
/** @typedef {import("./colours.js").Theme} Theme */
/**
 * What the panel tells the page: a value or collective that is to be shown, a target to run on.
 * @typedef {{value: (name: string) => void, collective: (key: string) => void,
 *   target: (target: string) => void}} Calls
 */
/** Where a bar begins and ends, in microseconds. @typedef {{from: number, to: number}} Extent */

const LANE = { least: 30, most: 52, bar: 0.72 }; // pixels; the share of a lane that its bar fills
const FOLDS = 20; // pixels above the lanes, for loops
const TICKS = 20; // pixels under them
const MOST_TICKS = 6;
const BAR_LETTER = 6.2; // pixels, of the text in a bar
const NEAR = 4; // pixels beside a thin bar that are still its own
const MODES = /** @type {const} */ ([
  ["serial", "One after another"],
  ["overlapped", "Perfect overlap"],
]);
let timelines = 0;

export class TimelinePanel {
  /** @param {Calls} calls */
  constructor(calls) {
    this.calls = calls;
    this.id = `sv-timeline-${++timelines}`;
    /** @type {TimelineData | null} */ this.data = null;
    /** @type {Theme | null} */ this.theme = null;
    /** @type {Extent[]} */ this.extents = [];
    /** @type {"serial" | "overlapped"} */ this.mode = "serial";
    this.total = 1;
    this.scale = 1;
    this.at = -1;
    this.shown = {};
    this.live = false;
    this.time = h("b", { class: "sv-tltime" });
    this.what = h("span", { class: "sv-muted" });
    this.modes = h("span", { class: "sv-tlmodes", role: "radiogroup", "aria-label": "Schedule" });
    this.modes.append(...MODES.map(([mode, name]) => this.choice(mode, name)));
    const bar = h("div", { class: "sv-vbar" }, this.time, this.what, this.modes);
    this.labels = h("div", { class: "sv-tllabels" });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.option = h("span", { id: this.id, role: "option", "aria-selected": "true" });
    this.lanes = h(
      "div",
      {
        class: "sv-tllanes",
        role: "listbox",
        "aria-label": "Operations",
        tabindex: "0",
        ...OWN_KEYS,
        on: {
          keydown: (e) => this.key(e),
          click: (e) => this.choose(this.under(e)),
          pointermove: (e) => this.point(this.under(e)),
        },
      },
      this.canvas,
      this.option,
    );
    this.chosen = h("div", { class: "sv-tlchosen", "aria-live": "polite" });
    const picture = h("div", { class: "sv-tlpicture" }, this.labels, this.lanes);
    this.notes = h("p", { class: "sv-muted" });
    this.parts = [bar, picture, this.chosen, this.notes];
    this.node = h("div", { class: "sv-timeline" });
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.lanes);
  }

  /** @param {"serial" | "overlapped"} mode @param {string} name */
  choice(mode, name) {
    const on = { change: () => this.schedule(mode) };
    const kind = { type: "radio", name: this.id, checked: mode === this.mode };
    return h("label", null, h("input", { ...kind, "data-keep": "true", ...OWN_KEYS, on }), name);
  }

  /**
   * @param {import("./messages").Traits["timeline"]} data
   * @param {Theme} theme
   * @param {boolean} live whether a kernel answers
   */
  show(data, theme, live) {
    const same = data === this.shown && live === this.live;
    if (same && theme.name === this.theme?.name) return;
    Object.assign(this, { shown: data, theme, live });
    const known =
      "words" in data ? data : { words: "Least times are being added up…", examples: [] };
    if (!known.lanes) {
      this.data = null;
      const offers = live ? known.examples : [];
      const offer = (/** @type {string} */ to) => button(to, () => this.calls.target(to));
      const buttons = h("p", { class: "sv-tloffers" }, ...offers.map(offer));
      return fill(this.node, mutedNote(known.words), buttons);
    }
    const before = this.name(this.at);
    this.data = known;
    this.at = before === null ? -1 : known.values.findIndex((_, i) => this.name(i) === before);
    fill(this.node, ...this.parts);
    setText(this.what, known.what);
    setText(this.notes, known.notes.join(" "));
    const tags = known.lanes.map((axes, i) => {
      const named = axes.map(([axis, number]) => axisTag(axis, axisColour(number)));
      const none = i ? "unknown axes" : "compute";
      return h("span", { class: "sv-tllabel" }, ...(named.length ? named : [none]));
    });
    fill(this.labels, ...tags);
    this.schedule(this.mode);
    this.describe();
  }

  /** Lays the bars out. @param {"serial" | "overlapped"} mode */
  schedule(mode) {
    const { data } = this;
    if (!data) return;
    this.mode = mode;
    const [time, words] = data[mode];
    setText(this.time, `≥ ${time}`);
    this.time.title = words;
    this.modes.title = words;
    // Operations follow each other, and so do collectives; with overlap both begin at once.
    const ends = [0, 0];
    this.extents = data.times.map((length, i) => {
      const clock = mode === "overlapped" && data.columns.lane[i] ? 1 : 0;
      const from = ends[clock];
      ends[clock] += length ?? 0;
      return { from, to: ends[clock] };
    });
    this.total = Math.max(...ends) || 1;
    this.paint();
  }

  /** What is remembered of a bar when the program changes. @param {number} i */
  name(i) {
    const { data } = this;
    if (!data || i < 0) return null;
    return `${data.text[data.columns.name[i]]} ${data.text[data.values[i]]}`;
  }

  /** The height of a lane. */
  get lane() {
    const height = this.lanes.clientHeight - FOLDS - TICKS;
    return Math.max(LANE.least, Math.min(LANE.most, height / (this.data?.lanes.length || 1)));
  }

  paint() {
    const { data, theme, canvas, lane } = this;
    const width = this.lanes.clientWidth;
    if (!data || !theme || !width) return;
    const height = FOLDS + lane * data.lanes.length + TICKS;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    this.labels.style.setProperty("--sv-lane", `${lane}px`);
    const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.font = `11px ${window.getComputedStyle(this.lanes).fontFamily}`;
    g.textBaseline = "middle";
    this.scale = (width - 1) / this.total;
    this.paintTicks(g, theme, width, height);
    data.lanes.forEach((_, i) => this.paintLane(g, theme, i));
    this.paintLoops(g, theme);
    if (this.at < 0) return;
    const { x, w } = this.box(this.at);
    const top = FOLDS + data.columns.lane[this.at] * lane;
    g.strokeStyle = theme.text;
    g.lineWidth = 2;
    g.strokeRect(Math.max(1, x - 1), top + 1, Math.max(3, w + 1), lane * LANE.bar + 2);
  }

  /** @param {number} i */
  box(i) {
    const { from, to } = this.extents[i];
    return { x: from * this.scale, w: (to - from) * this.scale };
  }

  /** @param {CanvasRenderingContext2D} g @param {Theme} theme @param {number} width @param {number} height */
  paintTicks(g, theme, width, height) {
    const rough = this.total / MOST_TICKS;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * ([1, 2, 5].find((n) => n * unit >= rough) ?? 10);
    g.strokeStyle = mix(theme.muted, theme.paper, 0.25);
    g.fillStyle = theme.muted;
    for (let tick = 0; tick <= this.total; tick += step) {
      const x = Math.round(tick * this.scale) + 0.5;
      g.beginPath();
      g.moveTo(x, FOLDS);
      g.lineTo(x, height - TICKS);
      g.stroke();
      g.textAlign = tick ? (x > width - 30 ? "right" : "center") : "left";
      g.fillText(timeText(tick), x, height - TICKS / 2);
    }
  }

  /** Bars of less than a pixel are drawn as one with their neighbours. @param {CanvasRenderingContext2D} g @param {Theme} theme @param {number} lane */
  paintLane(g, theme, lane) {
    const data = /** @type {TimelineData} */ (this.data);
    const tall = this.lane * LANE.bar;
    const top = FOLDS + lane * this.lane + 2;
    const plain = mix(theme.muted, theme.paper, 0.45);
    const axes = data.lanes[lane].map(([, number]) => axisColour(number, theme));
    const colours = axes.length ? axes : [plain];
    const bar = (/** @type {number} */ x, /** @type {number} */ w) =>
      colours.forEach((colour, k) => {
        g.fillStyle = colour;
        const each = tall / colours.length;
        g.fillRect(x, top + k * each, w, each);
      });
    let [from, to] = [-2, -2];
    this.extents.forEach((_, i) => {
      if (data.columns.lane[i] !== lane) return;
      const { x, w } = this.box(i);
      if (w >= 3) {
        bar(x, w - 1);
        const text = data.text[data.columns.name[i]];
        if (w < text.length * BAR_LETTER + 8) return;
        g.fillStyle = textOn(colours[0], theme);
        g.textAlign = "left";
        g.fillText(text, x + 5, top + tall / 2);
        return;
      }
      if (x > to + 1) {
        if (to >= 0) bar(from, Math.max(1, to - from));
        from = x;
      }
      to = x + w;
    });
    if (to >= 0) bar(from, Math.max(1, to - from));
  }

  /** A bracket over each loop, with its count. @param {CanvasRenderingContext2D} g @param {Theme} theme */
  paintLoops(g, theme) {
    const data = /** @type {TimelineData} */ (this.data);
    const { trips } = data.columns;
    g.textAlign = "center";
    g.fillStyle = g.strokeStyle = theme.muted;
    g.lineWidth = 1;
    for (let i = 0, end = 0; i < trips.length; i = end) {
      for (end = i + 1; end < trips.length && trips[end] === trips[i]; ) end++;
      if (trips[i] === 1) continue;
      const extents = this.extents.slice(i, end);
      const from = Math.min(...extents.map((e) => e.from)) * this.scale;
      const to = Math.max(...extents.map((e) => e.to)) * this.scale;
      g.strokeRect(from + 0.5, FOLDS - 4.5, Math.max(1, to - from - 2), 0);
      g.fillText(`× ${trips[i] || "?"}`, Math.max(12, (from + to) / 2), FOLDS / 2 - 2);
    }
  }

  /** The bars under the pointer. @param {MouseEvent} e @returns {number[]} the nearest first */
  under(e) {
    const { data, canvas } = this;
    if (!data) return [];
    const { left, top } = canvas.getBoundingClientRect();
    const x = e.clientX - left;
    const lane = Math.floor((e.clientY - top - FOLDS) / this.lane);
    const far = (/** @type {number} */ i) => {
      const box = this.box(i);
      return Math.max(box.x - x, x - box.x - box.w, 0);
    };
    const near = data.columns.lane.flatMap((at, i) => (at === lane && far(i) <= NEAR ? i : []));
    return near.sort((a, b) => far(a) - far(b) || a - b);
  }

  /** @param {number[]} found */
  point([first, ...others]) {
    const title = first === undefined ? "" : this.words(first);
    const joined = others.filter((i) => this.box(i).w < 1).length;
    this.canvas.title = joined ? `${title} And ${joined} more here.` : title;
  }

  /** @param {number[]} found */
  choose([first = -1]) {
    this.at = first;
    this.describe();
    this.paint();
  }

  /** @param {number} i */
  words(i) {
    const { text, columns } = /** @type {TimelineData} */ (this.data);
    return `${text[columns.name[i]]}: ${text[columns.words[i]]}`;
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    if (!this.data || e.ctrlKey || e.metaKey || e.altKey) return;
    const last = this.extents.length - 1;
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    const to = { Home: 0, End: last, Escape: -1 }[e.key];
    if (by !== undefined) this.choose([Math.max(0, Math.min(last, this.at + by))]);
    else if (to !== undefined) this.choose([to]);
    else if (e.key === "Enter" || e.key === " ") this.chosen.querySelector("button")?.click();
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  /** What the chosen bar is, in one line, and where more is known of it. */
  describe() {
    const { data, at, option, lanes, calls } = this;
    if (!data) return;
    lanes.setAttribute("aria-activedescendant", at < 0 ? "" : this.id);
    if (at < 0) return fill(this.chosen, mutedNote("Choose a bar to see what bounds it."));
    const { text, columns, values } = data;
    const axes = columns.lane[at] ? data.lanes[columns.lane[at]] : [];
    const [value, cause] = [text[values[at]], text[columns.cause[at]]];
    const number = columns.collective[at];
    option.setAttribute("aria-label", this.words(at));
    option.setAttribute("aria-posinset", String(at + 1));
    option.setAttribute("aria-setsize", String(this.extents.length));
    const more =
      number < 0
        ? button("Open in Values", () => calls.value(value))
        : button("Open in Collectives", () => calls.collective(`0:${number}`));
    const line = [
      h("b", { text: text[columns.name[at]] }),
      ...axes.map(([axis, n]) => axisTag(axis, axisColour(n))),
      h("span", { text: text[columns.words[at]] }),
      h("code", { class: "sv-muted", text: text[columns.source[at]] }),
    ];
    const why = cause ? [h("div", { class: "sv-muted", text: cause })] : [];
    fill(this.chosen, h("div", null, h("div", { class: "sv-line" }, ...line), ...why), more);
  }

  destroy() {
    this.watch.disconnect();
  }
}

/** @param {number} us */
function timeText(us) {
  if (!us) return "0";
  const [size, unit] =
    us >= 1e6 ? [1e6, "s"] : us >= 1e3 ? [1e3, "ms"] : us >= 1 ? [1, "µs"] : [1e-3, "ns"];
  return `${Number((us / size).toPrecision(3))} ${unit}`;
}
