// @ts-check
// Elements, made without innerHTML: whatever a person typed stays text.

/** @typedef {Node | string | null | undefined | false} Child */
/**
 * Attributes; `class`, `text`, `on` and `style` are set as such. Null, undefined and false are left
 * out.
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

/** @param {Element} node @param {string} name @param {boolean} on */
export function toggle(node, name, on) {
  node.classList.toggle(name, on);
}

/**
 * @param {string} text
 * @param {() => void} act
 * @param {Props} [props]
 */
export function button(text, act, props = {}) {
  return h("button", {
    type: "button",
    class: "sv-button",
    text,
    ...OWN_KEYS,
    on: { click: act },
    ...props,
  });
}

/** On a focused element JupyterLab's own keyboard shortcuts must not fire. */
export const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };

/** The element that has the focus, also inside of a shadow root. @param {Node} node */
export function focusedNear(node) {
  const root = node.getRootNode();
  return root instanceof Document || root instanceof ShadowRoot ? root.activeElement : null;
}
