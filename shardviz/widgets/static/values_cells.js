// @ts-check
// The parts of the tab Values: small pictures of shardings, rows, and what is said of one value.
import { button, fill, h } from "./dom.js";

/** @typedef {import("./values_data.js").PlanData} PlanData */
/** @typedef {import("./values_data.js").PlanCut} PlanCut */

const MOST_PARTS = 8,
  MOST_STOPS = 9,
  MOST_TAGS = 2,
  MOST_READS = 8,
  WHOLE = "var(--sv-whole)";

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @returns {any}
 */
function svgNode(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  return node;
}

/**
 * A sharding as bars: one a dimension, cut into as many parts as the mesh axes cut it. An axis that
 * has not arrived yet is an outline.
 * @param {PlanData} plan @param {PlanCut[][]} dims @param {number} width @param {number} height
 */
export function shardingBars(plan, dims, width, height) {
  const gap = 4,
    room = dims.length
      ? Math.max(3, Math.min(height * 3, (width - gap * (dims.length - 1)) / dims.length))
      : 0;
  const node = svgNode("svg", {
    class: "sv-bars",
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    "aria-hidden": "true",
  });
  dims.forEach((cuts, dim) => {
    const left = dim * (room + gap),
      each = height / Math.max(1, cuts.length);
    if (!cuts.length)
      node.append(
        svgNode("rect", {
          x: left + 0.5,
          y: 0.5,
          width: room - 1,
          height: height - 1,
          rx: 2,
          fill: WHOLE,
        }),
      );
    cuts.forEach((cut, row) => {
      const shown = Math.max(1, Math.min(cut.parts, MOST_PARTS)),
        between = room >= 3 * shown ? 1 : 0.4,
        wide = (room - between * (shown - 1)) / shown;
      const colour = cut.axis < 0 ? WHOLE : plan.data.axes[cut.axis].colour,
        inset = cut.pending ? 0.5 : 0;
      for (let i = 0; i < shown; i++) {
        node.append(
          svgNode("rect", {
            x: left + i * (wide + between) + inset,
            y: row * each + inset,
            width: Math.max(0.5, wide - 2 * inset),
            height: Math.max(1, each - (row < cuts.length - 1 ? 1 : 0) - 2 * inset),
            rx: 1.5,
            ...(cut.pending
              ? {
                  fill: "none",
                  stroke: colour,
                  "stroke-opacity": 0.45,
                  "stroke-dasharray": "2 1.5",
                }
              : { fill: colour }),
          }),
        );
      }
    });
  });
  return node;
}

/**
 * The same in words: `dim 0 over data, dim 1 whole`.
 * @param {PlanCut[][]} dims
 */
export function shardingWords(dims) {
  if (!dims.length) return "a scalar";
  return dims
    .map((cuts, d) => {
      const here = cuts.filter((c) => !c.pending);
      return `dim ${d} ${here.length ? `over ${here.map((c) => c.text).join(", ")}` : "whole"}`;
    })
    .join("; ");
}

/**
 * A coloured dot for a mesh axis.
 * @param {PlanData} plan
 * @param {number} axis
 */
export function axisDot(plan, axis) {
  return h("span", {
    class: "sv-axisdot",
    "aria-hidden": "true",
    style: { "--sv-hue": axis < 0 ? WHOLE : plan.data.axes[axis].colour },
  });
}

/**
 * Small words at a name: what it stands in.
 * @param {PlanData} plan
 * @param {{region: string, trips: number, backward: boolean, members: number[]}} row
 * @returns {Node[]}
 */
export function valueBadges(plan, row) {
  const badge = (
    /** @type {string} */ text,
    /** @type {string} */ kind,
    /** @type {string} */ title,
  ) => h("span", { class: `sv-badge ${kind}`, text, title });
  const found = [];
  if (row.region)
    found.push(
      badge(
        row.trips ? `${row.region} × ${row.trips}` : row.region,
        "",
        row.trips ? `runs ${row.trips} times` : "",
      ),
    );
  if (row.backward) found.push(badge("backward", "sv-backward", "part of the backward pass"));
  const hidden = plan.sums(row.members).hidden;
  if (hidden.length)
    found.push(
      badge(
        row.members.length > 1 ? `${hidden.length} not covered` : "not covered",
        "sv-uncovered",
        plan.note(hidden[0]) || "the propagation did not look into it",
      ),
    );
  return found;
}

