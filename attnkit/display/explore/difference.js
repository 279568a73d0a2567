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
  root.append(make("p", {}, `A is ${a.name}, B is ${b.name}.`), ...lines.map((line) => make("p", {}, line)));
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
  choice.querySelector("select").dataset.key = "difference-layer";
  const row = makeRow(weights, state, 72, "difference", (one) => go({ head: one }));
  const buttons = [...row.children];
  buttons.forEach((button, at) => {
    button.tabIndex = at === head ? 0 : -1;
    button.setAttribute("aria-pressed", String(at === head));
  });
  row.addEventListener("keydown", (event) => arrowKeys(event, buttons, rowLength(buttons)));
  const title = `A − B of ${layer.name}, head ${head}`;
  const picture = largePicture(weights, head, PAYLOAD.traces[0], title, placeWidth(), state);
  root.append(make("div", { class: "choices" }, choice), row, makeMap(picture, weights, head, PAYLOAD.traces[0], title));
  root.append(make("p", { class: "note" }, precisionNote(weights)));
  return { ...picture, name: `difference-${picture.name}` };
}
