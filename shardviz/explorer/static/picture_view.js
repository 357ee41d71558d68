// @ts-check
// Shows a Picture with zooming, panning and pointing, by mouse and keyboard.
import { h, handled, iconButton, onResize, toggle } from "./dom.js";
import { PicturePainter, clamp, isLarge } from "./picture_painter.js";

/** @typedef {import("./picture_data.js").Picture} Picture */
/**
 * Callbacks for pointing at and selecting tiles, and for texts of tiles.
 * @typedef {{point: (tile: number) => void, leave: () => void, pin: (tile: number) => void,
 *   release: () => void, lines: (tile: number) => string[], hint?: (tile: number) => string,
 *   fitted?: () => void}} Hooks
 */

const MAX_ZOOM = 60;
const MARGIN = 6; // pixels between the edge and a tile that is panned into view
const LEAST_SEEN = 24; // pixels of the nearest tile that must remain visible
const DRAG_PIXELS = 3; // smaller movements of the mouse are clicks
/** @type {Record<string, [number, number]>} */
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const OTHER_KEYS = ["Enter", "Escape", "Home", "End", "+", "-", "0"];

export class PictureView extends PicturePainter {
  /**
   * @param {string} label the accessible name
   * @param {Hooks} hooks
   * @param {{plain?: boolean}} [options]
   */
  constructor(label, hooks, options = {}) {
    super(hooks);
    this.tip = h("div", { class: "sv-tip", hidden: true });
    /** True after a click in the picture; the wheel then zooms instead of scrolling the page. */
    this.entered = false;
    const role = options.plain ? { role: "img" } : { role: "application", tabindex: "0" };
    const about = { class: "sv-canvas", ...role, "aria-label": label };
    this.node = h("div", { ...about, on: this.listeners() }, this.base, this.over, this.tip);
    /** Shown above the picture, which it would cover, if part of the picture is out of view. */
    this.fitter = iconButton("fit", "Fit", () => {
      this.node.focus({ preventScroll: true }); // keep the focus here: the button disappears
      this.fitAll();
    });
    this.fitter.hidden = true;
    this.node.addEventListener("wheel", (e) => this.wheel(e), { passive: false });
    this.cursor = -1;
    /** @type {{x: number, y: number, ox: number, oy: number, moved: boolean} | null} */
    this.drag = null;
    onResize(this.node, () => this.resized());
  }

  fitAll() {
    this.fit();
    this.showNow();
  }

  showNow() {
    this.paint();
    this.fitter.hidden = this.fitted;
  }

  /**
   * @param {Picture} picture
   * @param {import("./colours.js").Theme} theme
   * @param {{aspect?: number, before?: (tile: number) => number}} [more] `aspect` is the true
   *   aspect ratio of a tile; `before` maps a tile to its tile in the previous picture, for
   *   animation
   */
  show(picture, theme, { aspect = 0, before } = {}) {
    const old = this.picture;
    const { width, height, x } = picture;
    const unchanged = old.width === width && old.height === height && old.x.length === x.length;
    const from = before && this.fitted ? this.movedFrom(picture, before) : null;
    Object.assign(this, { picture, theme, aspect });
    if (this.cursor >= x.length) this.cursor = -1;
    if (!unchanged || this.fitted) this.fit();
    if (from || picture !== old) this.move(from);
    this.showNow();
  }

  /** @param {import("./picture_painter.js").Marks} marks */
  mark(marks) {
    this.marks = marks;
    this.paintMarks();
  }

  resized() {
    const { clientWidth, clientHeight } = this.node;
    if (!clientWidth || !clientHeight) return;
    if (clientWidth === this.size.w && clientHeight === this.size.h) return;
    this.resize(clientWidth, clientHeight);
    if (this.fitted) this.fit();
    else this.keepInSight();
    this.hooks.fitted?.();
    this.paint();
  }

  /**
   * Zooms around a point (by default the centre), or around the nearest tile if there is no tile at
   * the point.
   * @param {number} factor
   * @param {number} px
   * @param {number} py in CSS pixels
   */
  zoom(factor, px = this.size.w / 2, py = this.size.h / 2) {
    const { x, y } = this.nearest(px, py);
    const { ox, oy, sx } = this;
    this.fit();
    // Zooming preserves the aspect ratio, so one scale is enough to compute the zoom factor.
    const now = sx / this.sx;
    const next = clamp(now * factor, 1, MAX_ZOOM);
    if (next > 1.0001) {
      this.ox = x - ((x - ox) * next) / now;
      this.oy = y - ((y - oy) * next) / now;
      this.sx *= next;
      this.sy *= next;
      this.fitted = false;
      this.keepInSight();
    }
    this.tip.hidden = true;
    this.showNow();
  }

