// @ts-check
// Paints a Picture on two canvases, one for all tiles and one for marked tiles.
// Python computes the picture (`shardviz/draw`); this module adds colours and marks.
import { axisColour, mix, tileColours } from "./colours.js";
import { h } from "./dom.js";
import { readPicture } from "./picture_data.js";
import { FONT, SANS, marginsOf, paintRulers, textWidth } from "./rulers.js";

/** @typedef {import("./picture_data.js").Picture} Picture */
/** @typedef {import("./colours.js").Theme} Theme */
/** @typedef {CanvasRenderingContext2D} Context */
/** @typedef {{x: number, y: number, w: number, h: number}} Box mostly in CSS pixels */
/**
 * The marked tiles, and the index of the marked frame (-1 for none).
 * @typedef {{strong: Set<number>, soft: Set<number>, frame: number}} Marks
 */
/**
 * The start of an animation: previous box and fill of each tile, and the start time.
 * @typedef {{boxes: Box[], fills: string[], start: number}} Motion
 */

const NO_TILES = { count: 0, x: 0, y: 0, width: 0, height: 0 };
const NO_PICTURE = readPicture({ data: { width: 0, height: 0, tiles: NO_TILES } });
const MANY_TILES = 16384; // with more tiles than this, small tiles are painted pixel by pixel
const LEAST_FILLED = 0.9; // share of width and height to fill, even if tiles get another aspect ratio
const ASPECTS = [1 / 3, 3]; // limits for tiles without a given aspect ratio
const MOST_SHAPED = 1024; // with more tiles than this, tile shapes are too small to see
const TILE_GAP = 12; // the largest gap between stretched tiles, in pixels
const MOVE_MS = 250;
const STRIP = 120; // the largest height of a single row of blocks, in pixels
const LETTERS = [13, 12, 11, 10, 9]; // pixels
// As in draw/paint.py: a band is this share of its tile, and at most so many pixels wide.
const BAND_SHARE = 0.14;
const WIDEST_BAND = 11;
const LEAST_BANDED = 6; // pixels: smaller tiles have no bands
const NO_GROUP = -1; // as in draw/picture.py
const MANY_GROUPS = -2;
const FRAME_FONT = `10px ${SANS}`;

/** @returns {Marks} */
export const noMarks = () => ({ strong: new Set(), soft: new Set(), frame: -1 });

export class PicturePainter {
  /** @param {import("./picture_view.js").Hooks} hooks */
  constructor(hooks) {
    this.hooks = hooks;
    this.base = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    this.over = h("canvas", { class: "sv-layer", "aria-hidden": "true" });
    this.picture = NO_PICTURE;
    this.marks = noMarks();
    /** Set by the first call of `show`; nothing is painted before that. @type {Theme} */
    this.theme;
    /** The true aspect ratio of a tile; 0 if tiles have none. */
    this.aspect = 0;
    this.toScale = true;
    /** @type {Motion | null} */ this.motion = null;
    this.progress = 1; // progress of the animation; 1 at rest
    this.sx = 1; // scales across (`sx`) and down (`sy`), in pixels per point
    this.sy = 1;
    this.ox = 0;
    this.oy = 0;
    this.fitted = true;
    /** The distance by which each tile is enlarged on each side, in points. */
    this.grown = { x: 0, y: 0 };
    this.size = { w: 0, h: 0 };
    /** The inputs of the last painting, to skip repainting the same. @type {unknown[] | null} */
    this.painted = null;
  }

