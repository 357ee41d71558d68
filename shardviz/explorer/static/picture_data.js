// @ts-check
// Decodes a Picture from Python; `shardviz/draw/serialization.py` defines the format.
// `tests/picture/test_wire.py` compares every tile with Python's.

/** @import { Column, Ruler } from "./messages" */
/** The tiles of a picture, one typed array per column. @typedef {ReturnType<typeof openTiles>} Tiles */
/** The strokes under the tiles, one typed array per column. @typedef {NonNullable<ReturnType<typeof readEdges>>} Edges */
/** A decoded Picture, ready to paint. @typedef {ReturnType<typeof readPicture>} Picture */

/** @param {import("./messages").PackedPicture} packed */
export function readPicture({ data, buffers = [] }) {
  const tiles = openTiles(data.tiles, buffers);
  const frames = wholeRows(data.frames ?? []).map(readFrame);
  const edges = readEdges(data.edges, buffers);
  return {
    ...tiles,
    box: contentOf(tiles, frames, edges, data),
    width: data.width,
    height: data.height,
    count: data.groups ?? 1,
    shades: data.shades ?? [],
    labels: wholeRows(data.labels ?? []).map(([x, y, text, anchor]) => ({ x, y, text, anchor })),
    frames,
    facts: data.facts,
    edges,
    rulers: (data.rulers ?? []).map(readRuler),
    /** Returns the text in a tile. @param {number} i */
    label: (i) => filledTemplate(data.tiles.text ?? [], tiles, i),
    /** Returns the ids of a tile's devices. @param {number} i */
    devices: (i) => devicesOf(tiles, i),
  };
}

/**
 * Returns the bounding box of tiles, frames and strokes, in points; of an empty picture, the full
 * size.
 * @param {Tiles} tiles
 * @param {ReturnType<typeof readFrame>[]} frames
 * @param {Edges | null} edges
 * @param {{width: number, height: number}} size
 */
function contentOf({ x, y, w, h }, frames, edges, { width, height }) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  /** @type {(x0: number, y0: number, x1: number, y1: number) => void} */
  const add = (x0, y0, x1, y1) => {
    left = Math.min(left, x0, x1);
    top = Math.min(top, y0, y1);
    right = Math.max(right, x0, x1);
    bottom = Math.max(bottom, y0, y1);
  };
  for (let i = 0; i < x.length; i++) add(x[i], y[i], x[i] + w[i], y[i] + h[i]);
  for (const f of frames) add(f.x, f.y - (f.named ? 5 : 0), f.x + f.w, f.y + f.h);
  if (edges) {
    const { x0, y0, x1, y1 } = edges;
    for (let i = 0; i < edges.count; i++) add(x0[i], y0[i], x1[i], y1[i]);
  }
  if (left > right) add(0, 0, width, height);
  return { left, top, right, bottom };
}

const NO_DEVICE = -1; // as in draw/picture.py
const STORED = { float32: Float32Array, int32: Int32Array, float64: Float64Array };

/**
 * Completes rows: a row that is too short takes its last fields from the previous row.
 * @template {unknown[]} R
 * @param {import("./messages").Row<R>[]} rows
 * @returns {R[]}
 */
export function wholeRows(rows) {
  /** @type {R[]} */
  const completed = [];
  for (const row of rows) {
    const before = completed.at(-1) ?? [];
    completed.push(/** @type {R} */ ([...row, ...before.slice(row.length)]));
  }
  return completed;
}

/** @param {Partial<Ruler>} data @returns {Ruler} */
export function readRuler(data) {
  const lengths = { start: 0, length: 0, count: 0, pitch: 0, extent: 0, step: 1, size: 0 };
  return { words: [], axes: [], repeats: [], down: false, ...lengths, ...data };
}

/** @param {import("./messages").FrameRow} row */
function readFrame([x, y, label, w, h, dashed, named]) {
  return { x, y, w, h, label, dashed, named };
}

/** @param {import("./messages").EdgeData | undefined} edges @param {DataView[]} buffers */
export function readEdges(edges, buffers) {
  if (!edges) return null;
  const floats = (/** @type {Column} */ c) => columnOf(c, buffers, edges.count, Float32Array);
  return {
    count: edges.count,
    x0: floats(edges.x0),
    y0: floats(edges.y0),
    x1: floats(edges.x1),
    y1: floats(edges.y1),
    width: floats(edges.width),
    group: columnOf(edges.group, buffers, edges.count, Int32Array),
  };
}

/**
 * Decodes a column to a typed array, so that painting needs no call per tile.
 * @template {Float32Array | Int32Array | Float64Array} A
 * @param {Column} column
 * @param {DataView[]} buffers
 * @param {number} n
 * @param {{new (from: number | ArrayLike<number>): A}} Kind
 * @returns {A}
 */
function columnOf(column, buffers, n, Kind) {
  if (typeof column === "object" && "buffer" in column) {
    const stored = new STORED[column.dtype](bytes(buffers[column.buffer]));
    return stored instanceof Kind ? /** @type {A} */ (stored) : new Kind(stored);
  }
  const out = new Kind(n);
  if (typeof column === "number") out.fill(column);
  else if (Array.isArray(column)) {
    const [first, step] = column;
    for (let i = 0; i < n; i++) out[i] = first + step * i;
  } else out.set(column.values.slice(0, n));
  return out;
}

