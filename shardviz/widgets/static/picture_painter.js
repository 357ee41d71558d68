// @ts-check
// Paints one Picture on two canvases, one for the tiles and one for what stands out among them.
// The picture comes ready from Python (`shardviz/picture`); this adds colours and marks.
import { axisColour, mix, softPixel, textOn, tileColours } from "./colours.js";
import { h } from "./dom.js";
import { FONT, SANS, contentOf, marginsOf, paintRulers, textWidth } from "./rulers.js";

/** @typedef {import("./picture_data.js").Picture} Picture */
/** @typedef {import("./colours.js").Theme} Theme */
/** @typedef {import("./picture_data.js").Label} Label */
/** @typedef {CanvasRenderingContext2D} Context */
/** @typedef {{x: number, y: number, w: number, h: number}} Box in CSS pixels */
/** @typedef {{fill: string, line: string, width: number, text: string}} TileStyle */
/**
 * The tiles and the frame that stand out.
 * @typedef {{strong: Set<number>, soft: Set<number>, frame: number}} Marks
 */
/** The lines of text in a tile. @typedef {{lines: (tile: number) => string[]}} TileTexts */
/**
 * What tiles move from: their boxes and fills before, and when they began to.
 * @typedef {{boxes: Box[], fills: string[], start: number}} Motion
 */

const MANY_TILES = 16384; // beyond so many, small tiles are painted pixel by pixel
const LEAST_FILLED = 0.9; // of the canvas, both ways; what would take less is not to scale
const ASPECTS = [1 / 3, 3]; // of tiles that may have any
const MOST_SHAPED = 1024; // tiles; of more, nobody sees the shape of one
const MOST_MOVED = 4096; // tiles
const MOVE_MS = 250;
const STRIP = 120; // pixels: a row of blocks is no higher
const LETTERS = [13, 12, 11, 10, 9]; // pixels
const NO_GROUP = -1; // as in picture/shapes.py
const MANY_GROUPS = -2;
const FRAME_FONT = `10px ${SANS}`;

export class PicturePainter {
  /** @param {TileTexts} texts */
  constructor(texts) {
    this.texts = texts;
    this.base = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    this.over = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    /** @type {Picture | null} */ this.picture = null;
    /** @type {Marks} */ this.marks = { strong: new Set(), soft: new Set(), frame: -1 };
    /** @type {Theme | null} */ this.theme = null;
    /** @type {Int32Array | null} */ this.groups = null;
    this.count = 1;
    /** The true width of a tile over its height; 0 where it has none. */
    this.aspect = 0;
    this.toScale = true;
    /** @type {Motion | null} */ this.motion = null;
    this.progress = 1; // how far tiles have come: 1 where they stand still
    this.sx = 1; // pixels per point across, and down
    this.sy = 1;
    this.ox = 0;
    this.oy = 0;
    this.fitted = true;
    this.size = { w: 0, h: 0 };
    /**
     * What the canvas shows, so that nothing is painted twice.
     * @type {unknown[] | null}
     */
    this.painted = null;
  }

  /** Gives the canvases a size in CSS pixels. @param {number} w @param {number} height */
  resize(w, height) {
    this.size = { w, h: height };
    this.painted = null;
    const ratio = window.devicePixelRatio || 1;
    for (const layer of [this.base, this.over]) {
      layer.width = Math.round(w * ratio);
      layer.height = Math.round(height * ratio);
    }
  }

  /**
   * Chooses the scales at which the picture fills the canvas: tiles may be stretched, those of an
   * array only as far as makes it much larger.
   */
  fit() {
    const { picture: p, size } = this;
    if (!p || !size.w) return;
    const box = contentOf(p);
    const { left, top, right, bottom } = this.margins();
    this.sx = Math.max(1, size.w - left - right) / Math.max(1, box.right - box.left);
    this.sy = Math.max(1, size.h - top - bottom) / Math.max(1, box.bottom - box.top);
    // Chips and their links are not stretched.
    if (p.edges || p.labels.length) this.sx = this.sy = Math.min(this.sx, this.sy);
    else if (p.x.length) this.shape(p);
    this.ox = left - box.left * this.sx;
    this.oy = top - box.top * this.sy;
    this.fitted = true;
  }

