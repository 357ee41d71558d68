// @ts-check
// Creates DOM elements without innerHTML, so that user text is never parsed as HTML.
import { axisColour } from "./colours.js";

/** @typedef {Node | string | null | undefined | false} Child */
/**
 * Attributes of an element, with special handling of `class`, `text`, `on` and `style`. Attributes
 * that are null, undefined or false are omitted.
 * @typedef {{
 *   class?: string, text?: string,
 *   on?: {[E in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[E]) => void},
 *   style?: Record<string, string | number>,
 *   [attribute: string]: unknown,
 * }} Props
 */

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props | null} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  const { class: className, text, on, style, ...attributes } = props ?? {};
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  for (const [event, listener] of Object.entries(on ?? {})) {
    node.addEventListener(event, /** @type {EventListener} */ (listener));
  }
  for (const [name, value] of Object.entries(style ?? {})) {
    node.style.setProperty(name, String(value));
  }
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/**
 * Sets a node's text if it differs; unchanged text keeps its selection and does not flicker.
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets a name that is cut at its head, because names differ at their tails. @template {Element} N @param {N} node @param {string} text */
export function headCut(node, text) {
  node.classList.add("sv-headcut");
  if (node.textContent !== text) fill(node, h("bdi", { text }));
  return node;
}

/** Replaces a node's children. @param {Element} node @param {...(Node | string)} children */
export function fill(node, ...children) {
  node.replaceChildren(...children);
}

/** Returns whether the data differs from the data shown last, and records it as shown. @param {{key: string}} shown @param {unknown} now */
export function isNew(shown, now) {
  const before = shown.key;
  // JSON has no undefined, and would write it as null.
  shown.key = JSON.stringify(now, (_, value) => value ?? String(value));
  return shown.key !== before;
}

/** @param {Element} node @param {string} name @param {boolean} on */
export function toggle(node, name, on) {
  node.classList.toggle(name, on);
}

/** @param {string} text @param {() => void} act @param {Props} [props] */
export function button(text, act, props = {}) {
  return h("button", { type: "button", class: "sv-button", text, on: { click: act }, ...props });
}

/** A coloured dot for a mesh axis. @param {number | string} axis its index in the mesh, or a colour */
export function axisDot(axis) {
  const style = { "--sv-axis-colour": typeof axis === "number" ? axisColour(axis) : axis };
  return h("i", { class: "sv-axisdot", "aria-hidden": "true", style });
}

/** A tag for a mesh axis: coloured dot and name. @param {string} name @param {number | string} axis */
export function axisTag(name, axis) {
  return h("span", { class: "sv-axis" }, axisDot(axis), name);
}

/** Enables or disables a button; while the page has no kernel, the change is only stored. @param {HTMLButtonElement} node @param {boolean} on */
export function enable(node, on) {
  if (node.dataset.locked) node.dataset.locked = String(!on);
  else node.disabled = !on;
}

const COPIED_MS = 1600;

/**
 * A button that copies text to the clipboard.
 * @param {string} name
 * @param {() => string} text
 * @param {Props} props
 * @param {() => void} [failed] called if the browser refuses to copy
 */
export function copyButton(name, text, props, failed) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      node.textContent = "Copied";
    } catch {
      failed?.();
      node.textContent = "Select the text and copy it";
    }
    window.setTimeout(() => setText(node, name), COPIED_MS);
  };
  const node = button(name, copy, props);
  return node;
}

/** Calls a function whenever an element's size changes, also at first. @param {Element} node @param {() => void} changed */
export function onResize(node, changed) {
  // It goes with the element, so nothing has to disconnect it.
  new ResizeObserver(changed).observe(node);
}

/** Keeps a handled key from the browser and from handlers further out. @param {Event} e */
export function handled(e) {
  e.preventDefault();
  e.stopPropagation();
}

/** Returns the focused element in the document or shadow root of a node. @param {Node} node */
export function focusedNear(node) {
  const root = node.getRootNode();
  return root instanceof Document || root instanceof ShadowRoot ? root.activeElement : null;
}

/**
 * Returns which rows of a long list to create, as [first, end]; `end` is exclusive.
 * @param {Element} scroller
 * @param {number} row its height in pixels
 * @param {number} count of all rows
 */
