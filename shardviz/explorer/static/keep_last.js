// @ts-check
// Caches the last result of a function.

/**
 * Wraps a function so that it returns its last result if its arguments are unchanged.
 * @template {unknown[]} From
 * @template To
 * @param {(...from: From) => To} make
 * @returns {(...from: From) => To}
 */
export function keepLast(make) {
  /** @type {{from: From, to: To} | null} */
  let last = null;
  return (...from) => {
    const kept = last;
    const same = kept !== null && from.every((value, i) => value === kept.from[i]);
    if (kept && same) return kept.to;
    last = { from, to: make(...from) };
    return last.to;
  };
}