/**
 * Where the axes came from; what is no argument or result stands in italics.
 * @param {PlanData} plan
 * @param {number} at
 * @returns {Node[]}
 */
function originCell(plan, at) {
  return plan
    .origins(at)
    .map((o) =>
      h(
        "span",
        {
          class: "sv-from",
          title: `${o.axis} from ${o.kind} ${o.name}${o.source ? ` (${o.source})` : ""}`,
        },
        axisDot(plan, plan.axisNumber(o.axis)),
        h(o.kind === "argument" || o.kind === "result" ? "span" : "i", { text: o.name || o.kind }),
      ),
    );
}

/** @param {any[]} moves @returns {Node[]} */
function moveTags(moves) {
  const found = moves
    .slice(0, MOST_TAGS)
    .map((m) =>
      h("span", {
        class: "sv-move",
        title: m.cause,
        text: `${m.kind} ${m.bytes}${m.trips > 1 ? ` × ${m.trips}` : ""}`,
      }),
    );
  if (moves.length > MOST_TAGS)
    found.push(h("span", { class: "sv-muted", text: `+${moves.length - MOST_TAGS}` }));
  return found;
}

/**
 * The cells of a value's row.
 * @param {PlanData} plan
 * @param {import("./values_data.js").PlanRow} row
 * @param {number} step
 * @returns {Node[]}
 */
export function valueCells(plan, row, step) {
  const at = row.value,
    dims = plan.cuts(at, step),
    words = shardingWords(dims);
  const cell = (
    /** @type {string} */ kind,
    /** @type {any[]} */ children,
    /** @type {Record<string, any>} */ props = {},
  ) => h("span", { role: "gridcell", class: `sv-vcell ${kind}`, ...props }, ...children);
  return [
    cell(
      "sv-vname",
      [
        h("span", { class: "sv-twig" }),
        h("span", { class: "sv-vlabel", text: row.label }),
        ...valueBadges(plan, row),
      ],
      { title: plan.note(at) || row.label, style: { "--sv-depth": row.depth } },
    ),
    cell("sv-vtype", [plan.type(at)], { title: plan.type(at) }),
    cell(
      "sv-vbars",
      [
        shardingBars(plan, dims, 104, 12),
        ...plan
          .unreduced(at)
          .map((a) =>
            h("span", {
              class: "sv-badge",
              text: `Σ ${a}`,
              title: `a partial sum on every device along ${a}`,
            }),
          ),
      ],
      { "aria-label": words, title: `${plan.specText(at)}: ${words}` },
    ),
    cell("sv-vfrom", originCell(plan, at)),
    cell("sv-vmoves", moveTags(plan.moves(at))),
    // Cut at its start, so that the number of the line is always there.
    cell("sv-vline", [h("bdi", { dir: "ltr", text: plan.word("source", at) })], {
      title: plan.word("source", at),
    }),
  ];
}

/**
 * The cells of a call's row.
 * @param {PlanData} plan
 * @param {import("./values_data.js").PlanRow} row
 * @returns {Node[]}
 */
export function callCells(plan, row) {
  const { split, moves } = plan.sums(row.members);
  const cell = (
    /** @type {string} */ kind,
    /** @type {any[]} */ children,
    /** @type {Record<string, any>} */ props = {},
  ) => h("span", { role: "gridcell", class: `sv-vcell ${kind}`, ...props }, ...children);
  return [
    cell(
      "sv-vname",
      [
        h("span", { class: "sv-twig", text: row.open ? "▾" : "▸" }),
        h("b", { class: "sv-vlabel", text: row.label }),
        ...valueBadges(plan, row),
      ],
      { title: row.label, style: { "--sv-depth": row.depth } },
    ),
    cell("sv-vtype", [`${row.count} ${row.count === 1 ? "value" : "values"}`]),
    cell("sv-vbars", [`${split} split`]),
    cell("sv-vfrom", []),
    cell(
      "sv-vmoves",
      moves && !row.open
        ? [
            h("span", {
              class: "sv-move",
              text: `${moves} ${moves === 1 ? "collective" : "collectives"}`,
            }),
          ]
        : [],
    ),
    cell("sv-vline", []),
  ];
}

