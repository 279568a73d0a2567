// View: the picture. What a chosen token of an image attends to, as colours over the picture; all heads of a layer.

VIEWS.push({
  id: "picture",
  title: "Picture",
  fits: (trace) => trace.picture !== null && attended(trace).length > 0,
  show: showPatches,
});

const OPACITY = 0.6; // of the colours over the picture
const [BLACK, WHITE] = [60, 255]; // the greys of what is black and white in the picture
const GAP = 16; // pixels between the picture and its map
const SMALL = 120; // pixels of the longer side of the map of a head
const PICTURES = new Map();

/** The layers whose keys are the tokens of the picture. */
function attended(trace) {
  return trace.attention.filter((one) => one.shape[2] === trace.picture.tokens);
}

/** The picture of a trace as two images, in its colours and grey and lighter; null where the page has none. */
function loadPicture(trace) {
  const { source } = trace.picture;
  if (!PICTURES.has(source)) PICTURES.set(source, source ? loadImages(source) : Promise.resolve(null));
  return PICTURES.get(source);
}

async function loadImages(source) {
  const image = await loadImage(source);
  const canvas = make("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < pixels.data.length; at += 4) {
    const [red, green, blue] = pixels.data.subarray(at, at + 3);
    pixels.data.fill(BLACK + ((0.299 * red + 0.587 * green + 0.114 * blue) * (WHITE - BLACK)) / 255, at, at + 3);
  }
  context.putImageData(pixels, 0, 0);
  return { image, grey: await loadImage(canvas.toDataURL()) };
}

