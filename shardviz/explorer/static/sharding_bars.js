// @ts-check
// Draws a sharding as a small picture: one bar per dimension, divided into shards.
import { axisColour } from "./colours.js";
import { svg } from "./dom.js";

/** @typedef {import("./plan_data.js").PlanSplit} PlanSplit */

const MOST_PARTS = 8;
const BAR_GAP = 4;

/** @param {PlanSplit[][]} dims @param {number} width @param {number} height */
export function shardingBars(dims, width, height) {
  const shared = (width - BAR_GAP * (dims.length - 1)) / Math.max(1, dims.length);
  const bar = Math.max(3, Math.min(height * 3, shared));
  const viewBox = `0 0 ${width} ${height}`;
  const node = svg("svg", { class: "sv-bars", width, height, viewBox, "aria-hidden": "true" });
  dims.forEach((splits, dim) => {
    const left = dim * (bar + BAR_GAP);
    if (!splits.length) {
      const box = { x: left + 0.5, y: 0.5, width: bar - 1, height: height - 1, rx: 2 };
      node.append(svg("rect", { ...box, fill: axisColour(-1) }));
    }
    const rowHeight = height / Math.max(1, splits.length);
    splits.forEach((split, row) => {
      const tall = rowHeight - (row < splits.length - 1 ? 1 : 0);
      const box = { x: left, y: row * rowHeight, width: bar, height: tall };
      node.append(...partRects(split, box, axisColour(split.axis)));
    });
  });
  return node;
}

/**
 * Returns a rectangle for each part into which a mesh axis splits a dimension.
 * @param {PlanSplit} split
 * @param {{x: number, y: number, width: number, height: number}} box
 * @param {string} colour
 */
function partRects({ parts }, { x, y, width, height }, colour) {
  const shown = Math.max(1, Math.min(parts, MOST_PARTS));
  const gap = width >= 3 * shown ? 1 : 0.4;
  const pieceWidth = (width - gap * (shown - 1)) / shown;
  return Array.from({ length: shown }, (_, i) =>
    svg("rect", {
      x: x + i * (pieceWidth + gap),
      y,
      width: Math.max(0.5, pieceWidth),
      height: Math.max(1, height),
      rx: 1.5,
      fill: colour,
    }),
  );
}
