// Elements of the page: every word becomes a text node, so that no word is markup.

/** Make an element: attributes and listeners (on…) by name, then children: elements or texts. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make a labelled choice, which keeps the focus; options are [value, text] pairs. */
function makeChoice(label, options, value, change) {
  const select = make("select", { "data-key": `choice-${label}`, onchange: () => change(select.value) });
  select.append(...options.map(([key, text]) => make("option", { value: key, selected: String(key) === String(value) }, text)));
  return make("label", { class: "choice" }, `${label} `, select);
}

/** Make a place that scrolls what is too wide for the page, by keys too. */
function makeScroller(label, child) {
  return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": label }, child);
}

/** Make a table of texts, and elements such as bars; the columns of `left` are words. */
function makeTable(heads, rows, left = [0]) {
  const row = (tag, cells) =>
    make("tr", {}, cells.map((cell, at) => make(tag, { class: left.includes(at) ? "left" : null }, cell instanceof Node ? cell : String(cell))));
  return makeScroller(`table of ${heads.filter(Boolean).join(", ")}`,
    make("table", {}, make("thead", {}, row("th", heads)), make("tbody", {}, rows.map((cells) => row("td", cells)))));
}

/** Make a bar of a share from 0 to 1, whose number stands beside it. */
function makeBar(share) {
  return make("meter", { min: 0, max: 1, value: share, "aria-hidden": "true" });
}

/** Write a number with a few significant digits, as the tables of the command line do. */
function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0 || Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const text = value.toPrecision(digits);
  return text.includes("e") ? text.replace("e+", "e") : String(Number(text));
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;
const [ISOLATE, END_ISOLATE] = ["\u2068", "\u2069"]; // around a word of its own direction

/** Shorten a word for a place of few characters. */
function shorten(word, most = 16) {
  const characters = [...word];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…${word.startsWith(ISOLATE) ? END_ISOLATE : ""}` : word;
}

/** Count in words: 1 head, 2 heads. */
function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** How many elements the page is wide enough for in a row. */
function rowLength(elements) {
  const second = elements.findIndex((one) => one.offsetTop > elements[0].offsetTop + 4);
  return second < 0 ? elements.length : second;
}

/** Move the focus among elements by the arrow keys, Home and End; `columns` of a grid, 1 of a list. */
function arrowKeys(event, elements, columns) {
  const at = elements.indexOf(document.activeElement);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: elements.length - 1 - at };
  if (at < 0 || !(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  elements[Math.min(Math.max(at + steps[event.key], 0), elements.length - 1)].focus();
}
