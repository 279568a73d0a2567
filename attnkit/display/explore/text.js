// View: the text. What a chosen token attends to glows; two texts side by side where the attention is over another.

VIEWS.push({
  id: "text",
  title: "Text",
  fits: (trace) => trace.attention.length > 0,
  show: showText,
});

const MOST_ALIGNED = 300; // words of two texts that are drawn with lines between them
const NEAR = 400; // tokens of a long text on each side of the chosen one that are shown

/** Show the text of a layer: by one head, the mean of its heads, or the mean of all layers over the same texts. */
async function showText(root, state) {
  const { trace, layer } = chosen(state);
  const controls = choices(state, { head: state.by === "head", layer: state.by !== "all" });
  const ways = [["head", "one head"], ["layer", "the mean of the heads"], ["all", "the mean of all layers"]];
  const by = makeChoice("by", ways, state.by, (value) => go({ by: value }));
  const weights = await weightsOf(layer);
  const token = Math.min(state.token < 0 ? weights.queries - 1 : state.token, weights.queries - 1);
  controls.append(by, makePosition(token, weights.queries));
  const row = await attendedRow(trace, layer, state, token);
  const isCross = layer.keys === "source"; // of another text
  const texts = make("div", { class: "texts" });
  const queries = wordsOf(trace, layer.queries, weights.queries);
  const keys = wordsOf(trace, layer.keys, weights.keys);
  const shift = isCross ? 0 : weights.keys - weights.queries; // keys of a cache come first
  if (isCross || shift > 0) texts.append(makeText("queries", queries, token, null));
  texts.append(makeText(isCross ? "source" : shift > 0 ? "keys" : "text", keys, isCross || shift > 0 ? -1 : token, row, layer.causal ? token : keys.length));
  root.append(make("p", { class: "lead" }, `Choose a ${isCross || shift > 0 ? "query" : "token"}: what it attends to is lit, the more the larger the weight.`), controls, texts, makeLargest(row, keys, queries[token]));
  root.append(make("p", { class: "note" }, state.by === "head" ? precisionNote(weights) : meanNote(weights)));
  if (!isCross || weights.queries + weights.keys > MOST_ALIGNED) return textPicture({ layer, state, row, keys, queries, token, isCross });
  const rows = await Promise.all(queries.map((_, query) => attendedRow(trace, layer, state, query)));
  const picture = alignmentPicture({ layer, state, rows, keys, queries, token });
  const canvas = make("canvas", { role: "img", "aria-label": `${describeRow(layer, state)}: lines from each query to its keys, as wide as the weights` });
  showPicture(canvas, picture);
  texts.after(makeScroller("lines from each query to its keys", canvas));
  return picture;
}

/** The position of the chosen token, which a long text has no room for. */
function makePosition(token, size) {
  const choose = () => go({ token: Math.min(Math.max(Math.round(input.valueAsNumber) || 0, 0), size - 1) });
  const input = make("input", { type: "number", min: 0, max: size - 1, value: token, "data-key": "position", onchange: choose });
  return make("label", { class: "choice" }, "position ", input);
}

/** The weights of a query on all keys: of a head, or means. */
async function attendedRow(trace, layer, state, token) {
  if (state.by === "head") return (await weightsOf(layer)).row(Math.max(state.head, 0), token);
  const same = state.by === "layer" ? [layer] : trace.attention.filter((one) => one.keys === layer.keys && String(one.shape) === String(layer.shape));
  const rows = [];
  for (const one of same) {
    const weights = await weightsOf(one);
    for (let head = 0; head < weights.heads; head++) rows.push(weights.row(head, token));
  }
  return rows[0].map((_, key) => mean(rows.map((one) => one[key])));
}

/** The mean of what is known of numbers. */
function mean(known) {
  let [sum, error, most, unknown] = [0, 0, 0, false];
  for (const one of known) {
    sum += one.value || 0;
    error += one.error || 0;
    most += one.most === undefined ? one.value : one.most;
    unknown ||= one.most !== undefined;
  }
  return unknown ? { most: most / known.length } : { value: sum / known.length, error: error / known.length };
}

function meanNote(weights) {
  return weights.form === "exact" ? "" : "Means of weights that are rounded to 8 bits, or of which only the largest are kept.";
}

/** The words of a text as buttons: the chosen one framed, the attended ones lit by their weights, masked ones grey. */
function makeText(name, words, token, row, last = words.length) {
  const isChoice = token >= 0 || row === null;
  const [from, to] = words.length > 2 * NEAR ? [Math.max(0, token - NEAR), Math.min(words.length, Math.max(0, token) + NEAR)] : [0, words.length];
  const known = row ? row.map((one) => (one.value === undefined ? 0 : one.value)) : [];
  const peak = known.reduce((most, one) => Math.max(most, one), 0);
  const buttons = words.slice(from, to).map((word, at) => {
    const index = from + at;
    const share = row && peak > 0 ? known[index] / peak : 0;
    const button = make("button", {
      class: `token${index === token ? " chosen" : ""}${index > last ? " masked" : ""}`, tabindex: -1, "data-key": `${name}-${index}`, "data-index": index,
      "aria-pressed": isChoice ? String(index === token) : null,
      "aria-label": `${word}${row ? `: ${formatWeight(row[index])}` : ""}`,
      title: row ? `${index}: ${formatWeight(row[index])}` : String(index),
      onclick: () => isChoice && go({ token: index }),
      onpointerenter: () => row && say(`${word}: ${formatWeight(row[index])}`),
      onfocus: () => row && say(`${word}: ${formatWeight(row[index])}`),
    }, shorten(word, 40) || " ");
    if (share > 0) button.style.setProperty("--glow-share", `${Math.round(share * 100)}%`);
    return button;
  });
  if (buttons.length) buttons[Math.max(0, Math.min(token - from, buttons.length - 1))].tabIndex = 0;
  const text = make("div", { class: "text", role: "group", "aria-label": name }, buttons);
  text.addEventListener("keydown", (event) => arrowKeys(event, buttons, rowLength(buttons)));
  const hidden = words.length - buttons.length;
  const more = hidden ? make("p", { class: "note" }, `tokens ${from} to ${to - 1} of ${words.length}`) : null;
  return make("div", {}, make("h3", {}, name), text, more);
}

