// @ts-check
// The Collectives tab lists the collectives of one stage, or the changes between two stages.
// Below the list are details of the selected collective.
import { ChangesList } from "./changes.js";
import { axisColour } from "./colours.js";
import { axisTag, button, fill, h, rowAfter, setText } from "./dom.js";
import { listed, onHosts } from "./highlight.js";
import { OUT_OF_DATE, STAGE_NAMES, changeBetween, stageState } from "./stages.js";

const COMPILED = 2; // index of the compiled stage; propagated is 0

/** @import { Stages } from "./stages.js" */
/** @import { StageState } from "./stages.js" */

/**
 * @typedef {object} CollectiveChange
 * @property {import("./stages.js").StagePair} between
 * @property {string} kind
 * @property {string} words
 * @property {number[]} before Indices of the collectives before the change.
 * @property {number[]} after
 */

/**
 * @typedef {object} Collective
 * @property {number} number
 * @property {string} kind
 * @property {string[]} axes
 * @property {string} bytes
 * @property {string} times The trip count, such as "× 32", or "" if the collective runs once.
 * @property {number} share
 * @property {string} became How the collective changed from stage to stage.
 * @property {string[]} tags
 * @property {boolean} full True for a full rematerialisation.
 * @property {string} facts Text with groups, total bytes, arrays, pass and shape.
 * @property {string[]} causes
 * @property {number} moreCauses
 * @property {string} op
 * @property {string} source
 * @property {string[]} stack
 * @property {string[]} values
 * @property {number[][]} groups The mesh positions of each group's devices, if mesh axes do not
 *   define the groups.
 */

/**
 * Requests to the page: show a value, draw a collective's links, show devices by position, or play
 * the steps of a collective.
 * @typedef {{value: (name: string) => void, play: (key: string) => void,
 *   links: (key: string | null) => void, position: () => void, chosen: () => void,
 *   changes: import("./changes.js").Calls}} Calls
 */