  /** Gives tiles their proportion. @param {Picture} p */
  shape(p) {
    this.toScale = true;
    const full = (p.w[0] * this.sx) / (p.h[0] * this.sy);
    let aspect = full;
    if (this.aspect) aspect = clamp(this.aspect, full * LEAST_FILLED, full / LEAST_FILLED);
    else if (p.x.length <= MOST_SHAPED) aspect = clamp(full, ASPECTS[0], ASPECTS[1]);
    // One row is a strip.
    if (!isFinite(this.aspect)) {
      const { top, bottom } = contentOf(p);
      this.sy = Math.min(this.sy, STRIP / (bottom - top));
      return;
    }
    this.toScale = !this.aspect || Math.abs(aspect / this.aspect - 1) < 0.05;
    if (aspect < full) this.sx *= aspect / full;
    else this.sy *= full / aspect;
  }

  /** What is around the tiles, in CSS pixels. */
  margins() {
    const none = { left: 1, top: 1, right: 2, bottom: 2 };
    return this.picture ? marginsOf(contextOf(this.base), this.picture) : none;
  }

  /** Where a tile is on the canvas. @param {Picture} p @param {number} i @returns {Box} */
  boxOf(p, i) {
    const { sx, sy, ox, oy } = this;
    return { x: p.x[i] * sx + ox, y: p.y[i] * sy + oy, w: p.w[i] * sx, h: p.h[i] * sy };
  }

  /**
   * Where a tile is painted: on its way, while it moves.
   * @param {Picture} p
   * @param {number} i
   */
  movedBox(p, i) {
    const to = this.boxOf(p, i);
    const from = this.motion?.boxes[i];
    if (!from) return to;
    const at = (/** @type {keyof Box} */ key) => from[key] + (to[key] - from[key]) * this.progress;
    return { x: at("x"), y: at("y"), w: at("w"), h: at("h") };
  }

