// @ts-check
// Whether the kernel is still there. It says so every second from a thread of its own, so that a
// long cell does not silence it; a front end that knows of the kernel's end says so at once.
import { copyButton, h, setText } from "./dom.js";

const SILENT_MS = 2600; // after so long without a word the kernel counts as gone
const LOOK_MS = 400;
const GONE = "Kernel stopped. View only.";
const UNANSWERED = "No kernel has answered yet. View only until one does; else run the cell again.";
const COPY = "Copy code to reopen";

export class KernelWatch {
  /** @param {import("./messages").Model} model @param {(gone: boolean) => void} changed */
  constructor(model, changed) {
    this.changed = changed;
    this.gone = false;
    /** When it was heard last; 0 before that, since some front ends carry no such messages. */
    this.heard = 0;
    /** Whether it ever answered. */
    this.met = false;
    this.looked = Date.now();
    /** The code that opens the state as it was at the last beat. */
    this.line = "";
    this.text = h("span");
    this.field = h("input", {
      class: "sv-input sv-mono",
      readonly: true,
      hidden: true,
      "data-keep": "true",
      "aria-label": "The line that opens this state",
    });
    const show = () => {
      this.field.hidden = false;
      this.field.value = this.line;
      this.field.select();
    };
    this.copy = copyButton(COPY, () => this.line, { class: "sv-button sv-small" }, show);
    const parts = [this.text, this.copy, this.field];
    this.node = h("div", { class: "sv-banner", role: "alert", hidden: true }, ...parts);
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

  /**
   * Whether a message was answered. Where none ever was, nobody may be there: a notebook can keep
   * what the page shows, and show it again without a kernel.
   * @param {boolean} yes
   */
  answered(yes) {
    if (yes) this.met = true;
    if (yes && !this.heard) this.set(false);
    else if (!yes && !this.met && !this.heard) this.set(true);
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
    const words = this.met || this.heard ? GONE : UNANSWERED;
    setText(this.text, gone ? words : "");
    this.copy.hidden = !this.line;
    this.changed(gone);
  }
}