  /** Resizes the canvases, in CSS pixels. @param {number} w @param {number} height */
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
   * Chooses the scales at which the picture fills the canvas. Tiles can be stretched. Tiles of an
   * array are stretched only if that makes the picture much larger.
   */
  fit() {
    const { picture: p, size } = this;
    if (!size.w) return;
    const { box } = p;
    const { left, top, right, bottom } = this.margins();
    // Gaps shrink only without frames: with hosts, tiles keep their distance from the frames.
    const few = p.x.length <= MOST_SHAPED && !p.edges && !p.frames.length;
    const [across, down] = few ? [gapOf(p.x, p.w[0]), gapOf(p.y, p.h[0])] : [0, 0];
    this.sx = scaleOf(size.w - left - right, box.right - box.left, across);
    this.sy = scaleOf(size.h - top - bottom, box.bottom - box.top, down);
    // Chips and their links are not stretched.
    if (p.edges || p.labels.length) this.sx = this.sy = Math.min(this.sx, this.sy);
    else if (p.x.length) this.shape();
    this.grown.x = Math.max(0, across - TILE_GAP / this.sx) / 2;
    this.grown.y = Math.max(0, down - TILE_GAP / this.sy) / 2;
    const content = this.content();
    this.ox = left - content.left * this.sx;
    this.oy = top - content.top * this.sy;
    this.fitted = true;
  }

  /** Returns the bounding box of the painted tiles, in points. */
  content() {
    const { left, top, right, bottom } = this.picture.box;
    const { x, y } = this.grown;
    return { left: left - x, top: top - y, right: right + x, bottom: bottom + y };
  }

  /** Adjusts the scales to the aspect ratio of the tiles. */
  shape() {
    const { picture: p } = this;
    this.toScale = true;
    const full = (p.w[0] * this.sx) / (p.h[0] * this.sy);
    let aspect = full;
    if (this.aspect) aspect = clamp(this.aspect, full * LEAST_FILLED, full / LEAST_FILLED);
    else if (p.x.length <= MOST_SHAPED) aspect = clamp(full, ASPECTS[0], ASPECTS[1]);
    // A single row is drawn as a strip.
    if (!isFinite(this.aspect)) {
      const { top, bottom } = p.box;
      this.sy = Math.min(this.sy, STRIP / (bottom - top));
      return;
    }
    this.toScale = !this.aspect || Math.abs(aspect / this.aspect - 1) < 0.05;
    if (aspect < full) this.sx *= aspect / full;
    else this.sy *= full / aspect;
  }

  /** Returns the margins around the tiles, in CSS pixels. */
  margins() {
    return marginsOf(contextOf(this.base), this.picture);
  }

  /** Converts a box to canvas coordinates. @param {Box} box in points @returns {Box} */
  placed({ x, y, w, h: tall }) {
    const { sx, sy, ox, oy } = this;
    return { x: x * sx + ox, y: y * sy + oy, w: w * sx, h: tall * sy };
  }

  /** Returns the box of a tile on the canvas. @param {number} i */
  boxOf(i) {
    const { picture: p, grown } = this;
    const [x, y] = [p.x[i] - grown.x, p.y[i] - grown.y];
    return this.placed({ x, y, w: p.w[i] + 2 * grown.x, h: p.h[i] + 2 * grown.y });
  }

  /** Returns the box in which to paint a tile; during an animation it is between two pictures. @param {number} i */
  movedBox(i) {
    const to = this.boxOf(i);
    const from = this.motion?.boxes[i];
    if (!from) return to;
    const at = (/** @type {keyof Box} */ key) => from[key] + (to[key] - from[key]) * this.progress;
    return { x: at("x"), y: at("y"), w: at("w"), h: at("h") };
  }

  /**
   * Returns the start of an animation to the next picture, or null if no tile moves.
   * @param {Picture} next
   * @param {(tile: number) => number} before the previous tile of each tile, or -1
   * @returns {Motion | null}
   */
  movedFrom(next, before) {
    const { picture: p, theme, size } = this;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (still || !theme || !size.w) return null;
    const { fill } = tileColours(p.count, theme, p.shades);
    /** @type {Motion} */
    const from = { boxes: [], fills: [], start: performance.now() };
    for (let i = 0; i < next.x.length; i++) {
      const tile = before(i);
      if (tile < 0) continue;
      from.boxes[i] = this.movedBox(tile);
      from.fills[i] = fill(p.group[tile]);
    }
    return from;
  }

