// @ts-check
// A line per engine: its rank, where it runs, what it does and for how long; and a button that starts
// all of them anew.
import { OWN_KEYS, button, fill, h, setText, toggle } from "./dom.js";

/** @typedef {import("./messages").Engines} Engines */
/** @typedef {import("./messages").EngineLine} EngineLine */

/** @type {Record<EngineLine["state"], string>} */
const ENGINE_STATES = {
  ready: "ready",
  running: "",
  done: "done",
  failed: "failed",
  lost: "lost",
};

export class EngineLines {
  /** @param {() => void} restart */
  constructor(restart) {
    this.restart = button("Restart engines", restart, {
      class: "sv-button sv-small",
      title: "Ends all of them and starts them anew",
    });
    this.list = h("div", { class: "sv-enginelist", role: "list" });
    this.problem = h("div", { class: "sv-bad sv-engineproblem", role: "alert" });
    const props = { class: "sv-enginewords", tabindex: "0", "aria-label": "Engines", ...OWN_KEYS };
    const words = h("div", props, this.problem, this.list);
    this.node = h("div", { class: "sv-engines", hidden: true }, words, this.restart);
    /** When this page first saw an engine in its stage, by rank. @type {Map<number, Began>} */
    this.began = new Map();
    /** @type {{began: number, node: HTMLElement}[]} */ this.clocks = [];
  }

  /** @typedef {{since: number, at: number}} Began */

  /** @param {Engines | undefined} engines @param {boolean} live whether a kernel answers */
  show(engines, live) {
    this.node.hidden = !engines;
    this.clocks = [];
    if (!engines) return;
    const { lines, more, restart, restarting, problem } = engines;
    const rest = more ? [h("div", { class: "sv-muted", text: `and ${more} more` })] : [];
    fill(this.list, ...lines.map((line) => this.line(line)), ...rest);
    setText(this.problem, problem);
    this.restart.disabled = !live || !restart;
    setText(this.restart, restarting ? "Restarting…" : "Restart engines");
    toggle(this.restart, "sv-primary", Boolean(problem) && restart);
    this.tick();
  }

  /** @param {EngineLine} line */
  line({ rank, where, state, words, since = 0 }) {
    const clock = h("span", { class: "sv-engineclock" });
    if (state === "running") {
      const known = this.began.get(rank);
      const at = known?.since === since ? known.at : Date.now();
      this.began.set(rank, { since, at });
      this.clocks.push({ began: at, node: clock });
    }
    return h(
      "div",
      { class: "sv-engine", role: "listitem", "data-state": state },
      h("span", { class: "sv-enginedot" }),
      h("b", { text: `process ${rank}` }),
      h("span", { class: "sv-muted", text: where }),
      h("span", { class: "sv-enginestage", text: words || ENGINE_STATES[state], title: words }),
      clock,
    );
  }

  /** The clocks of the engines that run. */
  tick() {
    for (const { began, node } of this.clocks) {
      setText(node, `${((Date.now() - began) / 1000).toFixed(1)} s`);
    }
  }
}
