// @ts-check
// The player: how a collective moves its data, step by step, with what every device
// has after each step, the bytes of the step and the formula.
import { Choice } from "./controls.js";
import { button, fill, h, setText, toggle } from "./dom.js";
import { MovementPicture } from "./movement_picture.js";
import { MOST_DRAWN, MovementSteps } from "./movement_steps.js";
import { Transport } from "./transport.js";

/** @typedef {import("./messages").Played} Played */
/** @typedef {import("./messages").MovementData} Data */

export class Player {
  /** @param {{close: () => void, play: (key: string) => void}} calls */
  constructor({ close, play }) {
    this.key = "";
    /** @type {Played | null} */ this.played = null;
    /** @type {MovementSteps | null} */ this.steps = null;
    /** @type {import("./colours.js").Theme | null} */ this.theme = null;
    this.picture = new MovementPicture();
    this.transport = new Transport(
      { slider: "Step", group: "Steps" },
      { changed: () => this.draw(), moving: (step, part) => this.move(step, part) },
    );
    this.title = h("span", { class: "sv-ptitle" });
    this.group = new Choice("Group", play);
    this.words = h("p", { class: "sv-pwords", role: "status", "aria-live": "polite" });
    this.facts = h("p", { class: "sv-pfacts" });
    this.notes = h("p", { class: "sv-muted sv-clamp" });
    this.runs = h("div", { class: "sv-pruns", tabindex: "0" });
    const back = button("Back", close, {
      class: "sv-button sv-small",
      "aria-label": "Close player",
    });
    const head = [back, this.title, this.group.node];
    this.node = h(
      "section",
      {
        class: "sv-player",
        "aria-label": "Player",
        on: { keydown: (e) => this.keyDown(e, close), click: (e) => this.clicked(e) },
      },
      h("div", { class: "sv-phead" }, ...head),
      this.picture.node,
      this.runs,
      this.transport.node,
      this.words,
      this.facts,
      this.notes,
    );
  }

  /** @param {KeyboardEvent} e @param {() => void} close */
  keyDown(e, close) {
    if (e.key !== "Escape") return this.transport.key(e);
    e.stopPropagation();
    close();
  }

  /** After a click the keys are the player's: Space plays, whichever button it was. @param {MouseEvent} e */
  clicked(e) {
    const inside = e.target instanceof Element && e.target.closest(".sv-transport");
    if (inside && e.detail && this.steps?.drawn) this.picture.node.focus({ preventScroll: true });
  }

  /** Opens what has a key, at its start; its steps may come later. @param {string} key */
  open(key) {
    if (key === this.key) return;
    Object.assign(this, { key, played: null, steps: null });
    this.transport.set(0);
  }

  /**
   * @param {Record<string, Played>} movements
   * @param {import("./colours.js").Theme} theme
   */
  show(movements, theme) {
    this.theme = theme;
    // While the steps are made again, because more is known of the program, the old ones stay.
    const played = movements[this.key] ?? this.played;
    const same = JSON.stringify(played?.data) === JSON.stringify(this.played?.data);
    this.played = played;
    if (!same || (played?.data && !this.steps)) {
      this.steps = played?.data ? new MovementSteps(played.data) : null;
      this.transport.set(0);
    }
    this.draw();
  }

  draw() {
    const { steps, played, theme } = this;
    const data = steps?.data;
    this.picture.node.hidden = !steps?.drawn;
    this.runs.hidden = !data || Boolean(steps?.drawn);
    this.transport.node.hidden = !data?.steps.length || !steps?.drawn;
    this.choices(played);
    setText(this.title, data ? data.title : "");
    this.title.title = data?.title ?? "";
    if (!steps || !data || !theme) {
      setText(this.words, played?.error || "The steps are being made…");
      toggle(this.words, "sv-bad", Boolean(played?.error));
      fill(this.facts);
      return setText(this.notes, "");
    }
    toggle(this.words, "sv-bad", false);
    fill(this.facts, ...formulaParts(data));
    setText(this.notes, data.notes.join(" "));
    this.notes.title = data.notes.join("\n");
    if (!steps.drawn) return this.showRuns(steps);
    const step = this.transport.step ?? steps.count;
    this.transport.showSteps(steps.count, positionWords(data, step));
    setText(this.words, stepWords(steps, step));
    this.words.title = this.words.textContent ?? "";
    this.picture.show(steps, step, theme);
    this.node.dataset.step = String(step);
  }

  /** @param {number} step @param {number} part */
  move(step, part) {
    if (this.steps) setText(this.words, stepWords(this.steps, step));
    this.picture.move(step, part);
  }

  /** @param {Played | null} played */
  choices(played) {
    const groups = played?.groups ?? [];
    this.group.node.hidden = groups.length < 2;
    this.group.sync(groups, this.key);
  }

  /** A large group: the steps that are alike, in one line each. @param {MovementSteps} steps */
  showRuns({ data }) {
    const why = `A group of ${data.size} is not drawn: at most ${MOST_DRAWN} devices are.`;
    setText(this.words, why);
    let done = 0;
    const rows = data.steps.map(({ words, times, bytes }) => {
      const from = done + 1;
      done += times;
      const number = times > 1 ? `steps ${from}–${done}` : `step ${from}`;
      const each = `${bytes}${times > 1 ? " each" : ""}`;
      const cells = [number, words, each].map((text) => h("td", { text }));
      return h("tr", null, ...cells);
    });
    fill(
      this.runs,
      h("table", { class: "sv-table", "aria-label": "Steps" }, h("tbody", null, ...rows)),
    );
  }

  destroy() {
    this.transport.destroy();
    this.picture.destroy();
  }
}

/** @param {Data} data @param {number} step */
function positionWords(data, step) {
  const sent = step ? ` · ${data.steps[step - 1].bytes} sent by each device` : "";
  return `${step} of ${data.steps.length} steps${sent}`;
}

/** @param {MovementSteps} steps @param {number} step */
function stepWords({ data, sums, count }, step) {
  if (step) return data.steps[step - 1].words + (step === count ? " Done." : "");
  if (sums) return "Before the first step: every device has its own part of every sum.";
  return "Before the first step: every device has its own data only.";
}

/** @param {Data} data */
function formulaParts({ formula, filledIn, took }) {
  return [
    h("span", { class: "sv-muted", text: `each sends ${formula}: ` }),
    h("span", { text: filledIn }),
    ...(took ? [h("span", { class: "sv-muted", text: ` · ${took}` })] : []),
  ];
}