  /**
   * Returns the nearest point on a tile, in CSS pixels; without tiles, the point itself.
   * @param {number} px
   * @param {number} py
   */
  nearest(px, py) {
    let [x, y, least] = [px, py, Infinity];
    for (let i = 0; i < this.picture.x.length && least > 0; i++) {
      const box = this.boxOf(i);
      const nearX = clamp(px, box.x, box.x + box.w);
      const nearY = clamp(py, box.y, box.y + box.h);
      const distance = (nearX - px) ** 2 + (nearY - py) ** 2;
      if (distance < least) [x, y, least] = [nearX, nearY, distance];
    }
    return { x, y };
  }

  /** Limits panning to the picture, and keeps at least one tile visible. */
  keepInSight() {
    const { size, sx, sy } = this;
    const box = this.content();
    const margins = this.margins();
    const left = margins.left - box.left * sx;
    const top = margins.top - box.top * sy;
    const right = size.w - margins.right - box.right * sx;
    const bottom = size.h - margins.bottom - box.bottom * sy;
    this.ox = clamp(this.ox, Math.min(left, right), Math.max(left, right));
    this.oy = clamp(this.oy, Math.min(top, bottom), Math.max(top, bottom));
    // A gap between tiles can fill the view.
    const { x, y } = this.nearest(size.w / 2, size.h / 2);
    this.ox += clamp(x, margins.left + LEAST_SEEN, size.w - LEAST_SEEN) - x;
    this.oy += clamp(y, margins.top + LEAST_SEEN, size.h - LEAST_SEEN) - y;
  }

  /** Returns the tile at a point in CSS pixels, or -1. @param {number} px @param {number} py */
  tileAt(px, py) {
    const { picture: p, grown } = this;
    const x = (px - this.ox) / this.sx;
    const y = (py - this.oy) / this.sy;
    for (let i = p.x.length - 1; i >= 0; i--) {
      const [dx, dy] = [x - p.x[i], y - p.y[i]];
      if (dx < -grown.x || dy < -grown.y) continue;
      if (dx < p.w[i] + grown.x && dy < p.h[i] + grown.y) return i;
    }
    return -1;
  }

  /** Returns the position of a mouse event on the canvas. @param {MouseEvent} e @returns {[number, number]} */
  at(e) {
    const edge = this.node.getBoundingClientRect();
    return [e.clientX - edge.left, e.clientY - edge.top];
  }

  /** @returns {import("./dom.js").Props["on"]} */
  listeners() {
    return {
      pointerdown: (e) => {
        if (e.button !== 0) return;
        this.entered = true;
        const [x, y] = this.at(e);
        this.drag = { x, y, ox: this.ox, oy: this.oy, moved: false };
        this.node.setPointerCapture(e.pointerId);
      },
      pointermove: (e) => this.moved(...this.at(e)),
      pointerup: (e) => {
        const drag = this.drag;
        this.drag = null;
        toggle(this.node, "sv-dragging", false);
        if (drag && !drag.moved) this.clicked(this.tileAt(...this.at(e)));
      },
      pointerleave: () => {
        this.entered = false;
        if (!this.drag) this.left();
      },
      pointercancel: () => (this.drag = null),
      keydown: (e) => this.key(e),
      blur: () => (this.tip.hidden = true),
    };
  }

  /** @param {WheelEvent} e */
  wheel(e) {
    if (!e.ctrlKey && !e.metaKey && !this.entered) return;
    e.preventDefault();
    this.zoom(Math.exp(-e.deltaY * 0.0022), ...this.at(e));
  }

  /** @param {number} x @param {number} y */
  moved(x, y) {
    if (this.drag) return this.dragged(this.drag, x, y);
    const tile = this.tileAt(x, y);
    if (tile < 0) return this.left();
    this.pointAt(tile);
  }

  /** @param {NonNullable<PictureView["drag"]>} drag @param {number} x @param {number} y */
  dragged(drag, x, y) {
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > DRAG_PIXELS;
    if (!drag.moved) return;
    toggle(this.node, "sv-dragging", true);
    this.ox = drag.ox + x - drag.x;
    this.oy = drag.oy + y - drag.y;
    this.fitted = false;
    this.keepInSight();
    this.showNow();
  }

