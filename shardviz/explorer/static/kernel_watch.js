// @ts-check
// Detects if the kernel is gone. The kernel sends a beat every second from a separate thread, even
// during a long cell. A front end that knows of the kernel's end reports it immediately.
import { copyButton, h, setText } from "./dom.js";

const SILENT_MS = 2600; // without a beat for this long, the kernel counts as gone
const LOOK_MS = 400;
const GONE = "Kernel stopped. View only.";
const UNANSWERED = "No kernel has answered yet. View only until one does; else run the cell again.";
const COPY = "Copy code to reopen";

export class KernelWatch {
  /** @param {import("./messages").Model} model @param {(gone: boolean) => void} changed */
  constructor(model, changed) {
    this.changed = changed;
    this.gone = false;
    /** Time of the last beat; 0 before the first, since some front ends drop these messages. */
    this.heard = 0;
    /** True once it has answered. */
    this.met = false;
    this.looked = Date.now();
    /** The code that restores the state of the last beat. */
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

  /** Any message from the kernel shows that it is alive. */
  hear() {
    this.heard = Date.now();
    this.set(false);
  }

  /**
   * Notes if a message was answered. If none ever was, there may be no kernel: a notebook can store
   * the page and show it again without one.
   * @param {boolean} yes
   */
  answered(yes) {
    if (yes) this.met = true;
    if (yes && !this.heard) this.set(false);
    else if (!yes && !this.met && !this.heard) this.set(true);
  }

  look() {
    const now = Date.now();
    // A page that was suspended has missed beats without the kernel being gone.
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
