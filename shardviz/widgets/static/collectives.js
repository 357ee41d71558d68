// @ts-check
// The tab Collectives: the stages side by side, or one of them, or what changed between two; and
// what is known of the collective that is chosen.
import { Choice } from "./controls.js";
import { axisColour } from "./colours.js";
import { OWN_KEYS, axisTag, button, fill, h, setText, toggle } from "./dom.js";
import { listed, onHosts } from "./highlight.js";
import { STAGE_NAMES, changeBetween, stageState } from "./stages.js";

/** @typedef {import("./messages").Stages} Stages */
/** @typedef {import("./messages").Collective} Collective */
/** @typedef {import("./messages").StageRow} Row */
/** @typedef {import("./stages.js").StageState} StageState */
/**
 * What the panel tells the page: another table is shown, a value is to be shown, a collective's
 * links are to be drawn, devices are to be drawn by position, its steps are to be played.
 * @typedef {{shown: () => void, value: (name: string) => void, play: (key: string) => void,
 *   links: (key: string | null) => void, position: () => void}} Calls
 */

const SHOWN = [
  { value: "all", label: "side by side" },
  { value: "1", label: "propagated (estimate)" },
  { value: "2", label: "partitioned" },
  { value: "3", label: "compiled" },
  { value: "1-2", label: "propagated → partitioned" },
  { value: "2-3", label: "partitioned → compiled" },
];
/** @type {Record<string, string>} */
const CHANGE_SIGNS = { added: "+", removed: "−", kept: "=" };
/** @type {Partial<Record<StageState, string>>} */
const HEAD_NOTES = { estimate: " estimate", none: " not yet" };
const CELL_LINES = 3;
const NONE_NEEDED = "No collectives: no device needs another's data.";
const NONE_BEFORE =
  "No collectives before the last edit; nothing is known of the program as it is now.";
const REMATERIALISED =
  "Full rematerialisation: every device makes the whole array, only to split it in another way.";

export class CollectivesPanel {
  /** @param {import("./highlight.js").Highlight} highlight @param {Calls} calls */
  constructor(highlight, calls) {
    this.calls = calls;
    this.highlight = highlight;
    const link = { class: "sv-link sv-tovalue", hidden: true };
    this.byPosition = button("Show its links by position", calls.position, link);
    this.play = button("▶ Play its steps", () => calls.play(this.chosen ?? ""), {
      class: "sv-link sv-play",
      "aria-label": "Play",
    });
    /** Whether the steps of a collective can be asked for, by its key. */
    this.canPlay = (/** @type {string} */ _key) => true;
    this.shown = "all";
    const choose = (/** @type {string} */ what) => {
      this.open(what);
      calls.shown();
    };
    this.choice = new Choice("Stages shown", choose, "Show");
    this.choice.select.dataset.keep = "true"; // it needs no kernel
    this.summary = h("span", { class: "sv-muted" });
    this.table = h("div", { class: "sv-ctable", on: { keydown: (e) => this.key(e) } });
    this.side = h("aside", {
      class: "sv-vside sv-cside",
      "aria-label": "The chosen collective",
      tabindex: "0",
      ...OWN_KEYS,
    });
    this.node = h(
      "div",
      { class: "sv-collectives" },
      h("div", { class: "sv-vbar" }, this.choice.node, this.summary),
      h("div", { class: "sv-vmain sv-cmain" }, this.table, this.side),
    );
    /**
     * Which row is chosen: the stage and number of its first collective, as in "0:3".
     * @type {string | null}
     */
    this.chosen = null;
    this.participants = h("p", { class: "sv-cgroup" });
    /** @type {Stages | null} */ this.data = null;
    /**
     * What the table shows.
     * @type {{key: string, data: Stages | null}}
     */
    this.drawn = { key: "", data: null };
    this.revision = -1;
    this.target = "";
    highlight.listeners.push(() => this.showParticipants());
  }

  /** @param {string} what */
  open(what) {
    this.shown = what;
    this.drawn.key = "";
    this.draw();
  }

  /** @param {Stages} data @param {number} revision @param {string} target */
  show(data, revision, target) {
    if (data !== this.data && this.chosen !== null && !find(data, this.chosen)) this.choose(null);
    Object.assign(this, { data, revision, target });
    this.draw();
  }

