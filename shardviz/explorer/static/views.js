// @ts-check
// The four views of a session, as tabs. The open view is shown next to the pictures.
import { tabRow } from "./controls.js";
import { h } from "./dom.js";

/** @typedef {"Layout" | "Rules" | "Model" | "Program"} ViewName */
/** @typedef {{name: ViewName, node: HTMLElement, words: string}} OneView */

export class Views {
  /**
   * @param {OneView[]} views
   * @param {(name: ViewName) => void} opened
   */
  constructor(views, opened) {
    this.views = views;
    this.opened = opened;
    this.open = views[0].name;
    const id = `sv-${Math.random().toString(36).slice(2, 9)}`;
    const about = { class: "sv-viewlist", "aria-label": "Views" };
    const names = views.map(({ name }) => name);
    this.row = tabRow(names, about, "sv-tab sv-viewtab", (name) => this.show(name));
    views.forEach(({ node, words }, i) => {
      const tab = this.row.tabs[i];
      tab.id = `${id}-tab-${i}`;
      node.id = `${id}-view-${i}`;
      tab.setAttribute("aria-controls", node.id);
      node.setAttribute("role", "tabpanel");
      // The label differs from the view's name, because controls inside the views have the same
      // names.
      node.setAttribute("aria-label", words);
    });
    this.node = h("nav", { class: "sv-viewbar" }, this.row.node);
    this.mark();
  }

  /** @param {ViewName} name */
  show(name) {
    if (name === this.open) return;
    this.open = name;
    this.mark();
    this.opened(name);
  }

  mark() {
    this.row.mark(this.open);
    for (const { name, node } of this.views) node.hidden = name !== this.open;
  }
}

/** An element for the pictures, next to the open view if there is space. */
export function besideView() {
  return h("aside", { class: "sv-beside", "aria-label": "The mesh beside it" });
}