/**
 * @param {PlanData} plan
 * @param {number} at
 * @param {(at: number) => void} pick
 */
function valueLink(plan, at, pick) {
  return button(plan.names[at], () => pick(at), {
    class: "sv-vlink",
    title: `${plan.type(at)} ${plan.specText(at)}`,
    "aria-label": `Show value ${plan.names[at]}`,
  });
}

/**
 * One axis, and the way it came.
 * @param {PlanData} plan
 * @param {number} at
 * @param {any} origin
 * @param {(at: number) => void} pick
 */
function pathLine(plan, at, origin, pick) {
  const stops = plan.path(at, origin.axis),
    half = Math.floor(MOST_STOPS / 2);
  const cut = stops.length > MOST_STOPS,
    shown = cut ? [...stops.slice(0, half), ...stops.slice(-half)] : stops;
  /** @type {Node[]} */ const parts = [];
  shown.forEach((stop, i) => {
    const step = stop.step ? `step ${plan.steps[stop.step - 1].number}` : "";
    if (cut && i === half)
      parts.push(h("span", { class: "sv-muted", text: `→ ${stops.length - 2 * half} more` }));
    parts.push(
      h(
        "span",
        { class: "sv-stop" },
        i
          ? h("span", {
              class: "sv-muted",
              text: "→",
              title: step || "in steps that Shardy does not name",
            })
          : null,
        valueLink(plan, stop.at, pick),
        step ? h("sub", { class: "sv-muted", text: step.slice(5), title: `by ${step}` }) : null,
      ),
    );
  });
  const said =
    origin.kind === "constraint"
      ? `by a constraint${origin.source ? ` at ${origin.source}` : ""}`
      : origin.kind === "manual"
        ? "by a manual computation"
        : origin.kind === "op"
          ? "first asked for by an operation"
          : `first asked for by ${origin.kind} ${origin.name}`;
  return h(
    "div",
    { class: "sv-path" },
    h(
      "div",
      { class: "sv-pathhead" },
      axisDot(plan, plan.axisNumber(origin.axis)),
      h("b", { text: origin.axis }),
      h("span", { class: "sv-muted", text: said }),
    ),
    h("div", { class: "sv-pathstops" }, ...parts),
  );
}

/**
 * One dimension in words: how long, cut by what, into what.
 * @param {PlanData} plan
 * @param {number} at
 * @param {number} dim
 * @param {PlanCut[]} cuts
 */
function dimLine(plan, at, dim, cuts) {
  const size = plan.shape(at)[dim],
    parts = cuts.reduce((n, c) => n * c.parts, 1);
  const said = cuts.length
    ? `${size.toLocaleString("en")} over ${cuts.map((c) => `${c.text} (${c.parts})`).join(", ")}: ${Math.ceil(size / parts).toLocaleString("en")} on a device`
    : `${size.toLocaleString("en")}, whole`;
  return h(
    "div",
    { class: "sv-dimline" },
    shardingBars(plan, [cuts], 42, 12),
    h("span", { class: "sv-muted", text: `dim ${dim}` }),
    h("span", { text: said }),
  );
}

/**
 * Everything about one value: its dimensions, the ways of its axes, its story, what it costs.
 * @param {PlanData} plan @param {number} at @param {number} step @param {any} story @param {(at: number) => void} pick @returns {Node[]}
 */
