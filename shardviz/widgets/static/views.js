// @ts-check
// The four views of a session: a tab each, one in sight at a time, and what stands beside it.
import { OWN_KEYS, h, setText } from "./dom.js";

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
    this.tabs = views.map(({ name, node, words }, i) => {
      const [tab, panel] = [`${id}-tab-${i}`, `${id}-view-${i}`];
      node.id = panel;
      node.setAttribute("role", "tabpanel");
      // Its own words, since controls inside have the names of the views.
      node.setAttribute("aria-label", words);
      const about = { role: "tab", id: tab, "aria-controls": panel };
      const on = { click: () => this.show(name) };
      const props = { type: "button", class: "sv-tab sv-viewtab", ...about, ...OWN_KEYS, on };
      return h("button", { ...props, text: name });
    });
    this.badges = views.map(() => h("span", { class: "sv-badgecount", "aria-hidden": "true" }));
    this.tabs.forEach((tab, i) => tab.append(this.badges[i]));
    const on = { keydown: (/** @type {KeyboardEvent} */ e) => this.key(e) };
    const list = h("div", { class: "sv-viewlist", role: "tablist", "aria-label": "Views", on });
    list.append(...this.tabs);
    this.node = h("nav", { class: "sv-viewbar" }, list);
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
    this.views.forEach(({ name, node }, i) => {
      const on = name === this.open;
      node.hidden = !on;
      this.tabs[i].setAttribute("aria-selected", String(on));
      this.tabs[i].tabIndex = on ? 0 : -1;
    });
  }

  /** How many things in a view need a look; nothing is shown for none. @param {ViewName} name @param {number} count @param {string} words */
  badge(name, count, words) {
    const i = this.views.findIndex((view) => view.name === name);
    setText(this.badges[i], count ? String(count) : "");
    this.tabs[i].title = count ? words : "";
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const count = this.views.length;
    const at = this.views.findIndex(({ name }) => name === this.open);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: count - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    e.stopPropagation();
    const next = (to + count) % count;
    this.show(this.views[next].name);
    this.tabs[next].focus();
  }
}

/** What stands beside a view where there is space: the pictures, moved there. */
export function besideView() {
  return h("aside", { class: "sv-beside", "aria-label": "The mesh beside it" });
}
