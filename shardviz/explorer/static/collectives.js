// @ts-check
// The Collectives tab lists the collectives of one stage, or the changes between two stages.
// Collectives that are alike, such as those of all layers, share a row, which can be expanded.
import { axisColour } from "./colours.js";
import { axisTag, button, fill, h, handled, rowAfter } from "./dom.js";
import { OUT_OF_DATE, STAGE_NAMES, changeBetween, stageState } from "./stages.js";

const COMPILED = 2; // index of the compiled stage; propagated is 0

/** @import { Stages, StageState } from "./stages.js" */

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
 * @property {number} share
 * @property {boolean} full True for a full rematerialisation.
 * @property {string} facts Text with groups, total bytes, arrays and pass.
 * @property {string} shape
 * @property {string[]} causes
 * @property {number} moreCauses
 * @property {string} moved The argument that the collective moves or whose gradient it sums, or "".
 * @property {string} op
 * @property {string} source
 * @property {string[]} stack
 * @property {string[]} values
 * @property {number[][]} groups The mesh positions of each group's devices, if mesh axes do not
 *   define the groups.
 */

/**
 * Collectives that are alike except for their lines, from `collective_table.py`.
 * @typedef {{numbers: number[], members: number, share: number, tags: string[]} &
 *   Record<"times" | "total" | "lines" | "what" | "became", string>} Group
 * `numbers`: the indices of those that the page has; `members`: the number of all.
 */

/** The style of changes that add cost, remove cost, or do neither. @type {Record<string, string>} */
const CHANGE_STYLES = { added: "sv-warn", removed: "sv-good", kept: "sv-muted" };
/** The text for a collective that is compiled as its plan estimates. */
const AS_PLANNED = "as planned";
const LABEL = "Collectives";
const NONE_NEEDED = "No collectives: no device needs another's data.";
const NONE_BEFORE =
  "No collectives before the last edit; those of the current program are not known.";

