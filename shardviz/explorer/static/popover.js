// @ts-check
// A popover over the page. It closes on Escape, on a click elsewhere, or if the focus leaves it.
import { focusedNear, h } from "./dom.js";

export class Popover {
  /**
   * @param {string} name the accessible name
   * @param {string} style
   * @param {() => void} closed
   */
  constructor(name, style, closed = () => {}) {
    this.closed = closed;
    /** The element that gets the focus back. @type {HTMLElement | null} */ this.before = null;
    const on = {
      keydown: (/** @type {KeyboardEvent} */ e) => this.key(e),
      // Check later: a click on an element without focus must not close the popover.
      focusout: () => window.setTimeout(() => this.focused || this.close(false)),
    };
    const about = { role: "dialog", "aria-label": name, tabindex: "-1", hidden: true };
    this.node = h("div", { class: `sv-popover ${style}`, ...about, on });
  }

  get focused() {
    return this.node.contains(focusedNear(this.node));
  }

  /** @param {HTMLElement} focus the element that gets the focus */
  open(focus) {
    const before = focusedNear(this.node);
    if (this.node.hidden) this.before = before instanceof HTMLElement ? before : null;
    this.node.hidden = false;
    focus.focus();
  }

  /** @param {boolean} back true to return the focus */
  close(back) {
    if (this.node.hidden) return;
    this.node.hidden = true;
    if (back) this.before?.focus({ preventScroll: true });
    this.closed();
  }

  /** The up and down arrow keys focus the previous or next button. @param {KeyboardEvent} e */
  key(e) {
    e.stopPropagation();
    const step = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (e.key === "Escape") this.close(true);
    else if (step) {
      const all = [...this.node.querySelectorAll("button")];
      const at = all.findIndex((candidate) => candidate === e.target);
      all[(at + step + all.length) % all.length]?.focus();
    } else return;
    e.preventDefault();
  }
}
