// View: all heads as small maps with the kind of each, and one of them large, with words on both axes.

VIEWS.push({
  id: "heads",
  title: "Heads",
  fits: (trace) => trace.attention.length > 0,
  show: (root, state) => (state.head < 0 ? showHeads(root, state) : showHead(root, state)),
});

const KINDS = {
  previous: "attends to the token before: the number is the weight on it beyond even attention, 1 if it is all",
  first: "attends to the first token, by the same measure",
  self: "attends to the token itself",
  duplicate: "attends to earlier tokens of the same word",
  induction: "attends to the token after an earlier token of the same word",
  broad: "spreads over many tokens: the number is the entropy as a share of that of even attention",
  other: "none of these: the number is the largest of the measures of the first five",
};

/** The size of a small map: as many as the widest layer has fit side by side, where that is not too small. */
function smallSize(layers) {
  const most = Math.max(...layers.map((one) => one.heads));
  return Math.min(Math.max(Math.floor(placeWidth() / most) - 18, 60), 168);
}

/** Show all heads of a record: a row of small maps for each layer. */
async function showHeads(root, state) {
  const { trace } = chosen(state);
  const layers = await Promise.all(trace.attention.map(weightsOf));
  const controls = choices(state, { layer: false, head: false });
  controls.append(makeRange(state), makeScale(state, layers));
  const select = (layer) => (head) => go({ layer, head });
  const rows = layers.map((weights, layer) => makeRow(weights, state, smallSize(layers), `head-${layer}`, select(layer)));
  const buttons = rows.flatMap((row) => [...row.children]);
  const first = rows[state.layer].firstChild;
  buttons.forEach((button) => (button.tabIndex = button === first ? 0 : -1));
  const grid = make("div", { class: "heads" }, rows.map((row, at) => [make("h3", {}, layers[at].layer.name), row]).flat());
  grid.addEventListener("keydown", (event) => arrowKeys(event, buttons, rowLength(buttons)));
  root.append(makeLead(trace), controls, makeKinds(trace), grid, make("p", { class: "note" }, precisionNote(layers[0])));
  return headsPicture(trace, layers, state);
}

/** The heads of a layer as buttons: the map of each, its number and its kind. */
function makeRow(weights, state, size, key, select) {
  const heads = Array.from({ length: weights.heads }, (_, head) => {
    const canvas = make("canvas", { "aria-hidden": "true" });
    showPicture(canvas, { width: size, height: size, paint: (surface) => paintSmall(surface, weights, head, 0, 0, size, state) });
    const { kind, text } = describeHead(weights, head);
    const button = make("button", {
      class: "head", "data-key": `${key}-${head}`, "data-kind": kind,
      "aria-label": `${weights.layer.name} head ${head}${text && ": "}${text}`,
      onclick: () => select(head), onpointerenter: (event) => say(event.currentTarget.ariaLabel), onfocus: (event) => say(event.currentTarget.ariaLabel),
    }, canvas, make("span", {}, `${head} `, make("b", { class: `kind ${kind}` }, kind), text.slice(kind.length)));
    button.style.width = `${size + 8}px`;
    return button;
  });
  return make("div", { class: "row" }, heads);
}

/** The kind of a head and its measure in words; nothing of a difference, or where the kind is not known. */
function describeHead(weights, head) {
  const { kind, measure } = weights.layer.kinds[head] || { kind: "", measure: null };
  return { kind, text: measure === null ? kind : `${kind} ${formatCell(measure)}` };
}

/** Whether the colours of all heads end at 1, or those of each at its largest weight. */
function makeRange(state) {
  const options = [["one", "0 to 1"], ["each", "0 to the largest of each head"]];
  return makeChoice("colours", options, state.range, (range) => go({ range }));
}

/** What the maps are, and of which text. */
function makeLead(trace) {
  const hasHoles = trace.stages.some((one) => /(^|\.)weights$/.test(one.name) && one.nan + one.inf > 0);
  const marks = `${trace.attention.some((one) => one.causal) ? " Grey cells are masked." : ""}${hasHoles ? " Magenta cells are not finite." : ""}`;
  const lead = `Each square is an attention head. A row is a token that attends (the query), a column a token it may attend to (the key), the colour the weight.${marks} Choose a square to enlarge it.`;
  const sizes = trace.attention.flatMap(({ queries, keys, shape }) => [[queries, shape[1]], [keys, shape[2]]]);
  const texts = new Set(sizes.map(([axis, size]) => describeText(wordsOf(trace, axis, size))));
  return make("div", {}, make("p", { class: "lead" }, lead), ...[...texts].map((text) => make("p", { class: "note" }, text)));
}

/** The first words of a text. */
function describeText(words) {
  const [some, space] = [words.slice(0, 50).map((word) => shorten(word)), words.some((word) => word.startsWith("·")) ? " (· is a space)" : ""];
  return `${count(words.length, "token")}${space}: ${some.join(" ")}${words.length > some.length ? " …" : ""}`;
}

