// @ts-check
// The player animates the steps of a collective.
// It shows the data on every device after each step, and the bytes sent so far.
import { axisTag, button, fill, h, setText, toggle } from "./dom.js";
import { MovementPicture } from "./movement_picture.js";
import { MovementSteps } from "./movement_steps.js";
import { Transport } from "./transport.js";

/** @typedef {import("./movement_steps.js").Played} Played */

export class Player {
  /** @param {{close: () => void}} calls */
  constructor({ close }) {
    this.key = "";
    /** @type {Played | null} */ this.played = null;
    /** @type {MovementSteps | null} */ this.steps = null;
    /** @type {import("./colours.js").Theme | null} */ this.theme = null;
    /** True if playing should start as soon as the steps arrive. */
    this.starts = false;
    this.picture = new MovementPicture();
    this.transport = new Transport({
      changed: () => this.draw(),
      moving: (step, part) => this.move(step, part),
    });
    this.title = h("span", { class: "sv-ptitle sv-cut" });
    this.words = h("div", { class: "sv-pwords", role: "status" });
    this.facts = h("div", { class: "sv-pfacts sv-muted sv-cut" });
    const names = { class: "sv-button sv-small", "aria-label": "Close player" };
    const head = h("div", { class: "sv-phead" }, button("Back", close, names), this.title);
    const parts = [head, this.picture.node, this.transport.node, this.words, this.facts];
    const on = { keydown: (/** @type {KeyboardEvent} */ e) => this.keyDown(e, close) };
    this.node = h("section", { class: "sv-player", "aria-label": "Player", on }, ...parts);
  }

  /** @param {KeyboardEvent} e @param {() => void} close */
  keyDown(e, close) {
    if (e.key !== "Escape") return this.transport.key(e);
    e.stopPropagation();
    close();
  }

  /** Plays the steps of a collective from the start, as soon as they have arrived. @param {string} key */
  open(key) {
    if (key !== this.key) Object.assign(this, { key, played: null, steps: null });
    this.starts = true;
    this.transport.set(0);
  }

  /** @param {Record<string, Played>} movements @param {import("./colours.js").Theme} theme */
  show(movements, theme) {
    this.theme = theme;
    // Keep the old steps while the kernel computes new ones after an edit.
    const played = movements[this.key] ?? this.played;
    const unchanged = JSON.stringify(played?.data) === JSON.stringify(this.played?.data);
    this.played = played;
    if (!unchanged || (played?.data && !this.steps)) {
      this.starts ||= this.transport.playing;
      this.steps = played?.data ? new MovementSteps(played.data) : null;
      this.transport.set(0);
    } else this.draw();
    if (!this.starts || !this.steps) return;
    this.starts = false;
    this.transport.toggle();
  }

  draw() {
    const { steps, played, theme } = this;
    const data = steps?.data;
    const drawn = Boolean(data && !data.lines.length);
    this.picture.node.hidden = !drawn;
    this.transport.node.hidden = !drawn || !data?.steps.length;
    toggle(this.words, "sv-bad", Boolean(played?.error));
    fill(this.title, ...(data ? titleParts(data) : []));
    setText(this.facts, data?.facts ?? "");
    this.facts.title = data?.facts ?? "";
    if (!steps || !data || !theme)
      return setText(this.words, played?.error || "The steps are being made…");
    if (!drawn) return setText(this.words, data.lines.join("\n"));
    const { step } = this.transport;
    const sent = step ? ` · ${data.steps[step - 1].sent}` : "";
    this.transport.showSteps(data.steps.length, `${step} of ${data.steps.length} steps${sent}`);
    setText(this.words, data.steps[step - 1]?.words ?? data.before);
    this.picture.show(steps, step, theme);
    this.node.dataset.step = String(step);
  }

  /** @param {number} step @param {number} part */
  move(step, part) {
    setText(this.words, this.steps?.data.steps[step - 1]?.words ?? "");
    this.picture.move(step, part);
  }
}

/** Builds a title such as `all-gather that sends 6 MiB over data, 4 devices, ring`. @param {import("./movement_steps.js").MovementData} data */
function titleParts({ title: [before, after], axes }) {
  const tags = axes.flatMap(([name, number]) => [" ", axisTag(name, number)]);
  return [before, ...(tags.length ? [" over", ...tags] : []), `, ${after}`];
}
