// @ts-check
// Reads a Picture off the wire: see `wire` in `pictures.py` for the format.

/** @param {any} wire @returns {import("./canvas.js").Picture} */
export function readPicture(wire) {
  const n = wire.tiles, geometry = new Float32Array(bytes(wire.geometry)), sizes = geometry.subarray(2 * n), one = sizes.length === 2 && n > 1;
  const spread = (/** @type {Float32Array} */ values) => (one ? new Float32Array(n).fill(values[0]) : values);
  const half = sizes.length / 2;
  return {
    ...wire,
    x: geometry.subarray(0, n), y: geometry.subarray(n, 2 * n), w: spread(sizes.subarray(0, half)), h: spread(sizes.subarray(half)),
    group: new Int32Array(bytes(wire.group)), device: wire.device.byteLength ? new Float64Array(bytes(wire.device)) : counting(n),
  };
}

/** Whole numbers; none at all stand for 0, 1, 2, … @param {DataView} view @param {number} size @returns {Int32Array} */
export function readNumbers(view, size) {
  return view.byteLength ? new Int32Array(bytes(view)) : counting(size);
}

/** A copy, because a view may start where no number may. @param {DataView} view */
function bytes(view) {
  return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
}

/** @param {number} n */
function counting(n) {
  const out = new Int32Array(n);
  for (let i = 0; i < n; i++) out[i] = i;
  return out;
}