export class CollectivesPanel {
  /** @param {import("./program_panel.js").ProgramPanel} program */
  constructor(program) {
    this.program = program;
    /** The stage ("1") or change between stages ("2-3") to show; "" for the latest stage. */
    this.asked = "";
    this.table = h("div", { class: "sv-ctable", on: { keydown: (e) => this.key(e) } });
    this.node = h("div", { class: "sv-collectives" }, this.table);
    /** The key of the selected collective. @type {string | null} */
    this.chosen = null;
    /** The groups whose members have rows. @type {Set<string>} */
    this.expanded = new Set();
    /** @type {Stages | null} */ this.data = null;
    /** The data shown in the table. @type {{key: string, data: Stages | null}} */
    this.drawn = { key: "", data: null };
    /** The states of the propagated, partitioned and compiled stages. @type {StageState[]} */
    this.states = [];
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

  /** @param {Stages} data @param {number} revision @param {import("./messages").Target} target @param {string | null} chosen */
  show(data, revision, target, chosen) {
    this.chosen = chosen;
    this.data = data;
    this.states = [0, 1, 2].map((i) => stageState(data, i, revision, target));
    this.draw();
    this.markChosen();
  }

  draw() {
    const data = this.data;
    if (!data || !this.node.isConnected) return;
    const key = JSON.stringify([this.shown, this.states, ...this.expanded]);
    if (key === this.drawn.key && this.drawn.data === data) return;
    this.drawn = { key, data };
    const focused = this.rows().find((row) => row.contains(document.activeElement));
    const rows = this.shown.includes("-") ? this.comparison(data) : this.single(data);
    const notes = this.states[COMPILED] === "old" ? [] : data.notes.map(note);
    fill(this.table, ...this.failures(data), ...rows, ...notes);
    this.markChosen();
    if (focused) this.focus(focused.dataset.keys);
  }

  /** Focuses the row of some collectives, or the selected one. @param {string} [keys] */
  focus(keys) {
    const rows = this.rows();
    const row = rows.find(({ dataset }) => dataset.keys === keys);
    (row ?? rows.find(({ tabIndex }) => tabIndex === 0))?.focus({ preventScroll: true });
  }

  /** @param {Stages} data */
  failures({ error, stages: [plan] }) {
    // Hide the error of a previous program, and one that is shown as that of the plan.
    const twice = this.states[0] === "failed" && error && plan.title.startsWith(error.message);
    if (!error || twice || this.states[COMPILED] === "old") return [];
    return [failureNote(error.title, error.message, error.source)];
  }

  /** @param {Stages} data */
  single(data) {
    const stage = Number(this.shown) - 1;
    const state = this.states[stage];
    const collectives = data.collectives[stage];
    if (state === "none") return [mutedNote(stateText(data, stage))];
    if (!collectives.length) return data.stages[stage].state === "failed" ? [] : noRows(state);
    const groups = data.groups[stage];
    const became = groups.map((group) => [group.became, ...group.tags].filter(Boolean).join("; "));
    const differs = became.some((words) => words && words !== AS_PLANNED);
    const rows = groups.flatMap((group, i) => this.groupRows(data, stage, i, differs && became[i]));
    const omitted = data.left_out[stage];
    /** @type {(Title | false)[]} */
    const titles = [
      ["sent per step", "114px"],
      ["collective", "138px"],
      ["over", "104px"],
      differs && ["vs. the plan", "18%"],
      "from",
    ];
    const about = [stageWords(data, stage), state === "old" && OUT_OF_DATE]
      .filter(Boolean)
      .join(" · ");
    const style = `${differs ? "sv-c5" : "sv-c4"} ${state === "old" ? "sv-faded" : ""}`;
    return [
      h("div", { class: "sv-muted", text: about }),
      table(/** @type {Title[]} */ (titles.filter(Boolean)), rows, style, LABEL),
      ...(omitted ? [mutedNote(`And ${omitted.toLocaleString("en")} smaller ones.`)] : []),
    ];
  }

  /** The row of a group, and the rows of its members if it is expanded. @param {Stages} data @param {number} stage @param {number} i @param {string | false} became false if no row differs from the plan */
  groupRows(data, stage, i, became) {
    const { numbers, times, total, lines, what, share } = data.groups[stage][i];
    const members = numbers.flatMap(
      (n) => data.collectives[stage].find((c) => c.number === n) ?? [],
    );
    const [first] = members;
    if (!first) return [];
    const name = `${stage}/${i}`;
    const open = this.expanded.has(name);
    const toggle = () => {
      if (!this.expanded.delete(name)) this.expanded.add(name);
      this.draw();
    };
    const keys = members.map(({ number }) => `${stage}:${number}`);
    const more = members.length > 1;
    const label = { "aria-expanded": String(open), "aria-label": `Each of ${members.length}` };
    const expand = more && button(open ? "▾" : "▸", toggle, { class: "sv-plain", ...label });
    const style = first.full ? "sv-warn" : "sv-muted";
    const differs = became !== false;
    const note = differs && h("td", { class: style, text: became, title: became });
    const line = h("code", { text: lines });
    const from = h("td", { title: `${lines} ${what}` }, line, " ", !differs && muted(what));
    const bar = shareBar(share, this.colours(first));
    const bytes = h("td", { class: "sv-cbytes" }, bar, total);
    const kind = h("td", null, `${first.kind} `, h("span", { class: "sv-often" }, times, expand));
    const row = this.row(keys, bytes, kind, h("td", null, ...tagsOf(data, first.axes)), note, from);
    if (!open || !more) return [row];
    const rows = members.map((c, n) => {
      const bar = shareBar(c.share, this.colours(c));
      const line = h("code", { text: c.source });
      const from = h("td", { title: c.causes[0] }, line, " ", muted(c.moved));
      const cells = [h("td", { class: "sv-cbytes" }, bar, c.bytes), h("td"), h("td")];
      return this.row([keys[n]], ...cells, differs && h("td"), from);
    });
    return [row, ...rows];
  }

  /** @param {Collective} c */
  colours({ axes }) {
    return axes.map((axis) => axisColour(axisNumber(this.data?.axes ?? {}, axis)));
  }

  /** @param {Stages} data */
  comparison(data) {
    const [from, to] = this.shown.split("-").map((n) => Number(n) - 1);
    if (!changeBetween(data, from, to)) {
      return [mutedNote(`The comparison needs both stages. ${stateText(data, to)}`)];
    }
    const changes = data.changes.filter((c) => c.between[0] === from && c.between[1] === to);
    if (!changes.length) return [mutedNote("Neither stage has collectives.")];
    const rows = changes.map(({ kind, words, before, after }) => {
      const label = h("td", { class: CHANGE_STYLES[kind] ?? "", text: kind });
      const key = after.length ? `${to}:${after[0]}` : `${from}:${before[0]}`;
      return this.row([key], label, h("td", { text: words, title: words }));
    });
    const title = `from ${STAGE_NAMES[from + 1]} to ${stageWords(data, to)}`;
    return [table([["what", "150px"], title], rows, "sv-c2", LABEL)];
  }

  /** @param {string[]} keys of its collectives @param {...(Node | false)} cells */
  row(keys, ...cells) {
    const props = {
      class: "sv-crow",
      "data-keys": keys.join(" "),
      tabindex: "-1",
      "aria-selected": "false",
      // The button that expands a row does not select it.
      on: {
        click: (/** @type {MouseEvent} */ { target }) => {
          if (!(target instanceof HTMLButtonElement)) this.pick(row);
        },
      },
    };
    const row = h("tr", props, ...cells);
    return row;
  }

  /** Selects the first of a row's collectives; a second time, none. @param {HTMLElement} row */
  pick(row) {
    this.program.choose(row.ariaSelected === "true" ? null : keysOf(row)[0]);
  }

  rows() {
    return [...this.table.querySelectorAll("tr")].filter((row) => row.dataset.keys);
  }

  markChosen() {
    const rows = this.rows();
    // The row of a member comes after the row of its group.
    const at = rows.map((row) => keysOf(row).includes(this.chosen ?? "")).lastIndexOf(true);
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
    } else if (e.key === "Enter" || e.key === " ") this.pick(rows[at]);
    else if (e.key === "ArrowRight" || e.key === "ArrowLeft") {
      const expand = rows[at].querySelector("button");
      if (expand?.ariaExpanded === String(e.key === "ArrowLeft")) expand.click();
    } else if (e.key === "Escape") this.program.choose(null);
    else return;
    handled(e);
  }
}

