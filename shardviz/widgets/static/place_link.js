// @ts-check
// Where one is in a saved page, as the end of its address, so that a link leads there.

/** @import { Place } from "./messages" */

const NUMBERS = /** @type {const} */ (["array", "dim", "device"]);

/** The place that an address names, such as `#view=Rules&array=2&dim=0`; null for none. @param {string} hash @returns {Place | null} */
export function placeOf(hash) {
  const named = new URLSearchParams(hash.slice(1));
  const view = named.get("view");
  if (view !== "Layout" && view !== "Rules" && view !== "Model" && view !== "Program") return null;
  /** @type {Place} */
  const place = { view };
  for (const name of NUMBERS) {
    const text = named.get(name) ?? "";
    if (/^\d{1,7}$/.test(text)) place[name] = Number(text);
  }
  return place;
}

/** Writes a place into the page's own address, without a step back in its history. @param {Place} place */
export function showPlace(place) {
  const named = new URLSearchParams();
  for (const [name, value] of Object.entries(place)) named.set(name, String(value));
  try {
    history.replaceState(null, "", `#${named}`);
  } catch {
    // In a frame without an address of its own there is no link.
  }
}
