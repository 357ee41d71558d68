// @ts-check
// The tab Collectives: those of one stage, or what changed between two, a line each; and what is
// known of the collective that is chosen.
import { ChangesList } from "./changes.js";
import { axisColour } from "./colours.js";
import { axisTag, button, fill, h, rowAfter, setText } from "./dom.js";
import { listed, onHosts } from "./highlight.js";
import { OUT_OF_DATE, STAGE_NAMES, changeBetween, stageState } from "./stages.js";

const COMPILED = 2; // of the stages, counted from propagated

/** @import { Stages } from "./stages.js" */
/** @import { StageState } from "./stages.js" */

/**
 * @typedef {object} CollectiveChange
 * @property {import("./stages.js").StagePair} between
 * @property {string} kind
 * @property {string} words
 * @property {number[]} before Numbers of collectives.
 * @property {number[]} after
 */

/**
 * @typedef {object} Collective
 * @property {number} number
 * @property {string} kind
 * @property {string[]} axes
 * @property {string} bytes
 * @property {string} times How often it runs: "× 32", "" for once.
 * @property {number} share
 * @property {string} became From stage to stage, in a few words.
 * @property {string[]} tags
 * @property {boolean} full Whether it is a full rematerialisation.
 * @property {string} facts Groups, bytes in all, arrays, pass and shape.
 * @property {string[]} causes
 * @property {number} moreCauses
 * @property {string} op
 * @property {string} source
 * @property {string[]} stack
 * @property {string[]} values
 * @property {number[][]} groups Positions of devices, where mesh axes do not say the groups.
 */

/**
 * What the panel tells the page: a value is to be shown, a collective's links are to be drawn, the
 * devices are to be seen by position, its steps are to be played.
 * @typedef {{value: (name: string) => void, play: (key: string) => void,
 *   links: (key: string | null) => void, position: () => void, chosen: () => void,
 *   changes: import("./changes.js").Calls}} Calls
 */

/** How changes look that cost something, save something, or neither. @type {Record<string, string>} */
const CHANGE_STYLES = { added: "sv-warn", removed: "sv-good", kept: "sv-muted" };
/** @type {Title[]} */
const TITLES = [
  ["bytes per device", "120px"],
  ["kind", "128px"],
  ["over", "13.5%"],
  ["what became of it", "14%"],
  "cause",
  ["line", "92px"],
];
const LABEL = "Collectives";
const NONE_NEEDED = "No collectives: no device needs another's data.";
const NONE_BEFORE =
  "No collectives before the last edit; nothing is known of the program as it is now.";

export class CollectivesPanel {
  /** @param {import("./highlight.js").Highlight} highlight @param {Calls} calls */
  constructor(highlight, calls) {
    this.calls = calls;
    this.highlight = highlight;
    const small = { class: "sv-button sv-small" };
    this.play = button("▶ Play", () => calls.play(this.chosen ?? ""), {
      ...small,
      "aria-label": "Play",
    });
    this.links = button("Show links", calls.position, { ...small, "aria-pressed": "false" });
    /** Whether the steps of a collective can be asked for, by its key. */
    this.canPlay = (/** @type {string} */ _key) => true;
    /** Which stage or change: "1", "2-3"; the latest that is known where "". */
    this.asked = "";
    this.table = h("div", { class: "sv-ctable", on: { keydown: (e) => this.key(e) } });
    const about = { class: "sv-cstrip", "aria-label": "The chosen collective", hidden: true };
    this.strip = h("aside", about);
    this.changes = new ChangesList("What would remove it?", calls.changes);
    const parts = [this.table, this.strip, this.changes.node];
    this.node = h("div", { class: "sv-collectives" }, ...parts);
    /**
     * Which row is chosen: the stage and number of its first collective, as in "0:3".
     * @type {string | null}
     */
    this.chosen = null;
    this.participants = h("span", { class: "sv-muted" });
    /** @type {Stages | null} */ this.data = null;
    /**
     * What the table shows.
     * @type {{key: string, data: Stages | null}}
     */
    this.drawn = { key: "", data: null };
    /** Of propagated, partitioned and compiled. @type {StageState[]} */
    this.states = [];
    highlight.listeners.push(() => this.showParticipants());
  }

