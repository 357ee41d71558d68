// @ts-check
// Problems: failures, losses and notes, as chips in the header of every view, and as a list.
import { button, fill, h, isNew, setText, toggle } from "./dom.js";
import { Popover } from "./popover.js";
import { isCurrent } from "./stages.js";

/** @import { Place } from "./messages" */
/** @import { View } from "./view_data.js" */

/**
 * The problems, from `problems_view.py`: first failures, then losses, then notes.
 * @typedef {object} ProblemsData
 * @property {number} revision The revision of the program with these problems.
 * @property {string} target The target that they are for.
 * @property {Problem[]} rows
 * @property {number[]} counts The numbers of failures, losses and notes.
 * @property {string} loses The losses in sum, or "".
 * @property {string} know The notes in sum, or "".
 */

/**
 * A problem at a place. `mends` if the place offers remedies; `offer` is the mesh that a button applies.
 * `place` is empty if the page has none.
 * @typedef {{code: string, severity: "fails" | "loses" | "know", text: string, at?: string,
 *   place: Partial<Place>, mends?: true, offer?: string}} Problem
 */

/**
 * Severity -> symbol and word, so that colour is not the only mark.
 * @type {Record<Problem["severity"], [sign: string, word: string]>}
 */
const SEVERITIES = { fails: ["✕", "fails"], loses: ["▲", "loses"], know: ["●", "note"] };

export class Problems {
  /** @param {import("./explorer.js").Requests} page */
  constructor(page) {
    this.page = page;
    this.key = "";
    const props = { class: "sv-problemchip", "aria-haspopup": "dialog", "aria-expanded": "false" };
    const chip = (/** @type {Problem["severity"]} */ severity) =>
      button("", () => this.open(severity), { ...props, class: `sv-problemchip sv-${severity}` });
    this.chips = { fails: chip("fails"), loses: chip("loses"), know: chip("know") };
    this.none = h("span", { class: "sv-muted", text: "no problems found" });
    this.list = new Popover("Problems", "sv-problemlist", () => this.expand(false));
    const about = { class: "sv-problems", role: "group", "aria-label": "Problems" };
    this.node = h("div", about, ...Object.values(this.chips), this.none, this.list.node);
  }

  /** @param {boolean} on */
  expand(on) {
    for (const chip of Object.values(this.chips)) chip.setAttribute("aria-expanded", String(on));
  }

  /** Opens the list at the first problem with this severity, or closes the open list. @param {Problem["severity"]} severity */
  open(severity) {
    if (!this.list.node.hidden) return this.list.close(true);
    const first = this.list.node.querySelector(`.sv-problem.sv-${severity} button`);
    this.list.open(first instanceof HTMLElement ? first : this.list.node);
    this.expand(true);
  }

  /** @param {View} view */
  show(view) {
    const [data, target] = [this.page.get("problems_data"), this.page.get("target")];
    const live = this.page.editable;
    const fields = refused(view, target);
    const { rows = [], counts = [0, 0, 0], loses = "", know = "", revision = -1 } = data;
    // Problems are computed after edits have settled; until then, they belong to the older program.
    toggle(this.node, "sv-older", !isCurrent(data, { view, target }));
    if (!isNew(this, [rows, counts, fields, live])) return;
    const fails = counts[0] + fields.length;
    const { chips } = this;
    setText(chips.fails, `✕ ${fails} ${fails === 1 ? "fails" : "fail"}`);
    for (const [chip, text] of /** @type {const} */ ([
      [chips.loses, `▲ ${loses}`],
      [chips.know, know],
    ])) {
      const [size, kind = "", arrays = ""] = text.split(/(?= of | \()/);
      const count = h("span", { class: "sv-arraycount", text: arrays });
      fill(chip, size, h("span", { text: kind }), count);
      chip.setAttribute("aria-label", text);
    }
    chips.fails.hidden = !fails;
    chips.loses.hidden = !loses;
    chips.know.hidden = !know || fails > 0 || loses !== "";
    this.none.hidden = revision < 0 || fails > 0 || loses + know !== "";
    const had = this.list.focused;
    const problems = [...fields, ...rows].sort((a, b) => order(a) - order(b));
    const omitted = counts[0] + counts[1] + counts[2] - rows.length;
    const footer = omitted > 0 ? [h("p", { class: "sv-muted", text: `${omitted} more` })] : [];
    const items = problems.map((problem) => this.row(problem, live));
    fill(this.list.node, h("div", { role: "list" }, ...items), ...footer);
    if (had) this.list.node.focus();
  }

  /** @param {Problem & {field?: boolean}} problem @param {boolean} live */
  row({ severity, text, at, place, mends, offer, field }, live) {
    const [sign, word] = SEVERITIES[severity];
    const { view } = place;
    const visit = () => {
      this.list.close(false);
      if (field) this.page.goToField(place.array);
      else if (view) this.page.goTo(place);
    };
    const name = at ?? (field ? "the field" : [view, place.tab].filter(Boolean).join(", "));
    const link = { class: "sv-plain sv-problemtext", title: `Go to ${name}` };
    const inside = { class: "sv-button sv-small", "data-edit": "true" };
    const words =
      view || field ? button(text, visit, link) : h("span", { class: "sv-problemtext", text });
    const fit = () => this.page.edit("fit", null);
    return h(
      "div",
      { class: `sv-problem sv-${severity}`, role: "listitem" },
      h("span", { class: "sv-severity" }, h("i", { text: sign, "aria-hidden": "true" }), word),
      words,
      mends && live ? button("Fix…", visit, { ...inside, "aria-label": `Fix ${name}` }) : null,
      offer && live ? button(`Change the mesh to ${offer}`, fit, inside) : null,
    );
  }
}

/** @param {Problem} problem */
const order = ({ severity }) => Object.keys(SEVERITIES).indexOf(severity);

/**
 * Returns the fields with invalid text as problems. Each field also shows its own error.
 * @param {View} view
 * @param {import("./messages").Target} target
 */
function refused({ mesh, rules, arrays }, target) {
  /** @type {(Problem & {field: true})[]} */
  const found = [];
  const add = (/** @type {string} */ text, /** @type {Partial<Place>} */ place = {}) =>
    found.push({ code: "field", severity: "fails", text: `${text}: refused.`, place, field: true });
  if (mesh.error) add("Mesh axes");
  if (mesh.hostsError) add("Hosts");
  if (target.error) add("Target");
  if (rules.error) add("Rules", { view: "Rules" });
  arrays.forEach(({ name, fields }, array) => {
    for (const [field, { error }] of Object.entries(fields)) {
      if (error) add(`${name}, ${field}`, { view: "Layout", array });
    }
  });
  return found;
}
