// @ts-check
// The rules: their text, and beside every rule what it decides.
import { Choice, Touched, keepKey } from "./controls.js";
import { OWN_KEYS, fill, h, setText, toggle } from "./dom.js";

export class RuleTable {
  /** @param {import("./explorer.js").Edit} edit */
  constructor(edit) {
    this.state = new Touched();
    this.dialect = new Choice("Dialect", (v) => edit("dialect", v));
    this.text = h("textarea", {
      class: "sv-rules sv-mono",
      "aria-label": "Rules",
      spellcheck: "false",
      wrap: "off",
      autocapitalize: "off",
      ...OWN_KEYS,
      placeholder: "batch -> data",
      on: {
        input: () => {
          this.state.touched = true;
          this.grow();
          edit("rules", this.text.value);
        },
        change: () => edit("tidy", null),
        keydown: keepKey,
      },
    });
    this.rows = h("div", { class: "sv-rulerows" });
    this.sheet = h("div", { class: "sv-sheet" }, this.rows, this.text);
    this.error = h("div", { class: "sv-error", role: "alert" });
    this.node = h(
      "div",
      { class: "sv-rulebox" },
      h(
        "div",
        { class: "sv-headrow" },
        h("h3", { class: "sv-head", text: "Rules" }),
        this.dialect.node,
      ),
      h("div", { class: "sv-scroll" }, this.sheet),
      this.error,
    );
    this.key = "";
  }

  grow() {
    const lines = this.text.value.split("\n").length;
    this.text.rows = lines;
    this.sheet.style.setProperty("--sv-lines", String(lines));
  }

  /** @param {import("./view_data.js").View["rules"]} rules @param {string[]} dialects */
  show(rules, dialects) {
    if (this.text.value !== rules.text && this.state.accepts(this.text)) {
      this.text.value = rules.text;
    }
    this.grow();
    this.dialect.sync(
      dialects.map((d) => ({ value: d, label: d })),
      rules.dialect,
    );
    setText(this.error, rules.error ?? "");
    this.text.setAttribute("aria-invalid", rules.error ? "true" : "false");
    toggle(this.sheet, "sv-unaligned", !rules.aligned);
    // While a line is being typed the old rows stay beside it, pale.
    if (rules.error) return;
    const key = JSON.stringify(rules.rows);
    if (key === this.key) return;
    this.key = key;
    fill(this.rows, ...rules.rows.map(ruleRow));
  }
}

/** @param {import("./messages").RuleRow} row @param {number} index */
function ruleRow(row, index) {
  const { note = "", more = note } = row;
  const who = row.decides ?? row.not_split;
  const unused = row.never ? h("span", { class: "sv-warn", text: "never fires" }) : h("span");
  const right = who
    ? h("span", { class: row.broken ? "sv-bad" : "sv-good", text: who, title: who })
    : unused;
  return h(
    "div",
    { class: "sv-rulerow", style: { "--sv-row-index": row.line } },
    h("span", { class: "sv-number", text: String(index + 1) }),
    h("span", {
      class: `sv-note${row.broken ? " sv-bad" : ""}`,
      text: note,
      title: more,
    }),
    h(
      "span",
      { class: "sv-who" },
      right,
      row.not_split && !row.decides ? h("span", { class: "sv-muted", text: "not split" }) : null,
    ),
  );
}