/**
 * Returns a function that decodes a column of integers. It returns the same array while the column
 * is unchanged, because decoding a million devices takes most of a frame.
 */
export function keptNumbers() {
  let [lastKey, numbers] = ["", new Int32Array(0)];
  return (
    /** @type {Column} */ column,
    /** @type {DataView[]} */ buffers,
    /** @type {number} */ size,
  ) => {
    const packed = typeof column === "object" && "buffer" in column;
    const says = packed ? "" : JSON.stringify([column, size]);
    if (!says || says !== lastKey) numbers = columnOf(column, buffers, size, Int32Array);
    lastKey = says;
    return numbers;
  };
}

/**
 * Copies the bytes, because a typed array needs an aligned start.
 * @param {DataView} view
 * @returns {ArrayBuffer}
 */
function bytes({ buffer, byteOffset, byteLength }) {
  return new Uint8Array(buffer, byteOffset, byteLength).slice().buffer;
}

/** @param {import("./messages").TileData} data @param {DataView[]} buffers */
export function openTiles(data, buffers) {
  const { count, offsets } = data;
  const floats = (/** @type {Column} */ c) => columnOf(c, buffers, count, Float32Array);
  const read = (/** @type {Column} */ c, n = count) => columnOf(c, buffers, n, Float64Array);
  const starts = offsets === undefined ? null : read(offsets, count + 1);
  return {
    x: floats(data.x),
    y: floats(data.y),
    w: floats(data.width),
    h: floats(data.height),
    group: columnOf(data.group ?? 0, buffers, count, Int32Array),
    device: read(data.device ?? NO_DEVICE),
    offsets: starts,
    holders: starts && read(data.holders ?? 0, starts[count]),
  };
}

/** Returns the device ids of tile `i`. @param {Tiles} tiles @param {number} i */
export function devicesOf({ offsets, holders, device }, i) {
  if (!offsets || !holders) return device[i] < 0 ? [] : [device[i]];
  return [...holders.subarray(offsets[i], offsets[i + 1])];
}

/**
 * Fills a template for tile `i` with text and the ids of its devices.
 * @param {import("./messages").Template} template
 * @param {Tiles} tiles
 * @param {number} i
 */
export function filledTemplate(template, tiles, i) {
  const ids = devicesOf(tiles, i);
  return template
    .map((part) => (typeof part === "string" ? part : idsText(ids, part.limit)))
    .join("");
}

/** Formats device ids, as `ids_text` of shardviz/base/format.py does. @param {number[]} ids @param {number} limit */
export function idsText(ids, limit = 0) {
  if (!ids.length) return "no device";
  if (limit && ids.length <= limit) {
    const spread = ids.join(" · ");
    if (spread.length <= limit) return spread;
  }
  const short = folded(ids);
  return limit && short.length > limit ? `${ids.length.toLocaleString("en-US")} devices` : short;
}

/** @param {number[]} ids */
function folded(ids) {
  const consecutive = ids.length > 2 && ids.every((v, i) => v === ids[0] + i);
  if (ids.length <= 4 && !consecutive) return ids.join(", ");
  const levels = nestLevels(ids);
  return levels ? nested(ids[0], levels) : stretches(ids).join(", ");
}

/** @param {number[]} ids @returns {number[][] | null} */
function nestLevels(ids) {
  const levels = [];
  while (ids.length > 1) {
    const step = ids[1] - ids[0];
    let count = 2;
    while (count < ids.length && ids[count] - ids[count - 1] === step) count++;
    if (ids.length % count) return null;
    for (let i = 0; i < ids.length; i++) {
      if (ids[i] - ids[i - (i % count)] !== (i % count) * step) return null;
    }
    levels.push([count, step]);
    ids = ids.filter((_, i) => i % count === 0);
  }
  return levels;
}

/** @param {number} first @param {number[][]} levels @returns {string} */
function nested(first, levels) {
  if (!levels.length) return String(first);
  const inner = levels.slice(0, -1);
  const [count, step] = levels[levels.length - 1];
  if (!inner.length) return stretch(first, count, step);
  const shown = count <= 3 ? [...Array(count).keys()] : [0, 1, count - 1];
  let items = shown.map((i) => nested(first + i * step, inner));
  const pair = count > 3 && inner[0][0] === 2 && Math.abs(inner[0][1]) !== 1;
  if (inner.length > 1 || pair) items = items.map((item) => `(${item})`);
  return count <= 3 ? items.join(", ") : `${items[0]}, ${items[1]} … ${items[2]}`;
}

/** @param {number} first @param {number} count @param {number} step */
function stretch(first, count, step) {
  const last = first + (count - 1) * step;
  if (count === 1) return String(first);
  if (count === 2 && step !== 1) return `${first}, ${last}`;
  return `${first}–${last}` + (step === 1 ? "" : ` step ${step}`);
}

/** @param {number[]} ids */
function stretches(ids) {
  const parts = [];
  for (let at = 0; at < ids.length; ) {
    let end = at + 1;
    const step = end < ids.length ? ids[end] - ids[at] : 0;
    while (end < ids.length && ids[end] - ids[end - 1] === step) end++;
    const count = end - at < 3 ? 1 : end - at;
    parts.push(stretch(ids[at], count, step));
    at += count;
  }
  return parts;
}