  /** What the table shows: "1" for propagated, "2-3" for what changed from partitioned to compiled. */
  get shown() {
    const latest = Math.max(this.states.lastIndexOf("live"), this.states.lastIndexOf("estimate"));
    const old = Math.max(this.states.lastIndexOf("old"), 0);
    return this.asked || String(1 + (latest < 0 ? old : latest));
  }

  /** @param {string} what */
  open(what) {
    this.asked = what;
    this.drawn.key = "";
    this.draw();
  }

  /** @param {Stages} data @param {number} revision @param {import("./messages").Target} target */
  show(data, revision, target) {
    if (data !== this.data && this.chosen !== null && !find(data, this.chosen)) this.choose(null);
    this.data = data;
    this.states = [0, 1, 2].map((i) => stageState(data, i, revision, target));
    this.draw();
  }

  draw() {
    const data = this.data;
    if (!data || !this.node.isConnected) return;
    const key = JSON.stringify([this.shown, this.states]);
    if (key === this.drawn.key && this.drawn.data === data) return;
    this.drawn = { key, data };
    const focused = this.table.contains(document.activeElement);
    const some = this.shown.includes("-") ? this.comparison(data) : this.single(data);
    fill(this.table, ...this.failures(data), ...some, ...data.notes.map(note));
    this.markChosen();
    if (focused) this.focus();
    this.showStrip();
  }

  /** @param {"nearest"} [block] where the row is to be scrolled to */
  focus(block) {
    const row = this.rows().find(({ tabIndex }) => tabIndex === 0);
    row?.focus({ preventScroll: true });
    if (block) row?.scrollIntoView({ block });
  }

  /** @param {Stages} data */
  failures({ error, stages: [plan] }) {
    // Why another program did not compile says nothing of this one.
    const current = error && this.states[COMPILED] !== "old";
    const parts = current ? [failureNote(error.title, error.message, error.source)] : [];
    // What cannot be traced fails in the same way when it is compiled: it is said once.
    const twice = error && plan.title.startsWith(error.message);
    if (plan.state === "failed" && !twice) parts.push(failureNote("No plan", plan.title, ""));
    return parts;
  }

  /** @param {Stages} data */
  single(data) {
    const stage = Number(this.shown) - 1;
    const state = this.states[stage];
    const some = data.collectives[stage];
    if (state === "none") return [mutedNote(stateText(data, stage))];
    if (!some.length) return noRows(state);
    const rows = some.map((c) => this.collectiveRow(stage, c));
    const left = data.left_out[stage];
    return [
      table(TITLES, rows, state === "old" ? "sv-c6 sv-faded" : "sv-c6", LABEL),
      ...(left
        ? [mutedNote(`The ${some.length} largest; ${left.toLocaleString("en")} more.`)]
        : []),
      ...(state === "old" ? [mutedNote(`${OUT_OF_DATE}.`)] : []),
    ];
  }

  /** @param {number} stage @param {Collective} c */
  collectiveRow(stage, c) {
    const key = `${stage}:${c.number}`;
    const became = [c.became, ...c.tags].filter(Boolean).join(" · ");
    const more = c.causes.length + c.moreCauses - 1;
    const line = c.source + (more ? ` +${more}` : "");
    return this.row(
      key,
      h("td", { class: "sv-cbytes" }, shareBar(c.share), `${c.bytes} ${c.times}`),
      h("td", { text: c.kind }),
      h("td", null, ...this.axisTags(c.axes)),
      h("td", { class: c.full ? "sv-warn" : "sv-muted", text: became, title: became }),
      h("td", { text: withoutLine(c), title: [...c.causes, c.op].join("\n") }),
      // Shortened at its start, so that the number of the line can always be seen.
      h("td", { class: "sv-mono sv-vline", title: line }, h("bdi", { dir: "ltr", text: line })),
    );
  }

