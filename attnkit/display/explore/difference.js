// View: two traces. Where they differ, stage by stage, and A − B of the weights.

VIEWS.push({
  id: "difference",
  title: "Difference",
  fits: () => Boolean(PAYLOAD.difference),
  show: showDifference,
});

/** Show where two records differ: in words, as maps of A − B, and as the table of `diff`. */
async function showDifference(root, state) {
  const { heads, rows, lines, attention } = PAYLOAD.difference;
  const [a, b] = PAYLOAD.traces;
  root.append(make("p", {}, `A is ${a.name}, B is ${b.name}.${attention.length ? " In the maps red is where A attends more, blue where B does." : ""}`), ...lines.map((line) => make("p", {}, line)));
  const picture = attention.length ? await showMaps(root, state, attention) : null;
  if (rows.length) root.append(make("h3", {}, "Stages"), makeTable(heads, rows, [0, heads.length - 1]));
  return picture;
}

/** Show A − B of a layer: its heads as small maps, and the chosen one large. */
async function showMaps(root, state, attention) {
  const layer = attention[bound(state.layer, attention.length, 0)];
  const weights = await weightsOf(layer);
  const head = bound(state.head, weights.heads, 0);
  const names = attention.map((one, at) => [at, one.name]);
  const choice = makeChoice("layer", names, attention.indexOf(layer), (value) => go({ layer: Number(value) }));
  const trace = joinWords(...PAYLOAD.traces);
  const row = makeRow(weights, state, 72, "difference", (one) => go({ head: one }));
  const buttons = [...row.children];
  buttons.forEach((button, at) => {
    button.tabIndex = at === head ? 0 : -1;
    button.setAttribute("aria-pressed", String(at === head));
  });
  row.addEventListener("keydown", (event) => arrowKeys(event, buttons, rowLength(buttons)));
  const title = `A − B of ${layer.name}, head ${head}`;
  const picture = largePicture(weights, head, trace, title, placeWidth(), state);
  root.append(make("div", { class: "choices" }, choice), row, makeMap(picture, weights, head, trace, title));
  root.append(make("p", { class: "note" }, precisionNote(weights)));
  return { ...picture, name: `difference-${picture.name}` };
}

/** The first of two traces with the words of both: fox / bear. */
function joinWords(a, b) {
  const labels = { ...a.labels };
  for (const [axis, words] of Object.entries(labels)) {
    const others = b.labels[axis] || [];
    if (others.length === words.length) labels[axis] = words.map((word, at) => (word === others[at] ? word : `${word} / ${others[at]}`));
  }
  return { ...a, labels };
}
