// @ts-check
// The tab Collectives: the rungs side by side, or one of them, or what changed between two.
import { Choice, button, fill, h, setText, toggle } from "./dom.js";
import { ranges } from "./linked.js";
import { RUNG_NAMES, rungState } from "./rungs.js";

/** @typedef {import("./linked.js").Links} Links */

const SHOWN = [
  { value: "all", label: "side by side" },
  { value: "1", label: "propagated (estimate)" },
  { value: "2", label: "partitioned" },
  { value: "3", label: "compiled" },
  { value: "1-2", label: "propagated → partitioned" },
  { value: "2-3", label: "partitioned → compiled" },
];
const CHANGE_SIGNS = /** @type {Record<string, string>} */ ({
  added: "+",
  removed: "−",
  kept: "=",
});
const CELL_LINES = 3;

export class CollectivesPanel {
  /**
   * @param {Links} links
   * @param {{shown: () => void, value: (name: string) => void, links: (key: string | null) => void,
   * position: () => void}} calls
   */
  constructor(links, { shown, value, links: draw, position }) {
    this.drawLinks = draw;
    this.byPosition = button("Show its links by position", position, {
      class: "sv-link sv-tovalue",
      hidden: true,
    });
    this.links = links;
    this.value = value;
    this.shown = "all";
    this.choice = new Choice(
      "Rungs shown",
      (v) => {
        this.open(v);
        shown();
      },
      "Show",
    );
    this.choice.select.dataset.keep = "true"; // it asks no kernel
    this.said = h("span", { class: "sv-muted" });
    this.table = h("div", {
      class: "sv-ctable",
      on: { keydown: (/** @type {KeyboardEvent} */ e) => this.keys(e) },
    });
    this.side = h("aside", {
      class: "sv-vside sv-cside",
      "aria-label": "The chosen collective",
      tabindex: "0",
      "data-lm-suppress-shortcuts": "true",
    });
    this.node = h(
      "div",
      { class: "sv-collectives" },
      h("div", { class: "sv-vbar" }, this.choice.node, this.said),
      h("div", { class: "sv-vmain sv-cmain" }, this.table, this.side),
    );
    /**
     * Which row is chosen: the rung and number of its first collective.
     * @type {string | null}
     */
    this.chosen = null;
    this.key = "";
    /** @type {any} */ this.data = null;
    /** @type {any} */ this.view = null;
    /** @type {any} */ this.drawn = null;
    /** @type {any} */ this.group = null;
    this.target = "";
    links.listeners.push(() => this.sayGroup());
  }

  /** @param {string} what */
  open(what) {
    this.shown = what;
    this.key = "";
    this.draw();
  }

  /**
   * @param {any} data
   * @param {any} view
   * @param {string} target
   */
  show(data, view, target) {
    if (data !== this.data && this.chosen !== null && !this.find(data, this.chosen))
      this.choose(null);
    Object.assign(this, { data, view, target });
    this.draw();
  }

  draw() {
    if (!this.data || !this.node.isConnected) return;
    this.choice.sync(SHOWN, this.shown);
    if (this.choice.select.value !== this.shown) this.choice.select.value = this.shown;
    const states = [0, 1, 2].map((i) => rungState(this.data, i, this.view, this.target));
    const key = JSON.stringify([this.shown, states, this.links.hues]);
    if (key === this.key && this.drawn === this.data) return;
    this.key = key;
    this.drawn = this.data;
    const focused = this.table.contains(document.activeElement);
    setText(this.said, this.words(states));
    fill(
      this.table,
      ...this.failures(),
      ...(this.shown === "all"
        ? this.sideBySide(states)
        : this.shown.includes("-")
          ? this.comparison()
          : this.single(Number(this.shown) - 1, states)),
    );
    this.markChosen();
    if (focused)
      /** @type {HTMLElement | null} */ (this.table.querySelector("[tabindex='0']"))?.focus({
        preventScroll: true,
      });
    this.showSide();
  }

  /** @param {string[]} states */
  words(states) {
    if (this.shown.includes("-")) return this.mark()?.tone === "same" ? "Nothing changed." : "";
    const old = states.filter((s) => s === "old").length;
    const i = this.shown === "all" ? -1 : Number(this.shown) - 1;
    const cut = i >= 0 ? this.data.cut[i] : Math.max(...this.data.cut);
    return [
      cut
        ? `the ${this.data.collectives[Math.max(i, 0)].length} largest; ${cut} more`
        : "largest first",
      old ? "the program was edited since" : "",
    ]
      .filter(Boolean)
      .join(" · ");
  }

