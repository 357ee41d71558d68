// @ts-check
// Caches the last result of a function while its arguments stay the same.

/**
 * Wraps a function so that it returns its last result while its arguments stay the same.
 * @template {unknown[]} From
 * @template To
 * @param {(...from: From) => To} make
 * @returns {(...from: From) => To}
 */
export function keepLast(make) {
  /** @type {{from: From, to: To} | null} */
  let last = null;
  return (...from) => {
    const known = last;
    const same = known !== null && from.every((value, i) => value === known.from[i]);
    if (known && same) return known.to;
    last = { from, to: make(...from) };
    return last.to;
  };
}
