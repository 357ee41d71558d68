// @ts-check
// The selected collective: what it is, why it is there, its steps, and changes that would help.
// It is shown below the list of collectives, and below the timeline.
import { ChangesList } from "./changes.js";
import { stageWords, tagsOf } from "./collectives.js";
import { button, fill, h, setText, toggle } from "./dom.js";
import { named, onHosts } from "./highlight.js";
import { OUT_OF_DATE } from "./stages.js";

/** @import { Stages } from "./stages.js" */

export class ChosenCollective {
  /** @param {import("./highlight.js").Highlight} highlight @param {import("./program_panel.js").ProgramPanel} program */
  constructor(highlight, program) {
    this.highlight = highlight;
    this.program = program;
    /** The key of the collective: stage and index, such as "0:3". @type {string | null} */
    this.key = null;
    const small = { class: "sv-button sv-small" };
    const play = { ...small, "aria-label": "Play" };
    this.play = button("▶ Play", () => program.openPlayer(this.key ?? ""), play);
    const unpressed = { ...small, "aria-pressed": "false" };
    this.links = button("Show links", () => program.showLinks(), unpressed);
    /** Whether the steps of a collective with this key can be played. */
    this.canPlay = (/** @type {string} */ _key) => true;
    this.changes = new ChangesList("What would help?", program.page);
    this.participants = h("span", { class: "sv-muted" });
    const label = { class: "sv-cstrip", "aria-label": "The chosen collective", hidden: true };
    this.about = h("aside", label);
    this.node = h("div", { class: "sv-chosen" }, this.about, this.changes.node);
    highlight.listeners.push(() => this.showParticipants());
  }

  /** Selects a collective, marks its devices and draws its links. @param {Stages | null} data @param {string | null} key */
  choose(data, key) {
    this.key = key;
    const c = find(data, key);
    const chosen = c && key ? { key, kind: c.kind, axes: c.axes, groups: c.groups } : null;
    this.highlight.choose(chosen);
    this.program.page.ask("links", chosen && key);
  }

  /**
   * @param {Stages | null} data
   * @param {boolean} old true if the program was edited since the collective's stage
   * @param {string} time the least time; "" if unknown
   */
  show(data, old, time) {
    const c = find(data, this.key);
    this.about.hidden = !c;
    toggle(this.about, "sv-faded", old);
    if (!c || !data) return;
    const alike = groupOf(data, this.key);
    const others = alike && alike.members > 1 && `1 of ${alike.members.toLocaleString("en")} alike`;
    const became = [alike?.became, ...(alike?.tags ?? [])];
    const stage = [stageWords(data, Number(this.key?.[0])), old && OUT_OF_DATE];
    const about = [...stage, c.facts, time, others, ...became];
    const facts = about.filter(Boolean).join(" · ");
    const over = c.axes.length ? " over " : " ";
    const line = h("code", { text: c.source, title: [c.shape, c.op, ...c.stack].join("\n") });
    const [cause, ...causes] = c.causes;
    const count = causes.length + c.moreCauses;
    const more = h("details", { hidden: !count }, h("summary", { text: `And ${count} more` }));
    more.append(...causes.map((text) => h("div", { text })));
    if (c.moreCauses) more.append(h("div", { text: `${c.moreCauses} are not listed.` }));
    const value = c.values[0];
    const named = { class: "sv-button sv-small", title: c.values.join(", ") };
    const buttons = [
      this.canPlay(this.key ?? "") && this.play,
      !old && this.changes.button,
      value && button("Show in Values", () => this.program.openValue(value), named),
      this.links,
    ];
    const title = [h("b", { text: c.kind }), over, ...tagsOf(data, c.axes), " ", line, ` ${facts}`];
    fill(
      this.about,
      h("div", null, ...title),
      h("div", null, `${cause} `, this.participants),
      more,
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
    const with_ = (otherIds.length ? named(otherIds) : "no other device") + (where && `,${where}`);
    const words = `Device ${ids[at]} takes part with ${with_}.`;
    setText(this.participants, positions.length ? words : "Which devices take part is unknown.");
  }
}

/**
 * Returns the collective with a key such as "0:3" (stage and index).
 * @param {Stages | null} data
 * @param {string | null} key
 */
export function find(data, key) {
  if (!data || key === null) return undefined;
  const [stage, number] = key.split(":").map(Number);
  return data.collectives[stage]?.find((c) => c.number === number);
}

/** Returns the group of the collective with a key. @param {Stages} data @param {string | null} key */
function groupOf(data, key) {
  const [stage, number] = (key ?? "").split(":").map(Number);
  return data.groups[stage]?.find(({ numbers }) => numbers.includes(number));
}