export function rowsInSight(scroller, row, count) {
  const height = scroller.clientHeight || ROWS_AT_FIRST * row;
  const first = Math.max(0, Math.floor(scroller.scrollTop / row) - ROWS_AROUND);
  return [first, Math.min(count, first + Math.ceil(height / row) + 2 * ROWS_AROUND)];
}

/**
 * Returns the row to which a key moves the cursor, or undefined for other keys.
 * @param {KeyboardEvent} e
 * @param {number} at
 * @param {number} count of all rows
 * @param {number} [page] the number of visible rows
 */
export function rowAfter({ key }, at, count, page = 1) {
  const by = Math.max(1, page); // the list may be less than one row high
  const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + by, PageUp: at - by };
  const to = { ...steps, Home: 0, End: count - 1 }[key];
  return to === undefined ? to : Math.max(0, Math.min(count - 1, to));
}

/**
 * Scrolls a row of a list into view, below its fixed header.
 * @param {Element} scroller
 * @param {number} row its height in pixels
 * @param {number} at
 */
export function scrollToRow(scroller, row, at) {
  const least = (at + 2) * row - scroller.clientHeight; // the header covers one row
  if (scroller.clientHeight) {
    scroller.scrollTop = Math.max(least, Math.min(at * row, scroller.scrollTop));
  }
}

const ROWS_AT_FIRST = 14; // visible rows to assume before the height is known
const ROWS_AROUND = 4; // extra rows created above and below the visible ones
const SVG = "http://www.w3.org/2000/svg";
/** SVG paths of the icons, on a grid of 16 × 16. */
const ICONS = {
  undo: "M6.5 3 3 6.5 6.5 10 M3 6.5h6.2a3.6 3.6 0 0 1 0 7.2H6.5",
  redo: "M9.5 3 13 6.5 9.5 10 M13 6.5H6.8a3.6 3.6 0 0 0 0 7.2h2.7",
  code: "M5.5 4 2 8l3.5 4 M10.5 4 14 8l-3.5 4",
  save: "M8 2.5v7.5 M4.8 7 8 10.2 11.2 7 M3 13.5h10",
  full: "M3 6V3h3 M10 3h3v3 M13 10v3h-3 M6 13H3v-3",
  compare: "M2.5 4h4.5v8H2.5z M9 4h4.5v8H9z",
  more: "M3.5 8h.01 M8 8h.01 M12.5 8h.01",
  pencil: "M3.5 12.5v-2L10.5 3.5 12.5 5.5 5.5 12.5z",
  plus: "M8 3.5v9 M3.5 8h9",
  first: "M4 3.5v9 M11.5 3.5 7 8l4.5 4.5",
  back: "M10 3.5 5.5 8l4.5 4.5",
  play: "M5 3.5v9l7-4.5z",
  pause: "M5.5 3.5v9 M10.5 3.5v9",
  forward: "M6 3.5 10.5 8 6 12.5",
  last: "M12 3.5v9 M4.5 3.5 9 8l-4.5 4.5",
  timer: "M8 6v3 M8 14A5 5 0 1 0 8 4a5 5 0 0 0 0 10z M6.5 1.8h3",
  fit: "M9.5 6.5 13.5 2.5 M10 2.5h3.5V6 M6.5 9.5 2.5 13.5 M2.5 10v3.5H6",
};

/**
 * A button with an icon; its name is used as label and tooltip.
 * @param {keyof typeof ICONS} icon
 * @param {string} name
 * @param {() => void} act
 * @param {Props} [props]
 */
export function iconButton(icon, name, act, props = {}) {
  const node = button("", act, { class: "sv-icon", "aria-label": name, title: name, ...props });
  node.append(drawn(icon));
  return node;
}

/** An icon without a button. @param {keyof typeof ICONS} icon */
export function drawn(icon) {
  const path = svg("path", { d: ICONS[icon] });
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}

/**
 * Changes the icon and name of an icon button.
 * @param {HTMLButtonElement} node
 * @param {keyof typeof ICONS} icon
 * @param {string} name
 * @param {string} [title]
 */
export function setIcon(node, icon, name, title = name) {
  node.querySelector("path")?.setAttribute("d", ICONS[icon]);
  node.setAttribute("aria-label", name);
  node.title = title;
}

/**
 * Creates an SVG element; null and undefined attributes are omitted.
 * @param {string} tag
 * @param {Record<string, string | number | null | undefined>} [attributes]
 * @param {...(Node | string)} children
 */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children);
  return node;
}
