// View: all heads as small maps with the kind of each, and one of them large, with words on both axes.

VIEWS.push({
  id: "heads",
  title: "Heads",
  fits: () => PAYLOAD.traces.some((trace) => trace.attention.length),
  show: (root, state) => (state.head < 0 ? showHeads(root, state) : showHead(root, state)),
});

const SMALL = 84; // pixels of a small map

/** Show all heads of a record: a row of small maps for each layer. */
async function showHeads(root, state) {
  const { trace } = chosen(state);
  const layers = await Promise.all(trace.attention.map(weightsOf));
  const controls = choices(state, { layer: false, head: false });
  controls.append(makeRange(state));
  root.append(controls, makeKinds(trace));
  const grid = make("div", { class: "heads" });
  const buttons = [];
  layers.forEach((weights, layer) => {
    const row = make("div", { class: "row" });
    for (let head = 0; head < weights.heads; head++) {
      const button = makeHead(weights, layer, head, state);
      buttons.push(button);
      row.append(button);
    }
    grid.append(make("h3", {}, weights.layer.name), row);
  });
  buttons.forEach((button) => (button.tabIndex = -1));
  const from = buttons[layers.slice(0, state.layer).reduce((sum, one) => sum + one.heads, 0)];
  if (from) from.tabIndex = 0;
  grid.addEventListener("keydown", (event) => arrowKeys(event, buttons, () => {
    const y = buttons[0].offsetTop; // as many to a row as the page is wide
    const to = buttons.findIndex((one) => one.offsetTop !== y);
    return to < 0 ? buttons.length : to;
  }));
  root.append(grid, make("p", { class: "note" }, precisionNote(layers[0])));
  return headsPicture(trace, layers, state);
}

/** A head as a button: its map, its number and its kind. */
function makeHead(weights, layer, head, state) {
  const { kind, measure } = weights.layer.kinds[head];
  const canvas = make("canvas", { "aria-hidden": "true" });
  showPicture(canvas, { width: SMALL, height: SMALL, paint: (surface) => paintSmall(surface, weights, head, 0, 0, SMALL, state) });
  const measured = measure === null ? "" : ` ${measure.toFixed(2)}`;
  return make("button", {
    class: "head", "data-key": `head-${layer}-${head}`, "data-kind": kind,
    "aria-label": `${weights.layer.name} head ${head}: ${kind}${measured}`,
    onclick: () => go({ layer, head }),
  }, canvas, make("span", {}, `${head} `, make("b", { class: `kind ${kind}` }, kind), measured));
}

/** Whether the colours of all heads end at 1, or those of each at its largest weight. */
function makeRange(state) {
  const options = [["one", "0 to 1"], ["each", "0 to the largest of each head"]];
  return makeChoice("colours", options, state.range, (range) => go({ range }));
}

/** How many heads there are of each kind. */
function makeKinds(trace) {
  const numbers = {};
  for (const layer of trace.attention) for (const { kind } of layer.kinds) numbers[kind] = (numbers[kind] || 0) + 1;
  const texts = Object.entries(numbers).sort((a, b) => b[1] - a[1]).map(([kind, number]) => `${number} ${kind}`);
  const words = "The number beside a kind is the weight on its target beyond even attention (1: all of it); of broad heads it is the entropy as a share of even attention's.";
  return make("p", { class: "note" }, `${texts.join(", ")}. ${words}`);
}

/** The picture of all heads. */
function headsPicture(trace, layers, state) {
  const most = Math.max(...layers.map((one) => one.heads));
  const columns = Math.min(most, 16);
  const rows = layers.map((one) => Math.ceil(one.heads / columns));
  const [wide, high] = [SMALL + 10, SMALL + 24];
  const left = 16 + Math.max(...layers.map((one) => textWidth(one.layer.name)));
  const paint = (surface) => {
    surface.text(0, 16, trace.name, { size: 14, bold: true });
    let top = 28;
    layers.forEach((weights, at) => {
      surface.text(0, top + SMALL / 2, weights.layer.name);
      for (let head = 0; head < weights.heads; head++) {
        const [x, y] = [left + (head % columns) * wide, top + Math.floor(head / columns) * high];
        const { kind, measure } = weights.layer.kinds[head];
        paintSmall(surface, weights, head, x, y, SMALL, state);
        surface.text(x, y + SMALL + 12, `${head} ${kind}${measure === null ? "" : ` ${measure.toFixed(2)}`}`, { size: 10 });
      }
      top += rows[at] * high + 8;
    });
  };
  const height = 28 + rows.reduce((sum, one) => sum + one * high + 8, 0);
  return { name: "heads", width: left + columns * wide, height, paint };
}

/** Show one head large: the pointer and the arrow keys read its weights. */
async function showHead(root, state) {
  const { trace, layer } = chosen(state);
  const weights = await weightsOf(layer);
  const { kind, measure } = layer.kinds[state.head];
  const title = `${layer.name}, head ${state.head}: ${kind}${measure === null ? "" : ` ${measure.toFixed(2)}`}`;
  const controls = choices(state);
  controls.append(makeRange(state), make("button", { "data-key": "all", onclick: () => go({ head: -1 }) }, "all heads"),
    make("button", { "data-key": "as-text", onclick: () => go({ view: "text", by: "head" }) }, "in the text"));
  root.append(controls);
  const picture = largePicture(weights, state.head, trace, title, root.clientWidth || document.getElementById("view").clientWidth - 8, state);
  root.append(makeMap(picture, weights, state.head, trace, title), make("p", { class: "note" }, precisionNote(weights)));
  root.onkeydown = (event) => event.key === "Escape" && go({ head: -1 });
  return picture;
}

/** A large map as a canvas that the pointer and the arrow keys read. */
function makeMap(picture, weights, head, trace, title) {
  const canvas = make("canvas", { tabindex: 0, role: "img", "data-key": "map", "aria-label": `${title}. Arrow keys read the weights.` });
  showPicture(canvas, picture);
  const rowWords = wordsOf(trace, weights.layer.queries, weights.queries);
  const columnWords = wordsOf(trace, weights.layer.keys, weights.keys);
  const place = { query: Math.max(readState().token, 0), key: 0 };
  const read = () => say(`${rowWords[place.query]} → ${columnWords[place.key]}: ${formatWeight(weights.at(head, place.query, place.key))}`);
  const point = (event) => {
    const key = Math.floor((event.offsetX - picture.left) / picture.cell);
    const query = Math.floor((event.offsetY - picture.top) / picture.cell);
    const isInside = key >= 0 && key < weights.keys && query >= 0 && query < weights.queries;
    if (isInside) Object.assign(place, { query, key });
    return isInside;
  };
  canvas.addEventListener("pointermove", (event) => point(event) && read());
  canvas.addEventListener("click", (event) => point(event) && go({ token: place.query }, true));
  canvas.addEventListener("focus", read);
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Enter") go({ token: place.query }, true);
    if (!(event.key in steps)) return;
    event.preventDefault();
    place.query = Math.min(Math.max(place.query + steps[event.key][0], 0), weights.queries - 1);
    place.key = Math.min(Math.max(place.key + steps[event.key][1], 0), weights.keys - 1);
    read();
  });
  return make("div", { class: "wide" }, canvas);
}
