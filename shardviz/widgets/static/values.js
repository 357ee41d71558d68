// @ts-check
// The tab Values: a program as a list of values, why each is laid out so, and the propagation step
// by step. Folding, picking and stepping never ask the kernel; only a value's story does.
import { button, fill, h, setText, toggle } from "./dom.js";
import { axisDot, callCells, diagnosisBody, valueCells, valueDetails } from "./values_cells.js";
import { PlanData, callTree, planRows } from "./values_data.js";

const VALUE_ROW = 24,
  ROWS_SEEN = 14;
const MOST_OPEN = 400; // values of a plan whose calls are all open at first
const MOST_ARGUMENTS = 40; // arguments that stand open at first
let panels = 0;

export class ValuesPanel {
  /** @param {{why: (name: string) => void, light: (names: string[] | null) => void}} calls */
  constructor({ why, light }) {
    this.why = why;
    this.light = light;
    this.id = `sv-values-${++panels}`;
    /** @type {PlanData | null} */ this.plan = null;
    /** @type {any} */ this.data = null;
    /** @type {import("./values_data.js").PlanRow[]} */ this.rows = [];
    /** @type {Map<number, number>} */ this.place = new Map();
    /** @type {Map<string, boolean>} */ this.folds = new Map();
    /** @type {string[]} */ this.words = [];
    this.active = 0;
    this.picked = -1;
    /** @type {number | null} */ this.step = null;
    this.old = false;
    /** @type {Map<string, any>} */ this.stories = new Map();
    /** @type {Map<number, number[]>} */ this.lit = new Map();
    /** @type {WeakMap<number[], number[]>} */ this.ways = new WeakMap();
    /** @type {string | null} */ this.lighted = null;
    this.build();
    // The list is only as long as its place: it is filled when that is known, and when it changes.
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.grid);
  }

  build() {
    const act = { class: "sv-button sv-stepbutton" };
    this.said = h("span", { class: "sv-muted" });
    this.find = h("input", {
      class: "sv-input sv-find",
      "aria-label": "Find values",
      placeholder: "Find: dot f32 block.py",
      spellcheck: "false",
      autocomplete: "off",
      "data-keep": "true",
      "data-lm-suppress-shortcuts": "true",
      on: {
        input: () => this.search(),
        keydown: (/** @type {KeyboardEvent} */ e) => {
          e.stopPropagation();
          if (e.key === "Escape" && this.find.value) {
            this.find.value = "";
            this.search();
          }
        },
      },
    });
    this.legend = h("span", { class: "sv-axislegend" });
    this.fold = button("Fold all", () => this.foldAll(false), { class: "sv-link" });
    this.unfold = button("Unfold all", () => this.foldAll(true), { class: "sv-link" });
    this.back = button("‹", () => this.go(-1), { ...act, "aria-label": "Step back" });
    this.on = button("›", () => this.go(1), { ...act, "aria-label": "Step on" });
    this.slider = h("input", {
      type: "range",
      class: "sv-slider",
      min: "0",
      "data-keep": "true",
      "aria-label": "Propagation step",
      "data-lm-suppress-shortcuts": "true",
      on: {
        input: () => this.stepTo(Number(this.slider.value)),
        keydown: (/** @type {KeyboardEvent} */ e) => e.stopPropagation(),
      },
    });
    this.stepText = h("span", { class: "sv-steptext", role: "status", "aria-live": "polite" });
    this.stepbar = h(
      "div",
      { class: "sv-stepbar" },
      this.back,
      this.slider,
      this.on,
      this.stepText,
    );
    this.head = h(
      "div",
      { class: "sv-vhead", "aria-hidden": "true" },
      ...["value", "type", "sharding", "axes from", "estimated", "line"].map((t) =>
        h("span", { text: t }),
      ),
    );
    this.inner = h("div", { class: "sv-vinner", role: "presentation" });
    this.grid = h(
      "div",
      {
        class: "sv-vgrid",
        role: "treegrid",
        "aria-label": "Values",
        tabindex: "0",
        "data-lm-suppress-shortcuts": "true",
        on: {
          scroll: () => this.paint(),
          keydown: (/** @type {KeyboardEvent} */ e) => this.key(e),
          click: (/** @type {MouseEvent} */ e) => this.click(e),
        },
      },
      this.head,
      this.inner,
    );
    this.side = h("aside", {
      class: "sv-vside",
      "aria-label": "Why this sharding",
      tabindex: "0",
      "data-lm-suppress-shortcuts": "true",
    });
    this.message = h("div", { class: "sv-vmessage" });
    this.main = h("div", { class: "sv-vmain" }, this.grid, this.side);
    this.bar = h(
      "div",
      { class: "sv-vbar" },
      this.said,
      this.legend,
      h("span", { class: "sv-space" }),
      this.find,
      this.fold,
      this.unfold,
    );
    this.node = h("div", { class: "sv-values" }, this.bar, this.stepbar, this.message, this.main);
  }

  /**
   * Takes a plan. What was picked, folded and stepped to stays where the new plan has it too.
   * @param {any} data as `view_values.py` makes it
   */
  show(data) {
    if (data === this.data) return;
    this.data = data;
    const usable = data && data.count > 0 && !data.waiting;
    // Where there is no new plan the last good one stays, and stands back.
    this.old = !usable && this.plan !== null && Boolean(data?.error);
    toggle(this.main, "sv-vold", this.old);
    this.bar.hidden = this.main.hidden = this.stepbar.hidden = !usable && !this.old;
    this.showMessage(data ?? { waiting: true });
    if (this.old) return;
    if (!usable) {
      this.plan = null;
      setText(this.said, "");
      fill(this.legend);
      this.shine();
      return;
    }
    const name = this.plan && this.picked >= 0 ? this.plan.names[this.picked] : null,
      at = this.rows[this.active]?.key;
    const changed = this.plan !== null && this.plan.steps.length !== data.steps.length;
    this.plan = new PlanData(data);
    this.tree = callTree(this.plan);
    this.stories = storiesOf(data);
    this.picked = name === null ? -1 : (this.plan.numbers.get(name) ?? -1);
    if (changed) this.step = null;
    setText(this.said, [data.words, data.seconds].filter(Boolean).join(" · "));
    fill(
      this.legend,
      ...data.axes.map((/** @type {any} */ a, /** @type {number} */ i) =>
        h(
          "span",
          { class: "sv-from" },
          axisDot(/** @type {PlanData} */ (this.plan), i),
          h("span", { text: `${a.name} ${a.size}` }),
        ),
      ),
    );
    this.list();
    this.active = Math.max(
      0,
      this.rows.findIndex((r) => r.key === at),
    );
    this.ask();
    this.shine();
    this.paint();
    this.showSide();
  }

  /** @param {any} data */
  showMessage(data) {
    const parts = [];
    if (data.diagnosis) parts.push(...diagnosisBody(data.diagnosis));
    else if (data.error)
      parts.push(
        h(
          "div",
          { class: "sv-failure", role: "alert" },
          h("span", { class: "sv-prewrap", text: data.error }),
        ),
      );
    else if (data.waiting)
      parts.push(
        h("p", {
          class: "sv-muted",
          text: "There is no plan yet: the program is planned when its edits settle.",
        }),
      );
    fill(this.message, ...parts);
    this.message.hidden = !parts.length;
  }

  /**
   * Takes the story of a value, as `story_view` tells it.
   * @param {any} story
   */
  showStory(story) {
    if (!story || !story.value || this.stories.get(story.value) === story) return;
    this.stories.set(story.value, story);
    if (this.plan && this.picked >= 0 && this.plan.names[this.picked] === story.value)
      this.showSide();
  }

  /** The rows anew, after folding, searching or a new plan. */
  list() {
    const plan = this.plan;
    if (!plan || !this.tree) return;
    const words = this.words,
      isOpen = (/** @type {string} */ key, /** @type {any} */ call, /** @type {number} */ depth) =>
        words.length > 0 || (this.folds.get(key) ?? opensAtFirst(plan, call, depth));
    ({ rows: this.rows, place: this.place } = planRows(plan, this.tree, isOpen, (at) =>
      plan.fits(at, words),
    ));
    this.active = Math.min(this.active, Math.max(0, this.rows.length - 1));
    this.inner.style.height = `${this.rows.length * VALUE_ROW}px`;
    this.grid.setAttribute("aria-rowcount", String(this.rows.length));
  }

  relist() {
    const key = this.rows[this.active]?.key;
    this.list();
    const at = this.rows.findIndex((r) => r.key === key);
    if (at >= 0) this.active = at;
    this.paint();
  }

  search() {
    this.words = this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.relist();
    this.see(this.active);
  }

  /** @param {boolean} open */
  foldAll(open) {
    const walk = (/** @type {any} */ call) => {
      if (call.key) this.folds.set(call.key, open);
      for (const item of call.items) if (typeof item !== "number") walk(item);
    };
    if (this.tree) walk(this.tree);
    this.relist();
    this.see(this.active);
  }

  /**
   * Opens every call around a value.
   * @param {number} at
   */
  reveal(at) {
    const open = (/** @type {any} */ call) => {
      if (!call.members.includes(at)) return;
      if (call.key) this.folds.set(call.key, true);
      for (const item of call.items) if (typeof item !== "number") open(item);
    };
    if (this.rows[this.place.get(at) ?? -1]?.value === at) return;
    if (this.words.length) {
      this.find.value = "";
      this.words = [];
    }
    if (this.tree) open(this.tree);
    this.list();
  }

  /**
   * Picks a value; a number below 0 lets go.
   * @param {number} at
   */
  pick(at) {
    this.picked = at;
    if (at >= 0) {
      this.reveal(at);
      this.active = this.place.get(at) ?? this.active;
      this.see(this.active);
    }
    this.ask();
    this.shine();
    this.paint();
    this.showSide();
    this.side.scrollTop = 0;
  }

  ask() {
    if (!this.plan || this.picked < 0 || this.old) return;
    const name = this.plan.names[this.picked];
    if (!this.stories.has(name)) this.why(name);
  }

  /**
   * Which values stand out: those on the way of the picked one's axes, or of the step shown; the
   * page lights up the arrays among them.
   */
  shine() {
    const plan = this.plan;
    this.lit = plan && this.picked >= 0 ? plan.lineage(this.picked) : new Map();
    this.ways = new WeakMap();
    const step = this.shownStep();
    const names =
      plan && step
        ? [...new Set(step.moves.flatMap((m) => [m.from, ...m.to]))]
            .filter((at) => at >= 0)
            .map((at) => plan.names[at])
        : plan && this.picked >= 0
          ? [...this.lit.keys()].map((at) => plan.names[at])
          : null;
    const key = JSON.stringify(names);
    if (key === this.lighted || (this.lighted === null && names === null)) return;
    this.lighted = key;
    this.light(names);
  }

  shownStep() {
    return this.plan && this.step ? this.plan.steps[this.step - 1] : null;
  }

  /** @param {number} by */
  go(by) {
    if (!this.plan) return;
    // From the settled plan the first step back shows its last step, and the first step on begins anew.
    this.stepTo(this.step === null ? (by > 0 ? 0 : this.plan.steps.length) : this.step + by);
  }

  /** @param {number | null} step 0 is before the propagation; null leaves stepping */
  stepTo(step) {
    if (!this.plan) return;
    this.step = step === null ? null : Math.max(0, Math.min(this.plan.steps.length, step));
    const shown = this.shownStep();
    if (shown) {
      const to = [shown.op, ...shown.moves.flatMap((m) => m.to)].find(
        (at) => at >= 0 && this.place.has(at),
      );
      if (to !== undefined) this.see(this.place.get(to) ?? 0);
    }
    this.shine();
    this.paint();
    if (this.picked >= 0) this.showSide();
  }

  /**
   * Scrolls a row into sight.
   * @param {number} row
   */
  see(row) {
    const top = row * VALUE_ROW,
      height = this.grid.clientHeight - VALUE_ROW;
    if (height <= 0) return;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top > this.grid.scrollTop + height - VALUE_ROW)
      this.grid.scrollTop = top - height + VALUE_ROW * 2;
  }

  /** @param {MouseEvent} e */
  click(e) {
    const node = /** @type {Element} */ (e.target).closest(".sv-vrow");
    if (!node) return;
    this.active = Number(node.getAttribute("data-row"));
    this.enter(this.rows[this.active]);
  }

  /** @param {import("./values_data.js").PlanRow | undefined} row */
  enter(row) {
    if (!row) return;
    if (row.value >= 0) return this.pick(row.value);
    this.folds.set(row.key, !row.open);
    this.relist();
  }

  /** @param {KeyboardEvent} e */
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const row = this.rows[this.active],
      page = Math.max(1, Math.floor(this.grid.clientHeight / VALUE_ROW) - 2);
    const moves = /** @type {Record<string, number>} */ ({
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity,
    });
    if (e.key in moves) this.move(this.active + moves[e.key]);
    else if (e.key === "Enter" || e.key === " ") this.enter(row);
    else if (e.key === "Escape") {
      this.step = null;
      this.pick(-1);
    } else if (e.key === ",") this.go(-1);
    else if (e.key === ".") this.go(1);
    else if (e.key === "ArrowRight" && row) {
      if (row.value < 0 && !row.open) this.enter(row);
      else this.move(this.active + 1);
    } else if (e.key === "ArrowLeft" && row) {
      if (row.value < 0 && row.open) this.enter(row);
      else this.move(this.parent(this.active));
    } else return;
    e.preventDefault();
    e.stopPropagation();
  }

  /** @param {number} to */
  move(to) {
    this.active = Math.max(0, Math.min(this.rows.length - 1, to));
    this.see(this.active);
    this.paint();
  }

  /**
   * The row of the call that a row stands in.
   * @param {number} at
   */
  parent(at) {
    const depth = this.rows[at].depth;
    for (let i = at; i >= 0; i--) if (this.rows[i].depth < depth) return i;
    return at;
  }

  /** Makes the rows in sight. */
  paint() {
    const plan = this.plan;
    if (!plan || !this.grid.isConnected) return;
    const first = Math.max(0, Math.floor(this.grid.scrollTop / VALUE_ROW) - 3);
    const last = Math.min(
      this.rows.length,
      first + Math.ceil((this.grid.clientHeight || ROWS_SEEN * VALUE_ROW) / VALUE_ROW) + 6,
    );
    const step = this.shownStep(),
      reached = new Set(step ? step.moves.flatMap((m) => m.to) : []);
    const nodes = [];
    for (let i = first; i < last; i++) nodes.push(this.rowNode(plan, i, step, reached));
    fill(this.inner, ...nodes);
    this.grid.setAttribute(
      "aria-activedescendant",
      this.rows.length ? `${this.id}-${this.active}` : "",
    );
    this.paintStep(plan);
  }

  /**
   * @param {PlanData} plan
   * @param {number} i
   * @param {any} step
   * @param {Set<number>} reached
   */
  rowNode(plan, i, step, reached) {
    const row = this.rows[i],
      value = row.value;
    const marks = ["sv-vrow"];
    if (value < 0) marks.push("sv-vcall");
    if (i === this.active) marks.push("sv-vactive");
    if (value >= 0 && value === this.picked) marks.push("sv-vpicked");
    if (step && (value >= 0 ? value === step.op : !row.open && this.place.get(step.op) === i))
      marks.push("sv-vop");
    if (value >= 0 && reached.has(value)) marks.push("sv-vreached");
    const axes = value >= 0 || !row.open ? this.waysIn(row.members) : [];
    const node = h(
      "div",
      {
        class: marks.join(" "),
        role: "row",
        id: `${this.id}-${i}`,
        "data-row": i,
        style: { top: `${i * VALUE_ROW}px` },
        "aria-level": row.depth + 1,
        "aria-posinset": row.place,
        "aria-setsize": row.size,
        "aria-rowindex": i + 1,
        ...(value < 0
          ? { "aria-expanded": String(row.open) }
          : { "aria-selected": String(value === this.picked) }),
      },
      ...(value < 0 ? callCells(plan, row) : valueCells(plan, row, this.step ?? Infinity)),
    );
    if (axes.length)
      node.prepend(h("span", { class: "sv-vway" }, ...axes.map((a) => axisDot(plan, a))));
    return node;
  }

  /**
   * The axes whose way leads through some of the values; found once for every value that is picked.
   * @param {number[]} members
   * @returns {number[]}
   */
  waysIn(members) {
    let known = this.ways.get(members);
    if (!known) {
      known = this.lit.size ? [...new Set(members.flatMap((m) => this.lit.get(m) ?? []))] : [];
      this.ways.set(members, known);
    }
    return known;
  }

  /** @param {PlanData} plan */
  paintStep(plan) {
    const total = plan.steps.length,
      at = this.step ?? total,
      step = this.shownStep();
    this.stepbar.hidden = !total;
    this.slider.max = String(total);
    if (this.slider.value !== String(at)) this.slider.value = String(at);
    this.back.disabled = at === 0;
    this.on.disabled = this.step !== null && at === total;
    toggle(this.stepbar, "sv-stepping", this.step !== null);
    const name = (/** @type {number} */ v) => (v < 0 ? "elsewhere" : plan.names[v]);
    const many = `${total.toLocaleString("en")} ${total === 1 ? "step" : "steps"}`;
    let said = `The propagation took ${many}. Walk through them with , and . or the slider.`;
    if (this.step === 0) said = `Before the first of ${many}: only what was asked for.`;
    else if (step)
      said = `${at.toLocaleString("en")} of ${total.toLocaleString("en")} · step ${step.number}, through ${name(step.op)}: ${step.moves.map((m) => `${m.axis} from ${name(m.from)} to ${m.to.map(name).join(", ")}`).join("; ")}.`;
    setText(this.stepText, said);
    this.stepText.title = said;
    this.slider.setAttribute("aria-valuetext", said);
  }

  showSide() {
    const plan = this.plan;
    if (!plan) return;
    if (this.picked >= 0)
      return fill(
        this.side,
        ...valueDetails(
          plan,
          this.picked,
          this.step ?? Infinity,
          this.stories.get(plan.names[this.picked]),
          (at) => this.pick(at),
        ),
      );
    const stray = plan.moves(-1).map((/** @type {any} */ m) => `${m.kind} ${m.bytes}`);
    const notes = [
      ...(stray.length
        ? [
            `Estimated, and at no value of the list: ${stray.slice(0, 5).join(", ")}${stray.length > 5 ? ` and ${stray.length - 5} more` : ""}.`,
          ]
        : []),
      ...this.data.notes,
      ...(this.data.moreNotes ? [`and ${this.data.moreNotes} more notes`] : []),
    ];
    fill(
      this.side,
      h("p", {
        class: "sv-muted",
        text: "Pick a value to see where its axes came from. Arrow keys move, Enter picks, Escape lets go, comma and full stop step through the propagation.",
      }),
      h("p", {
        class: "sv-muted",
        text: "A bar stands for a dimension. Its parts are the blocks that a mesh axis cuts it into; a grey one is whole, and a dashed one waits for its axis.",
      }),
      ...notes.map((/** @type {string} */ n) => h("p", { class: "sv-note2", text: n })),
    );
  }

  destroy() {
    this.watch.disconnect();
  }
}

/**
 * @param {PlanData} plan
 * @param {any} call
 * @param {number} depth
 */
function opensAtFirst(plan, call, depth) {
  if (call.label === "arguments") return call.members.length <= MOST_ARGUMENTS;
  return (
    plan.count <= MOST_OPEN ||
    (depth === 0 && call.members.length <= MOST_OPEN && plan.count <= 4 * MOST_OPEN)
  );
}

/**
 * The stories that came with a plan, their texts by number.
 * @param {any} data
 * @returns {Map<string, any>}
 */
function storiesOf(data) {
  const text = (/** @type {any} */ said) =>
    Array.isArray(said) ? said.map((i) => data.text[i]) : data.text[said];
  return new Map(
    Object.entries(data.stories ?? {}).map(([name, story]) => [
      name,
      Object.fromEntries(Object.entries(story).map(([key, said]) => [key, text(said)])),
    ]),
  );
}
