// @ts-check
// Drags a mesh axis by its tag.
// Dropped among the axis chips, the axis moves to that position in the mesh.
// Dropped on a dimension, it splits that dimension.
// Dragged off a dimension, it no longer splits that dimension.
// Elements with `data-axis` can be dragged; `data-dim` is the dimension that the axis splits.
// Drop targets are elements with `data-drop-dim`, and the edges of a picture.
// A picture's `data-drop-array` has the dimensions of its rows and columns.
import { axisTag, h, toggle } from "./dom.js";

/**
 * A drop target: a dimension, or a position (`place`) in the order of the mesh axes.
 * @typedef {{node: Element, dim?: number, place?: number}} Drop
 */

const FAR = 4; // pixels; longer mouse movements are drags, not clicks
const BELOW = 14; // pixels from the pointer to the dragged tag

/** @param {HTMLElement} root @param {import("./explorer.js").Requests} page */
export function dragAxes(root, page) {
  root.addEventListener("pointerdown", (e) => {
    if (!(e.target instanceof Element) || e.button !== 0 || !page.editable) return;
    const tag = e.target.closest("[data-axis]");
    if (tag instanceof HTMLElement && !e.target.closest("button, input, select")) {
      new AxisDrag(root, tag, page, e);
    }
  });
}

class AxisDrag {
  /**
   * @param {HTMLElement} root
   * @param {HTMLElement} tag
   * @param {import("./explorer.js").Requests} page
   * @param {PointerEvent} start
   */
  constructor(root, tag, page, start) {
    this.root = root;
    this.page = page;
    this.start = start;
    this.axis = tag.dataset.axis ?? "";
    /** The dimension that the axis splits before the drag. */
    this.from = tag.dataset.dim === undefined ? undefined : Number(tag.dataset.dim);
    const dot = tag.querySelector(".sv-axisdot") ?? tag;
    const colour = getComputedStyle(dot).getPropertyValue("--sv-axis-colour");
    this.words = h("span");
    this.ghost = h("div", { class: "sv-dragged" }, axisTag(this.axis, colour), this.words);
    /** @type {Drop | null} */ this.drop = null;
    const ended = new AbortController();
    this.end = () => {
      ended.abort();
      this.ghost.remove();
      this.aim(null);
    };
    const options = { signal: ended.signal, capture: true };
    root.addEventListener("pointermove", (e) => this.move(e), options);
    root.addEventListener("pointerup", () => this.finish(), options);
    root.addEventListener("pointercancel", this.end, options);
    window.addEventListener("keydown", (e) => this.key(e), options);
  }

  /** @param {PointerEvent} e */
  move(e) {
    if (!this.ghost.isConnected) {
      const { clientX, clientY } = this.start;
      if (Math.hypot(e.clientX - clientX, e.clientY - clientY) < FAR) return;
      // Capture the pointer only after a movement, so that clicks still work.
      // A captured drag can leave the page.
      this.root.setPointerCapture(e.pointerId);
      this.root.append(this.ghost);
    }
    e.preventDefault();
    this.ghost.style.left = `${e.clientX + BELOW}px`;
    this.ghost.style.top = `${e.clientY + BELOW}px`;
    this.aim(this.under(e));
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    if (e.key !== "Escape") return;
    e.stopPropagation();
    this.end();
  }

  /** The drop target under the pointer. @param {PointerEvent} e @returns {Drop | null} */
  under({ clientX: x, clientY: y }) {
    const page = /** @type {Document | ShadowRoot} */ (this.root.getRootNode());
    const over = page.elementFromPoint(x, y);
    const row = over?.closest("[data-drop-dim]");
    if (row) return { node: row, dim: Number(row.getAttribute("data-drop-dim")) };
    const picture = over?.closest("[data-drop-array]");
    if (picture) return { node: picture, dim: dimensionAt(picture, x, y) };
    const chip = this.from === undefined && over?.closest(".sv-chip");
    if (!chip) return null;
    return { node: chip, place: [...(chip.parentNode?.children ?? [])].indexOf(chip) };
  }

  /** Shows the effect of dropping the axis on a target. @param {Drop | null} drop */
  aim(drop) {
    if (this.drop) toggle(this.drop.node, "sv-droptarget", false);
    this.drop = drop;
    if (drop) toggle(drop.node, "sv-droptarget", true);
    const off = this.from === undefined ? "" : `off ${this.dimension(this.from)}`;
    this.words.textContent =
      drop?.dim === undefined ? (drop ? "" : off) : `splits ${this.dimension(drop.dim)}`;
  }

  finish() {
    const { drop, axis, from } = this;
    const moved = this.ghost.isConnected;
    this.end();
    if (!moved) return;
    if (drop?.dim !== undefined && drop.dim !== from) this.split(drop.dim, true);
    if (!drop && from !== undefined) this.split(from, false);
    if (drop?.place !== undefined) this.page.edit("move_axis", [axis, drop.place]);
  }

  /** @param {number} dim @param {boolean} on */
  split(dim, on) {
    this.page.edit("split", [dim, this.axis, on], this.page.cards.selected);
  }

  /** Returns the name of a dimension of the selected array. @param {number} dim */
  dimension(dim) {
    const { highlight, cards } = this.page;
    return highlight.arrays[cards.selected]?.names[dim] ?? `dimension ${dim}`;
  }
}

/**
 * The dimension at the nearest edge of a picture: rows at its left or right edge, columns at its
 * top or bottom edge.
 * @param {Element} picture
 * @param {number} x
 * @param {number} y
 */
function dimensionAt(picture, x, y) {
  const dims = (picture.getAttribute("data-drop-array") ?? "").split(" ").map(Number);
  const { left, top, width, height } = picture.getBoundingClientRect();
  const [across, down] = [(x - left) / width, (y - top) / height];
  const rows = Math.min(across, 1 - across) <= Math.min(down, 1 - down);
  return rows || dims.length < 2 ? dims[0] : dims[1];
}
