// @ts-check
// The Timeline tab: least times in program order.
// There is a lane for operations, one per set of mesh axes with collectives, and one for live bytes.
// With overlap, arithmetic and memory have a lane each, and live bytes are not known.
import { mutedNote } from "./collectives.js";
import { axisColour, mix, textOn } from "./colours.js";
import { axisTag, button, fill, h, handled, onResize, setText } from "./dom.js";

/**
 * The least times in program order, or why there are none, from `timeline_view.py`. `revision` is
 * the program's. `headline` is computed from the plan, and its note says why there are no times; it
 * is missing after a compile for `target`.
 * @typedef {(NoTimeline | TimelineData) & {revision: number, target: string,
 *   headline?: import("./headline.js").HeadlineData}} Timeline
 */

/** @typedef {{words: string}} NoTimeline */

/**
 * @typedef {object} TimelineData
 * @property {[axis: string, number: number][][]} lanes The mesh axes of each lane, with their
 *   indices; the first two lanes are arithmetic and memory.
 * @property {0 | 2} stage The stage of the collectives: 0 for the plan, 2 for the compiled program.
 * @property {TimelineSpan[]} spans
 * @property {{label: string, words: string, spans: TimelineSpan[]} | null} measured A run of this
 *   program, in a lane with its own clock. `collective` counts those of the compiled program.
 * @property {Schedule} serial
 * @property {Schedule} overlapped
 * @property {string} peak The most live bytes, as text.
 * @property {string[]} notes
 * @property {string[]} text
 */

/** @typedef {Record<"name" | "time" | "words", string>} Schedule */

/**
 * An operation or a collective. Times are in microseconds, or null if unknown; `arithmetic` and
 * `memory` are parts of an operation's time. `collective` is -1 for an operation. `trips` is 0 if
 * unknown. `name` to `value` are indices into `text`; `live` is the bytes alive, in the plan.
 * @typedef {[time: number | null, arithmetic: number | null, memory: number | null, lane: number,
 *   collective: number, trips: number, name: number, words: number, source: number,
 *   cause: number, value: number, live: number]} TimelineSpan
 */

/** @typedef {import("./colours.js").Theme} Theme */
/** An operation or collective, with the lane of its bar, and its position and width in pixels. */
/** @typedef {ReturnType<typeof readSpans>[number] & {row: number, x: number, w: number, measured: boolean}} Bar */

const LANE = { least: 30, most: 90, bar: 0.72 }; // heights in pixels; `bar` is a share of the lane's height
const FOLDS = 18; // pixels above the lanes, for loop brackets
const TICKS = 20; // pixels below the lanes, for the time axis
const MOST_TICKS = 6;
const NEAR = 4; // a click this many pixels next to a bar still selects it
const SCHEDULES = /** @type {const} */ (["serial", "overlapped"]);
const [ARITHMETIC, MEMORY] = [0, 1]; // the lanes of operations; the other lanes belong to collectives
/** The first action for the selected bar. */
const ACTION = ":is(.sv-tlchosen, .sv-cstrip):not([hidden]) button";
let timelines = 0;

export class TimelinePanel {
  /** @param {import("./program_panel.js").ProgramPanel} program */
  constructor(program) {
    this.program = program;
    this.id = `sv-timeline-${++timelines}`;
    /** @type {[object?, string?]} */ this.shown = [];
    /** @type {TimelineData | null} */ this.data = null;
    /** @type {Theme | null} */ this.theme = null;
    /** @type {Bar[]} */ this.bars = [];
    /** @type {"serial" | "overlapped"} */ this.schedule = "serial";
    this.at = -1;
    /** The key of the selected collective, and whether its details are shown below. @type {[string | null, boolean]} */
    this.picked = [null, false];
    const label = { role: "group", "aria-label": "Schedule" };
    this.schedules = h("div", { class: "sv-tlschedules", ...label });
    this.labels = h("div", { class: "sv-tllabels" });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.option = h("span", { id: this.id, role: "option", "aria-selected": "true" });
    const on = {
      keydown: (/** @type {KeyboardEvent} */ e) => this.key(e),
      click: (/** @type {MouseEvent} */ e) => this.choose(this.under(e)[0] ?? -1),
      pointermove: (/** @type {MouseEvent} */ e) => this.point(this.under(e)),
    };
    const list = { role: "listbox", "aria-label": "Operations", tabindex: "0", on };
    this.lanes = h("div", { class: "sv-tllanes", ...list }, this.canvas, this.option);
    this.chosen = h("div", { class: "sv-tlchosen" });
    this.notes = h("p");
    const about = h("summary", { text: "About these times" });
    this.about = h("details", { class: "sv-muted" }, about, this.notes);
    this.node = h("div", { class: "sv-timeline" });
    onResize(this.lanes, () => this.paint());
  }