  draw() {
    const data = this.data;
    if (!data || !this.node.isConnected) return;
    this.choice.sync(SHOWN, this.shown);
    if (this.choice.select.value !== this.shown) this.choice.select.value = this.shown;
    const states = [0, 1, 2].map((i) => stageState(data, i, this.revision, this.target));
    const key = JSON.stringify([this.shown, states]);
    if (key === this.drawn.key && this.drawn.data === data) return;
    this.drawn = { key, data };
    const focused = this.table.contains(document.activeElement);
    setText(this.summary, this.summaryText(data, states));
    fill(this.table, ...this.failures(data), ...this.tables(data, states));
    this.markChosen();
    if (focused)
      this.rows()
        .find((row) => row.tabIndex === 0)
        ?.focus({ preventScroll: true });
    this.showSide();
  }

  /** @param {Stages} data @param {StageState[]} states */
  tables(data, states) {
    if (this.shown === "all") return this.sideBySide(data, states);
    if (this.shown.includes("-")) return this.comparison(data);
    return this.single(data, Number(this.shown) - 1, states);
  }

  /** The two stages that are compared. */
  pair() {
    return this.shown.split("-").map((n) => Number(n) - 1);
  }

  /** @param {Stages} data @param {StageState[]} states */
  summaryText(data, states) {
    const [from, to] = this.pair();
    if (to !== undefined) {
      return changeBetween(data, from, to)?.tone === "same" ? "Nothing changed." : "";
    }
    const stage = this.shown === "all" ? -1 : from;
    const left = stage >= 0 ? data.left_out[stage] : Math.max(...data.left_out);
    const count = data.collectives[Math.max(stage, 0)].length;
    const parts = [left ? `the ${count} largest; ${left} more` : "largest first"];
    if (states.includes("old")) parts.push("the program was edited since");
    return parts.join(" · ");
  }

  /** @param {Stages} data */
  failures({ error, notes, stages: [plan] }) {
    const parts = [];
    // What cannot be traced fails in the same way when it is compiled: it is shown once.
    const twice = error && this.shown !== "1" && plan.more.endsWith(error.message);
    if (plan.state === "failed" && !twice && (this.shown === "all" || this.shown === "1")) {
      parts.push(failureNote("No plan", plan.more, ""));
    }
    if (error && this.shown !== "1") {
      parts.push(failureNote(error.title, error.message, error.source));
    }
    return [...parts, ...notes.map(mutedNote)];
  }

  /** @param {Stages} data @param {StageState[]} states */
  sideBySide(data, states) {
    if (!data.rows.length) return noRows(states);
    const names = data.stages.map(({ name }, i) => {
      const note = HEAD_NOTES[states[i]];
      const faded = states[i] === "old" ? "sv-faded" : "";
      return h("span", { class: faded }, name, note ? h("i", { text: note }) : null);
    });
    const rows = data.rows.flatMap((row) => this.joinedRow(data, row, states) ?? []);
    return [collectiveTable(["bytes per device", ...names, "cause"], rows)];
  }

  /**
   * Collectives that belong together, as one row; null where the last of them is not sent.
   * @param {Stages} data
   * @param {Row} row
   * @param {StageState[]} states
   */
  joinedRow(data, row, states) {
    const last = [2, 1, 0].find((i) => row.cells[i].length) ?? 0;
    const first = data.collectives[last].find((c) => c.number === row.cells[last][0]);
    if (!first) return null;
    // Stages of two programs are in rows of their own, and say nothing of each other.
    const old = states[last] === "old";
    const cells = row.cells.map((numbers, i) => {
      const other = (states[i] === "old") !== old;
      const faded = states[i] === "old" ? " sv-faded" : "";
      const lines = this.lines(data, i, numbers, other ? "none" : states[i]);
      return h("td", { class: `sv-ccell${faded}` }, ...lines);
    });
    const faded = old ? " sv-faded" : "";
    const bytes = h("td", { class: `sv-cbytes${faded}` }, shareBar(row.share), row.bytes);
    return this.row(`${last}:${first.number}`, first.full, bytes, ...cells, causeCell(first));
  }

  /**
   * The lines of one cell: equal collectives are counted.
   * @param {Stages} data
   * @param {number} stage
   * @param {number[]} numbers
   * @param {StageState} state
   */
  lines(data, stage, numbers, state) {
    if (!numbers.length) {
      const text = state === "none" || state === "failed" ? "" : "–";
      return [h("span", { class: "sv-muted", text })];
    }
    /** @type {Map<string, {c: Collective, count: number}>} */
    const kinds = new Map();
    for (const c of numbers.flatMap((n) => find(data, `${stage}:${n}`) ?? [])) {
      const key = c.kind + c.axes.join() + c.tags.join();
      const known = kinds.get(key);
      if (known) known.count++;
      else kinds.set(key, { c, count: 1 });
    }
    const lines = [...kinds.values()].slice(0, CELL_LINES).map(({ c, count }) => {
      const kind = h("span", { text: count > 1 ? `${count} ${c.kind}` : c.kind });
      return h("div", null, kind, ...this.axisTags(c.axes), ...tags(c));
    });
    const more = kinds.size - CELL_LINES;
    if (more > 0) lines.push(h("div", { class: "sv-muted", text: `and ${more} more kinds` }));
    return lines;
  }