  /** @param {Stages} data */
  comparison(data) {
    const [from, to] = this.shown.split("-").map((n) => Number(n) - 1);
    if (!changeBetween(data, from, to)) {
      return [mutedNote(`This needs both stages. ${stateText(data, to)}`)];
    }
    const changes = data.changes.filter((c) => c.between[0] === from && c.between[1] === to);
    if (!changes.length) return [mutedNote("Neither stage has collectives.")];
    const rows = changes.map(({ kind, words, before, after }) => {
      const label = h("td", { class: CHANGE_STYLES[kind] ?? "", text: kind });
      const key = after.length ? `${to}:${after[0]}` : `${from}:${before[0]}`;
      return this.row(key, label, h("td", { text: words, title: words }));
    });
    const title = `from ${STAGE_NAMES[from + 1]} to ${STAGE_NAMES[to + 1]}`;
    return [table([["what", "150px"], title], rows, "sv-c2", LABEL)];
  }

  /** @param {string} key @param {...Node} cells */
  row(key, ...cells) {
    const props = {
      class: "sv-crow",
      "data-key": key,
      tabindex: "-1",
      "aria-selected": "false",
      on: { click: () => this.choose(this.chosen === key ? null : key) },
    };
    return h("tr", props, ...cells);
  }

  /** @param {string[]} axes */
  axisTags(axes) {
    if (!axes.length) return [h("span", { class: "sv-muted", text: "no mesh axes" })];
    const numbers = this.data?.axes ?? {};
    return axes.map((axis) => axisTag(axis, axisColour(axisNumber(numbers, axis))));
  }

  /** @param {string | null} key */
  choose(key) {
    this.chosen = key;
    const c = find(this.data, key);
    const chosen = c && key ? { key, kind: c.kind, axes: c.axes, groups: c.groups } : null;
    this.highlight.choose(chosen);
    this.calls.links(c ? key : null);
    this.calls.chosen();
    this.markChosen();
    this.showStrip();
  }

  rows() {
    return [...this.table.querySelectorAll("tr")].filter((row) => row.dataset.key);
  }