/** How many heads there are of each kind, and what the kinds mean. */
function makeKinds(trace) {
  const numbers = {};
  for (const layer of trace.attention) for (const { kind } of layer.kinds) if (kind) numbers[kind] = (numbers[kind] || 0) + 1;
  const texts = Object.entries(numbers).sort((a, b) => b[1] - a[1]).map(([kind, number]) => `${number} ${kind}`);
  if (!texts.length) return make("p", { class: "note" }, "The kinds of the heads are not known: that takes all weights.");
  const list = Object.entries(KINDS).map(([kind, meaning]) => [make("dt", {}, kind), make("dd", {}, meaning)]).flat();
  return make("details", { class: "note" }, make("summary", { "data-key": "kinds" }, `Kinds of heads: ${texts.join(", ")}`), make("dl", {}, list));
}

/** The scale of the colours of all heads. */
function makeScale(state, layers) {
  const scale = headsScale(state, layers);
  const canvas = make("canvas", { "aria-hidden": "true" });
  if (scale) showPicture(canvas, { width: scaleWidth(scale), height: 14, paint: (surface) => paintScale(surface, 0, 2, scale) });
  return canvas;
}

/** What the colours of all heads mean; null where numbers have both signs, as each head has colours of its own. */
function headsScale(state, layers) {
  if (layers.some((one) => one.isSigned)) return null;
  return state.range === "each" ? { low: 0, high: "the largest", name: "of each head" } : { low: 0, high: 1, name: "weight" };
}

/** The picture of all heads. */
function headsPicture(trace, layers, state, size = 84) {
  const columns = Math.min(Math.max(...layers.map((one) => one.heads)), 16);
  const rows = layers.map((one) => Math.ceil(one.heads / columns));
  const [wide, high] = [size + 10, size + 24];
  const left = 16 + Math.max(...layers.map((one) => textWidth(one.layer.name)));
  const scale = headsScale(state, layers);
  const paint = (surface) => {
    surface.text(0, 16, trace.name, { size: 14, bold: true });
    let top = 28;
    layers.forEach((weights, at) => {
      surface.text(0, top + size / 2, weights.layer.name);
      for (let head = 0; head < weights.heads; head++) {
        const [x, y] = [left + (head % columns) * wide, top + Math.floor(head / columns) * high];
        paintSmall(surface, weights, head, x, y, size, state);
        surface.text(x, y + size + 12, `${head} ${describeHead(weights, head).text}`, { size: 10 });
      }
      top += rows[at] * high + 8;
    });
    if (scale) paintScale(surface, left, top, scale);
  };
  const height = 28 + rows.reduce((sum, one) => sum + one * high + 8, 0) + 20;
  return { name: "heads", width: Math.max(left + columns * wide, left + (scale ? scaleWidth(scale) : 0)) + 4, height, paint };
}

/** Show one head large: the pointer and the arrow keys read its weights. */
async function showHead(root, state) {
  const { trace, layer } = chosen(state);
  const weights = await weightsOf(layer);
  const { text } = describeHead(weights, state.head);
  const title = `${layer.name}, head ${state.head}${text && ": "}${text}`;
  const controls = choices(state);
  controls.append(makeRange(state), make("button", { "data-key": "all", onclick: () => go({ head: -1 }) }, "all heads"),
    make("button", { "data-key": "as-text", onclick: () => go({ view: "text", by: "head" }) }, "in the text"),
    make("button", { "data-key": "as-numbers", onclick: () => go({ view: "stages", stage: "" }).then(() => document.getElementById("cell").scrollIntoView()) }, "step by step"));
  root.append(controls);
  const picture = largePicture(weights, state.head, trace, title, placeWidth(), state);
  root.append(makeMap(picture, weights, state.head, trace, title), make("p", { class: "note" }, precisionNote(weights)));
  return picture;
}

/** A large map as a canvas that the pointer and the arrow keys read. */
function makeMap(picture, weights, head, trace, title) {
  const rowWords = wordsOf(trace, weights.layer.queries, weights.queries);
  const columnWords = wordsOf(trace, weights.layer.keys, weights.keys);
  const state = readState();
  const { left, top, cell } = picture;
  return makeCells(picture, {
    key: "map", label: `${title}. Arrow keys read the weights.`, rows: weights.queries, columns: weights.keys,
    places: [{ x: left, y: top, width: cell * weights.keys, height: cell * weights.queries }],
    at: [bound(state.token, weights.queries, 0), bound(state.key, weights.keys, 0)],
    read: (query, key) => `${rowWords[query]} → ${columnWords[key]}: ${formatWeight(weights.at(head, query, key))}`,
    choose: (query, key) => go({ token: query, key }, true),
  });
}