  failures() {
    const parts = [],
      error = this.data.error,
      plan = this.data.rungs[0];
    // What cannot be traced fails alike when it is compiled: it is said once.
    const twice = error && this.shown !== "1" && plan.more.endsWith(error.message);
    if (plan.state === "failed" && !twice && (this.shown === "all" || this.shown === "1"))
      parts.push(failureNote("No plan", plan.more, ""));
    if (error && this.shown !== "1")
      parts.push(failureNote(error.title, error.message, error.source));
    for (const note of this.data.notes) parts.push(h("p", { class: "sv-muted", text: note }));
    return parts;
  }

  mark() {
    const [i, j] = this.shown.split("-").map((n) => Number(n) - 1);
    return this.data.marks.find((/** @type {any} */ m) => m.between[0] === i && m.between[1] === j);
  }

  /** @param {string[]} states */
  sideBySide(states) {
    const data = this.data;
    const unknown = states.every((s) => s === "none" || s === "failed");
    if (unknown && states.includes("failed")) return [];
    if (!data.rows.length)
      return [
        h("p", {
          class: "sv-muted",
          text: unknown
            ? "Nothing is known yet."
            : "No collectives: no device needs another's data.",
        }),
      ];
    const head = [
      "bytes a device",
      ...data.rungs.map((/** @type {any} */ r, /** @type {number} */ i) =>
        h(
          "span",
          { class: states[i] === "old" ? "sv-faded" : "" },
          r.name,
          states[i] === "estimate"
            ? h("i", { text: " estimate" })
            : states[i] === "none"
              ? h("i", { text: " not yet" })
              : null,
        ),
      ),
      "cause",
    ];
    const rows = data.rows.map((/** @type {any} */ row) => {
      const last = [2, 1, 0].find((i) => row.cells[i].length) ?? 0,
        first = data.collectives[last].find(
          (/** @type {any} */ c) => c.number === row.cells[last][0],
        );
      if (!first) return null;
      const cells = row.cells.map((/** @type {number[]} */ some, /** @type {number} */ i) =>
        h(
          "td",
          { class: `sv-ccell${states[i] === "old" ? " sv-faded" : ""}` },
          ...this.lines(i, some, states),
        ),
      );
      return this.tr(
        `${last}:${first.number}`,
        row.cells.flat().length && first.full,
        h("td", { class: "sv-cbytes" }, cbar(row.share), row.bytes),
        ...cells,
        causeCell(first),
      );
    });
    return [ctable(head, rows.filter(Boolean))];
  }

  /**
   * What stands in one cell: equal collectives counted.
   * @param {number} rung
   * @param {number[]} numbers
   * @param {string[]} states
   */
  lines(rung, numbers, states) {
    if (!numbers.length)
      return [
        h("span", {
          class: "sv-muted",
          text: states[rung] === "none" || states[rung] === "failed" ? "" : "–",
        }),
      ];
    /** @type {Map<string, any>} */ const same = new Map();
    for (const number of numbers) {
      const c = this.data.collectives[rung].find((/** @type {any} */ x) => x.number === number),
        key = c.kind + c.axes.join() + c.tags.join();
      const known = same.get(key);
      if (known) known.count++;
      else same.set(key, { c, count: 1 });
    }
    const all = [...same.values()],
      parts = all
        .slice(0, CELL_LINES)
        .map(({ c, count }) =>
          h(
            "div",
            null,
            h("span", { text: count > 1 ? `${count} ${c.kind}` : c.kind }),
            ...this.axisTags(c.axes),
            ...ctags(c),
          ),
        );
    if (all.length > CELL_LINES)
      parts.push(
        h("div", { class: "sv-muted", text: `and ${all.length - CELL_LINES} more kinds` }),
      );
    return parts;
  }

  /** @param {number} rung @param {string[]} states */
  single(rung, states) {
    const known = this.data.rungs[rung],
      some = this.data.collectives[rung];
    if (rung < 0) return [];
    if (states[rung] === "none")
      return [
        h("p", { class: "sv-muted", text: `${capital(RUNG_NAMES[rung + 1])}: ${known.text}.` }),
      ];
    if (!some.length)
      return states[rung] === "failed"
        ? []
        : [h("p", { class: "sv-muted", text: "No collectives: no device needs another's data." })];
    const rows = some.map((/** @type {any} */ c) =>
      this.tr(
        `${rung}:${c.number}`,
        c.full,
        h("td", { class: "sv-cbytes" }, cbar(c.share), c.bytes),
        h("td", { class: "sv-ccell" }, h("div", null, h("span", { text: c.kind }), ...ctags(c))),
        h("td", null, ...this.axisTags(c.axes)),
        h("td", { class: "sv-muted", text: c.phase }),
        causeCell(c),
      ),
    );
    return [ctable(["bytes a device", "kind", "over", "pass", "cause"], rows)];
  }