  /** @param {NoTimeline | TimelineData} data @param {Theme} theme */
  show(data, theme) {
    const now = [data, theme.name];
    if (now.every((part, i) => part === this.shown[i])) return;
    Object.assign(this, { shown: now, theme });
    if (!("lanes" in data)) {
      this.data = null;
      return fill(this.node, mutedNote(data.words));
    }
    if (data !== this.data) {
      this.data = data;
      this.makeBars();
    }
    const picture = h("div", { class: "sv-tlpicture" }, this.labels, this.lanes);
    fill(this.schedules, ...this.choices(data, theme), this.about);
    fill(this.node, this.schedules, picture, this.chosen);
    this.showLabels(data);
    setText(this.notes, data.notes.join(" "));
    const high = (/** @type {number} */ lane) => `${FOLDS + lane * this.rows + TICKS}px`;
    Object.assign(picture.style, { flexBasis: high(LANE.most), minHeight: high(LANE.least) });
    this.describe();
  }

  /** The buttons of the schedules. @param {TimelineData} data @param {Theme} theme */
  choices(data, theme) {
    return SCHEDULES.map((schedule, i) => {
      const { name, time, words } = data[schedule];
      const turn = () => {
        Object.assign(this, { schedule, shown: [], data: null });
        this.show(data, theme);
        /** @type {HTMLElement} */ (this.schedules.children[i]).focus();
      };
      const pressed = { "aria-pressed": String(schedule === this.schedule), title: words };
      return button(`${name} ${time}`, turn, pressed);
    });
  }

  /** Whether operations run one after another, so that they have one lane. */
  get serial() {
    return this.schedule === "serial";
  }

  /** The number of lanes that are drawn. */
  get rows() {
    return this.data ? this.data.lanes.length + Number(Boolean(this.data.measured)) : 0;
  }

  /** Names the lanes of the schedule. @param {TimelineData} data */
  showLabels({ lanes, measured }) {
    const axes = lanes.slice(MEMORY + 1).map((axes) => {
      const tags = axes.map(([axis, number]) => axisTag(axis, number));
      return tags.length ? tags : ["unknown axes"];
    });
    if (measured) axes.push([h("span", { text: measured.label, title: measured.words })]);
    const rows = this.serial
      ? ["compute", ...axes, "live bytes"]
      : ["arithmetic", "memory", ...axes];
    fill(this.labels, ...rows.map((row) => h("span", { class: "sv-tllabel" }, ...[row].flat())));
  }

  /** Creates one bar per span; with overlap, separate bars for an operation's arithmetic and memory. */
  makeBars() {
    const spans = this.data ? readSpans(this.data, this.data.spans) : [];
    const run = this.data ? readSpans(this.data, this.data.measured?.spans ?? []) : [];
    const parts = (/** @type {typeof spans[number]} */ span) =>
      [
        { ...span, time: span.arithmetic, lane: ARITHMETIC },
        { ...span, time: span.memory, lane: MEMORY },
      ].filter(({ time }) => time);
    const { serial } = this;
    const shown = spans.flatMap((span) => (serial || !isOperation(span) ? [span] : parts(span)));
    const row = (/** @type {number} */ lane) => (serial ? Math.max(0, lane - 1) : lane);
    const last = this.rows - (serial ? 2 : 1);
    this.bars = [
      ...shown.map((span) => ({ ...span, row: row(span.lane), x: 0, w: 0, measured: false })),
      ...run.map((span) => ({ ...span, row: last, x: 0, w: 0, measured: true })),
    ];
    this.at = this.indexOf(this.picked[0]);
  }