  /** Animates the tiles to their current boxes; null ends the animation. @param {Motion | null} from */
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

  /** Clears a layer. @param {HTMLCanvasElement} canvas */
  begin(canvas) {
    const g = contextOf(canvas);
    const ratio = window.devicePixelRatio || 1;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, this.size.w, this.size.h);
    return g;
  }

  paint() {
    const { picture: p, theme } = this;
    if (!this.size.w || !theme) return;
    const { sx, sy, ox, oy, base, progress } = this;
    const now = [p, theme.name, progress, sx, sy, ox, oy, base.width, base.height];
    if (this.painted && now.every((v, i) => v === this.painted?.[i])) return;
    this.painted = now;
    const g = this.begin(base);
    const colours = tileColours(p.count, theme, p.shades);
    if (p.edges) this.edges(g, p.edges);
    // Many equal tiles, too small for borders and text.
    const tiny = p.x.length > MANY_TILES && p.w[0] * sx < 5 && p.h[0] * sy < 5;
    if (tiny) this.pixels(g, colours);
    else {
      for (let i = 0; i < p.x.length; i++) {
        const group = p.group[i];
        const [colour, line] = [colours.fill(group), colours.line(group)];
        const from = this.motion?.fills[i];
        const fill = from ? mix(colour, from, progress) : colour;
        this.tile(g, i, { fill, line, width: 1, text: colours.text(group) }, colours.bands);
      }
    }
    this.frames(g);
    this.labels(g);
    this.rulers(g);
    this.paintMarks();
  }

  paintMarks() {
    const { picture: p, theme } = this;
    if (!this.size.w || !theme) return;
    const g = this.begin(this.over);
    const colours = tileColours(p.count, theme, p.shades);
    const { strong, soft, frame } = this.marks;
    const small = p.x.length > 0 && Math.min(p.w[0] * this.sx, p.h[0] * this.sy) < 9;
    if ((colours.many && strong.size) || ((colours.many || small) && soft.size)) this.fade(g);
    for (const i of new Set([...soft, ...strong])) {
      if (i >= p.x.length) continue;
      const [colour, text] = [colours.fill(p.group[i]), colours.text(p.group[i])];
      const isStrong = strong.has(i);
      // Fill small tiles: outlines of thousands of tiles would hide everything else.
      const filled = small && !isStrong;
      const fill = filled ? mix(colour, theme.text, 0.5) : colour;
      const width = isStrong ? 3 : filled ? 1 : 1.5;
      this.tile(g, i, { fill, line: theme.text, width, text }, colours.bands);
    }
    const f = p.frames[frame];
    if (f) this.frame(g, f, theme.text, 1.5);
  }

  /**
   * Makes unmarked tiles pale. A colour ramp has no stronger colour for marks, and small tiles have
   * no space for an outline.
   * @param {Context} g
   */
  fade(g) {
    const { strong, soft } = this.marks;
    g.globalAlpha = soft.size ? 0.5 : 0.3;
    g.fillStyle = this.theme.paper;
    for (let i = 0; i < this.picture.x.length; i++) {
      if (soft.has(i) || strong.has(i)) continue;
      const b = this.boxOf(i);
      g.fillRect(b.x, b.y, b.w + 0.5, b.h + 0.5);
    }
    g.globalAlpha = 1;
  }

  /**
   * Paints the strokes under the tiles (such as links), one path per colour and width.
   * @param {Context} g
   * @param {NonNullable<Picture["edges"]>} edges
   */
  edges(g, edges) {
    const { sx, sy, ox, oy, size, theme } = this;
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
      // Thin strokes are links without traffic; paint them pale.
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
   * Paints very many small tiles pixel by pixel, because a canvas call per tile would take longer
   * than a frame. Each tile extends to the next whole pixel, to avoid gaps.
   * @param {Context} g
   * @param {import("./colours.js").TileColours} colours
   */
  pixels(g, colours) {
    const p = this.picture;
    const ratio = window.devicePixelRatio || 1;
    const { width, height } = this.base;
    const image = g.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const [sx, sy] = [this.sx * ratio, this.sy * ratio];
    const [ox, oy] = [this.ox * ratio, this.oy * ratio];
    const w = p.w[0] * sx;
    const tall = p.h[0] * sy;
    for (let i = 0; i < p.x.length; i++) {
      const left = p.x[i] * sx + ox;
      const top = p.y[i] * sy + oy;
      const x0 = Math.max(0, Math.round(left));
      const y0 = Math.max(0, Math.round(top));
      const x1 = Math.min(width, Math.max(x0 + 1, Math.ceil(left + w)));
      const y1 = Math.min(height, Math.max(y0 + 1, Math.ceil(top + tall)));
      const colour = colours.pixel(p.group[i]);
      for (let y = y0; y < y1; y++) {
        // A loop is faster than `fill` for so few pixels.
        for (let at = y * width + x0; at < y * width + x1; at++) pixels[at] = colour;
      }
    }
    g.putImageData(image, 0, 0);
  }

  /**
   * @param {Context} g
   * @param {number} i
   * @param {{fill: string, line: string, width: number, text: string}} style
   * @param {import("./colours.js").ColourOf[]} bands
   */
  tile(g, i, style, bands) {
    const box = this.movedBox(i);
    const { x, y, w, h: tall } = box;
    const { line, width } = style;
    if (x > this.size.w || y > this.size.h || x + w < 0 || y + tall < 0) return;
    g.fillStyle = style.fill;
    if (w < 5 || tall < 5) {
      // The tile is too small for a border; paint at least one pixel, so that it is visible.
      const [least, high] = [Math.max(w, 1), Math.max(tall, 1)];
      g.fillRect(x, y, least, high);
      if (width > 1) outline(g, { x: x - 1, y: y - 1, w: least + 2, h: high + 2 }, line, 1.5);
      return;
    }
    const inside = { x: x + width / 2, y: y + width / 2, w: w - width, h: tall - width };
    const radius = w < 26 || tall < 14 ? 0 : Math.min(5, w / 6, tall / 5);
    if (!radius) {
      // Plain rectangles: hundreds of rounded rectangles take most of a frame.
      g.fillRect(x, y, w, tall);
      this.bands(g, i, inside, bands);
      outline(g, inside, line, width);
    } else {
      g.beginPath();
      g.roundRect(inside.x, inside.y, inside.w, inside.h, radius);
      g.fill();
      // The band ends where the corners begin to bend.
      this.bands(g, i, { ...inside, w: inside.w - 1 }, bands);
      g.strokeStyle = line;
      g.lineWidth = width;
      g.stroke();
    }
    const covered = bands.length * bandWidth(inside.w, bands.length);
    this.tileText(g, i, { ...box, w: w - covered }, style.text);
  }

  /**
   * Paints a band for each mesh axis after the first that splits an array, major axis first.
   * @param {Context} g
   * @param {number} i
   * @param {Box} box
   * @param {import("./colours.js").ColourOf[]} bands
   */
  bands(g, i, { x, y, w, h: tall }, bands) {
    const group = this.picture.group[i];
    if (group < 0 || w < LEAST_BANDED) return;
    const wide = bandWidth(w, bands.length);
    bands.forEach((colour, number) => {
      g.fillStyle = colour(group);
      g.fillRect(x + w - wide * (bands.length - number), y, wide, tall);
    });
  }

  /**
   * Returns the largest font size at which the last tile's text, usually the longest, fits.
   * @param {number} tall
   * @param {number} wide
   */
  letters(tall, wide) {
    const [text = ""] = this.hooks.lines(this.picture.x.length - 1);
    const available = wide - Math.min(10, wide / 4);
    const g = contextOf(this.base);
    const font = (/** @type {number} */ size) => `600 ${size}px ${SANS}`;
    const fits = (/** @type {number} */ size) =>
      size + 3 <= tall && textWidth(g, text, font(size)) <= available;
    // Long text is truncated at a readable size.
    return LETTERS.find(fits) ?? Math.min(11, tall - 3);
  }

  /**
   * Paints the text of a tile, truncated to fit.
   * @param {Context} g
   * @param {number} i
   * @param {Box} box
   * @param {string} colour
   */
  tileText(g, i, { x, y, w, h: tall }, colour) {
    if (w < 12 || tall < 11) return;
    const lines = this.hooks.lines(i);
    if (!lines.length) return;
    const size = this.letters(tall, w);
    const showsSecond = isLarge(w, tall) && lines[1] && textWidth(g, lines[1], FONT) <= w - 8;
    g.fillStyle = colour;
    g.textBaseline = "middle";
    g.textAlign = "center";
    g.font = `600 ${size}px ${SANS}`;
    g.fillText(fitText(g, lines[0], w - 4), x + w / 2, y + tall / 2 - (showsSecond ? 8 : 0));
    if (!showsSecond) return;
    g.font = FONT;
    g.fillText(lines[1], x + w / 2, y + tall / 2 + 9);
  }

  /** @param {Context} g */
  frames(g) {
    const { picture: p, theme } = this;
    const pale = mix(theme.muted, theme.paper, 0.55);
    for (const f of p.frames) {
      const { w, h: tall } = this.placed(f);
      if (w < 6 || tall < 6) continue;
      // A full-width stroke would cover frames of a few pixels.
      g.setLineDash(f.dashed ? [3, 3] : []);
      this.frame(g, f, Math.min(w, tall) < 30 ? pale : theme.muted, 1);
    }
    g.setLineDash([]);
  }

  /** Paints a frame with its name on the upper edge. @param {Context} g @param {Picture["frames"][0]} f @param {string} colour @param {number} width */
  frame(g, f, colour, width) {
    const box = this.placed(f);
    outline(g, box, colour, width);
    const wide = textWidth(g, f.label, FRAME_FONT);
    if (!f.named || wide + 16 > box.w || box.h < 24) return;
    g.fillStyle = this.theme.paper;
    g.fillRect(box.x + 6, box.y - 6, wide + 6, 12);
    g.fillStyle = colour;
    g.font = FRAME_FONT;
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillText(f.label, box.x + 9, box.y);
  }

  /** Paints the labels of chips and slices, except labels that would overlap. @param {Context} g */
  labels(g) {
    const { picture: p, theme } = this;
    const { box } = p;
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

  /** Paints the rulers; in a zoomed picture they stay at the edges of the canvas. @param {Context} g */
  rulers(g) {
    const { picture: p, theme, sx, sy, ox, oy, size } = this;
    const box = this.content();
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

/** Returns the smallest gap between tiles in one direction, in points. @param {Float32Array} starts @param {number} length of a tile */
function gapOf(starts, length) {
  const lines = [...new Set(starts)].sort((a, b) => a - b);
  const gaps = lines.slice(1).map((start, i) => start - lines[i] - length);
  return gaps.length ? Math.max(0, Math.min(...gaps)) : 0;
}

/**
 * Returns the scale at which tiles fill a number of pixels, after reducing wide gaps.
 * @param {number} pixels
 * @param {number} points
 * @param {number} gap in points
 */
function scaleOf(pixels, points, gap) {
  const scale = Math.max(1, pixels) / Math.max(1, points);
  return gap * scale > TILE_GAP ? (pixels + TILE_GAP) / (points + gap) : scale;
}

/** The width of each band on a tile, in pixels. @param {number} w of the tile @param {number} bands */
function bandWidth(w, bands) {
  return Math.min(w * BAND_SHARE, WIDEST_BAND, w / 2 / Math.max(1, bands));
}

/** Whether a tile of this size can show its full text. @param {number} w @param {number} tall */
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
 * Truncates text to a width with an ellipsis; "" if nothing fits.
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