  /** @param {Stages} data @param {number} stage @param {StageState[]} states */
  single(data, stage, states) {
    if (stage < 0) return [];
    if (states[stage] === "none") return [mutedNote(`${stateText(data, stage)}.`)];
    const some = data.collectives[stage];
    if (!some.length) return noRows([states[stage]]);
    const rows = some.map((c) =>
      this.row(
        `${stage}:${c.number}`,
        c.full,
        h("td", { class: "sv-cbytes" }, shareBar(c.share), c.bytes),
        h("td", { class: "sv-ccell" }, h("div", null, h("span", { text: c.kind }), ...tags(c))),
        h("td", null, ...this.axisTags(c.axes)),
        h("td", { class: "sv-muted", text: c.phase }),
        causeCell(c),
      ),
    );
    return [collectiveTable(["bytes per device", "kind", "over", "pass", "cause"], rows)];
  }

  /** @param {Stages} data */
  comparison(data) {
    const [from, to] = this.pair();
    if (!changeBetween(data, from, to)) {
      return [mutedNote(`This needs both stages. ${stateText(data, to)}.`)];
    }
    const changes = data.changes.filter((c) => c.between[0] === from && c.between[1] === to);
    if (!changes.length) return [mutedNote("Neither stage has collectives.")];
    const rows = changes.map(({ kind, words, before, after }) => {
      const sign = CHANGE_SIGNS[kind];
      const style = `sv-change sv-change-${kind.split(" ")[0]}`;
      const label = h("span", { class: style, text: sign ? `${sign} ${kind}` : kind });
      const key = after.length ? `${to}:${after[0]}` : `${from}:${before[0]}`;
      const cells = [h("td", { class: "sv-changekind" }, label), h("td", { text: words })];
      return this.row(key, false, ...cells);
    });
    const title = `from ${STAGE_NAMES[from + 1]} to ${STAGE_NAMES[to + 1]}`;
    return [collectiveTable(["what", title], rows)];
  }

  /** @param {string} key @param {boolean} full @param {...Node} cells */
  row(key, full, ...cells) {
    const props = {
      class: full ? "sv-crow sv-full" : "sv-crow",
      "data-key": key,
      tabindex: "-1",
      "aria-selected": "false",
      on: { click: () => this.choose(this.chosen === key ? null : key) },
    };
    return h("tr", props, ...cells);
  }

  /** @param {string[]} axes */
  axisTags(axes) {
    if (!axes.length) return [h("span", { class: "sv-tag sv-muted", text: "not along mesh axes" })];
    // A part of an axis has the colour of the whole.
    return axes.map((axis) =>
      axisTag(axis, axisColour(this.data?.axes[axis.split(":(")[0]] ?? -1)),
    );
  }

  /** @param {string | null} key */
  choose(key) {
    this.chosen = key;
    const c = find(this.data, key);
    const chosen = c && key ? { key, kind: c.kind, axes: c.axes, groups: c.groups } : null;
    this.highlight.choose(chosen);
    this.calls.links(c ? key : null);
    this.markChosen();
    this.showSide();
  }

  /** Whether devices could be drawn by position, and are not. @param {boolean} on */
  offerPositions(on) {
    this.byPosition.hidden = !on;
  }

  rows() {
    return [...this.table.querySelectorAll("tr")].filter((row) => row.dataset.key);
  }