  /** Lays out the bars for the current width and paints them. */
  paint() {
    const { data, theme, canvas, bars } = this;
    const width = this.lanes.clientWidth;
    if (!data || !theme || !width) return;
    const room = (this.lanes.clientHeight - FOLDS - TICKS) / this.rows;
    const lane = (this.lane = Math.max(LANE.least, Math.min(LANE.most, room)));
    const height = FOLDS + lane * this.rows + TICKS;
    this.labels.style.setProperty("--sv-lane", `${lane}px`);
    const g = chartContext(canvas, width, height);
    // The serial schedule has one clock. With overlap, arithmetic, memory and collectives have one
    // each. The last one is that of a run.
    const clocks = [0, 0, 0, 0];
    const clock = (/** @type {Bar} */ { lane, measured }) =>
      measured ? 3 : this.serial ? 0 : Math.min(lane, 2);
    for (const bar of bars) clocks[clock(bar)] += bar.time;
    const total = Math.max(...clocks.slice(0, 3)) || 1;
    const scale = (width - 1) / total;
    const scales = [scale, scale, scale, (width - 1) / clocks[3]];
    clocks.fill(0);
    for (const bar of bars) {
      bar.x = clocks[clock(bar)];
      bar.w = bar.time * scales[clock(bar)];
      clocks[clock(bar)] += bar.w;
    }
    const on = { g, theme, total, scale, width, lane, bottom: height - TICKS };
    paintTicks(on);
    const [predicted, run] = [false, true].map((of) => bars.filter((bar) => bar.measured === of));
    data.lanes.forEach((axes, i) => {
      const colours = axes.map(([, number]) => axisColour(number, theme));
      if (!colours.length) colours.push(mix(theme.muted, theme.paper, 0.45));
      for (const part of [predicted, run]) {
        const inLane = part.filter((bar) => bar.lane === i);
        if (inLane.length) paintLane(on, inLane, colours, FOLDS + inLane[0].row * lane + 2);
      }
    });
    if (this.serial) paintLive(on, predicted, data.peak);
    // With overlap, a loop's collectives are not aligned with its operations.
    paintLoops(
      on,
      predicted.filter((bar) => this.serial || bar.lane === ARITHMETIC),
    );
    const at = bars[this.at];
    if (!at) return;
    g.strokeStyle = theme.text;
    g.lineWidth = 2;
    const tall = lane * LANE.bar + 2;
    const top = FOLDS + at.row * lane + 1;
    g.strokeRect(Math.max(1, at.x - 1), top, Math.max(3, at.w + 1), tall);
  }