  comparison() {
    const [i, j] = this.shown.split("-").map((n) => Number(n) - 1);
    if (!this.mark())
      return [
        h("p", {
          class: "sv-muted",
          text: `Both rungs are needed for that: ${capital(RUNG_NAMES[j + 1])}: ${this.data.rungs[j].text}.`,
        }),
      ];
    const changes = this.data.changes.filter(
      (/** @type {any} */ c) => c.between[0] === i && c.between[1] === j,
    );
    if (!changes.length) return [h("p", { class: "sv-muted", text: "No collectives on either." })];
    const rows = changes.map((/** @type {any} */ c) =>
      this.tr(
        c.after.length ? `${j}:${c.after[0]}` : `${i}:${c.before[0]}`,
        false,
        h(
          "td",
          { class: "sv-changekind" },
          h("span", {
            class: `sv-change sv-change-${c.kind.split(" ")[0]}`,
            text: CHANGE_SIGNS[c.kind] ? `${CHANGE_SIGNS[c.kind]} ${c.kind}` : c.kind,
          }),
        ),
        h("td", { text: c.words }),
      ),
    );
    return [ctable(["what", `from ${RUNG_NAMES[i + 1]} to ${RUNG_NAMES[j + 1]}`], rows)];
  }

  /**
   * @param {string} key
   * @param {boolean} full
   * @param {...Node} cells
   */
  tr(key, full, ...cells) {
    return h(
      "tr",
      {
        class: full ? "sv-crow sv-full" : "sv-crow",
        "data-key": key,
        tabindex: "-1",
        "aria-selected": "false",
        on: { click: () => this.choose(this.chosen === key ? null : key) },
      },
      ...cells,
    );
  }

  /** @param {string[]} axes */
  axisTags(axes) {
    if (!axes.length) return [h("span", { class: "sv-tag sv-muted", text: "no whole axis" })];
    return axes.map((a) =>
      h("span", { class: "sv-tag sv-axistag", text: a, style: { "--sv-hue": this.hue(a) } }),
    );
  }

  /**
   * The colour of a mesh axis, as in the tab Values.
   * @param {string} axis
   */
  hue(axis) {
    const at = this.data.axes[axis.split(":(")[0]];
    return at === undefined
      ? "var(--sv-muted)"
      : (this.links.hues[at % this.links.hues.length] ?? "var(--sv-muted)");
  }

  /** @param {any} data @param {string} key */
  find(data, key) {
    const [rung, number] = key.split(":").map(Number);
    return data.collectives[rung]?.find((/** @type {any} */ c) => c.number === number);
  }

  /** @param {string | null} key */
  choose(key) {
    this.chosen = key;
    const c = key === null || !this.data ? null : this.find(this.data, key);
    this.links.gather(c ? { key, kind: c.kind, axes: c.axes, groups: c.groups } : null);
    this.drawLinks(c ? key : null);
    this.markChosen();
    this.showSide();
  }

  /**
   * Whether devices could stand by position, and do not.
   * @param {boolean} on
   */
  offer(on) {
    this.byPosition.hidden = !on;
  }

  markChosen() {
    const rows = [...this.table.querySelectorAll("tr[data-key]")];
    const at = rows.findIndex((r) => r.getAttribute("data-key") === this.chosen);
    rows.forEach((r, i) => {
      toggle(r, "sv-chosen", i === at);
      r.setAttribute("aria-selected", String(i === at));
      r.setAttribute("tabindex", i === Math.max(0, at) ? "0" : "-1");
    });
  }