export function valueDetails(plan, at, step, story, pick) {
  const dims = plan.cuts(at, step),
    moves = plan.moves(at),
    reads = plan.operands(at),
    note = plan.note(at);
  const head = (/** @type {string} */ text) => h("h4", { class: "sv-subhead", text });
  const row = {
    region: plan.word("region", at),
    trips: plan.trips(at),
    backward: plan.backward(at),
    members: [at],
  };
  const parts = [
    h(
      "div",
      { class: "sv-line sv-vtitle" },
      h("b", { text: plan.names[at] }),
      h("span", { class: "sv-type", text: plan.type(at) }),
    ),
    h("div", { class: "sv-mono", text: plan.specText(at) }),
    h(
      "div",
      { class: "sv-vbadges" },
      ...valueBadges(plan, row),
      plan.word("source", at)
        ? h("code", { class: "sv-muted", text: plan.word("source", at) })
        : null,
    ),
    ...(note ? [h("div", { class: "sv-warn", text: note })] : []),
    h("div", null, ...dims.map((cuts, d) => dimLine(plan, at, d, cuts))),
  ];
  const origins = plan.origins(at);
  if (origins.length)
    parts.push(
      head("Where its axes came from"),
      ...origins.map((o) => pathLine(plan, at, o, pick)),
    );
  if (story?.error) parts.push(h("div", { class: "sv-error", text: story.error }));
  if (story?.lines?.length)
    parts.push(
      head("Its story"),
      h(
        "ol",
        { class: "sv-story" },
        ...story.lines.map((/** @type {string} */ line) => h("li", { text: line.trim() })),
      ),
    );
  if (story?.rule && !story.lines.some((/** @type {string} */ line) => line.includes(story.rule)))
    parts.push(head("The rule of the operation"), h("div", { text: story.rule }));
  if (moves.length) {
    parts.push(
      head("Estimated to move"),
      ...moves.map((/** @type {any} */ m) =>
        h(
          "div",
          { class: "sv-moveline" },
          h("span", { class: "sv-move", text: `${m.kind} ${m.bytes}` }),
          m.axes.length ? ` over ${m.axes.join(" × ")}` : "",
          m.trips > 1 ? `, ${m.trips} times` : "",
          m.cause ? h("div", { class: "sv-muted", text: m.cause }) : null,
        ),
      ),
    );
  }
  if (reads.length)
    parts.push(
      head("Reads"),
      h(
        "div",
        { class: "sv-pathstops" },
        ...reads.slice(0, MOST_READS).map((r) => valueLink(plan, r, pick)),
        reads.length > MOST_READS
          ? h("span", { class: "sv-muted", text: `and ${reads.length - MOST_READS} more` })
          : null,
      ),
    );
  if (story?.stack?.length > 1)
    parts.push(
      head("Called from"),
      h("div", { class: "sv-mono sv-muted", text: story.stack.join(" ← ") }),
    );
  return parts;
}

/**
 * A program that Explicit axes refuse: what is ambiguous, and what would be accepted at what price.
 * @param {any} found
 * @returns {Node[]}
 */
export function diagnosisBody(found) {
  const parts = [
    h(
      "div",
      { class: "sv-failure", role: "alert" },
      h("b", { text: found.op }),
      h("span", { class: "sv-prewrap", text: found.problem }),
      found.source ? h("code", { text: found.source }) : null,
    ),
  ];
  if (found.operands.length)
    parts.push(h("div", { class: "sv-mono sv-muted", text: found.operands.join("   ") }));
  if (!found.choices.length) return parts;
  const table = h(
    "table",
    { class: "sv-table", "aria-label": "Legal choices of out_sharding" },
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        ...["out_sharding", "bytes a device", "what it does"].map((t) =>
          h("th", { text: t, scope: "col" }),
        ),
      ),
    ),
    h("tbody"),
  );
  fill(
    table.lastChild,
    ...found.choices.map((/** @type {any} */ c) =>
      h(
        "tr",
        null,
        h("td", { class: "sv-mono", text: c.spec }),
        h("td", { text: c.cost }),
        h("td", { class: "sv-muted", text: c.words }),
      ),
    ),
  );
  return [...parts, table];
}
