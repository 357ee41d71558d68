// @ts-check
// Text fields and menus. Answers from the kernel never overwrite text that is being typed.
import { fill, focusedNear, h, handled, isNew, setText, toggle } from "./dom.js";

/** @import { Option } from "./messages" */

/**
 * `settled` is true if the kernel has answered every message. Until then, edited controls keep
 * their content, because an answer to old text must not overwrite newer text.
 */
export const answers = { settled: true };

/** Records whether a control was edited before the kernel answered every message. */
export class Touched {
  touched = false;

  /** Whether the kernel's value may replace the control's content. @param {Element} control */
  accepts(control) {
    if (answers.settled) this.touched = false;
    return !this.touched && focusedNear(control) !== control;
  }
}

/** Stops key events in a control from reaching the page's key handlers. @param {KeyboardEvent} event */
export const keepKey = (event) => event.stopPropagation();

/**
 * A labelled text field that shows errors below its text.
 *
 * `sync(text, error)` shows the kernel's value. It never overwrites the text of a focused field.
 */
export class Field {
  /**
   * @param {string} label the accessible name
   * @param {(text: string) => void} edit called with the text after every change
   * @param {{caption?: string, placeholder?: string, long?: boolean}} [options] `long` text has as
   *   many lines as it needs
   */
  constructor(label, edit, options = {}) {
    this.state = new Touched();
    // A textarea has all of an input that is used here.
    const tag = /** @type {"input"} */ (options.long ? "textarea" : "input");
    this.input = h(tag, {
      rows: options.long ? "1" : null,
      "aria-label": label,
      autocomplete: "off",
      autocapitalize: "off",
      placeholder: options.placeholder,
      class: "sv-input sv-mono",
      on: {
        input: () => {
          this.state.touched = true;
          edit(this.input.value);
        },
        keydown: (e) => {
          keepKey(e);
          if (!options.long || e.key !== "Enter") return;
          e.preventDefault(); // as in a field of one line, Enter ends the edit
          this.input.dispatchEvent(new Event("change", { bubbles: true }));
        },
      },
    });
    this.error = h("div", { class: "sv-error", role: "alert" });
    const { caption: text } = options;
    const caption = text ? h("span", { class: "sv-caption", text }) : null;
    this.node = h("label", { class: "sv-field" }, caption, this.input, this.error);
  }

  /** @param {string} text @param {string} [error] */
  sync(text, error = "") {
    if (this.input.value !== text && this.state.accepts(this.input)) this.input.value = text;
    toggle(this.node, "sv-wrong", Boolean(error));
    showError(this.input, this.error, error);
  }
}

/** Shows the error of a field, and ties it to the field for screen readers. @param {Element} field @param {Element} place @param {string} error */
export function showError(field, place, error) {
  setText(place, error);
  place.id ||= `sv-error-${Math.random().toString(36).slice(2, 9)}`;
  field.setAttribute("aria-invalid", String(Boolean(error)));
  if (error) field.setAttribute("aria-describedby", place.id);
  else field.removeAttribute("aria-describedby");
}

/**
 * A field that searches data in the page; it also works without a kernel.
 * @param {string} label the accessible name
 * @param {string} placeholder
 * @param {() => void} input
 */
export function searchField(label, placeholder, input) {
  return h("input", {
    class: "sv-input sv-find",
    type: "search",
    "aria-label": label,
    placeholder,
    "data-keep": "true",
    on: { input, keydown: keepKey },
  });
}

/** A menu. */
export class Choice {
  /**
   * @param {string} label the accessible name
   * @param {(value: string) => void} edit
   * @param {string} [caption]
   */
  constructor(label, edit, caption) {
    this.touched = false;
    this.select = h("select", {
      "aria-label": label,
      class: "sv-select",
      on: {
        change: () => {
          this.touched = true;
          edit(this.select.value);
        },
        keydown: keepKey,
      },
    });
    const words = caption ? h("span", { class: "sv-caption", text: caption }) : null;
    this.node = h("label", { class: "sv-field sv-row" }, words, this.select);
    this.key = "";
  }

  /**
   * @param {Option[]} options consecutive options of the same group are listed under the group's
   *   name
   * @param {string} value
   */
  sync(options, value) {
    if (isNew(this, options)) fill(this.select, ...optionNodes(options));
    if (answers.settled) this.touched = false;
    if (this.select.value !== value && !this.touched) this.select.value = value;
  }
}

/** @param {Option[]} options */
function optionNodes(options) {
  /** @type {Array<HTMLOptionElement | HTMLOptGroupElement>} */
  const nodes = [];
  for (const { value, label, title, group } of options) {
    const option = h("option", { value, text: label, title });
    const last = nodes.at(-1);
    if (group && last instanceof HTMLOptGroupElement && last.label === group) last.append(option);
    else nodes.push(group ? h("optgroup", { label: group }, option) : option);
  }
  return nodes;
}

/**
 * A row of tabs. Arrow keys, Home and End open other tabs.
 * @template {string} Name
 * @param {Name[]} names
 * @param {import("./dom.js").Props} props attributes of the row
 * @param {string} style the CSS class of each tab
 * @param {(name: Name) => void} open
 */
export function tabRow(names, props, style, open) {
  const tabs = names.map((name) =>
    h("button", {
      type: "button",
      role: "tab",
      class: style,
      text: name,
      on: { click: () => open(name) },
    }),
  );
  const keydown = (/** @type {KeyboardEvent} */ e) => {
    const at = tabs.findIndex((tab) => tab === e.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[e.key];
    if (at < 0 || to === undefined) return;
    handled(e);
    const next = (to + names.length) % names.length;
    open(names[next]);
    tabs[next].focus();
  };
  const node = h("div", { role: "tablist", ...props, on: { keydown } }, ...tabs);
  const mark = (/** @type {Name} */ open) => {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(names[i] === open));
      tab.tabIndex = names[i] === open ? 0 : -1;
    });
  };
  return { node, tabs, mark };
}