  /** @param {KeyboardEvent} e */
  keys(e) {
    const rows = /** @type {HTMLElement[]} */ ([...this.table.querySelectorAll("tr[data-key]")]);
    const at = rows.indexOf(/** @type {any} */ (document.activeElement));
    if (at < 0 || e.ctrlKey || e.metaKey || e.altKey) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[e.key];
    if (to !== undefined) {
      const row = rows[Math.max(0, Math.min(rows.length - 1, to))];
      for (const r of rows) r.setAttribute("tabindex", r === row ? "0" : "-1");
      row.focus();
    } else if (e.key === "Enter" || e.key === " ") this.choose(rows[at].getAttribute("data-key"));
    else if (e.key === "Escape") this.choose(null);
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  /** What is known of the chosen one. */
  showSide() {
    const c = this.chosen === null || !this.data ? null : this.find(this.data, this.chosen);
    if (!c || this.chosen === null) {
      fill(
        this.side,
        h("p", {
          class: "sv-muted",
          text: "Choose a collective to see why it is there and which devices take part. Arrow keys move, Enter chooses, Escape lets go.",
        }),
      );
      return;
    }
    const [rung, number] = this.chosen.split(":").map(Number);
    const became = this.data.changes.filter(
      (/** @type {any} */ x) =>
        x.kind !== "kept" &&
        ((x.between[0] === rung && x.before.includes(number)) ||
          (x.between[1] === rung && x.after.includes(number))),
    );
    this.group = h("p", { class: "sv-cgroup" });
    const facts = [
      c.shape,
      c.total ? `${c.total} in all` : "",
      c.size ? `groups of ${c.size}` : "",
      c.phase,
    ].filter(Boolean);
    fill(
      this.side,
      h(
        "div",
        { class: "sv-vtitle" },
        h("b", { text: c.kind }),
        ...this.axisTags(c.axes),
        h("span", { class: "sv-muted", text: ` ${c.bytes} a device` }),
      ),
      ...(c.full
        ? [
            h("p", {
              class: "sv-bad",
              text: "Full rematerialisation: every device makes the whole array, only to cut it anew.",
            }),
          ]
        : []),
      this.group,
      this.byPosition,
      ...became.map((/** @type {any} */ x) =>
        h(
          "p",
          null,
          h("span", {
            class: "sv-muted",
            text: `${RUNG_NAMES[x.between[0] + 1]} → ${RUNG_NAMES[x.between[1] + 1]}: `,
          }),
          x.words,
        ),
      ),
      ...c.causes.map((/** @type {string} */ t) => h("p", { text: t })),
      ...(c.moreCauses ? [h("p", { class: "sv-muted", text: `and ${c.moreCauses} more` })] : []),
      ...(facts.length
        ? [h("p", { class: "sv-muted sv-clamp", text: facts.join(" · "), title: c.shape })]
        : []),
      ...c.values.map((/** @type {string} */ v) =>
        button(`Show ${v} in Values`, () => this.value(v), { class: "sv-link sv-tovalue" }),
      ),
      ...(c.op ? [h("code", { class: "sv-muted sv-clamp", text: c.op, title: c.op })] : []),
      ...(c.stack.length ? c.stack : [c.source])
        .filter(Boolean)
        .map((/** @type {string} */ s) => h("code", { text: s })),
    );
    this.sayGroup();
  }

  /** Which devices take part together with the one pointed at. */
  sayGroup() {
    if (!this.group || !this.links.team) return;
    const links = this.links,
      p = links.pointing,
      at = p && p.kind === "device" ? p.at : 0,
      mates = links.teammates(at);
    setText(
      this.group,
      mates.length
        ? `Device ${links.ids[at]} takes part with ${
            ranges(
              mates.filter((m) => m !== at).map((m) => links.ids[m]),
              12,
            ) || "no other"
          }.`
        : "Which devices take part is not known.",
    );
  }
}

/** @param {any} c */
function ctags(c) {
  return [
    ...(c.full ? [h("span", { class: "sv-tag sv-fulltag", text: "full rematerialisation" })] : []),
    ...c.tags.map((/** @type {string} */ t) =>
      h("span", { class: t === "new" ? "sv-tag sv-newtag" : "sv-tag", text: t }),
    ),
  ];
}

/**
 * Why it is there, in the words of the plan where it has some.
 * @param {any} c
 */
function causeCell(c) {
  const more = c.causes.length + c.moreCauses - 1;
  return h(
    "td",
    { class: "sv-cause", title: [...c.causes, c.op].join("\n") },
    h("div", { class: "sv-clamp", text: c.causes[0] }),
    h(
      "div",
      { class: "sv-muted sv-where" },
      h("code", { text: c.source }),
      more ? ` and ${more} more ${more === 1 ? "cause" : "causes"}` : "",
    ),
  );
}

/** @param {number} share of the longest bar */
function cbar(share) {
  return h(
    "span",
    { class: "sv-barcell" },
    h("span", { class: "sv-fill", style: { width: `${Math.max(2, share * 100)}%` } }),
  );
}

/** @param {Array<string | Node>} titles @param {any[]} rows */
function ctable(titles, rows) {
  return h(
    "table",
    { class: `sv-table sv-c${titles.length}`, "aria-label": "Collectives" },
    h("thead", null, h("tr", null, ...titles.map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", null, ...rows),
  );
}

/**
 * @param {string} title
 * @param {string} message
 * @param {string} source
 */
export function failureNote(title, message, source) {
  return h(
    "div",
    { class: "sv-failure", role: "alert" },
    h("b", { text: `${title}. ` }),
    h("span", { class: "sv-prewrap", text: message }),
    source ? h("code", { text: source }) : null,
  );
}

/** @param {string} text */
function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