  /** @param {number} tile */
  pointAt(tile) {
    this.cursor = tile;
    this.hooks.point(tile);
    this.showTip(tile);
  }

  left() {
    this.tip.hidden = true;
    this.hooks.leave();
  }

  /** @param {number} tile */
  clicked(tile) {
    this.node.focus({ preventScroll: true });
    if (tile < 0) return this.hooks.release();
    this.cursor = tile;
    this.hooks.pin(tile);
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    const direction = DIRECTIONS[e.key];
    const last = this.picture.x.length - 1;
    if (last < 0 || !(direction || OTHER_KEYS.includes(e.key))) return;
    handled(e);
    if (e.key === "Escape") {
      this.tip.hidden = true;
      return this.hooks.release();
    }
    if (e.key === "Enter") return this.cursor >= 0 ? this.hooks.pin(this.cursor) : undefined;
    if (e.key === "+") return this.zoom(1.4);
    if (e.key === "-") return this.zoom(1 / 1.4);
    if (e.key === "0") return this.fitAll();
    let tile = e.key === "End" ? last : 0;
    if (direction && this.cursor >= 0) tile = this.neighbour(this.cursor, ...direction);
    this.reveal(tile);
    this.pointAt(tile);
  }

  /**
   * Returns the nearest tile in a direction, or the same tile if there is no other.
   * @param {number} from
   * @param {number} dx
   * @param {number} dy
   */
  neighbour(from, dx, dy) {
    const p = this.picture;
    let best = from;
    let least = Infinity;
    for (let i = 0; i < p.x.length; i++) {
      const vx = p.x[i] - p.x[from] + (p.w[i] - p.w[from]) / 2;
      const vy = p.y[i] - p.y[from] + (p.h[i] - p.h[from]) / 2;
      const along = vx * dx + vy * dy;
      const cost = along + 3 * (Math.abs(vx * dy) + Math.abs(vy * dx));
      if (along > 0.01 && cost < least) [best, least] = [i, cost];
    }
    return best;
  }

  /** Pans a tile into view. @param {number} tile */
  reveal(tile) {
    const { x, y, w, h: tall } = this.boxOf(tile);
    const dx = shift(x, w, this.size.w);
    const dy = shift(y, tall, this.size.h);
    if (!dx && !dy) return;
    this.ox += dx;
    this.oy += dy;
    this.fitted = false;
    this.showNow();
  }

  /** Shows a tooltip for a tile, if the tile is too small for its text. @param {number} tile */
  showTip(tile) {
    const text = this.hooks.hint?.(tile) ?? this.hooks.lines(tile).join(" · ");
    const box = this.boxOf(tile);
    this.tip.hidden = isLarge(box.w, box.h) || !text;
    if (this.tip.hidden) return;
    this.tip.textContent = text;
    // Measure the tooltip at the left edge, where the page edge does not squeeze it.
    Object.assign(this.tip.style, { left: "0", top: "0" });
    const { offsetWidth, offsetHeight } = this.tip;
    const { left, top } = tipPlace(box, { w: offsetWidth, h: offsetHeight }, this.size);
    Object.assign(this.tip.style, { left: `${left}px`, top: `${top}px` });
  }
}

/**
 * Returns how far to move an interval so that it lies between 0 and `size`.
 * @param {number} start
 * @param {number} length
 * @param {number} size
 */
function shift(start, length, size) {
  if (start < 0) return -start + MARGIN;
  return start + length > size ? size - start - length - MARGIN : 0;
}

/**
 * Returns a position for a tooltip next to, above or below a tile, without covering the tile.
 * @param {import("./picture_painter.js").Box} box
 * @param {{w: number, h: number}} tip
 * @param {{w: number, h: number}} size of the picture
 */
function tipPlace({ x, y, w, h: tall }, tip, size) {
  const across = Math.max(2, Math.min(x + w + 6, size.w - tip.w - 4));
  const along = Math.max(2, Math.min(y, size.h - tip.h - 2));
  const places = [
    { left: across, top: y - tip.h - 4 },
    { left: across, top: y + tall + 4 },
    { left: x + w + 6, top: along },
    { left: x - tip.w - 6, top: along },
  ];
  const fits = (/** @type {{left: number, top: number}} */ { left, top }) =>
    left >= 0 && top >= 0 && left + tip.w <= size.w && top + tip.h <= size.h;
  return places.find(fits) ?? { left: across, top: Math.max(2, y - tip.h - 4) };
}
