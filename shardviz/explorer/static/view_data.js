// @ts-check
// Completes the data that Python sends.
// `session_view.py` omits empty fields, layouts equal to an earlier array's, and derived fields.

/** @import { ArrayField, SentLayout, Traits } from "./messages" */
/** @typedef {<K extends keyof Traits>(name: K) => Traits[K]} Get returns the value of a trait */
/** @typedef {NonNullable<ReturnType<typeof readView>>} View the data that the page shows */
/** @typedef {View["mesh"]["axes"][number]} MeshAxis */
/** An array, with its text fields and its sharding. @typedef {ReturnType<typeof readArray>} ArrayView */

/** Returns the data of the page, or null before Python has sent any. @param {Get} get */
export function readView(get) {
  const sent = get("view");
  if (!("count" in sent)) return null;
  const mesh = get("mesh");
  const { types, axes } = mesh;
  return {
    ...get("answer"),
    mesh: { ...mesh, axes: axes.map(([name, size, type = types]) => ({ name, size, type })) },
    rules: get("rules"),
    program: get("program"),
    notes: sent.notes ?? [],
    hints: sent.hints ?? [],
    selected: sent.selected,
    beside: sent.beside ?? 0,
    arrays: withFolds(
      Array.from({ length: sent.count }, (_, i) => readArray(get, i)),
      /** @type {import("./messages").SentView} */ (sent),
    ),
  };
}

/**
 * Lets one array of equal layers stand for all: the selected one, or the first.
 * @param {ReturnType<typeof readArray>[]} arrays
 * @param {import("./messages").SentView} sent
 */
function withFolds(arrays, { folds = [], selected }) {
  for (const [title, layers, alike] of folds) {
    const shown = alike.includes(selected) ? selected : alike[0];
    for (const i of alike) Object.assign(arrays[i], { title, layers, folded: i !== shown });
  }
  return arrays;
}

/** @param {Get} get @param {number} i */
function readArray(get, i) {
  const sent = get(`array_${i}`);
  const sentLayout = get(`layout_${i}`);
  const layout =
    "same" in sentLayout
      ? /** @type {SentLayout} */ (get(`layout_${sentLayout.same}`))
      : sentLayout;
  const { names = [], texts, errors = {} } = sent;
  const keys = /** @type {ArrayField[]} */ (Object.keys(texts));
  const fields = keys.map((key) => [key, { text: texts[key], error: errors[key] ?? "" }]);
  return {
    ...layout,
    ...derived(layout),
    name: sent.name,
    title: sent.name,
    layers: "",
    folded: false,
    short: `${sent.type}[${sent.shape.join(", ")}]`,
    shape: sent.shape,
    bytes: sent.bytes,
    names,
    /** @type {Record<ArrayField, {text: string, error: string}>} */
    fields: Object.fromEntries(fields),
    problem: layout.problem ?? "",
    warnings: layout.warnings ?? [],
    dims: layout.dims.map(({ why, axes = [] }) => ({ why, axes })),
    rank: layout.dims.length,
  };
}

/** Returns fields derived from a layout's numbers; none without a layout. @param {SentLayout} layout */
function derived({ counts, replicas, shardBytes }) {
  if (!counts || !replicas) return { blocks: undefined, summary: "" };
  return {
    blocks: counts.reduce((all, count) => all * count, 1),
    summary: `${shardBytes} per device · ${replicas > 1 ? replicasText(replicas) : "no replicas"}`,
  };
}

/** @param {number} count */
export function replicasText(count) {
  return `${count.toLocaleString("en")} replica${count === 1 ? "" : "s"}`;
}