  /** Returns the indices of the bars at a point, nearest first. @param {MouseEvent} e */
  under(e) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const x = e.clientX - left;
    const lane = Math.floor((e.clientY - top - FOLDS) / (this.lane ?? 1));
    const far = (/** @type {Bar} */ bar) => Math.max(bar.x - x, x - bar.x - bar.w, 0);
    // Every predicted bar has live bytes, in the last lane.
    const live = this.serial && lane === this.rows - 1;
    const inLane = (/** @type {Bar} */ bar) => (live ? !bar.measured : bar.row === lane);
    const near = this.bars.flatMap((bar, i) => (inLane(bar) && far(bar) <= NEAR ? i : []));
    return near.sort((a, b) => far(this.bars[a]) - far(this.bars[b]) || a - b);
  }

  /** @param {number[]} found */
  point([first, ...others]) {
    const bar = this.bars[first];
    const joined = others.filter((i) => this.bars[i].w < 1).length;
    this.canvas.title = bar ? bar.title + (joined ? ` And ${joined} more here.` : "") : "";
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const last = this.bars.length - 1;
    const next = Math.min(last, this.at + 1);
    const back = Math.max(0, this.at - 1);
    const arrows = { ArrowRight: next, ArrowDown: next, ArrowLeft: back, ArrowUp: back };
    const to = { ...arrows, Home: 0, End: last, Escape: -1 }[e.key];
    if (e.ctrlKey || e.metaKey || e.altKey || (to === undefined && e.key !== "Enter")) return;
    if (to !== undefined) this.choose(to);
    else this.node.querySelector(ACTION)?.dispatchEvent(new MouseEvent("click"));
    handled(e);
  }

  /** Returns the index of a collective's bar, or -1. @param {string | null} key */
  indexOf(key) {
    return this.bars.findIndex((bar) => key !== null && this.keyOf(bar) === key);
  }

  /** Returns the key of a bar's collective; null for an operation. @param {Bar | undefined} bar */
  keyOf(bar) {
    if (!bar || !this.data || isOperation(bar)) return null;
    return `${bar.measured ? 2 : this.data.stage}:${bar.collective}`;
  }

  /** Returns the least or measured time of a collective; "" if unknown. @param {string | null} key */
  timeOf(key) {
    const { time = 0, trips = 1, measured } = this.bars[this.indexOf(key)] ?? {};
    const each = trips === 1 ? "" : ` (${trips || "?"} × ${timeText(time / (trips || 1))})`;
    return time ? `${measured ? "measured" : "≥"} ${timeText(time)}${each}` : "";
  }

  /** Selects a bar. @param {number} at */
  choose(at) {
    this.at = at;
    this.program.choose(this.keyOf(this.bars[at]));
    this.describe();
  }

  /** Selects the bar of the collective that is selected in the view. @param {string | null} key @param {boolean} known whether its details are shown below */
  pick(key, known) {
    const [before] = this.picked;
    this.picked = [key, known];
    if (key === before) return;
    // Without a collective, only an operation stays selected.
    const bar = this.bars[this.at];
    if (key !== null || (bar && !isOperation(bar))) this.at = this.indexOf(key);
    this.describe();
  }

  /** Describes the selected bar in one line; details of a collective are shown below. */
  describe() {
    this.paint();
    const { data, program, lanes, option, chosen } = this;
    const bar = this.bars[this.at];
    lanes.setAttribute("aria-activedescendant", bar ? this.id : "");
    chosen.hidden = Boolean(bar) && this.picked[1] && !isOperation(bar);
    if (!bar || !data)
      return fill(
        chosen,
        mutedNote("Choose a bar, by clicking or with the arrow keys, to see what bounds it."),
      );
    option.setAttribute("aria-label", bar.title);
    option.setAttribute("aria-posinset", String(this.at + 1));
    option.setAttribute("aria-setsize", String(this.bars.length));
    const axes = data.lanes[bar.lane];
    const tags = axes.map(([axis, number]) => axisTag(axis, number));
    const source = h("code", { class: "sv-muted", text: bar.source });
    const name = h("b", { text: bar.name, title: bar.value });
    const line = [name, ...tags, h("span", { text: bar.words }), source];
    const why = bar.cause ? h("div", { class: "sv-muted", text: bar.cause }) : null;
    fill(chosen, h("div", null, h("div", { class: "sv-tlline" }, ...line), why));
    if (isOperation(bar) && bar.value)
      chosen.append(button("Open in Values", () => program.openValue(bar.value)));
  }

  /** Selects the longest operation of a part of the least time. @param {string} part */
  chooseLongest(part) {
    const lane = part === "memory" ? MEMORY : ARITHMETIC;
    const times = this.bars.map((bar) => (bar.lane === lane && !bar.measured ? bar.time : -1));
    this.choose(times.indexOf(Math.max(...times)));
    this.lanes.focus();
  }
}

/** Resizes a canvas, in pixels, and clears it. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function chartContext(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  canvas.style.height = `${height}px`;
  const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  g.scale(ratio, ratio);
  g.font = `11px ${window.getComputedStyle(canvas).fontFamily}`;
  g.textBaseline = "middle";
  return g;
}

/** @param {TimelineData} data @param {TimelineSpan[]} spans */
function readSpans({ text }, spans) {
  return spans.map(([all, arithmetic, memory, lane, collective, trips, ...rest]) => {
    const live = rest[5];
    const [name, words, source, cause, value] = rest.map((i) => text[i]);
    const times = { time: all ?? 0, arithmetic: arithmetic ?? 0, memory: memory ?? 0 };
    const plain = name === value || collective >= 0;
    const title = `${plain ? name : `${name} (${value})`}: ${words}`;
    return { ...times, lane, collective, trips, name, title, words, source, cause, value, live };
  });
}

/** @param {{collective: number}} span */
const isOperation = ({ collective }) => collective < 0;

/**
 * @typedef {{g: CanvasRenderingContext2D, theme: Theme, total: number, scale: number,
 *   width: number, lane: number, bottom: number}} Painting
 */

