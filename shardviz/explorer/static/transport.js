// @ts-check
// Controls for stepping through an animation: back, play, forward, and a slider.
import { h, handled, iconButton, setIcon, setText } from "./dom.js";

/**
 * Callbacks: `changed` is called after each step, `moving` during a step with progress from 0 to 1.
 * @typedef {{changed: () => void, moving: (step: number, part: number) => void}} Hooks
 */

const STEP_MS = 1500;
const LEAST_MS = 500; // duration of a step if there are many steps, or if the user steps manually
const ALL_MS = 15_000; // total duration, unless a step would take less than LEAST_MS
const MOVING = 0.75; // share of a step's duration with motion; then a pause follows
const REDUCED = "(prefers-reduced-motion: reduce)";
const NO_MOTION = "Reduced motion is on: step through instead";

export class Transport {
  /** @param {Hooks} hooks */
  constructor(hooks) {
    this.hooks = hooks;
    this.step = 0; // the number of completed steps
    this.total = 0;
    this.playing = false;
    this.frame = 0;
    this.motion = window.matchMedia(REDUCED);
    this.motion.onchange = () => (this.reduced ? this.stop() : this.showPlaying());
    this.back = iconButton("back", "Step back", () => this.go(-1));
    this.play = iconButton("play", "Play", () => this.toggle());
    this.on = iconButton("forward", "Step on", () => this.go(1));
    this.slider = h("input", {
      type: "range",
      class: "sv-slider",
      min: "0",
      "data-keep": "true",
      "aria-label": "Step",
      on: { input: () => this.set(Number(this.slider.value)), keydown: (e) => this.key(e) },
    });
    // After a click on a button, focus the slider, so that Space plays.
    const click = (/** @type {MouseEvent} */ e) => e.detail && this.slider.focus();
    const about = { class: "sv-transport", role: "group", "aria-label": "Steps", on: { click } };
    const signs = h("span", about, this.back, this.play, this.on);
    this.text = h("span", { class: "sv-steptext", role: "status" });
    this.node = h("div", { class: "sv-stepbar" }, signs, this.slider, this.text);
  }

  get reduced() {
    return this.motion.matches;
  }

  /** Shows a step without animation. @param {number} step */
  set(step) {
    this.stop();
    this.arrive(Math.max(0, Math.min(this.total, step)));
  }

  /** @param {number} step */
  arrive(step) {
    this.step = step;
    this.hooks.changed();
  }

  /** @param {number} by */
  go(by) {
    const at = this.step;
    if (by < 0 || at >= this.total || this.reduced) return this.set(at + by);
    const next = this.frame ? Math.min(at + 1, this.total) : at; // complete a moving step first
    this.stop();
    if (next !== at) this.arrive(next);
    if (next < this.total) this.run(LEAST_MS, 1, false);
  }

  toggle() {
    if (this.playing) return this.stop();
    if (this.reduced || !this.total) return;
    if (this.step >= this.total) this.arrive(0);
    this.playing = true;
    this.showPlaying();
    this.run(Math.max(LEAST_MS, Math.min(STEP_MS, ALL_MS / this.total)), MOVING, true);
  }

  /**
   * Animates the next step, and all later steps if `goesOn`.
   * @param {number} ms @param {number} moving share of the duration with motion
   * @param {boolean} goesOn
   */
  run(ms, moving, goesOn) {
    let [part, before] = [0, performance.now()];
    const next = (/** @type {number} */ now) => {
      part += (now - before) / ms;
      before = now;
      const at = this.step;
      if (part < 1) this.hooks.moving(at + 1, Math.min(1, part / moving));
      else {
        part = 0;
        this.arrive(at + 1);
        if (!goesOn || at + 1 >= this.total) return this.stop();
      }
      this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
  }

  stop() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.playing = false;
    this.showPlaying();
  }

  showPlaying() {
    const name = this.playing ? "Pause" : "Play";
    const title = this.reduced ? NO_MOTION : `${name} (Space)`;
    setIcon(this.play, this.playing ? "pause" : "play", name, title);
    this.play.disabled = !this.playing && (this.reduced || !this.total);
  }

  /**
   * Handles keys: Space plays, arrow keys step, Home and End go to the first and last step. On a
   * focused button, Space presses the button.
   * @param {KeyboardEvent} e
   */
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key === " " && e.target instanceof HTMLButtonElement) return;
    if (e.key === " ") this.toggle();
    else if (e.key === "ArrowRight") this.go(1);
    else if (e.key === "ArrowLeft") this.go(-1);
    else if (e.key === "Home") this.set(0);
    else if (e.key === "End") this.set(this.total);
    else return;
    handled(e);
  }

  /**
   * @param {number} total the number of steps
   * @param {string} words text about the current step
   */
  showSteps(total, words) {
    this.total = total;
    this.slider.max = String(total);
    if (this.slider.value !== String(this.step)) this.slider.value = String(this.step);
    this.back.disabled = this.step === 0;
    this.on.disabled = this.step === total;
    setText(this.text, words);
    this.text.title = words;
    this.slider.setAttribute("aria-valuetext", words);
    this.showPlaying();
  }

  destroy() {
    this.stop();
    this.motion.onchange = null;
  }
}
