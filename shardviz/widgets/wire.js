// @ts-check
// Reads a Picture off the wire: see `shardviz/picture/wire.py` for the format.

/** @param {any} wire @returns {import("./canvas.js").Picture} */
export function readPicture(wire) {
  const numbers = (/** @type {any} */ view, /** @type {any} */ Kind) => new Kind(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  const n = wire.tiles, geometry = numbers(wire.geometry, Float32Array);
  return {
    ...wire,
    x: geometry.subarray(0, n), y: geometry.subarray(n, 2 * n), w: geometry.subarray(2 * n, 3 * n), h: geometry.subarray(3 * n, 4 * n),
    group: numbers(wire.group, Int32Array), device: numbers(wire.device, Float64Array),
  };
}