  markChosen() {
    const rows = this.rows();
    const at = rows.findIndex((row) => row.dataset.key === this.chosen);
    rows.forEach((row, i) => {
      toggle(row, "sv-chosen", i === at);
      row.setAttribute("aria-selected", String(i === at));
      row.tabIndex = i === Math.max(0, at) ? 0 : -1;
    });
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const rows = this.rows();
    const at = rows.findIndex((row) => row === document.activeElement);
    if (at < 0 || e.ctrlKey || e.metaKey || e.altKey) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[e.key];
    if (to !== undefined) {
      const next = rows[Math.max(0, Math.min(rows.length - 1, to))];
      for (const row of rows) row.tabIndex = row === next ? 0 : -1;
      next.focus();
    } else if (e.key === "Enter" || e.key === " ") this.choose(rows[at].dataset.key ?? null);
    else if (e.key === "Escape") this.choose(null);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  /** What is known of the chosen collective. */
  showSide() {
    const c = find(this.data, this.chosen);
    if (!c) {
      const how =
        "Choose a collective to see why it is there and which devices take part." +
        " Arrow keys move, Enter chooses, Escape ends the choice.";
      return fill(this.side, mutedNote(how));
    }
    const size = h("span", { class: "sv-muted", text: ` ${c.bytes} per device` });
    const title = [h("b", { text: c.kind }), ...this.axisTags(c.axes), size];
    const values = c.values.map((name) =>
      button(`Show ${name} in Values`, () => this.calls.value(name), {
        class: "sv-link sv-tovalue",
      }),
    );
    fill(
      this.side,
      h("div", { class: "sv-vtitle" }, ...title),
      ...(c.full ? [h("p", { class: "sv-bad", text: REMATERIALISED })] : []),
      this.participants,
      ...(this.canPlay(this.chosen ?? "") ? [this.play] : []),
      this.byPosition,
      ...this.changesOfChosen(),
      ...c.causes.map((text) => h("p", { text })),
      ...(c.moreCauses ? [mutedNote(`and ${c.moreCauses} more`)] : []),
      ...(c.facts ? [h("p", { class: "sv-muted sv-clamp", text: c.facts, title: c.facts })] : []),
      ...values,
      ...(c.op ? [h("code", { class: "sv-muted sv-clamp", text: c.op, title: c.op })] : []),
      ...(c.stack.length ? c.stack : [c.source]).filter(Boolean).map((text) => h("code", { text })),
    );
    this.showParticipants();
  }

  /** What became of the chosen collective in other stages, or what it was there. */
  changesOfChosen() {
    const [stage, number] = (this.chosen ?? "").split(":").map(Number);
    const found = (this.data?.changes ?? []).filter(({ kind, between, before, after }) => {
      const from = between[0] === stage && before.includes(number);
      const to = between[1] === stage && after.includes(number);
      return kind !== "kept" && (from || to);
    });
    return found.map(({ between, words }) => {
      const [from, to] = between.map((i) => STAGE_NAMES[i + 1]);
      return h("p", null, h("span", { class: "sv-muted", text: `${from} → ${to}: ` }), words);
    });
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

/** @param {Stages} data @param {number} stage */
function stateText(data, stage) {
  return `${capital(STAGE_NAMES[stage + 1])}: ${data.stages[stage].text}`;
}

/** @param {Collective} c */
function tags(c) {
  const full = h("span", { class: "sv-tag sv-fulltag", text: "full rematerialisation" });
  const others = c.tags.map((text) =>
    h("span", { class: text === "new" ? "sv-tag sv-newtag" : "sv-tag", text }),
  );
  return c.full ? [full, ...others] : others;
}

/** Why it is there, in the words of the plan where it has some. @param {Collective} c */
function causeCell(c) {
  const more = c.causes.length + c.moreCauses - 1;
  return h(
    "td",
    { class: "sv-cause", title: [...c.causes, c.op].join("\n") },
    h("div", { class: "sv-clamp", text: c.causes[0] }),
    h(
      "div",
      { class: "sv-muted sv-where" },
      h("code", { text: c.source }),
      more ? ` and ${more} more ${more === 1 ? "cause" : "causes"}` : "",
    ),
  );
}

/** @param {number} share of the longest bar */
function shareBar(share) {
  const style = { width: `${Math.max(2, share * 100)}%` };
  return h("span", { class: "sv-barcell" }, h("span", { class: "sv-fill", style }));
}

/** @param {Array<string | Node>} titles @param {Node[]} rows */
function collectiveTable(titles, rows) {
  return h(
    "table",
    { class: `sv-table sv-c${titles.length}`, "aria-label": "Collectives" },
    h("thead", null, h("tr", null, ...titles.map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", null, ...rows),
  );
}

/**
 * Where there are no collectives: whether none is needed, or nobody knows.
 * @param {StageState[]} states
 */
function noRows(states) {
  if (states.some((s) => s === "live" || s === "estimate")) return [mutedNote(NONE_NEEDED)];
  if (states.includes("failed")) return []; // the failure is said above
  return [mutedNote(states.includes("old") ? NONE_BEFORE : "Nothing is known yet.")];
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

/** @param {string} text */
function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
