// The page: its state is its address, and a view shows a state.
//
// A file of a view adds it to VIEWS:
//   {id, title, fits(trace) -> whether the data has what it shows, async show(root, state) -> picture to save, or null,
//    layers(trace) -> how many layers the state may choose, where they are not those of attention}
// `root` is an empty section. A picture is {name, width, height, paint(surface)} of draw.js.
// State: {view, trace, layer, head, token, by, range, key, dim, stage}; numbers are indices from 0, -1: none. `go` changes some of it.

const VIEWS = [];
const DEFAULTS = { view: "", trace: 0, layer: 0, head: -1, token: -1, by: "head", range: "", key: -1, dim: 0, stage: "" };
const APP = { picture: null, turn: 0, width: 0 };

/** What the address says of the state; the defaults of what it does not. */
function readAddress() {
  const state = { ...DEFAULTS };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!(name in DEFAULTS)) continue;
    if (typeof DEFAULTS[name] !== "number") state[name] = value;
    else if (/^-?\d{1,9}$/.test(value)) state[name] = Number(value);
  }
  return state;
}

/** The state that the address has: what it gets wrong is the default. */
function readState() {
  const state = readAddress();
  state.trace = bound(state.trace, PAYLOAD.traces.length, 0);
  const views = fittingViews(state);
  const view = views.find((one) => one.id === state.view) || views[0];
  state.view = view.id;
  const trace = PAYLOAD.traces[state.trace];
  const layers = trace.attention;
  state.layer = bound(state.layer, view.layers ? view.layers(trace) : layers.length, 0);
  const layer = layers[state.layer];
  state.head = bound(state.head, layer ? layer.shape[0] : 0, -1);
  state.token = Math.max(state.token, -1);
  if (!state.range) state.range = layer && layer.shape[2] > 48 ? "each" : "one";
  return state;
}

/** The views that a record has the data of. */
function fittingViews(state) {
  return VIEWS.filter((view) => view.fits(PAYLOAD.traces[state.trace]));
}

/** A number where it is an index of `size` things, else another. */
function bound(value, size, other) {
  return value >= 0 && value < size ? value : other;
}

/** Change a part of the state; the address has it, so that it shows the same again. Resolve when it is shown. */
function go(changes, replace = false) {
  const state = { ...readAddress(), ...changes };
  const words = Object.entries(state).filter(([name, value]) => value !== DEFAULTS[name]);
  const hash = `#${new URLSearchParams(words)}`;
  if (hash === location.hash) return Promise.resolve();
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  return showState();
}

/** The trace and the layer of a state. */
function chosen(state) {
  const trace = PAYLOAD.traces[state.trace];
  return { trace, layer: trace.attention[state.layer] };
}

/** Show the state of the address; keep the focus on the control that had it. */
async function showState() {
  const turn = ++APP.turn;
  APP.width = placeWidth();
  const state = readState();
  const view = VIEWS.find((one) => one.id === state.view);
  const held = document.activeElement && document.activeElement.dataset.key;
  if (APP.view !== view) say(""); // of another view
  APP.view = view;
  showTabs(state);
  const root = make("section", { "aria-label": view.title });
  const place = document.getElementById("view");
  place.setAttribute("aria-labelledby", `tab-${view.id}`);
  const picture = await view.show(root, state);
  if (turn !== APP.turn) return; // a later state is on its way
  place.replaceChildren(root);
  APP.picture = picture;
  document.getElementById("tools").querySelectorAll("[data-save]").forEach((one) => (one.disabled = !picture));
  if (held) focusOn(held);
  document.body.dataset.shown = location.hash || "#";
}

/** Focus on the control of a key; where the view has none, on its map, else on the view. */
function focusOn(key) {
  const all = [...document.querySelectorAll("[data-key]")];
  const next = all.find((one) => one.dataset.key === key) || all.find((one) => one.dataset.key === "map");
  (next || document.getElementById("view")).focus({ preventScroll: true });
}

/** How wide a view may be, in pixels. */
function placeWidth() {
  return document.getElementById("view").clientWidth - 2;
}

/** Show the tabs of the views that the data has. */
function showTabs(state) {
  const tabs = document.getElementById("tabs");
  const buttons = fittingViews(state).map((view, at) =>
    make("button", {
      id: `tab-${view.id}`, role: "tab", "data-key": `tab-${view.id}`, "aria-selected": String(view.id === state.view),
      tabindex: view.id === state.view ? 0 : -1, title: `key ${at + 1}`, "aria-controls": "view",
      onclick: () => go({ view: view.id }),
    }, view.title));
  tabs.replaceChildren(...buttons);
  tabs.onkeydown = (event) => arrowKeys(event, buttons, 1);
}

/** Say something of what the pointer or the keyboard is on. */
function say(text) {
  document.getElementById("readout").textContent = text;
}

/** The controls that views share: the record, the layer, the head. */
function choices(state, { layer = true, head = true } = {}) {
  const { trace, layer: one } = chosen(state);
  const row = make("div", { class: "choices" });
  if (isTraining()) row.append(makeSteps(state));
  else if (PAYLOAD.traces.length > 1) {
    const names = PAYLOAD.traces.map((each, at) => [at, each.name]);
    row.append(makeChoice("record", names, state.trace, (value) => go({ trace: Number(value) })));
  }
  if (layer) {
    const names = trace.attention.map((each, at) => [at, each.name]);
    row.append(makeChoice("layer", names, state.layer, (value) => go({ layer: Number(value) })));
  }
  if (head && one) {
    const names = Array.from({ length: one.shape[0] }, (_, at) => [at, String(at)]);
    row.append(makeChoice("head", names, Math.max(state.head, 0), (value) => go({ head: Number(value) })));
  }
  return row;
}

/** How the weights of a page are kept, in words; nothing where they are as in the file. */
function precisionNote(weights) {
  const count = weights.layer.largest && weights.layer.largest.count;
  const kept = count ? `The ${count} largest of each row are as in the file` : "";
  if (weights.form === "bytes") return `${kept}; others are rounded to 8 bits (±). attnkit explore --exact keeps all.`;
  const { rows, columns } = weights.block;
  if (weights.layer.map.kept) return `Only the largest of each row are in the file, of which the page has ${count}; the map shows the largest in each ${rows} × ${columns} block.`;
  return weights.form === "pooled" ? `${kept}; the map shows the largest of each ${rows} × ${columns} block. attnkit explore --exact keeps all.` : "";
}
