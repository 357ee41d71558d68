// Finds what cannot be read in the Explorer on this page: `legible.findings()`.
// Text on canvases is recorded when it is drawn, so load this before the Explorer paints.
window.legible = (() => {
  const TARGET = 24; // pixels: the smallest control of WCAG 2.2
  const READABLE = 4.5; // the contrast of WCAG 2, level AA, for text of any size
  const SMALLEST = 9; // pixels: the smallest font
  const SLACK = 1.5; // pixels: rounding, and letters that lean out of their box

  // Text on canvases -----------------------------------------------------------------------

  const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
  const width = Object.getOwnPropertyDescriptor(HTMLCanvasElement.prototype, "width");
  Object.defineProperty(HTMLCanvasElement.prototype, "width", {
    ...width,
    set(pixels) {
      this.drawn = []; // a new size empties a canvas
      width.set.call(this, pixels);
    },
  });
  CanvasRenderingContext2D.prototype.clearRect = function (...box) {
    this.canvas.drawn = [];
    clearRect.apply(this, box);
  };
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    const size = this.measureText(text);
    const at = this.getTransform();
    const corners = [
      [x - size.actualBoundingBoxLeft, y - size.actualBoundingBoxAscent],
      [x + size.actualBoundingBoxRight, y + size.actualBoundingBoxDescent],
    ].map(([left, top]) => at.transformPoint({ x: left, y: top }));
    const [xs, ys] = [corners.map((p) => p.x), corners.map((p) => p.y)];
    const label = { text, font: parseFloat(this.font.match(/([\d.]+)px/)[1]) };
    label.colour = this.fillStyle;
    Object.assign(label, { left: Math.min(...xs), right: Math.max(...xs) });
    Object.assign(label, { top: Math.min(...ys), bottom: Math.max(...ys) });
    (this.canvas.drawn ??= []).push(label);
    fillText.call(this, text, x, y, ...rest);
  };

  // Colours --------------------------------------------------------------------------------

  const rgba = (text) => {
    if (text.startsWith("#")) {
      return [1, 3, 5].map((from) => parseInt(text.slice(from, from + 2), 16)).concat(1);
    }
    const n = text.match(/[\d.]+/g).map(Number);
    const by = text.startsWith("color(") ? 255 : 1; // a mixed colour: parts from 0 to 1
    return [n[0] * by, n[1] * by, n[2] * by, n[3] ?? 1];
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const luminance = (colour) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrastOf = (a, b) => {
    const [x, y] = [luminance(a) + 0.05, luminance(b) + 0.05];
    return Math.max(x, y) / Math.min(x, y);
  };
  const ancestors = (e) => {
    const up = [];
    for (let at = e; at; at = at.parentElement) up.push(at);
    return up;
  };
  const behind = (e) => {
    const grounds = [];
    for (const up of ancestors(e)) {
      const ground = rgba(getComputedStyle(up).backgroundColor);
      if (ground[3]) grounds.unshift(ground);
      if (ground[3] === 1) break;
    }
    return grounds.reduce((under, ground) => over(ground, under), [255, 255, 255, 1]);
  };
  /** The colour of most pixels under a label, drawn over the colour behind its canvas. */
  const groundOf = (canvas, label) => {
    const [x, y] = [Math.max(0, Math.floor(label.left)), Math.max(0, Math.floor(label.top))];
    const [w, h] = [Math.ceil(label.right) - x, Math.ceil(label.bottom) - y];
    const { data } = canvas.getContext("2d").getImageData(x, y, Math.max(1, w), Math.max(1, h));
    const counts = new Map();
    let [most, count] = [0, 0];
    for (const pixel of new Uint32Array(data.buffer)) {
      counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
      if (counts.get(pixel) > count) [most, count] = [pixel, counts.get(pixel)];
    }
    const colour = [most & 255, (most >> 8) & 255, (most >> 16) & 255, (most >>> 24) / 255];
    return over(colour, behind(canvas));
  };
  const opacityOf = (e) =>
    ancestors(e).reduce((share, up) => share * Number(getComputedStyle(up).opacity), 1);

  // Boxes ----------------------------------------------------------------------------------

  const nameOf = (e) => {
    const text = e.getAttribute?.("aria-label") ?? e.textContent;
    return `<${e.tagName.toLowerCase()} ${e.getAttribute("class") ?? ""}> ${text.slice(0, 40)}`;
  };
  const isClipping = (how) => how !== "visible";
  const isScrolling = (how) => how === "auto" || how === "scroll";
  /** A box, cut by the elements around it whose overflow is `how`. */
  const cut = (root, from, { left, right, top, bottom }, how) => {
    for (const up of ancestors(from)) {
      const { overflowX, overflowY } = getComputedStyle(up);
      const edge = up.getBoundingClientRect();
      if (how(overflowX)) [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
      if (how(overflowY)) [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
      if (up === root) break;
    }
    return { left, right, top, bottom };
  };
  const isHidden = (e) => !e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  /** Whether an element is on top in the middle of a box. */
  const isSeen = (part, { left, right, top, bottom }) => {
    const e = part.tagName === "CANVAS" ? part.parentElement : part; // a canvas ignores the pointer
    const stack = document.elementsFromPoint((left + right) / 2, (top + bottom) / 2);
    const at = stack.findIndex((there) => there === e || e.contains(there));
    const covers = (one) => !/, 0\)$/.test(getComputedStyle(one).backgroundColor);
    return at >= 0 && !stack.slice(0, at).some(covers);
  };
  /** The box that two boxes share, or null if it is smaller than a few pixels. */
  const shared = (a, b) => {
    const [left, right] = [Math.max(a.left, b.left), Math.min(a.right, b.right)];
    const [top, bottom] = [Math.max(a.top, b.top), Math.min(a.bottom, b.bottom)];
    return right - left > 2 && bottom - top > 4 ? { left, right, top, bottom } : null;
  };
  const ruler = document.createElement("canvas").getContext("2d");
  const widthOf = (e, text) => {
    const { font, letterSpacing } = getComputedStyle(e);
    ruler.font = font;
    return ruler.measureText(text).width + (parseFloat(letterSpacing) || 0) * text.length;
  };

  // Findings -------------------------------------------------------------------------------

  /**
   * Every piece of text: lines, svg text, and labels of canvases. `everywhere`: also what is
   * scrolled out of sight or covered.
   */
  const textsOf = (root, everywhere = false) => {
    const texts = [];
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      const node = walk.currentNode;
      const e = node.parentElement;
      if (!node.data.trim() || e.closest("option, select, .sv-tip")) continue;
      if (isHidden(e)) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      for (const line of range.getClientRects()) {
        const box = cut(root, e, line, isClipping);
        const isThin = box.right - box.left < 2 || box.bottom - box.top < 4;
        const isSvg = e.closest("svg");
        if (!everywhere && (isThin || (!isSvg && !isSeen(e, box)))) continue;
        texts.push({ node, e, line, box, text: node.data.trim().slice(0, 40) });
      }
    }
    for (const canvas of root.querySelectorAll("canvas")) {
      const place = canvas.getBoundingClientRect();
      const by = place.width / canvas.width;
      if (!place.width || isHidden(canvas)) continue;
      for (const label of canvas.drawn ?? []) {
        if (!label.text.trim()) continue;
        const line = { left: place.left + label.left * by, right: place.left + label.right * by };
        Object.assign(line, { top: place.top + label.top * by });
        Object.assign(line, { bottom: place.top + label.bottom * by });
        const box = cut(root, canvas, line, isClipping);
        if (box.right - box.left < 2 || box.bottom - box.top < 2 || !isSeen(canvas, box)) continue;
        texts.push({ node: label, e: canvas, line, box, text: label.text, label });
      }
    }
    return texts;
  };
  /** Whether a person can scroll what an element covers out from under it. */
  const isSticky = (e) => ancestors(e).some((up) => getComputedStyle(up).position === "sticky");
  /** The text that something covers in part, except a list that a person opened. */
  const covered = (texts) => {
    const wrong = [];
    for (const { e, box, text } of texts) {
      if (e.closest("svg")) continue;
      const { left, right, top, bottom } = box;
      const [x, y] = [(left + right) / 2, (top + bottom) / 2];
      const ends = [
        [left + 2, y],
        [right - 2, y],
        [x, top + 3],
        [x, bottom - 3],
      ];
      for (const [px, py] of ends) {
        if (isSeen(e, { left: px, right: px, top: py, bottom: py })) continue;
        const on = document.elementFromPoint(px, py);
        if (on?.closest(".shardviz-explorer") && !on.closest(".sv-popover") && !isSticky(on)) {
          wrong.push(`“${text}” is covered in part by ${nameOf(on)}`);
        }
      }
    }
    return wrong;
  };
  const cutText = (root, { e, line, label, text }) => {
    const wrong = [];
    const shown = label ? nameOf(e.parentElement) : nameOf(e);
    if (label && /…\s*$/.test(text)) wrong.push(`cut at the tail: “${text}” of ${shown}`);
    const free = cut(root, e, line, isScrolling); // what a person can scroll to is not cut
    const seen = cut(root, e, free, isClipping);
    const lost = Math.max(seen.left - free.left, free.right - seen.right);
    if (label && lost > SLACK) wrong.push(`drawn beyond its canvas: “${text}” of ${shown}`);
    if (label || e.closest("svg")) return wrong;
    const cutter = ancestors(e).find((up) => {
      const { overflowX, display } = getComputedStyle(up);
      return isClipping(overflowX) && up.clientWidth && up.scrollWidth > up.clientWidth + 1;
    });
    if (cutter && root.contains(cutter)) {
      const { overflowX, direction } = getComputedStyle(cutter);
      const said = cutter.closest("[title]:not([title=''])");
      if (isScrolling(overflowX)) {
        if (!cutter.matches(".sv-code, .sv-scroll"))
          wrong.push(`scrolls sideways: ${nameOf(cutter)}`);
      } else if (direction !== "rtl")
        wrong.push(`cut at the tail: ${nameOf(e)} by ${nameOf(cutter)}`);
      else if (!said) wrong.push(`cut, and no tooltip has all of it: ${nameOf(e)}`);
    }
    for (const up of ancestors(e)) {
      const { overflowY } = getComputedStyle(up);
      const lines = isClipping(overflowY) && !isScrolling(overflowY);
      if (lines && up.clientHeight && up.scrollHeight > up.clientHeight + 2) {
        const low = up.getBoundingClientRect().bottom;
        if (line.bottom > low + 2) wrong.push(`cut below: ${nameOf(e)} by ${nameOf(up)}`);
      }
      if (up === root) break;
    }
    return wrong;
  };
  const fields = (root) => {
    const wrong = [];
    for (const e of root.querySelectorAll("textarea:not(.sv-rules)")) {
      if (isHidden(e) || e === document.activeElement) continue;
      const [over, below] = [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight];
      if (over > 1 || below > 1) wrong.push(`value cut: ${nameOf(e)} “${e.value}”`);
    }
    for (const e of root.querySelectorAll("input:not([type=range]), select")) {
      if (isHidden(e) || !e.clientWidth || e === document.activeElement) continue;
      const style = getComputedStyle(e);
      if (parseFloat(style.fontSize) === 0) continue;
      const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
      const isSelect = e.tagName === "SELECT";
      if (isSelect && style.appearance === "none") continue;
      const text = isSelect ? (e.selectedOptions[0]?.textContent ?? "") : e.value || e.placeholder;
      const room = e.clientWidth - padding - (isSelect ? 16 : 0);
      const width = widthOf(e, text);
      if (width > room + 1) {
        wrong.push(`value cut by ${(width - room).toFixed(0)}: ${nameOf(e)} “${text}”`);
      }
    }
    return wrong;
  };
  const controls = (root) => {
    const outer = root.getBoundingClientRect();
    const wrong = [];
    for (const e of root.querySelectorAll("button, input, select, textarea, [role=tab]")) {
      const box = e.getBoundingClientRect();
      if (!box.width || !box.height || getComputedStyle(e).visibility === "hidden") continue;
      const seen = cut(root, e.parentElement, box, isClipping);
      const free = cut(root, e.parentElement, box, isScrolling);
      if (free.right - free.left < 1 || free.bottom - free.top < 1) continue;
      const lost = Math.max(
        seen.left - free.left,
        free.right - seen.right,
        seen.top - free.top,
        free.bottom - seen.bottom,
      );
      if (lost > SLACK) wrong.push(`cut off by ${lost.toFixed(1)}: ${nameOf(e)}`);
      const outside = free.left < outer.left - 1 || free.right > outer.right + 1;
      if (outside) wrong.push(`outside: ${nameOf(e)}`);
      const [wide, tall] = [box.width.toFixed(0), box.height.toFixed(0)];
      if (wide < TARGET || tall < TARGET) wrong.push(`a target of ${wide} x ${tall}: ${nameOf(e)}`);
      const named = e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length;
      if (!named) wrong.push(`no name for a screen reader: ${nameOf(e)}`);
    }
    return wrong;
  };
  const layout = (root) => {
    const outer = root.getBoundingClientRect();
    const wrong = [];
    const page = document.scrollingElement;
    if (page.scrollHeight > innerHeight) wrong.push(`the page scrolls: ${page.scrollHeight}`);
    if (page.scrollWidth > innerWidth) wrong.push(`the page is too wide: ${page.scrollWidth}`);
    if (root.scrollWidth > root.clientWidth + 1) wrong.push(`too wide: ${root.scrollWidth}`);
    const bar = root.querySelector(".sv-viewbar");
    if (
      outer.width > 600 &&
      bar?.clientHeight > 1.6 * bar.querySelector("[role=tab]").clientHeight
    ) {
      wrong.push("the row of views has two lines");
    }
    for (const view of root.querySelectorAll(".sv-view:not([hidden])")) {
      if (view.scrollHeight > view.clientHeight + 1)
        wrong.push(`the view scrolls: ${nameOf(view)}`);
      const { bottom } = view.getBoundingClientRect();
      if (bottom > outer.bottom + 1) wrong.push(`too tall: ${nameOf(view)}`);
    }
    for (const e of root.querySelectorAll(".sv-canvas")) {
      const low = e.getBoundingClientRect().bottom;
      const below = low - e.closest(".sv-col").getBoundingClientRect().bottom;
      if (e.offsetParent && below > 1) wrong.push(`a picture on the text below: ${nameOf(e)}`);
    }
    // The text about the selected thing never scrolls.
    for (const e of root.querySelectorAll("[role=status]")) {
      if (e.offsetParent && e.scrollHeight > e.clientHeight + 1)
        wrong.push(`cut off: ${nameOf(e)}`);
    }
    for (const list of root.querySelectorAll("[role=tablist]")) {
      const tops = [...list.children].map((tab) => Math.round(tab.getBoundingClientRect().top));
      if (new Set(tops).size > 1) wrong.push(`tabs in two rows: ${nameOf(list)}`);
    }
    return wrong;
  };
  const overlaps = (root, texts) => {
    const wrong = [];
    const sorted = texts.toSorted((a, b) => a.box.top - b.box.top);
    sorted.forEach((first, i) => {
      for (let j = i + 1; j < sorted.length && sorted[j].box.top < first.box.bottom; j++) {
        const other = sorted[j];
        if (other.node === first.node) continue; // a line with an ellipsis has a box for each part
        // A marked tile is drawn a second time, on the layer above.
        if (other.text === first.text && first.label && other.label && other.e !== first.e)
          continue;
        const both = shared(first.box, other.box);
        if (!both || !isSeen(first.e, both) || !isSeen(other.e, both)) continue;
        wrong.push(`“${first.text}” on “${other.text}”`);
      }
    });
    const solid = [
      ...root.querySelectorAll("button, input:not([type=range]), select, .sv-chip, .sv-tip"),
    ];
    for (const e of solid) {
      const box = e.getBoundingClientRect();
      if (!box.width || isHidden(e)) continue;
      const seen = cut(root, e, box, isClipping);
      for (const { e: other, box: there, text } of texts) {
        const both = shared(seen, there);
        if (!both || e.contains(other) || other.contains(e)) continue;
        if (isSeen(e, both) && isSeen(other, both)) wrong.push(`“${text}” under ${nameOf(e)}`);
      }
    }
    return wrong;
  };
  const pale = (root, texts) => {
    const wrong = [];
    const take = (e, colour, ground, text) => {
      const faded = [...colour.slice(0, 3), colour[3] * opacityOf(e)];
      const contrast = contrastOf(over(faded, ground), ground);
      if (contrast >= READABLE) return;
      wrong.push(
        `contrast ${contrast.toFixed(2)}: ${nameOf(e)}, ${colour} on ${ground.map(Math.round)} “${text}”`,
      );
    };
    for (const { e, label, text } of texts) {
      const style = getComputedStyle(e);
      if (label) take(e, rgba(label.colour), groundOf(e, label), text);
      else if (e.closest("svg")) {
        const cell = e.closest(".sv-mcell")?.querySelector("rect");
        take(e, rgba(style.fill), cell ? rgba(getComputedStyle(cell).fill) : behind(e), text);
      } else take(e, rgba(style.color), behind(e), text);
    }
    for (const e of root.querySelectorAll("input:not([type=range]), textarea, select")) {
      if (isHidden(e) || !e.clientWidth) continue;
      if (e.value) take(e, rgba(getComputedStyle(e).color), behind(e), e.value);
      const faint = getComputedStyle(e, "::placeholder").color;
      if (e.placeholder) take(e, rgba(faint), behind(e), e.placeholder);
    }
    return wrong;
  };
  const small = (texts) => {
    const wrong = [];
    for (const { e, label, text } of texts) {
      const size = label?.font ?? parseFloat(getComputedStyle(e).fontSize);
      if (size < SMALLEST) wrong.push(`a font of ${size} pixels: “${text}” of ${nameOf(e)}`);
    }
    return wrong;
  };

  const findings = () => {
    const shown = [...document.querySelectorAll(".shardviz-explorer")];
    const root = shown.find((e) => !isHidden(e));
    const texts = textsOf(root);
    if (texts.length < 10) throw new Error("There is nothing to read");
    const wrong = [
      ...layout(root),
      ...controls(root),
      ...fields(root),
      ...texts.flatMap((text) => cutText(root, text)),
      ...overlaps(root, texts),
      ...covered(texts),
      ...small(texts),
      ...pale(root, textsOf(root, true)),
    ];
    return [...new Set(wrong)];
  };
  return { findings };
})();