  /**
   * From where the tiles of the next picture move, if they do.
   * @param {Picture} next
   * @param {(tile: number) => number} before which tile each of them was; -1 for none
   * @returns {Motion | null}
   */
  movedFrom(next, before) {
    const { picture: p, theme, size } = this;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || !p || !theme || !size.w) return null;
    if (Math.max(p.x.length, next.x.length) > MOST_MOVED) return null;
    const groups = this.groups ?? p.group;
    const { soft } = tileColours(this.count, p.colormap, theme, p.shades);
    /** @type {Motion} */
    const from = { boxes: [], fills: [], start: performance.now() };
    for (let i = 0; i < next.x.length; i++) {
      const tile = before(i);
      if (!(tile >= 0 && tile < p.x.length)) continue;
      from.boxes[i] = this.movedBox(p, tile);
      from.fills[i] = soft(groups[tile]);
    }
    return from;
  }

  /** Moves the tiles to where they are; null ends what moves. @param {Motion | null} from */
  move(from) {
    this.motion = from;
    this.progress = from ? 0 : 1;
    const step = () => {
      if (!from || this.motion !== from) return;
      const part = Math.min(1, (performance.now() - from.start) / MOVE_MS);
      this.progress = part * (2 - part);
      if (part === 1) this.motion = null;
      this.paint();
      requestAnimationFrame(step);
    };
    if (from) requestAnimationFrame(step);
  }

  /** A layer, emptied. @param {HTMLCanvasElement} canvas */
  begin(canvas) {
    const g = contextOf(canvas);
    const ratio = window.devicePixelRatio || 1;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, this.size.w, this.size.h);
    return g;
  }

  paint() {
    const { picture: p, theme } = this;
    if (!p || !this.size.w || !theme) return;
    const { groups: own, count, sx, sy, ox, oy, base, progress } = this;
    const look = [p, own, count, theme.name, p.colormap, progress];
    const now = [...look, sx, sy, ox, oy, base.width, base.height];
    if (this.painted && now.every((v, i) => v === this.painted?.[i])) return;
    this.painted = now;
    const g = this.begin(base);
    const groups = own ?? p.group;
    const colours = tileColours(count, p.colormap, theme, p.shades);
    if (p.edges) this.edges(g, p.edges, theme);
    if (this.tiny(p)) this.pixels(g, p, groups, colours);
    else {
      for (let i = 0; i < p.x.length; i++) {
        const group = groups[i];
        const [soft, line] = [colours.soft(group), colours.line(group)];
        const from = this.motion?.fills[i];
        const fill = from ? mix(soft, from, this.progress) : soft;
        this.tile(g, p, i, { fill, line, width: 1, text: colours.text(group) });
      }
    }
    this.frames(g, p, theme);
    this.labels(g, p, theme);
    this.rulers(g, p, theme);
    this.paintMarks();
  }

  paintMarks() {
    const { picture: p, theme } = this;
    if (!p || !this.size.w || !theme) return;
    const g = this.begin(this.over);
    const groups = this.groups ?? p.group;
    const colours = tileColours(this.count, p.colormap, theme, p.shades);
    const { strong, soft } = this.marks;
    const small = p.x.length > 0 && Math.min(p.w[0] * this.sx, p.h[0] * this.sy) < 9;
    if ((colours.many && strong.size) || ((colours.many || small) && soft.size))
      this.fade(g, p, theme);
    for (const i of soft) {
      if (strong.has(i) || i >= p.x.length) continue;
      const full = colours.strong(groups[i]);
      const style = small
        ? { fill: mix(full, theme.text, 0.5), line: theme.text, text: theme.text }
        : { fill: colours.mid(groups[i]), line: theme.text, text: colours.textMid(groups[i]) };
      this.tile(g, p, i, { ...style, width: 1.5 });
    }
    for (const i of strong) {
      if (i >= p.x.length) continue;
      const fill = colours.strong(groups[i]);
      this.tile(g, p, i, { fill, line: theme.text, width: 3, text: textOn(fill, theme) });
    }
    this.markFrame(g, p, theme);
  }

  /**
   * Makes the tiles without a mark pale: a ramp has no stronger colour to mark with, and small
   * tiles have no space for an outline.
   * @param {Context} g
   * @param {Picture} p
   * @param {Theme} theme
   */
  fade(g, p, theme) {
    const { strong, soft } = this.marks;
    g.globalAlpha = soft.size ? 0.5 : 0.3;
    g.fillStyle = theme.paper;
    for (let i = 0; i < p.x.length; i++) {
      if (soft.has(i) || strong.has(i)) continue;
      const b = this.boxOf(p, i);
      g.fillRect(b.x, b.y, b.w + 0.5, b.h + 0.5);
    }
    g.globalAlpha = 1;
  }

  /** @param {Context} g @param {Picture} p @param {Theme} theme */
  markFrame(g, p, theme) {
    const f = p.frames[this.marks.frame];
    if (!f) return;
    const { sx, sy } = this;
    g.strokeStyle = theme.text;
    g.lineWidth = 1.5;
    g.strokeRect(f.x * sx + this.ox, f.y * sy + this.oy, f.width * sx, f.height * sy);
  }

  /**
   * Whether there are so many tiles, too small for borders and text, that they are painted pixel by
   * pixel. All tiles of a picture have one size.
   * @param {Picture} p
   */
  tiny(p) {
    return p.x.length > MANY_TILES && p.w[0] * this.sx < 5 && p.h[0] * this.sy < 5;
  }

  /**
   * The strokes under the tiles, in the colours of mesh axes: one path for each colour and width.
   * @param {Context} g
   * @param {NonNullable<Picture["edges"]>} edges
   * @param {Theme} theme
   */
  edges(g, edges, theme) {
    const { sx, sy, ox, oy, size } = this;
    /** @type {Map<string, number[]>} */
    const paths = new Map();
    for (let i = 0; i < edges.count; i++) {
      const key = `${edges.group[i]}|${Math.round(edges.width[i] * 2) / 2}`;
      const list = paths.get(key);
      if (list) list.push(i);
      else paths.set(key, [i]);
    }
    const unused = mix(theme.muted, theme.paper, 0.4);
    g.lineCap = "round";
    for (const [key, list] of paths) {
      const [group, width] = key.split("|").map(Number);
      const colour = group === MANY_GROUPS ? theme.muted : axisColour(group, theme);
      g.strokeStyle = group === NO_GROUP ? unused : colour;
      // Links that carry nothing are thin, and the finer the paler.
      g.globalAlpha = width < 1 ? clamp(width * sx, 0.2, 0.6) : 1;
      g.lineWidth = Math.max(0.75, width * Math.min(1.5, sx));
      g.beginPath();
      for (const i of list) {
        const [x0, x1] = [edges.x0[i] * sx + ox, edges.x1[i] * sx + ox];
        const [y0, y1] = [edges.y0[i] * sy + oy, edges.y1[i] * sy + oy];
        if (Math.max(x0, x1) < 0 || Math.min(x0, x1) > size.w) continue;
        if (Math.max(y0, y1) < 0 || Math.min(y0, y1) > size.h) continue;
        g.moveTo(x0, y0);
        g.lineTo(x1, y1);
      }
      g.stroke();
    }
    g.lineCap = "butt";
    g.globalAlpha = 1;
  }

  /**
   * Very many small tiles, pixel by pixel: a call per rectangle would take longer than a frame.
   * Each tile reaches to the next whole pixel, so that there is no gap to its neighbours.
   * @param {Context} g
   * @param {Picture} p
   * @param {ArrayLike<number>} groups
   * @param {import("./colours.js").TileColours} colours
   */
  pixels(g, p, groups, colours) {
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = this.base;
    const image = g.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const [sx, sy] = [this.sx * ratio, this.sy * ratio];
    const [ox, oy] = [this.ox * ratio, this.oy * ratio];
    const w = p.w[0] * sx;
    const tall = p.h[0] * sy;
    const pixelOf = softPixel(colours);
    for (let i = 0; i < p.x.length; i++) {
      const left = p.x[i] * sx + ox;
      const top = p.y[i] * sy + oy;
      const x0 = Math.max(0, Math.round(left));
      const y0 = Math.max(0, Math.round(top));
      const x1 = Math.min(width, Math.max(x0 + 1, Math.ceil(left + w)));
      const y1 = Math.min(height, Math.max(y0 + 1, Math.ceil(top + tall)));
      const colour = pixelOf(groups[i]);
      for (let y = y0; y < y1; y++) {
        // A call of fill would take longer than these few pixels.
        for (let at = y * width + x0; at < y * width + x1; at++) pixels[at] = colour;
      }
    }
    g.putImageData(image, 0, 0);
  }

  /**
   * @param {Context} g
   * @param {Picture} p
   * @param {number} i
   * @param {TileStyle} style
   */
  tile(g, p, i, style) {
    const box = this.movedBox(p, i);
    const { x, y, w, h: tall } = box;
    const { line, width } = style;
    if (x > this.size.w || y > this.size.h || x + w < 0 || y + tall < 0) return;
    g.fillStyle = style.fill;
    if (w < 5 || tall < 5) {
      // Too small for a border; at least one pixel, so that it can be seen.
      const [least, high] = [Math.max(w, 1), Math.max(tall, 1)];
      g.fillRect(x, y, least, high);
      if (width > 1) outline(g, { x: x - 1, y: y - 1, w: least + 2, h: high + 2 }, line, 1.5);
      return;
    }
    const inside = { x: x + width / 2, y: y + width / 2, w: w - width, h: tall - width };
    const radius = w < 26 || tall < 14 ? 0 : Math.min(5, w / 6, tall / 5);
    if (!radius) {
      // Plain rectangles: hundreds of round ones take most of a frame.
      g.fillRect(x, y, w, tall);
      outline(g, inside, line, width);
    } else {
      g.beginPath();
      if (radius > 1) g.roundRect(inside.x, inside.y, inside.w, inside.h, radius);
      else g.rect(inside.x, inside.y, inside.w, inside.h);
      g.fill();
      g.strokeStyle = line;
      g.lineWidth = width;
      g.stroke();
    }
    this.tileText(g, i, box, style.text);
  }

  /**
   * The size of letters, as large as the last tile's, which are mostly the most, fit in any tile.
   * @param {number} tall
   * @param {number} wide
   */
  letters(tall, wide) {
    const [text = ""] = this.texts.lines((this.picture?.x.length ?? 1) - 1);
    const most = wide - Math.min(10, wide / 4);
    const g = contextOf(this.base);
    const font = (/** @type {number} */ size) => `600 ${size}px ${SANS}`;
    const fits = (/** @type {number} */ size) =>
      size + 3 <= tall && textWidth(g, text, font(size)) <= most;
    // As many as fit of a long text are in letters that can be read.
    return LETTERS.find(fits) ?? Math.min(11, tall - 3);
  }

  /**
   * The text in a tile, as much as fits.
   * @param {Context} g
   * @param {number} i
   * @param {Box} box
   * @param {string} colour
   */
  tileText(g, i, { x, y, w, h: tall }, colour) {
    if (w < 12 || tall < 11) return;
    const lines = this.texts.lines(i);
    if (!lines.length) return;
    const size = this.letters(tall, w);
    const more = isLarge(w, tall) && lines[1] && textWidth(g, lines[1], FONT) <= w - 8;
    g.fillStyle = colour;
    g.textBaseline = "middle";
    g.textAlign = "center";
    g.font = `600 ${size}px ${SANS}`;
    g.fillText(fitText(g, lines[0], w - 4), x + w / 2, y + tall / 2 - (more ? 8 : 0));
    if (!more) return;
    g.font = FONT;
    g.fillText(lines[1], x + w / 2, y + tall / 2 + 9);
  }

  /** @param {Context} g @param {Picture} p @param {Theme} theme */
  frames(g, p, theme) {
    const { sx, sy, ox, oy } = this;
    const pale = mix(theme.muted, theme.paper, 0.55);
    g.lineWidth = 1;
    g.textAlign = "left";
    g.textBaseline = "middle";
    for (const f of p.frames) {
      const box = { x: f.x * sx + ox, y: f.y * sy + oy, w: f.width * sx, h: f.height * sy };
      if (box.w < 6 || box.h < 6) continue;
      // Around a few pixels a full stroke would be all that one sees.
      g.setLineDash(f.dashed ? [3, 3] : []);
      outline(g, box, Math.min(box.w, box.h) < 30 ? pale : theme.muted, 1);
      const wide = textWidth(g, f.label, FRAME_FONT);
      if (!f.named || wide + 16 > box.w || box.h < 24) continue;
      g.fillStyle = theme.paper;
      g.fillRect(box.x + 6, box.y - 6, wide + 6, 12);
      g.fillStyle = theme.muted;
      g.font = FRAME_FONT;
      g.fillText(f.label, box.x + 9, box.y);
    }
    g.setLineDash([]);
  }

  /** Labels of chips and slices, less those that would cover another. @param {Context} g @param {Picture} p @param {Theme} theme */
  labels(g, p, theme) {
    const box = contentOf(p);
    let [free, row] = [-Infinity, NaN];
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillStyle = theme.muted;
    for (const { x, y, text, anchor } of p.labels) {
      const inside = clamp(y, box.top, box.bottom);
      const line = inside * this.sy + this.oy + y - inside;
      const wide = textWidth(g, text);
      const back = { start: 0, middle: wide / 2, end: wide }[anchor];
      const left = Math.min(x * this.sx + this.ox - back, this.size.w - wide - 2);
      if (line === row && left < free) continue;
      [row, free] = [line, left + wide + 4];
      g.font = FONT;
      g.fillText(text, left, line);
    }
  }

  /** In a zoomed picture rulers stay at the edges of the canvas. @param {Context} g @param {Picture} p @param {Theme} theme */
  rulers(g, p, theme) {
    const { sx, sy, ox, oy, size } = this;
    const box = contentOf(p);
    const { left, top } = this.margins();
    const [x, y] = [Math.max(left, box.left * sx + ox), Math.max(top, box.top * sy + oy)];
    if (!this.fitted && p.rulers.length) {
      g.fillStyle = theme.paper;
      g.fillRect(0, 0, size.w, y);
      g.fillRect(0, 0, left > 1 ? x : 0, size.h);
    }
    const across = { origin: ox, from: x, to: size.w - 1, scale: sx, line: y };
    const down = { origin: oy, from: y, to: size.h - 1, scale: sy, line: x };
    paintRulers(g, p.rulers, { across, down }, theme);
  }
}

/** Whether a tile of this size shows all of its text. @param {number} w @param {number} tall */
export function isLarge(w, tall) {
  return tall >= 40 && w >= 66;
}

/** @param {HTMLCanvasElement} canvas */
function contextOf(canvas) {
  return /** @type {Context} */ (canvas.getContext("2d"));
}

/** @param {Context} g @param {Box} box @param {string} colour @param {number} width */
function outline(g, box, colour, width) {
  g.strokeStyle = colour;
  g.lineWidth = width;
  g.strokeRect(box.x, box.y, box.w, box.h);
}

/**
 * The text, or as much of a long one as fits with an ellipsis, or nothing.
 * @param {Context} g
 * @param {string} text
 * @param {number} width
 */
function fitText(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  const letter = g.measureText("0").width;
  const fits = Math.floor(width / letter) - 1;
  return fits >= 12 ? `${text.slice(0, fits)}…` : "";
}

/** @param {number} value @param {number} least @param {number} most */
export function clamp(value, least, most) {
  return Math.max(least, Math.min(value, most));
}
