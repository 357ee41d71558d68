// @ts-check
// The propagation step by step: back, on, and a slider.
import { keepKey } from "./controls.js";
import { OWN_KEYS, button, h, setText, toggle } from "./dom.js";

/** @typedef {import("./plan_data.js").PlanData} PlanData */

export class StepBar {
  /** @param {(step: number | null) => void} changed */
  constructor(changed) {
    this.changed = changed;
    /**
     * How many steps are done: 0 is before the propagation; null is its end, without stepping.
     * @type {number | null}
     */
    this.step = null;
    this.total = 0;
    const style = { class: "sv-button sv-stepbutton" };
    this.back = button("‹", () => this.go(-1), { ...style, "aria-label": "Step back" });
    this.on = button("›", () => this.go(1), { ...style, "aria-label": "Step on" });
    this.slider = h("input", {
      type: "range",
      class: "sv-slider",
      min: "0",
      "data-keep": "true",
      "aria-label": "Propagation step",
      ...OWN_KEYS,
      on: { input: () => this.set(Number(this.slider.value)), keydown: keepKey },
    });
    this.text = h("span", { class: "sv-steptext", role: "status", "aria-live": "polite" });
    const parts = [this.back, this.slider, this.on, this.text];
    this.node = h("div", { class: "sv-stepbar" }, ...parts);
  }

  /** @param {number | null} step */
  set(step) {
    this.step = step === null ? null : Math.max(0, Math.min(this.total, step));
    this.changed(this.step);
  }

  /** @param {number} by */
  go(by) {
    // From the end, the first step back shows the last step; the first step on starts over.
    this.set(this.step === null ? (by > 0 ? 0 : this.total) : this.step + by);
  }

  /** The step that is shown, if any. @param {PlanData} plan */
  shown(plan) {
    return this.step ? plan.steps[this.step - 1] : null;
  }

  /** @param {PlanData} plan */
  show(plan) {
    this.total = plan.steps.length;
    const at = this.step ?? this.total;
    this.node.hidden = !this.total;
    this.slider.max = String(this.total);
    if (this.slider.value !== String(at)) this.slider.value = String(at);
    this.back.disabled = at === 0;
    this.on.disabled = this.step !== null && at === this.total;
    toggle(this.node, "sv-stepping", this.step !== null);
    const words = this.words(plan);
    setText(this.text, words);
    this.text.title = words;
    this.slider.setAttribute("aria-valuetext", words);
  }

  /** @param {PlanData} plan */
  words(plan) {
    const count = this.total.toLocaleString("en");
    const steps = `${count} ${this.total === 1 ? "step" : "steps"}`;
    const step = this.shown(plan);
    if (this.step === 0) return `Before the first of ${steps}: only what was requested.`;
    if (!step) return `The propagation took ${steps}. Go through them with , and . or the slider.`;
    const name = (/** @type {number} */ at) => (at < 0 ? "elsewhere" : plan.names[at]);
    const moves = step.moves.map(({ axis, from, to }) => {
      return `${axis} from ${name(from)} to ${to.map(name).join(", ")}`;
    });
    const position = `${(this.step ?? 0).toLocaleString("en")} of ${count}`;
    return `${position} · step ${step.number}, through ${name(step.op)}: ${moves.join("; ")}.`;
  }
}
