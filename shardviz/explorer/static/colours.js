// @ts-check
// Tile colours, mixed from a theme of `shardviz/draw/palette.py` and cached.

/** @typedef {import("./messages").Palette & {name: "light" | "dark"}} Theme */
/** @typedef {import("./messages").Shades} Shades */
/** @typedef {(group: number) => string} ColourOf */
/**
 * Functions from a block index to the fill, outline and text colour of its tiles, and to the fill
 * as an ImageData pixel.
 * @typedef {{many: boolean, fill: ColourOf, line: ColourOf, text: ColourOf,
 *   pixel: (group: number) => number}} TileColours
 */

const READABLE = 4.5; // the contrast that WCAG 2 requires for text
const MOST_CACHED = 200;
const RAMP_STEPS = 256; // as in `palette.py`; more blocks than this use a colour ramp
const DEEP = 0.75; // share of the fill in a tile's outline
const PALE = 0.24; // share of muted text colour in tiles without a block
const NO_BLOCK = -1;

const TINTS = 4; // as in `palette.py`; later tints are used if one axis splits the array
const AXIS_COLOURS = 8; // as in `draw/tables.py`
const PROPERTY = "--sv-group-";

/**
 * Returns the colour of a mesh axis; it is the same in every picture.
 * @param {number} number index of the axis in the mesh; grey if negative
 * @param {Theme} [theme] for a canvas, which cannot use the colours of style sheets
 */
export function axisColour(number, theme) {
  if (!(number >= 0)) return theme?.muted ?? "var(--sv-not-split)";
  const at = number % AXIS_COLOURS;
  return theme?.groups[at] ?? `var(${PROPERTY}${at})`;
}

/** @param {string} hex @returns {[number, number, number]} */
function rgb(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** @param {string} a @param {string} b @param {number} share of a */
export function mix(a, b, share) {
  const x = rgb(a);
  const y = rgb(b);
  const parts = x.map((v, i) => Math.round(v * share + y[i] * (1 - share)));
  return `#${parts.map((v) => v.toString(16).padStart(2, "0")).join("")}`;
}

/** The relative luminance of a colour, as defined by WCAG 2. @param {string} hex */
function luminance(hex) {
  const [r, g, b] = rgb(hex).map((v) => {
    const c = v / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** The WCAG 2 contrast ratio of two colours, 1 to 21. @param {string} a @param {string} b */
function contrast(a, b) {
  const [x, y] = [luminance(a) + 0.05, luminance(b) + 0.05];
  return Math.max(x, y) / Math.min(x, y);
}

/**
 * Returns a readable colour for text on a fill, as `text_colours` in palette.py does: a theme
 * colour, or black or white if neither is readable.
 * @param {string} fill
 * @param {Theme} theme
 */
export function textOn(fill, theme) {
  for (const colour of [theme.text, theme.paper])
    if (contrast(colour, fill) >= READABLE) return colour;
  return luminance(fill) > 0.179 ? "black" : "white";
}

/** @type {Map<string, TileColours>} */
const cache = new Map();

/**
 * Returns the colours of an array's blocks: tints of the mesh axes that split it. Very many blocks
 * use a colour ramp of the first axis. Tiles without a block are grey.
 * @param {number} count the number of blocks
 * @param {Theme} theme
 * @param {Shades} shades how each mesh axis changes the colours
 * @returns {TileColours}
 */
export function tileColours(count, theme, shades) {
  const key = `${theme.name}|${count}|${JSON.stringify(shades)}`;
  const earlier = cache.get(key);
  if (earlier) return earlier;
  const many = count > RAMP_STEPS;
  const stops = tintsOf(shades[0]?.[0] ?? NO_BLOCK, theme).slice(0, TINTS);
  const shade = (/** @type {number} */ block) =>
    many && block > 0 ? Math.floor((block * (RAMP_STEPS - 1)) / (count - 1)) : block;
  const fill = cached((block) => {
    if (block < 0) return mix(theme.muted, theme.paper, PALE);
    if (many) return between(stops, shade(block) / (RAMP_STEPS - 1));
    return blockColour(block, count, shades, theme);
  }, shade);
  const colours = {
    many,
    fill,
    line: many ? fill : cached((block) => mix(fill(block), theme.text, DEEP), shade),
    text: cached((block) => textOn(fill(block), theme), shade),
    pixel: cached((block) => {
      const [red, green, blue] = rgb(fill(block));
      return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    }, shade),
  };
  if (cache.size > MOST_CACHED) cache.clear();
  cache.set(key, colours);
  return colours;
}

/** Returns the tints of a mesh axis, from pale to full; grey for a negative index. @param {number} axis @param {Theme} theme */
function tintsOf(axis, { tints }) {
  return tints[axis < 0 ? AXIS_COLOURS : axis % AXIS_COLOURS];
}

/** The colour of one block, as in `_block_colours` of palette.py. @param {number} block @param {number} count @param {Shades} shades @param {Theme} theme */
function blockColour(block, count, shades, theme) {
  let [tint, turn] = [count > 1 && count < TINTS ? 1 : 0, 0];
  shades.forEach(([, size, stride, step], place) => {
    const at = Math.floor(block / stride) % size;
    tint += at * step;
    turn += at * place;
  });
  const tints = tintsOf(shades.length ? shades[turn % shades.length][0] : -1, theme);
  if (shades.length !== 1 || count <= TINTS) return tints[tint % TINTS];
  return tints[TINTS + (tint % (tints.length - TINTS))];
}

/** Interpolates between colour stops. @param {string[]} stops @param {number} part position from 0 to 1 */
function between(stops, part) {
  const at = part * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return mix(stops[low + 1], stops[low], at - low);
}

/**
 * Caches a colour per shade, because many blocks have the same shade.
 * @template Colour
 * @param {(block: number) => Colour} make
 * @param {(block: number) => number} shade
 * @returns {(block: number) => Colour}
 */
function cached(make, shade) {
  /** @type {Colour[]} */
  const known = [];
  return (block) => (known[shade(block) - NO_BLOCK] ??= make(block));
}