/** The style of changes that add cost, remove cost, or do neither. @type {Record<string, string>} */
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
    /** Whether the steps of a collective with this key can be played. */
    this.canPlay = (/** @type {string} */ _key) => true;
    /** The stage ("1") or change between stages ("2-3") to show; "" for the latest stage. */
    this.asked = "";
    this.table = h("div", { class: "sv-ctable", on: { keydown: (e) => this.key(e) } });
    const about = { class: "sv-cstrip", "aria-label": "The chosen collective", hidden: true };
    this.strip = h("aside", about);
    this.changes = new ChangesList("What would remove it?", calls.changes);
    const parts = [this.table, this.strip, this.changes.node];
    this.node = h("div", { class: "sv-collectives" }, ...parts);
    /**
     * The key of the selected row: stage and index of its first collective, such as "0:3".
     * @type {string | null}
     */
    this.chosen = null;
    this.participants = h("span", { class: "sv-muted" });
    /** @type {Stages | null} */ this.data = null;
    /**
     * The data shown in the table.
     * @type {{key: string, data: Stages | null}}
     */
    this.drawn = { key: "", data: null };
    /** The states of the propagated, partitioned and compiled stages. @type {StageState[]} */
    this.states = [];
    highlight.listeners.push(() => this.showParticipants());
  }

  /** The content of the table: a stage, such as "1", or changes between stages, such as "2-3". */
  get shown() {
    const latest = Math.max(this.states.lastIndexOf("live"), this.states.lastIndexOf("estimate"));
    const old = Math.max(this.states.lastIndexOf("old"), 0);
    return this.asked || String(1 + (latest < 0 ? old : latest));
  }

  /** @param {string} asked */
  open(asked) {
    this.asked = asked;
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
    const rows = this.shown.includes("-") ? this.comparison(data) : this.single(data);
    fill(this.table, ...this.failures(data), ...rows, ...data.notes.map(note));
    this.markChosen();
    if (focused) this.focus();
    this.showStrip();
  }

  /** @param {"nearest"} [block] the scroll position of the row */
  focus(block) {
    const row = this.rows().find(({ tabIndex }) => tabIndex === 0);
    row?.focus({ preventScroll: true });
    if (block) row?.scrollIntoView({ block });
  }

  /** @param {Stages} data */
  failures({ error, stages: [plan] }) {
    // Hide the error of a previous program.
    const current = error && this.states[COMPILED] !== "old";
    const parts = current ? [failureNote(error.title, error.message, error.source)] : [];
    // If tracing fails, every stage has the same error, so show it only once.
    const twice = error && plan.title.startsWith(error.message);
    if (plan.state === "failed" && !twice) parts.push(failureNote("No plan", plan.title, ""));
    return parts;
  }

  /** @param {Stages} data */
  single(data) {
    const stage = Number(this.shown) - 1;
    const state = this.states[stage];
    const collectives = data.collectives[stage];
    if (state === "none") return [mutedNote(stateText(data, stage))];
    if (!collectives.length) return noRows(state);
    const rows = collectives.map((c) => this.collectiveRow(stage, c));
    const omitted = data.left_out[stage];
    return [
      table(TITLES, rows, state === "old" ? "sv-c6 sv-faded" : "sv-c6", LABEL),
      ...(omitted
        ? [mutedNote(`The ${collectives.length} largest; ${omitted.toLocaleString("en")} more.`)]
        : []),
      ...(state === "old" ? [mutedNote(`${OUT_OF_DATE}.`)] : []),
    ];
  }

  /** @param {number} stage @param {Collective} c */
  collectiveRow(stage, c) {
    const key = `${stage}:${c.number}`;
    const became = [c.became, ...c.tags].filter(Boolean).join(" · ");
    const furtherCauses = c.causes.length + c.moreCauses - 1;
    const line = c.source + (furtherCauses ? ` +${furtherCauses}` : "");
    return this.row(
      key,
      h("td", { class: "sv-cbytes" }, shareBar(c.share), `${c.bytes} ${c.times}`),
      h("td", { text: c.kind }),
      h("td", null, ...this.axisTags(c.axes)),
      h("td", { class: c.full ? "sv-warn" : "sv-muted", text: became, title: became }),
      h("td", { text: withoutLine(c), title: [...c.causes, c.op].join("\n") }),
      // CSS truncates the start of the text, so that the line number stays visible.
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

  /** Shows details of the selected collective in three lines. */
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

  /** Shows which devices take part in the collective with the device under the pointer. */
  showParticipants() {
    const { highlight } = this;
    if (!highlight.collective) return setText(this.participants, "");
    const { pointing, ids } = highlight;
    const at = pointing?.kind === "device" ? pointing.at : 0;
    const positions = highlight.participants(at);
    const otherIds = positions.filter((other) => other !== at).map((other) => ids[other]);
    const where = onHosts(highlight, otherIds.length ? positions : []);
    const with_ = (otherIds.length ? listed(otherIds) : "no other") + (where && `,${where}`);
    const words = `Device ${ids[at]} takes part with ${with_}.`;
    setText(this.participants, positions.length ? words : "Which devices take part is not known.");
  }
}

/**
 * Returns the collective with a key such as "0:3" (stage and index).
 * @param {Stages | null} data
 * @param {string | null} key
 */
function find(data, key) {
  if (!data || key === null) return undefined;
  const [stage, number] = key.split(":").map(Number);
  return data.collectives[stage]?.find((c) => c.number === number);
}

/** Returns the index of a mesh axis; a sub-axis has the index and colour of its full axis. @param {Record<string, number>} axes @param {string} name */
export function axisNumber(axes, name) {
  return axes[name.split(":(")[0]] ?? -1;
}

/** Explains why a stage has no collectives to show. @param {Stages} data @param {number} stage */
function stateText(data, stage) {
  const { name, text, title } = data.stages[stage];
  return `${name[0].toUpperCase()}${name.slice(1)}: ${text}. ${title}`;
}

/** @param {number} share of the longest bar */
export function shareBar(share) {
  const style = { width: `${Math.max(2, share * 100)}%` };
  return h("span", { class: "sv-barcell" }, h("span", { class: "sv-fill", style }));
}

/** A column title, optionally with a fixed width. @typedef {string | [text: string, width: string]} Title */

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

/** The note in an empty table: no collectives are needed, or they are unknown. @param {StageState} state */
function noRows(state) {
  if (state === "failed") return []; // the error is shown above the table
  return [mutedNote(state === "old" ? NONE_BEFORE : NONE_NEEDED)];
}

/** @param {string} text */
export function muted(text) {
  return h("span", { class: "sv-muted", text, title: text });
}

/** The first cause, without the source line, which has a separate column. @param {Collective} c */
function withoutLine({ causes, source }) {
  return causes[0].replace(` (${source})`, "");
}

/** A note about the compile, clamped because it can be long. @param {string} text */
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
