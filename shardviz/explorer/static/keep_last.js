// @ts-check
// Results that are kept while what they were made from stays the same.

/**
 * The same function, which remembers its last result for as long as its arguments stay the same.
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