/** The largest weights as a table with bars. */
function makeLargest(row, keys, word) {
  const known = row.map((one, key) => ({ key, ...one })).filter((one) => one.value); // neither 0 nor unknown
  const largest = known.sort((a, b) => b.value - a.value).slice(0, 10);
  const write = largest.some((one) => one.error) ? formatWeight : ({ value }) => numberFormat(largest.map((one) => one.value))(value);
  const title = make("h3", {}, `${shorten(word, 40)} attends to`);
  if (!largest.length) return make("div", {}, title, make("p", {}, row.some((one) => Number.isNaN(one.value)) ? "no weight is a number" : "nothing: its weights are 0"));
  return make("div", {}, title, makeTable(["token", "position", "weight", ""], largest.map((one) => [shorten(keys[one.key], 40), one.key, write(one), makeBar(one.value)])));
}

/** What a row of weights is of, in words. */
function describeRow(layer, state) {
  if (state.by === "all") return "mean of all layers";
  return `${layer.name}, ${state.by === "head" ? `head ${Math.max(state.head, 0)}` : "mean of heads"}`;
}

/** The picture of two texts side by side, with a line from each query to each key, as wide as its weight. */
function alignmentPicture({ layer, state, rows, keys, queries, token }) {
  const widest = (words) => Math.max(...words.map((word) => textWidth(shorten(word, 30), 14)));
  const left = widest(queries) + 12;
  const right = left + 160;
  const high = 24;
  const y = (at) => 48 + at * high;
  const paint = (surface) => {
    const [ground, glow, muted] = [color("background"), color("glow"), color("muted")];
    surface.text(4, 16, describeRow(layer, state), { size: 14, bold: true });
    const draw = (query, to) => rows[query].forEach(({ value }, key) => {
      if (value >= 0.02) surface.line(left, y(query) - 5, right, y(key) - 5, blend(ground, to, Math.min(1, 0.2 + value)), 1 + 4 * value);
    });
    queries.forEach((_, query) => query !== token && draw(query, muted));
    draw(token, glow);
    queries.forEach((word, at) => surface.text(left - 8, y(at), shorten(word, 30), { size: 14, anchor: "end", bold: at === token }));
    keys.forEach((word, at) => surface.text(right + 8, y(at), shorten(word, 30), { size: 14 }));
  };
  return { name: "alignment", width: right + widest(keys) + 16, height: y(Math.max(queries.length, keys.length)) - 8, paint };
}

/** The picture of the text: words that wrap, lit by their weights; of two texts one above the other. */
function textPicture({ layer, state, row, keys, queries, token, isCross }) {
  const width = Math.max(placeWidth(), 240);
  const title = `${describeRow(layer, state)}: ${shorten(queries[token], 40)}`;
  const known = row.map((one) => (one.value === undefined ? 0 : one.value));
  const peak = known.reduce((most, one) => Math.max(most, one), 0) || 1;
  const lines = isCross ? [[queries, token, null], [keys, -1, known]] : [[keys, keys.length - queries.length + token, known]];
  const places = [];
  let y = 44;
  for (const [words, chosenAt, values] of lines) {
    let x = 4;
    const from = Math.max(0, Math.min(chosenAt - NEAR, words.length - 2 * NEAR));
    words.slice(from, from + 2 * NEAR).forEach((word, at) => {
      const wide = textWidth(shorten(word, 40), 14) + 8;
      if (x + wide > width && x > 4) [x, y] = [4, y + 26];
      places.push({ x, y, wide, word: shorten(word, 40), isChosen: at + from === chosenAt, share: values ? values[at + from] / peak : 0 });
      x += wide + 3;
    });
    y += 56;
  }
  const paint = (surface) => {
    surface.text(4, 16, title, { size: 14, bold: true });
    for (const one of places) {
      const fill = blend(color("background"), color("glow"), one.share);
      if (one.share > 0) surface.rect(one.x, one.y - 15, one.wide, 21, fill);
      surface.text(one.x + 4, one.y, one.word, { size: 14, bold: one.isChosen, color: one.share > 0 ? contrastingInk(fill) : color("ink") });
      if (one.isChosen) surface.line(one.x, one.y + 7, one.x + one.wide, one.y + 7, color("ink"), 2);
    }
  };
  return { name: "text", width, height: y - 24, paint };
}

/** A colour between two. */
function blend(from, to, share) {
  const [a, b] = [channels(from), channels(to)];
  return `#${a.map((one, at) => Math.round(one + (b[at] - one) * share).toString(16).padStart(2, "0")).join("")}`;
}