/** The keys of a row's collectives. @param {HTMLElement} row */
function keysOf({ dataset }) {
  return (dataset.keys ?? "").split(" ");
}

/** Returns the index of a mesh axis; a sub-axis has the index and colour of its full axis. @param {Record<string, number>} axes @param {string} name */
export function axisNumber(axes, name) {
  return axes[name.split(":(")[0]] ?? -1;
}

/** Tags for the mesh axes of a collective. @param {Stages} data @param {string[]} axes */
export function tagsOf({ axes: numbers }, axes) {
  if (!axes.length) return [muted("no mesh axes")];
  return axes.map((axis) => axisTag(axis, axisNumber(numbers, axis)));
}

/** Names a stage, and the devices that it was compiled for. @param {Stages} data @param {number} stage */
export function stageWords({ headline }, stage) {
  return stage ? `${STAGE_NAMES[stage + 1]} for ${headline.where}` : "from the plan";
}

/** Explains why a stage has no collectives to show. @param {Stages} data @param {number} stage */
export function stateText(data, stage) {
  const { name, text, title } = data.stages[stage];
  return `${name[0].toUpperCase()}${name.slice(1)}: ${text}. ${title}`;
}

/** @param {number} share of the longest bar @param {string[]} [colours] of its mesh axes */
export function shareBar(share, colours = []) {
  const high = 100 / colours.length;
  const stripes = colours.map((colour, i) => `${colour} ${i * high}% ${(i + 1) * high}%`);
  const background = colours.length ? `linear-gradient(${stripes})` : "";
  const style = { width: `${Math.max(2, share * 100)}%`, background };
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
  return [mutedNote(state === "old" ? NONE_BEFORE : NONE_NEEDED)];
}

/** @param {string} text */
export function muted(text) {
  return h("span", { class: "sv-muted", text, title: text });
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
