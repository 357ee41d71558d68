// @ts-check
// Paints one Picture on a canvas: tiles, labels, frames; zoom, pan, pointing, keyboard.
// The picture comes ready from Python (`shardviz/picture`); this adds ink and marks.
import { h } from "./dom.js";
import { inkOn, mix, tileColours } from "./ink.js";

/**
 * @typedef {{width: number, height: number, x: Float32Array, y: Float32Array, w: Float32Array, h: Float32Array,
 *   group: Int32Array, device: ArrayLike<number>, text: string[] | null, labels: any[], frames: any[], alt: string,
 *   hue: string, count: number, label: (i: number) => string, hint: (i: number) => string, [more: string]: any}} Picture
 * @typedef {{strong: Set<number>, soft: Set<number>, frame: number}} Marks tiles and a frame that stand out
 * @typedef {{point: (tile: number) => void, leave: () => void, pin: (tile: number) => void, release: () => void,
 *   lines: (tile: number) => string[], hint?: (tile: number) => string, corner?: (tile: number) => string}} Hooks
 */

const MAX_ZOOM = 60;
const GAP = 6;
const FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const MONO = "ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace";

export class PictureView {
  /**
   * @param {string} label the accessible name
   * @param {Hooks} hooks
   * @param {{maxScale?: number, plain?: boolean}} [options]
   */
  constructor(label, hooks, options = {}) {
    this.hooks = hooks;
    this.maxScale = options.maxScale ?? 1.7;
    this.base = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    this.over = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    this.tip = h("div", { class: "sv-tip", hidden: true });
    this.node = h(
      "div",
      {
        class: "sv-canvas",
        tabindex: options.plain ? null : "0",
        role: options.plain ? "img" : "application",
        "aria-label": label,
        "data-lm-suppress-shortcuts": "true",
      },
      this.base,
      this.over,
      this.tip,
    );
    /** @type {Picture | null} */ this.picture = null;
    /** @type {Marks} */ this.marks = { strong: new Set(), soft: new Set(), frame: -1 };
    /** @type {any} */ this.theme = null;
    /** What the canvas shows, so that nothing is painted twice. @type {any[] | null} */ this.seen =
      null;
    /** @type {Int32Array | null} */ this.groups = null;
    this.count = 1;
    this.scale = 1;
    this.ox = 0;
    this.oy = 0;
    this.fitted = true;
    this.cursor = -1;
    this.drag = null;
    this.size = { w: 0, h: 0 };
    this.listen();
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.node);
  }

  destroy() {
    this.observer.disconnect();
  }

  /**
   * @param {Picture} picture
   * @param {Int32Array | null} groups the colour group of every tile, if not the picture's own
   * @param {number} count how many groups there are
   * @param {any} theme
   */
  show(picture, groups, count, theme) {
    const same =
      this.picture &&
      this.picture.width === picture.width &&
      this.picture.height === picture.height &&
      this.picture.x.length === picture.x.length;
    this.picture = picture;
    this.groups = groups;
    this.count = count;
    this.theme = theme;
    if (this.cursor >= picture.x.length) this.cursor = -1;
    if (!same || this.fitted) this.fit();
    this.paint();
  }

  /** @param {Marks} marks */
  mark(marks) {
    this.marks = marks;
    this.paintMarks();
  }

  resized() {
    const { clientWidth: w, clientHeight: hgt } = this.node;
    if (!w || !hgt || (w === this.size.w && hgt === this.size.h)) return;
    this.size = { w, h: hgt };
    this.seen = null;
    const ratio = window.devicePixelRatio || 1;
    for (const layer of [this.base, this.over]) {
      layer.width = Math.round(w * ratio);
      layer.height = Math.round(hgt * ratio);
    }
    if (this.fitted) this.fit();
    this.paint();
  }

  fit() {
    if (!this.picture || !this.size.w) return;
    const { width, height } = this.picture;
    // Labels keep their size while tiles shrink, so they may stand out beyond the picture.
    let room = { left: 1, right: 1 };
    for (let round = 0; round < 3; round++) {
      this.scale = Math.min(
        this.maxScale,
        (this.size.w - room.left - room.right) / Math.max(1, width),
        (this.size.h - 2) / Math.max(1, height),
      );
      room = this.overhang(this.scale);
    }
    this.ox = room.left;
    this.oy = 1;
    this.fitted = true;
  }

  /**
   * How far labels reach beyond the picture's left and right edge, in CSS pixels.
   * @param {number} scale
   */
  overhang(scale) {
    const p = /** @type {Picture} */ (this.picture),
      g = this.base.getContext("2d");
    let left = 1,
      right = 1;
    for (const label of p.labels.slice(0, 400)) {
      g.font = labelFont(label);
      const w = g.measureText(label.text).width,
        x = label.x * scale;
      const start = x - (label.anchor === "start" ? 0 : label.anchor === "end" ? w : w / 2);
      left = Math.max(left, 1 - start);
      right = Math.max(right, start + w - p.width * scale + 1);
    }
    return { left: Math.min(left, this.size.w / 3), right: Math.min(right, this.size.w / 3) };
  }

  /**
   * @param {number} factor
   * @param {number} x
   * @param {number} y in CSS pixels
   */
  zoom(factor, x, y) {
    if (!this.picture) return;
    const { ox, oy } = this;
    const now = this.scale;
    this.fit();
    const least = this.scale;
    this.scale = now;
    const next = Math.max(least, Math.min(Math.max(MAX_ZOOM * least, 4), this.scale * factor));
    this.ox = x - ((x - ox) * next) / now;
    this.oy = y - ((y - oy) * next) / now;
    this.scale = next;
    this.fitted = next <= least * 1.0001;
    if (this.fitted) this.fit();
    this.paint();
  }

  /**
   * The tile under a point, or -1.
   * @param {number} px
   * @param {number} py
   */
  tileAt(px, py) {
    const p = this.picture;
    if (!p) return -1;
    const x = (px - this.ox) / this.scale,
      y = (py - this.oy) / this.scale;
    for (let i = p.x.length - 1; i >= 0; i--) {
      if (x >= p.x[i] && y >= p.y[i] && x < p.x[i] + p.w[i] && y < p.y[i] + p.h[i]) return i;
    }
    return -1;
  }

  listen() {
    const node = this.node,
      at = (/** @type {any} */ e) => {
        const r = node.getBoundingClientRect();
        return /** @type {[number, number]} */ ([e.clientX - r.left, e.clientY - r.top]);
      };
    node.addEventListener(
      "wheel",
      (/** @type {WheelEvent} */ e) => {
        e.preventDefault();
        this.zoom(Math.exp(-e.deltaY * 0.0022), ...at(e));
      },
      { passive: false },
    );
    node.addEventListener("dblclick", () => {
      this.fit();
      this.paint();
    });
    node.addEventListener("pointerdown", (/** @type {PointerEvent} */ e) => {
      if (e.button !== 0) return;
      const [x, y] = at(e);
      this.drag = { x, y, ox: this.ox, oy: this.oy, moved: false };
      node.setPointerCapture?.(e.pointerId);
    });
    node.addEventListener("pointermove", (/** @type {PointerEvent} */ e) => this.moved(...at(e)));
    node.addEventListener("pointerup", (/** @type {PointerEvent} */ e) => {
      const drag = this.drag;
      this.drag = null;
      node.classList.remove("sv-dragging");
      if (drag && !drag.moved) this.clicked(this.tileAt(...at(e)));
    });
    node.addEventListener("pointerleave", () => {
      if (!this.drag) this.left();
    });
    node.addEventListener("pointercancel", () => {
      this.drag = null;
    });
    node.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => this.key(e));
    node.addEventListener("blur", () => {
      this.tip.hidden = true;
    });
  }

  /** @param {number} x @param {number} y */
  moved(x, y) {
    const drag = this.drag;
    if (drag) {
      if (Math.hypot(x - drag.x, y - drag.y) > 3) drag.moved = true;
      if (drag.moved) {
        this.node.classList.add("sv-dragging");
        this.ox = drag.ox + x - drag.x;
        this.oy = drag.oy + y - drag.y;
        this.fitted = false;
        this.paint();
      }
      return;
    }
    const tile = this.tileAt(x, y);
    if (tile < 0) return this.left();
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
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[
      e.key
    ];
    if (
      !this.picture ||
      !(way || ["Enter", "Escape", "Home", "End", "+", "-", "0"].includes(e.key))
    )
      return;
    e.preventDefault();
    e.stopPropagation();
    if (e.key === "Escape") {
      this.tip.hidden = true;
      return this.hooks.release();
    }
    if (e.key === "Enter") return this.cursor >= 0 ? this.hooks.pin(this.cursor) : undefined;
    if (e.key === "+" || e.key === "-")
      return this.zoom(e.key === "+" ? 1.4 : 1 / 1.4, this.size.w / 2, this.size.h / 2);
    if (e.key === "0") {
      this.fit();
      return this.paint();
    }
    if (e.key === "Home") this.cursor = 0;
    else if (e.key === "End") this.cursor = this.picture.x.length - 1;
    else if (way) this.cursor = this.cursor < 0 ? 0 : this.neighbour(this.cursor, way[0], way[1]);
    this.reveal(this.cursor);
    this.hooks.point(this.cursor);
    this.showTip(this.cursor);
  }

  /**
   * The nearest tile in a direction; the same one where there is none.
   * @param {number} from
   * @param {number} dx
   * @param {number} dy
   */
  neighbour(from, dx, dy) {
    const p = /** @type {Picture} */ (this.picture);
    const cx = p.x[from] + p.w[from] / 2,
      cy = p.y[from] + p.h[from] / 2;
    let best = from,
      least = Infinity;
    for (let i = 0; i < p.x.length; i++) {
      const vx = p.x[i] + p.w[i] / 2 - cx,
        vy = p.y[i] + p.h[i] / 2 - cy;
      const along = vx * dx + vy * dy,
        across = Math.abs(vx * dy) + Math.abs(vy * dx);
      if (along <= 0.01) continue;
      const cost = along + across * 3;
      if (cost < least) {
        least = cost;
        best = i;
      }
    }
    return best;
  }

  /**
   * Pans so that a tile is in sight.
   * @param {number} tile
   */
  reveal(tile) {
    const p = /** @type {Picture} */ (this.picture);
    const x = p.x[tile] * this.scale + this.ox,
      y = p.y[tile] * this.scale + this.oy;
    const w = p.w[tile] * this.scale,
      hgt = p.h[tile] * this.scale;
    const dx = x < 0 ? -x + GAP : x + w > this.size.w ? this.size.w - x - w - GAP : 0;
    const dy = y < 0 ? -y + GAP : y + hgt > this.size.h ? this.size.h - y - hgt - GAP : 0;
    if (dx || dy) {
      this.ox += dx;
      this.oy += dy;
      this.fitted = false;
      this.paint();
    }
  }

  /**
   * A tooltip, for a tile too small to say it all.
   * @param {number} tile
   */
  showTip(tile) {
    const p = /** @type {Picture} */ (this.picture);
    const text = this.hooks.hint?.(tile) ?? this.hooks.lines(tile).join(" · ");
    const w = p.w[tile] * this.scale,
      hgt = p.h[tile] * this.scale;
    const roomy = hgt >= 40 && w >= 66;
    this.tip.hidden = roomy || !text;
    if (this.tip.hidden) return;
    this.tip.textContent = text;
    const x = p.x[tile] * this.scale + this.ox,
      y = p.y[tile] * this.scale + this.oy;
    const left = Math.max(2, Math.min(x + w + 6, this.size.w - this.tip.offsetWidth - 4));
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${Math.max(2, Math.min(y - this.tip.offsetHeight - 4, this.size.h - this.tip.offsetHeight - 2))}px`;
  }

  /** @param {any} canvas @returns {CanvasRenderingContext2D} */
  begin(canvas) {
    const g = canvas.getContext("2d"),
      ratio = window.devicePixelRatio || 1;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, this.size.w, this.size.h);
    return g;
  }

  paint() {
    const p = this.picture;
    if (!p || !this.size.w || !this.theme) return;
    const seen = [
      p,
      this.groups,
      this.count,
      this.theme.name,
      this.scale,
      this.ox,
      this.oy,
      this.base.width,
      this.base.height,
      p.hue,
    ];
    if (this.seen && seen.every((v, i) => v === this.seen?.[i])) return;
    this.seen = seen;
    const g = this.begin(this.base);
    const colours = tileColours(this.groups ?? p.group, this.count, p.hue, this.theme);
    const groups = this.groups ?? p.group;
    if (p.edges) this.edges(g, p.edges, colours);
    if (this.tiny()) this.dust(g, groups, colours);
    else
      for (let i = 0; i < p.x.length; i++)
        this.tile(
          g,
          i,
          colours.soft(groups[i]),
          colours.line(groups[i]),
          1,
          colours.ink(groups[i]),
        );
    this.frames(g);
    this.labels(g);
    this.paintMarks();
  }

  paintMarks() {
    const p = this.picture;
    if (!p || !this.size.w || !this.theme) return;
    const g = this.begin(this.over);
    const groups = this.groups ?? p.group;
    const colours = tileColours(groups, this.count, p.hue, this.theme);
    const { strong, soft } = this.marks,
      small = p.x.length > 0 && Math.min(p.w[0], p.h[0]) * this.scale < 9;
    if ((colours.many && strong.size) || ((colours.many || small) && soft.size)) {
      // A ramp leaves no stronger colour to mark with, and small tiles no room: the rest steps back instead.
      g.globalAlpha = soft.size ? 0.5 : 0.3;
      g.fillStyle = this.theme.paper;
      for (let i = 0; i < p.x.length; i++) if (!soft.has(i) && !strong.has(i)) this.veil(g, i);
      g.globalAlpha = 1;
    }
    for (const i of soft) {
      if (strong.has(i) || i >= p.x.length) continue;
      if (small)
        this.tile(
          g,
          i,
          mix(colours.strong(groups[i]), this.theme.ink, 0.5),
          this.theme.ink,
          1,
          this.theme.ink,
        );
      else
        this.tile(
          g,
          i,
          colours.mid(groups[i]),
          colours.strong(groups[i]),
          1,
          colours.inkMid(groups[i]),
        );
    }
    for (const i of strong)
      if (i < p.x.length)
        this.tile(
          g,
          i,
          colours.strong(groups[i]),
          this.theme.ink,
          2,
          inkOn(colours.strong(groups[i])),
        );
    const f = p.frames[this.marks.frame];
    if (f) {
      g.strokeStyle = this.theme.ink;
      g.lineWidth = 1.5;
      g.strokeRect(
        f.x * this.scale + this.ox,
        f.y * this.scale + this.oy,
        f.width * this.scale,
        f.height * this.scale,
      );
    }
  }

  /**
   * Whether tiles are too small for borders and words; all of a picture's tiles are of one size.
   */
  tiny() {
    const p = /** @type {Picture} */ (this.picture);
    return p.x.length > 16384 && p.w[0] * this.scale < 5 && p.h[0] * this.scale < 5;
  }

  /**
   * The strokes under the tiles: one path for each colour and width.
   * @param {CanvasRenderingContext2D} g
   * @param {any} edges
   * @param {any} colours
   */
  edges(g, edges, colours) {
    const s = this.scale,
      { ox, oy } = this,
      { w, h: hgt } = this.size;
    /** @type {Map<string, number[]>} */
    const paths = new Map();
    for (let i = 0; i < edges.count; i++) {
      const key = `${edges.group[i]}|${Math.round(edges.width[i] * 2) / 2}`,
        list = paths.get(key);
      if (list) list.push(i);
      else paths.set(key, [i]);
    }
    g.lineCap = "round";
    for (const [key, list] of paths) {
      const [group, width] = key.split("|").map(Number);
      g.strokeStyle =
        group === -1
          ? mix(this.theme.muted, this.theme.paper, 0.4)
          : group === -2
            ? this.theme.muted
            : colours.strong(group);
      g.lineWidth = Math.max(0.75, width * Math.min(1.5, s));
      g.beginPath();
      for (const i of list) {
        const x0 = edges.x0[i] * s + ox,
          y0 = edges.y0[i] * s + oy,
          x1 = edges.x1[i] * s + ox,
          y1 = edges.y1[i] * s + oy;
        if (
          Math.max(x0, x1) < 0 ||
          Math.max(y0, y1) < 0 ||
          Math.min(x0, x1) > w ||
          Math.min(y0, y1) > hgt
        )
          continue;
        g.moveTo(x0, y0);
        g.lineTo(x1, y1);
      }
      g.stroke();
    }
    g.lineCap = "butt";
  }

  /**
   * Very many small tiles, pixel by pixel: a call a rectangle would cost more than a frame. Each
   * tile reaches to the next whole pixel, so that neighbours leave no seams.
   * @param {CanvasRenderingContext2D} g
   * @param {ArrayLike<number>} groups
   * @param {any} colours
   */
  dust(g, groups, colours) {
    const p = /** @type {Picture} */ (this.picture),
      ratio = window.devicePixelRatio || 1;
    const { width, height } = this.base,
      image = g.createImageData(width, height),
      pixels = new Uint32Array(image.data.buffer);
    const s = this.scale * ratio,
      ox = this.ox * ratio,
      oy = this.oy * ratio;
    const w = p.w[0] * s,
      hgt = p.h[0] * s;
    /** @type {Map<number, number>} */
    const inks = new Map();
    for (let i = 0; i < p.x.length; i++) {
      const x0 = Math.max(0, Math.round(p.x[i] * s + ox)),
        y0 = Math.max(0, Math.round(p.y[i] * s + oy));
      const x1 = Math.min(width, Math.max(x0 + 1, Math.ceil(p.x[i] * s + ox + w))),
        y1 = Math.min(height, Math.max(y0 + 1, Math.ceil(p.y[i] * s + oy + hgt)));
      let ink = inks.get(groups[i]);
      if (ink === undefined) {
        const hex = colours.soft(groups[i]);
        ink =
          (0xff000000 |
            (parseInt(hex.slice(5, 7), 16) << 16) |
            (parseInt(hex.slice(3, 5), 16) << 8) |
            parseInt(hex.slice(1, 3), 16)) >>>
          0;
        inks.set(groups[i], ink);
      }
      for (let y = y0; y < y1; y++) pixels.fill(ink, y * width + x0, y * width + x1);
    }
    g.putImageData(image, 0, 0);
  }

  /** @param {CanvasRenderingContext2D} g @param {number} i */
  veil(g, i) {
    const p = /** @type {Picture} */ (this.picture),
      s = this.scale;
    g.fillRect(p.x[i] * s + this.ox, p.y[i] * s + this.oy, p.w[i] * s + 0.5, p.h[i] * s + 0.5);
  }

  /**
   * @param {CanvasRenderingContext2D} g
   * @param {number} i
   * @param {string} body
   * @param {string} line
   * @param {number} width
   * @param {string} ink
   */
  tile(g, i, body, line, width, ink) {
    const p = /** @type {Picture} */ (this.picture),
      s = this.scale;
    const x = p.x[i] * s + this.ox,
      y = p.y[i] * s + this.oy,
      w = p.w[i] * s,
      hgt = p.h[i] * s;
    if (x > this.size.w || y > this.size.h || x + w < 0 || y + hgt < 0) return;
    g.fillStyle = body;
    if (w < 5 || hgt < 5) {
      // Too small for a border: a hair wider, so that neighbours leave no seams.
      g.fillRect(x, y, Math.max(w, 1), Math.max(hgt, 1));
      if (width > 1) {
        g.strokeStyle = line;
        g.lineWidth = 1.5;
        g.strokeRect(x - 1, y - 1, Math.max(w, 1) + 2, Math.max(hgt, 1) + 2);
      }
      return;
    }
    const inset = width / 2,
      r = w < 26 || hgt < 14 ? 0 : Math.min(5, w / 6, hgt / 5);
    if (!r) {
      // Plain rectangles: round ones by the hundred cost the browser most of a frame.
      g.fillRect(x, y, w, hgt);
      g.strokeStyle = line;
      g.lineWidth = width;
      g.strokeRect(x + inset, y + inset, w - width, hgt - width);
      return this.words(g, i, x, y, w, hgt, ink);
    }
    g.beginPath();
    if (g.roundRect && r > 1) g.roundRect(x + inset, y + inset, w - width, hgt - width, r);
    else g.rect(x + inset, y + inset, w - width, hgt - width);
    g.fill();
    g.strokeStyle = line;
    g.lineWidth = width;
    g.stroke();
    this.words(g, i, x, y, w, hgt, ink);
  }

  /**
   * What stands inside a tile, as much as fits.
   * @param {CanvasRenderingContext2D} g
   * @param {number} i
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} hgt
   * @param {string} ink
   */
  words(g, i, x, y, w, hgt, ink) {
    if (w < 12 || hgt < 11) return;
    const lines = this.hooks.lines(i);
    if (!lines.length) return;
    const corner = this.hooks.corner?.(i) ?? "";
    g.fillStyle = ink;
    g.textBaseline = "middle";
    const roomy = hgt >= 40 && w >= 66,
      size = roomy ? 13 : Math.min(12, hgt - 3);
    g.font = `600 ${size}px ${FONT}`;
    const first = fitText(g, lines[0], w - 6);
    if (!first) return;
    if (!roomy || this.hooks.corner === undefined) {
      const second = roomy && lines[1] ? lines[1] : "";
      g.textAlign = "center";
      g.fillText(first, x + w / 2, y + hgt / 2 - (second ? 8 : 0));
      if (second) this.small(g, second, x + w / 2, y + hgt / 2 + 9, w - 8, "center");
      return;
    }
    g.textAlign = "left";
    g.fillText(first, x + 10, y + Math.min(17, hgt * 0.36));
    if (corner) this.small(g, corner, x + w - 9, y + Math.min(17, hgt * 0.36), w / 2, "right");
    if (lines[1])
      this.small(g, lines[1], x + 10, y + hgt - Math.min(14, hgt * 0.3), w - 18, "left");
  }

  /**
   * @param {CanvasRenderingContext2D} g
   * @param {string} text
   * @param {number} x
   * @param {number} y
   * @param {number} room
   * @param {CanvasTextAlign} align
   */
  small(g, text, x, y, room, align) {
    g.font = `400 11px ${FONT}`;
    const fitted = fitText(g, text, room);
    g.textAlign = align;
    g.globalAlpha = 0.85;
    if (fitted) g.fillText(fitted, x, y);
    g.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} g */
  frames(g) {
    const p = /** @type {Picture} */ (this.picture),
      s = this.scale;
    const pale = mix(this.theme.muted, this.theme.paper, 0.55);
    g.lineWidth = 1;
    for (const f of p.frames) {
      if (f.width * s < 6 || f.height * s < 6) continue;
      // Around a few pixels a full stroke would be all that one sees.
      g.strokeStyle = Math.min(f.width, f.height) * s < 30 ? pale : this.theme.muted;
      g.setLineDash(f.dashed ? [3, 3] : []);
      g.strokeRect(f.x * s + this.ox, f.y * s + this.oy, f.width * s, f.height * s);
    }
    g.setLineDash([]);
  }

  /**
   * Labels keep their size at any zoom; one that would cover another is left out, and of numbers
   * along an axis the whole row, since one of them alone says nothing.
   * @param {CanvasRenderingContext2D} g
   */
  labels(g) {
    const p = /** @type {Picture} */ (this.picture);
    /**
     * @type {Array<{box: [number, number, number, number], y: number, number: boolean, draw: () =>
     * void}>}
     */
    const placed = [];
    const covered = new Set();
    g.textBaseline = "middle";
    for (const label of p.labels) {
      g.font = labelFont(label);
      const x = label.x * this.scale + this.ox,
        y = label.y * this.scale + this.oy;
      const w = g.measureText(label.text).width,
        left = x - (label.anchor === "start" ? 0 : label.anchor === "end" ? w : w / 2);
      /** @type {[number, number, number, number]} */
      const box = [left - 3, y - 6, left + w + 3, y + 6];
      if (box[2] < 0 || box[0] > this.size.w) continue;
      const under = placed.find(
        ({ box: b }) => b[0] < box[2] && box[0] < b[2] && b[1] < box[3] && box[1] < b[3],
      );
      const number = /^\d+$/.test(label.text);
      if (under && number && under.y !== y) covered.add(y);
      if (!under) placed.push({ box, y, draw: () => this.writeLabel(g, label, x, y), number });
    }
    for (const one of placed) if (!(one.number && covered.has(one.y))) one.draw();
  }

  /**
   * @param {CanvasRenderingContext2D} g
   * @param {any} label
   * @param {number} x
   * @param {number} y
   */
  writeLabel(g, label, x, y) {
    g.font = labelFont(label);
    g.fillStyle = label.role === "title" ? this.theme.ink : this.theme.muted;
    g.textAlign = label.anchor === "start" ? "left" : label.anchor === "end" ? "right" : "center";
    g.fillText(label.text, x, y);
  }
}

/**
 * The text, or as much of a long one as fits with an ellipsis, or nothing.
 * @param {CanvasRenderingContext2D} g
 * @param {string} text
 * @param {number} room
 */
function fitText(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  const letter = g.measureText("0").width,
    fits = Math.floor(room / letter) - 1;
  return fits >= 12 ? `${text.slice(0, fits)}…` : "";
}

/** @param {any} label */
function labelFont(label) {
  const title = label.role === "title";
  return `${title ? 600 : 400} ${title ? 12 : 11}px ${label.role === "mono" ? MONO : FONT}`;
}
