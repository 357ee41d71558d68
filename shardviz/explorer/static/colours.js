// @ts-check
// Tile colours, mixed from a theme of `shardviz/draw/palette.py` and cached.

/** @typedef {import("./messages").Palette & {name: "light" | "dark"}} Theme */
/** @typedef {import("./messages").Shades} Shades */
/** @typedef {(group: number) => string} ColourOf */
/**
 * Functions from a block index to the fill, outline, text colour and bands of its tiles, and to the
 * fill as an ImageData pixel.
 * @typedef {{many: boolean, fill: ColourOf, line: ColourOf, text: ColourOf,
 *   bands: ColourOf[], pixel: (group: number) => number}} TileColours
 */

const READABLE = 4.5; // the contrast that WCAG 2 requires for text
const MOST_CACHED = 200;
const RAMP_STEPS = 256; // as in `palette.py`; longer axes use a smooth ramp
const LADDER_COLOURS = 5; // colours in a ladder, as in `palette.py`
const DEEP = 0.75; // share of the fill in a tile's outline
const PALE = 0.24; // share of muted text colour in tiles without a block
const NO_BLOCK = -1;
const NO_AXIS = -1;

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
 * Returns the colours of an array's blocks. The first mesh axis that splits the array fills a tile,
 * and each further axis adds a band, from the ladder of its hue. Tiles without a block are grey.
 * @param {number} count the number of blocks
 * @param {Theme} theme
 * @param {Shades} shades the mesh axes that split the array, major to minor
 * @returns {TileColours}
 */
export function tileColours(count, theme, shades) {
  const key = `${theme.name}|${count}|${JSON.stringify(shades)}`;
  const earlier = cache.get(key);
  if (earlier) return earlier;
  const [first = [NO_AXIS, 1, 1], ...further] = shades;
  const [, size, stride] = first;
  const many = count > RAMP_STEPS;
  const indexOf = (/** @type {number} */ block) =>
    block < 0 ? NO_BLOCK : colourIndex(Math.floor(block / stride) % size, size);
  const ladder = ladderColours(first, theme);
  const fill = (/** @type {number} */ block) =>
    block < 0 ? mix(theme.muted, theme.paper, PALE) : ladder(block);
  const colours = {
    many,
    fill,
    line: many ? fill : cached((block) => mix(fill(block), theme.text, DEEP), indexOf),
    text: cached((block) => textOn(fill(block), theme), indexOf),
    bands: further.map((shade) => ladderColours(shade, theme)),
    pixel: cached((block) => {
      const [red, green, blue] = rgb(fill(block));
      return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
    }, indexOf),
  };
  if (cache.size > MOST_CACHED) cache.clear();
  cache.set(key, colours);
  return colours;
}

/**
 * Returns the colour of blocks by their coordinate on one mesh axis, as `shade_colours` of palette.py.
 * @param {Shades[number]} shade
 * @param {Theme} theme
 * @returns {ColourOf}
 */
export function ladderColours([axis, size, stride], { ladders }) {
  const stops = ladders[axis < 0 ? AXIS_COLOURS : axis % AXIS_COLOURS];
  const indexOf = (/** @type {number} */ block) =>
    colourIndex(Math.floor(block / stride) % size, size);
  return cached((block) => between(stops, shareOf(indexOf(block), size)), indexOf);
}

/** The index of a coordinate's colour, below 256. @param {number} at @param {number} size */
function colourIndex(at, size) {
  return size > RAMP_STEPS ? Math.floor((at * (RAMP_STEPS - 1)) / (size - 1)) : at;
}

/** As `ladder_shares` of palette.py. @param {number} at the number of a colour @param {number} size of the axis */
function shareOf(at, size) {
  if (size <= 2) return 0.25 + 0.5 * at;
  if (size <= LADDER_COLOURS) return at / (size - 1);
  if (size > RAMP_STEPS) return at / (RAMP_STEPS - 1);
  const climbs = Math.ceil(size / (size <= 8 ? 4 : 3));
  const length = Math.ceil(size / climbs);
  return ((at % length) * climbs + Math.floor(at / length)) / (length * climbs - 1);
}

/** Interpolates between colour stops. @param {string[]} stops @param {number} part position from 0 to 1 */
function between(stops, part) {
  const at = part * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return mix(stops[low + 1], stops[low], at - low);
}

/**
 * Caches a colour per coordinate, because many blocks share one.
 * @template Colour
 * @param {(block: number) => Colour} make
 * @param {(block: number) => number} indexOf
 * @returns {(block: number) => Colour}
 */
function cached(make, indexOf) {
  /** @type {Colour[]} */
  const colours = [];
  return (block) => (colours[indexOf(block) - NO_BLOCK] ??= make(block));
}