async function loadImage(source) {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

/** Show what a token attends to over the picture, by one head, the mean of its layer, or of all layers. */
async function showPatches(root, state) {
  const { trace, layer } = chosen(state);
  const controls = choices(state, { head: state.by === "head", layer: state.by !== "all" });
  const ways = [["head", "one head"], ["layer", "the mean of the heads"], ["all", "the mean of all layers"]];
  controls.append(makeChoice("by", ways, state.by, (value) => go({ by: value })));
  root.append(controls);
  if (layer.shape[2] !== trace.picture.tokens) {
    root.append(make("p", { class: "note" }, "The keys of this layer are not the tokens of the picture."));
    return null;
  }
  const [weights, images] = [await weightsOf(layer), await loadPicture(trace)];
  const words = wordsOf(trace, layer.queries, weights.queries);
  const query = Math.min(Math.max(state.token, 0), weights.queries - 1);
  const row = await attendedRow(trace, layer, state, query);
  const title = `${describeRow(layer, state)}: ${words[query]}`;
  const picture = patchPicture({ trace, row, images, query: trace.picture.patches.indexOf(query), title, width: placeWidth() });
  controls.append(...otherTokens(trace, words, query));
  const lead = `Choose a patch${words.length > trace.picture.patches.length ? ", or another token" : ""}: the colours are its attention weights on the patches.`;
  root.append(make("p", { class: "lead" }, lead), makePatches(picture, trace, row, words));
  if (state.by === "head") root.append(make("p", { class: "note" }, precisionNote(weights)));
  if (!images) root.append(make("p", { class: "note" }, "attnkit explore --over PICTURE draws them over the picture."));
  root.append(make("h3", {}, `${layer.name}: all heads, each with colours from 0 to its largest weight`), makePatchHeads(trace, weights, query, state, images));
  return picture;
}

/** Buttons of the tokens that are no patches: the class token and registers. */
function otherTokens(trace, words, query) {
  const isPatch = new Set(trace.picture.patches);
  return words.map((word, at) => isPatch.has(at) ? null : make("button", {
    "data-key": `token-${at}`, "aria-pressed": String(at === query), onclick: () => go({ token: at }),
  }, shorten(word))).filter((one) => one);
}

/** All heads of a layer for a query, as buttons with small maps over the picture. */
function makePatchHeads(trace, weights, query, state, images) {
  const buttons = Array.from({ length: weights.heads }, (_, head) => {
    const layout = layOut(trace, SMALL, SMALL);
    const row = weights.row(head, query);
    const canvas = make("canvas", { "aria-hidden": "true" });
    showPicture(canvas, { ...layout, paint: (surface) => paintPatches(surface, trace, row, images && images.grey, layout, 0, 0) });
    const isShown = state.by === "head" && head === Math.max(state.head, 0);
    return make("button", {
      class: "head", "data-key": `patches-${head}`, "aria-pressed": String(isShown), tabindex: isShown || (head === 0 && state.by !== "head") ? 0 : -1,
      "aria-label": `head ${head}`, onclick: () => go({ by: "head", head }),
    }, canvas, make("span", {}, `${head} ${describeHead(weights, head).text}`));
  });
  const place = make("div", { class: "row" }, buttons);
  place.addEventListener("keydown", (event) => arrowKeys(event, buttons, rowLength(buttons)));
  return place;
}

/** Lay the picture out in a width and a height: its size with patches beyond its edges, and where it and the patches are in it. */
function layOut(trace, width, height) {
  const { size, grid, source, box } = trace.picture;
  const [wide, high] = source ? size : [grid[1], grid[0]];
  const [left, top, right, bottom] = source ? box : [0, 0, 1, 1];
  const [x, y] = [Math.max(-left, 0), Math.max(-top, 0)];
  const [across, down] = [x + Math.max(right, 1), y + Math.max(bottom, 1)];
  const scale = Math.min(width / (wide * across), height / (high * down));
  const place = (from, over, end, under) => ({ x: (x + from) * wide * scale, y: (y + over) * high * scale, width: (end - from) * wide * scale, height: (under - over) * high * scale });
  return { width: Math.max(across * wide * scale, 1), height: Math.max(down * high * scale, 1), picture: place(0, 0, 1, 1), patches: place(left, top, right, bottom) };
}

/** A place moved by a distance. */
function moved(place, x, y) {
  return { ...place, x: place.x + x, y: place.y + y };
}

/** What is known of the weights on the patches: numbers, or what they are at most. */
function patchValues(trace, row) {
  return trace.picture.patches.map((at) => row[at].value ?? row[at].most);
}

function largestOf(values) {
  return values.reduce((most, one) => (Math.abs(one) > most && Math.abs(one) < Infinity ? Math.abs(one) : most), 0);
}

/** Paint the weights on the patches over a grey picture, laid out at (x, y). */
function paintPatches(surface, trace, row, grey, layout, x, y) {
  const { grid: [rows, columns] } = trace.picture;
  const values = patchValues(trace, row);
  const [peak, isSigned] = [largestOf(values), values.some((one) => one < 0)];
  const place = moved(layout.patches, x, y);
  if (grey) paintImage(surface, grey, moved(layout.picture, x, y));
  surface.cells(place.x, place.y, place.width, place.height, rows, columns, (i, j) => heat(values[i * columns + j], peak, isSigned), grey ? OPACITY : 1);
}

function paintImage(surface, image, { x, y, width, height }) {
  surface.image(x, y, width, height, image);
}

/** The picture beside the map over it, or above it where there is no room. */
function patchPicture({ trace, row, images, query, title, width }) {
  const isBeside = images && width >= 560;
  const room = isBeside ? (width - GAP) / 2 : width;
  const layout = layOut(trace, Math.min(room, 560), Math.max(0.6 * innerHeight, 200));
  const top = 28;
  const map = isBeside ? { x: layout.width + GAP, y: top } : { x: 0, y: images ? top + layout.height + GAP : top };
  const places = images ? [{ x: 0, y: top }, map] : [map];
  const values = patchValues(trace, row);
  const [peak, isSigned] = [largestOf(values), values.some((one) => one < 0)];
  const scale = { low: isSigned ? -peak : 0, high: peak, isSigned, name: "weight" };
  const paint = (surface) => {
    surface.text(0, 16, title, { size: 14, bold: true });
    if (images) paintImage(surface, images.image, moved(layout.picture, 0, top));
    paintPatches(surface, trace, row, images && images.grey, layout, map.x, map.y);
    for (const { x, y } of places) {
      const place = moved(layout.patches, x, y);
      if (trace.picture.box.join() !== "0,0,1,1") paintFrame(surface, place, "#ffffff", "#000000");
      if (query >= 0) paintFrame(surface, placeOfPatch(trace, place, query), "#ffffff", color("glow"));
    }
    paintScale(surface, map.x, map.y + layout.height + 12, scale);
  };
  const right = Math.max(map.x + layout.width, map.x + scaleWidth(scale), 16 + textWidth(title, 14) * 1.1);
  return { name: "picture", width: right, height: map.y + layout.height + 28, paint, places: places.map(({ x, y }) => moved(layout.patches, x, y)) };
}

/** Where a patch is, by its number among the patches. */
function placeOfPatch(trace, place, at) {
  const { grid: [rows, columns] } = trace.picture;
  const [width, height] = [place.width / columns, place.height / rows];
  return { x: place.x + (at % columns) * width, y: place.y + Math.floor(at / columns) * height, width, height };
}

/** A frame in two colours, of which one is seen on any ground. */
function paintFrame(surface, { x, y, width, height }, outer, inner) {
  const corners = [[x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]];
  surface.polyline(corners, outer, 3);
  surface.polyline(corners, inner, 1.5);
}

/** The picture as a canvas on which the pointer and the arrow keys read weights, and a click or Enter chooses a patch. */
function makePatches(picture, trace, row, words) {
  const { grid: [rows, columns], patches } = trace.picture;
  const at = Math.max(patches.indexOf(readState().token), 0);
  return makeCells(picture, {
    key: "map", label: "Map over the picture. Arrow keys read the weights, Enter chooses a patch.", rows, columns, places: picture.places,
    at: [Math.floor(at / columns), at % columns],
    read: (i, j) => `${words[patches[i * columns + j]] ?? `patch ${i * columns + j}`}: ${formatWeight(row[patches[i * columns + j]])}`,
    choose: (i, j) => go({ token: patches[i * columns + j] }),
  });
}
