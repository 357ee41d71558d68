// @ts-check
// Elements, made without innerHTML: whatever a person typed stays text.

/**
 * @param {string} tag
 * @param {Record<string, any> | null} [props] attributes; `class`, `text`, `on` and `style` are understood
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else if (key === "text") node.textContent = value;
    else if (key === "on")
      for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else if (key === "style")
      for (const [name, v] of Object.entries(value)) node.style.setProperty(name, String(v));
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children)
    if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/**
 * Sets the text of a node only where it differs, so that nothing flickers or loses a selection.
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Replaces a node's children.
 * @param {Element} node
 * @param {...(Node | string)} children
 */
export function fill(node, ...children) {
  node.replaceChildren(...children);
}

/**
 * @param {Element} node
 * @param {string} name
 * @param {boolean} on
 */
export function toggle(node, name, on) {
  node.classList.toggle(name, on);
}

/**
 * Whether the kernel has answered everything that was sent. An answer to an older text must not
 * overwrite a newer one, so what was touched since keeps what the person made of it until then.
 */
export const answers = { settled: true };

/** What a control holds, against what the kernel says it does. */
export class Touched {
  touched = false;

  /**
   * Whether the kernel's value may stand in the control.
   * @param {Element} control
   */
  yields(control) {
    if (answers.settled) this.touched = false;
    const root = /** @type {any} */ (control.getRootNode());
    return !this.touched && root.activeElement !== control;
  }
}

/**
 * A labelled control whose mistake is shown right under it.
 *
 * `sync(text, error)` takes what the kernel holds. It never overwrites the field under the
 * person's cursor: while they type, what they typed is the truth.
 */
export class Field {
  /**
   * @param {string} label the accessible name
   * @param {(text: string) => void} edit called with every change
   * @param {{caption?: string, mono?: boolean, placeholder?: string, width?: string}} [options]
   */
  constructor(label, edit, options = {}) {
    this.state = new Touched();
    this.input = h("input", {
      "aria-label": label,
      spellcheck: "false",
      autocomplete: "off",
      autocapitalize: "off",
      placeholder: options.placeholder,
      class: options.mono === false ? "sv-input" : "sv-input sv-mono",
      "data-lm-suppress-shortcuts": "true",
      on: {
        input: () => {
          this.state.touched = true;
          edit(this.input.value);
        },
        keydown: (/** @type {any} */ e) => e.stopPropagation(),
      },
    });
    if (options.width) this.input.style.width = options.width;
    this.error = h("div", { class: "sv-error", role: "alert" });
    this.node = h(
      "label",
      { class: "sv-field" },
      options.caption ? h("span", { class: "sv-caption", text: options.caption }) : null,
      this.input,
      this.error,
    );
  }

  /** @param {string} text @param {string} error */
  sync(text, error) {
    if (this.input.value !== text && this.state.yields(this.input)) this.input.value = text;
    setText(this.error, error);
    toggle(this.node, "sv-wrong", Boolean(error));
    this.input.setAttribute("aria-invalid", error ? "true" : "false");
  }
}

/** A menu. */
export class Choice {
  /**
   * @param {string} label
   * @param {(value: string) => void} edit
   * @param {string} [caption]
   */
  constructor(label, edit, caption) {
    this.touched = false;
    this.select = h("select", {
      "aria-label": label,
      class: "sv-select",
      "data-lm-suppress-shortcuts": "true",
      on: {
        change: () => {
          this.touched = true;
          edit(this.select.value);
        },
        keydown: (/** @type {any} */ e) => e.stopPropagation(),
      },
    });
    this.node = h(
      "label",
      { class: "sv-field sv-row" },
      caption ? h("span", { class: "sv-caption", text: caption }) : null,
      this.select,
    );
    this.key = "";
  }

  /**
   * @param {Array<{value: string, label: string, title?: string, group?: string}>} options those of
   * a group stand together
   * @param {string} value
   */
  sync(options, value) {
    const key = JSON.stringify(options);
    if (key !== this.key) {
      this.key = key;
      const parts = [];
      for (const o of options) {
        const option = h("option", { value: o.value, text: o.label, title: o.title }),
          last = parts[parts.length - 1];
        if (o.group && last && last.label === o.group) last.append(option);
        else parts.push(o.group ? h("optgroup", { label: o.group }, option) : option);
      }
      fill(this.select, ...parts);
    }
    if (answers.settled) this.touched = false;
    if (this.select.value !== value && !this.touched) this.select.value = value;
  }
}

/**
 * @param {string} text
 * @param {() => void} act
 * @param {Record<string, any>} [props]
 */
export function button(text, act, props = {}) {
  return h("button", {
    type: "button",
    class: "sv-button",
    text,
    "data-lm-suppress-shortcuts": "true",
    on: { click: act },
    ...props,
  });
}
