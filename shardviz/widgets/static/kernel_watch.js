// @ts-check
// Whether the kernel is still there. It says so every second from a thread of its own, so that a
// long cell does not silence it; a front end that knows of the kernel's end says so at once.
import { h, setText } from "./dom.js";

const SILENT_MS = 2600; // after so long without a word the kernel counts as gone
const LOOK_MS = 400;
const GONE =
  "The kernel is gone or does not answer: this is the last picture, and nothing can be edited." +
  " Run the cell again to open it anew";

export class KernelWatch {
  /**
   * @param {import("./messages").Model} model
   * @param {(gone: boolean) => void} changed
   */
  constructor(model, changed) {
    this.changed = changed;
    this.gone = false;
    /** When it was heard last; 0 before that, since some front ends carry no such messages. */
    this.heard = 0;
    this.looked = Date.now();
    this.text = h("span");
    this.node = h("div", { class: "sv-banner", role: "alert", hidden: true }, this.text);
    this.clock = window.setInterval(() => this.look(), LOOK_MS);
    this.ended = () => this.set(true);
    model.on("comm_live_update", this.ended);
    this.stop = () => {
      window.clearInterval(this.clock);
      model.off?.("comm_live_update", this.ended);
    };
  }

  /** Whatever comes from the kernel shows that it is there. */
  hear() {
    this.heard = Date.now();
    this.set(false);
  }

  look() {
    const now = Date.now();
    // A page that slept itself has heard nothing either.
    const slept = now - this.looked > SILENT_MS;
    this.looked = now;
    if (slept && this.heard) this.heard = now;
    if (this.heard && now - this.heard > SILENT_MS) this.set(true);
  }

  /** @param {boolean} gone */
  set(gone) {
    if (gone === this.gone) return;
    this.gone = gone;
    this.node.hidden = !gone;
    setText(this.text, gone ? `${GONE}.` : "");
    this.changed(gone);
  }
}
