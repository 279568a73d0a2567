// View: two traces. Where they differ, stage by stage, and A − B of the weights.

VIEWS.push({
  id: "difference",
  title: "Difference",
  fits: () => Boolean(PAYLOAD.difference),
  show: showDifference,
});

async function showDifference(root, state) {
  const { heads, rows, lines, attention } = PAYLOAD.difference;
  const [a, b] = PAYLOAD.traces;
  root.append(make("p", {}, `A is ${a.name}, B is ${b.name}.`));
  lines.forEach((line) => root.append(make("p", { class: "note" }, line)));
  if (rows.length) root.append(makeTable(heads, rows, [0, heads.length - 1]));
  if (!attention.length) return null;
  const layer = attention[bound(state.layer, attention.length, 0)];
  const weights = await weightsOf(layer);
  const head = bound(state.head, weights.heads, 0);
  const controls = make("div", { class: "choices" });
  const layers = makeChoice("layer", attention.map((one, at) => [at, one.name]), attention.indexOf(layer), (value) => go({ layer: Number(value) }));
  const every = Array.from({ length: weights.heads }, (_, at) => [at, String(at)]);
  const one = makeChoice("head", every, head, (value) => go({ head: Number(value) }));
  [layers, one].forEach((choice, at) => (choice.querySelector("select").dataset.key = `difference-${at}`));
  controls.append(layers, one);
  const title = `A − B of ${layer.name}, head ${head}`;
  const picture = largePicture(weights, head, a, title, root.clientWidth || document.getElementById("view").clientWidth - 8, state);
  root.append(make("h3", {}, title), controls, makeMap(picture, weights, head, a, title), make("p", { class: "note" }, precisionNote(weights)));
  return { ...picture, name: "difference" };
}