  markChosen() {
    const rows = this.rows();
    const at = rows.findIndex((row) => row.dataset.key === this.chosen);
    rows.forEach((row, i) => {
      row.setAttribute("aria-selected", String(i === at));
      row.tabIndex = i === Math.max(0, at) ? 0 : -1;
    });
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const rows = this.rows();
    const at = rows.findIndex((row) => row === document.activeElement);
    if (at < 0 || e.ctrlKey || e.metaKey || e.altKey) return;
    const to = rowAfter(e, at, rows.length);
    if (to !== undefined) {
      const next = rows[to];
      for (const row of rows) row.tabIndex = row === next ? 0 : -1;
      next.focus();
    } else if (e.key === "Enter" || e.key === " ") this.choose(rows[at].dataset.key ?? null);
    else if (e.key === "Escape") this.choose(null);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  /** What is known of the chosen collective, in three lines. */
  showStrip() {
    const c = find(this.data, this.chosen);
    this.strip.hidden = !c;
    if (!c) return;
    const facts = [`${c.bytes} per device`, c.facts].filter(Boolean).join(" · ");
    const title = [h("b", { text: c.kind }), ...this.axisTags(c.axes), muted(facts)];
    const line = h("code", { text: c.source });
    const why = c.causes.join(" ");
    const value = c.values[0];
    const named = { class: "sv-button sv-small", title: c.values.join(", ") };
    const buttons = [
      this.canPlay(this.chosen ?? "") && this.play,
      value && button("Show in Values", () => this.calls.value(value), named),
      this.states[Number(this.chosen?.[0])] !== "old" && this.changes.button,
      this.links,
    ];
    const with_ = this.participants;
    fill(
      this.strip,
      h("div", { class: "sv-cline" }, ...title, line),
      h("div", { class: "sv-clamp", title: [why, c.op, ...c.stack].join("\n") }, `${why} `, with_),
      h("div", { class: "sv-actions" }, ...buttons),
    );
    this.showParticipants();
  }

  /** Which devices take part together with the one pointed at. */
  showParticipants() {
    const { highlight } = this;
    if (!highlight.collective) return setText(this.participants, "");
    const { pointing, ids } = highlight;
    const at = pointing?.kind === "device" ? pointing.at : 0;
    const positions = highlight.participants(at);
    const others = positions.filter((other) => other !== at).map((other) => ids[other]);
    const where = onHosts(highlight, others.length ? positions : []);
    const with_ = (others.length ? listed(others) : "no other") + (where && `,${where}`);
    const words = `Device ${ids[at]} takes part with ${with_}.`;
    setText(this.participants, positions.length ? words : "Which devices take part is not known.");
  }
}

/**
 * The collective with a key, as in "0:3": stage and number.
 * @param {Stages | null} data
 * @param {string | null} key
 */
function find(data, key) {
  if (!data || key === null) return undefined;
  const [stage, number] = key.split(":").map(Number);
  return data.collectives[stage]?.find((c) => c.number === number);
}

/** A part of an axis has the number, and so the colour, of the whole. @param {Record<string, number>} axes @param {string} name */
export function axisNumber(axes, name) {
  return axes[name.split(":(")[0]] ?? -1;
}

/** What is known of a stage without collectives. @param {Stages} data @param {number} stage */
function stateText(data, stage) {
  const { name, text, title } = data.stages[stage];
  return `${name[0].toUpperCase()}${name.slice(1)}: ${text}. ${title}`;
}

/** @param {number} share of the longest bar */
export function shareBar(share) {
  const style = { width: `${Math.max(2, share * 100)}%` };
  return h("span", { class: "sv-barcell" }, h("span", { class: "sv-fill", style }));
}

/** The title of a column, with its width if that is fixed. @typedef {string | [text: string, width: string]} Title */

/** @param {Title[]} titles @param {Node[]} rows @param {string} [style] @param {string} [label] */
export function table(titles, rows, style = "", label) {
  const head = titles.map((title) => {
    const [text, width] = Array.isArray(title) ? title : [title, ""];
    return h("th", { scope: "col", text, style: { width } });
  });
  return h(
    "table",
    { class: `sv-table ${style}`, "aria-label": label },
    titles.length > 0 && h("thead", null, h("tr", null, ...head)),
    h("tbody", null, ...rows),
  );
}

/** Where there are no collectives: whether none is needed, or nobody knows. @param {StageState} state */
function noRows(state) {
  if (state === "failed") return []; // the failure is said above
  return [mutedNote(state === "old" ? NONE_BEFORE : NONE_NEEDED)];
}

/** @param {string} text */
export function muted(text) {
  return h("span", { class: "sv-muted", text, title: text });
}

/** Why it is there, without the line, which has a column of its own. @param {Collective} c */
function withoutLine({ causes, source }) {
  return causes[0].replace(` (${source})`, "");
}

/** What to know of the compile, which may be long. @param {string} text */
function note(text) {
  return h("p", { class: "sv-muted sv-clamp", text, title: text });
}

/** @param {string} text */
export function mutedNote(text) {
  return h("p", { class: "sv-muted", text });
}

/** @param {string} title @param {string} message @param {string} source */
export function failureNote(title, message, source) {
  return h(
    "div",
    { class: "sv-failure", role: "alert" },
    title ? h("b", { text: `${title}. ` }) : null,
    h("span", { class: "sv-prewrap", text: message }),
    source ? h("code", { text: source }) : null,
  );
}
