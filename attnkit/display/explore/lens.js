// View: the lens. The likeliest word of the state of each layer at each token, coloured by its probability.

VIEWS.push({
  id: "lens",
  title: "Lens",
  fits: (trace) => Boolean(trace.lens) || !isTraining() && trace.stages.some((stage) => /^(encoder|decoder)\.\d+\./.test(stage.name)),
  layers: (trace) => (trace.lens ? trace.lens.layers.length : trace.attention.length),
  show: showLens,
});

const LENS_ROWS = 250; // tokens on each side of the chosen one that are shown of a long text
const LENS = new Map();

/** The words of a lens and their probabilities, unpacked once. */
async function lensOf(lens) {
  if (!LENS.has(lens)) LENS.set(lens, Promise.all([unpack(lens.ids, "uint32"), unpack(lens.probabilities, "float32")]));
  const [ids, probabilities] = await LENS.get(lens);
  const [layers, tokens, top] = lens.shape;
  const at = (layer, token, rank) => (layer * tokens + token) * top + rank;
  return {
    ...lens, count: layers, tokens, top,
    word: (layer, token, rank = 0) => lens.words[ids[at(layer, token, rank)]],
    probability: (layer, token, rank = 0) => probabilities[at(layer, token, rank)],
  };
}

/** Show the words of all layers as a map, and the likeliest of the chosen state as a table. */
async function showLens(root, state) {
  const { trace } = chosen(state);
  root.append(choices(state, { layer: false, head: false }));
  if (!trace.lens) {
    root.append(make("p", {}, "The words of each layer need the model that made the trace: "), make("pre", {}, "attnkit explore TRACE --model DIR -o page.html"));
    return null;
  }
  const lens = await lensOf(trace.lens);
  const tokens = wordsOf(trace, "token", lens.tokens);
  const place = { token: state.token < 0 ? lens.tokens - 1 : Math.min(state.token, lens.tokens - 1), layer: state.token < 0 ? lens.count - 1 : state.layer };
  const picture = lensPicture(lens, tokens, place, trace.name);
  root.append(make("p", { class: "note" }, "Each cell is the likeliest next word in the state after a layer, read by the last norm and the head of the model; the column of the last layer is what the model predicts. The colour is its probability; · is a space."));
  root.append(makeLensMap(picture, lens, tokens, place), makeLikeliest(lens, tokens, place));
  if (picture.to - picture.from < lens.tokens) root.append(make("p", { class: "note" }, `tokens ${picture.from} to ${picture.to - 1} of ${lens.tokens}`));
  return picture;
}

/** The map of a lens as a canvas that the pointer and the arrow keys read. */
function makeLensMap(picture, lens, tokens, place) {
  const { left, top, wide, high, from, to } = picture;
  const top3 = (layer, token) => Array.from({ length: Math.min(lens.top, 3) }, (_, rank) => `${lens.word(layer, token, rank)} ${formatFixed(lens.probability(layer, token, rank))}`);
  return makeCells(picture, {
    key: "lens", label: "The likeliest word of each layer at each token. Arrow keys read them, Enter lists more.", rows: to - from, columns: lens.count,
    places: [{ x: left, y: top, width: wide * lens.count, height: high * (to - from) }],
    at: [place.token - from, place.layer],
    read: (row, layer) => `${lens.first + from + row} ${tokens[from + row]}, after ${lens.layers[layer]}: ${top3(layer, from + row).join(", ")}`,
    choose: (row, layer) => go({ token: from + row, layer }, true),
  });
}

/** The likeliest words of one state as a table with bars. */
function makeLikeliest(lens, tokens, { token, layer }) {
  const rows = Array.from({ length: lens.top }, (_, rank) => [lens.word(layer, token, rank), lens.probability(layer, token, rank)]);
  return make("div", {}, make("h3", {}, `${lens.first + token} ${shorten(tokens[token], 40)}, after ${lens.layers[layer]}`),
    makeTable(["word", "probability", ""], rows.map(([word, probability]) => [shorten(word, 40), formatFixed(probability), makeBar(probability)])));
}

/** The picture of a lens: a row for each token, a column for each layer. */
function lensPicture(lens, tokens, place, title) {
  const from = Math.max(0, Math.min(place.token - LENS_ROWS, lens.tokens - 2 * LENS_ROWS));
  const to = Math.min(lens.tokens, from + 2 * LENS_ROWS);
  const labels = tokens.map((word, at) => `${lens.first + at} ${shorten(word)}`);
  const left = Math.min(150, Math.max(46, ...labels.slice(from, to).map((label) => textWidth(label)))) + 10;
  const widest = Math.max(...lens.layers.map((name) => textWidth(name, 11))) + 8;
  const wide = Math.max(widest, 60, Math.min(110, Math.floor((placeWidth() - left - 8) / lens.count)));
  const [high, top] = [22, 54];
  const paint = (surface) => {
    surface.text(0, 16, title, { size: 14, bold: true });
    const colorAt = (row, column) => heat(lens.probability(column, from + row), 1);
    surface.cells(left, top, wide * lens.count, high * (to - from), to - from, lens.count, colorAt);
    surface.text(left - 6, top - 6, "token ↓", { size: 11, anchor: "end", color: color("muted") });
    surface.text(left, 32, "state after →", { size: 11, color: color("muted") });
    lens.layers.forEach((name, at) => surface.text(left + at * wide + 4, top - 6, name, { size: 11, color: color("muted") }));
    for (let token = from; token < to; token++) {
      const y = top + (token - from) * high;
      surface.text(left - 6, y + 15, labels[token], { anchor: "end", bold: token === place.token });
      for (let layer = 0; layer < lens.count; layer++) {
        const ink = contrastingInk(colorAt(token - from, layer));
        surface.text(left + layer * wide + 4, y + 15, fitWord(lens.word(layer, token), wide - 8), { color: ink });
      }
    }
    const [x, y] = [left + place.layer * wide, top + (place.token - from) * high];
    surface.polyline([[x, y], [x + wide, y], [x + wide, y + high], [x, y + high], [x, y - 1]], contrastingInk(colorAt(place.token - from, place.layer)), 2);
    paintScale(surface, left, top + high * (to - from) + 10, { low: 0, high: 1, name: "probability" });
  };
  return { name: "lens", width: Math.max(left + wide * lens.count + 4, left + 240), height: top + high * (to - from) + 28, paint, left, top, wide, high, from, to };
}