/** @param {Painting} painting */
function paintTicks({ g, theme, total, scale, width, bottom }) {
  const rough = total / MOST_TICKS;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5].find((n) => n * unit >= rough) ?? 10);
  g.fillStyle = theme.muted;
  for (let tick = 0; tick <= total; tick += step) {
    const x = Math.round(tick * scale);
    g.globalAlpha = 0.25;
    g.fillRect(x, FOLDS, 1, bottom - FOLDS);
    g.globalAlpha = 1;
    g.textAlign = x < 20 ? "left" : x > width - 30 ? "right" : "center";
    g.fillText(timeText(tick), x, bottom + TICKS / 2);
  }
}

/** Paints a lane; bars of a few pixels are merged with adjacent bars. @param {Painting} painting @param {Bar[]} bars @param {string[]} colours @param {number} top */
function paintLane({ g, theme, lane }, bars, colours, top) {
  const stripe = (lane * LANE.bar) / colours.length;
  const paint = (/** @type {number} */ x, /** @type {number} */ w) =>
    colours.forEach((colour, k) => {
      g.fillStyle = colour;
      g.fillRect(x, top + k * stripe, Math.max(1, w), stripe);
    });
  for (let i = 0; i < bars.length; i++) {
    const { x, w, name, time } = bars[i];
    let end = x + w;
    while (w < 3 && bars[i + 1]?.w < 3 && bars[i + 1].x < end + 1) end = bars[++i].x + bars[i].w;
    paint(x, end - x - (w < 3 ? 0 : 1));
    const texts = [`${name} · ${timeText(time)}`, name];
    const text = w < 30 ? "" : texts.find((t) => g.measureText(t).width < w - 10);
    g.fillStyle = textOn(colours[0], theme);
    g.textAlign = "left";
    if (text) g.fillText(text, x + 5, top + stripe / 2);
  }
}

/** Paints the live bytes in the last lane, with their peak. @param {Painting} painting @param {Bar[]} bars @param {string} peak */
function paintLive({ g, theme, lane, width, bottom }, bars, peak) {
  const most = Math.max(...bars.map(({ live }) => live)) || 1;
  const high = lane * LANE.bar;
  g.fillStyle = mix(theme.muted, theme.paper, 0.25);
  // One column per pixel, as high as the most bytes there.
  const columns = Array(Math.ceil(width)).fill(0);
  for (const { x, w, live } of bars)
    for (let i = Math.floor(x); i < Math.min(x + w, columns.length); i++)
      columns[i] = Math.max(columns[i], live);
  columns.forEach((live, x) => {
    const tall = (high * live) / most;
    g.fillRect(x, bottom - tall, 1, tall);
  });
  const at = bars.find(({ live }) => live === most);
  if (!at || !peak) return;
  const x = at.x + at.w / 2;
  g.fillStyle = theme.text;
  g.fillRect(x, bottom - high, 1, high);
  g.textAlign = x > width / 2 ? "right" : "left";
  g.fillText(peak, x + (x > width / 2 ? -5 : 5), bottom - high + 7);
}

/** Paints a bracket above each loop, with its trip count. @param {Painting} painting @param {Bar[]} bars */
function paintLoops({ g, theme }, bars) {
  g.textAlign = "center";
  g.fillStyle = theme.muted;
  for (let i = 0, end = 0; i < bars.length; i = end) {
    for (end = i; bars[end]?.trips === bars[i].trips; ) end++;
    if (bars[i].trips === 1) continue;
    const inLoop = bars.slice(i, end);
    const from = Math.min(...inLoop.map((bar) => bar.x));
    const to = Math.max(...inLoop.map((bar) => bar.x + bar.w));
    g.fillRect(from, FOLDS - 4, Math.max(1, to - from - 1), 1);
    g.fillText(`× ${bars[i].trips || "?"}`, Math.max(12, (from + to) / 2), FOLDS / 2 - 2);
  }
}

/** @param {number} us */
function timeText(us) {
  const units = /** @type {const} */ ([[1e6, "s"], [1e3, "ms"], [1, "µs"], [0, "ns"]]); // prettier-ignore
  const [size, unit] = units.find(([least]) => us >= least) ?? units[3];
  return us ? `${Number((us / (size || 1e-3)).toPrecision(3))} ${unit}` : "0";
}
