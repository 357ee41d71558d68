// @ts-check
// Detects that the kernel has stopped.
// The kernel sends a beat every second from a separate thread, even while it runs a long cell.
// Some front ends report immediately that the kernel has stopped.
import { copyButton, h, setText } from "./dom.js";

const SILENT_MS = 2600; // without beats for this long, the kernel counts as stopped
const LOOK_MS = 400;
const GONE = "Kernel stopped. View only.";
const UNANSWERED = "No kernel has answered yet: view only. If none answers, run the cell again.";
const COPY = "Copy code to reopen";

export class KernelWatch {
  /** @param {import("./messages").Model} model @param {(gone: boolean) => void} changed */
  constructor(model, changed) {
    this.changed = changed;
    this.gone = false;
    /** Time of the last beat; 0 before the first beat. Some front ends drop all beats. */
    this.heard = 0;
    /** True once the kernel has answered a message. */
    this.met = false;
    this.looked = Date.now();
    /** The latest line of code that restores the state, as sent with a beat. */
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

  /** Records a message from the kernel, which shows that it is alive. */
  hear() {
    this.heard = Date.now();
    this.set(false);
  }

  /**
   * Records whether a message was answered. If no message was ever answered, there may be no
   * kernel: a notebook can show a stored page without one.
   * @param {boolean} yes
   */
  answered(yes) {
    if (yes) this.met = true;
    if (yes && !this.heard) this.set(false);
    else if (!yes && !this.met && !this.heard) this.set(true);
  }

  look() {
    const now = Date.now();
    // A suspended page misses beats although the kernel is alive.
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
