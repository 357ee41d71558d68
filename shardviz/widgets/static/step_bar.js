// @ts-check
// The propagation step by step, in sentences.
import { Transport } from "./transport.js";

/** @typedef {import("./plan_data.js").PlanData} PlanData */

export class StepBar extends Transport {
  /** @param {(step: number | null) => void} changed */
  constructor(changed) {
    super({ slider: "Propagation step", group: "Replay of the propagation" }, { changed });
    /** @type {number | null} */ this.step = null;
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
    this.node.hidden = !this.total;
    this.showSteps(this.total, this.words(plan));
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
