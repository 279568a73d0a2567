// View: the stages. The model as a diagram, with the statistics of every tensor, down to one cell of attention.

VIEWS.push({
  id: "stages",
  title: "Stages",
  fits: (trace) => trace.stages.length > 0,
  show: showStages,
});

const FACTS = ["norm", "min", "max", "mean", "std"];

/** The stages of a trace as rows of boxes, in the order of computation: [{name, boxes: [{id, name, tensors}]}].
 * The tensors of a record that is no trace are a row of boxes without order. */
function diagramOf(trace) {
  const stages = trace.stages.filter((one) => !one.name.endsWith(GRADIENT));
  if (!stages.some((one) => /^(\w+\.)?\d+\./.test(one.name))) {
    return [{ name: "", isLoose: true, isNumbered: true, boxes: stages.map((one) => ({ id: one.name, name: one.name, tensors: [one] })) }];
  }
  const rows = [];
  for (const stage of stages) {
    const parts = stage.name.split(".");
    const layer = /^\d+$/.test(parts[1]) ? parts.splice(0, 2).join(".") : parts.length > 1 ? parts.shift() : "";
    const name = parts.length > 1 ? parts.slice(0, -1).join(".") : layer && /^\d+$/.test(layer) ? "" : parts[0];
    let row = rows[rows.length - 1];
    if (!row || row.name !== layer) rows.push((row = { name: layer, boxes: [] }));
    const id = [layer, name].filter(Boolean).join(".");
    const box = row.boxes[row.boxes.length - 1];
    if (box && box.id === id) box.tensors.push(stage);
    else row.boxes.push({ id, name, tensors: [stage] });
  }
  return joinNumbered(rows);
}

/** Stages of a pipeline, a box each, are one row: 1.embed, 2.posenc … */
function joinNumbered(rows) {
  const joined = [];
  for (const row of rows) {
    const last = joined[joined.length - 1];
    if (!/^\d+$/.test(row.name)) joined.push(row);
    else if (last && last.isNumbered) last.boxes.push(...nameBoxes(row));
    else joined.push({ name: "", isNumbered: true, boxes: nameBoxes(row) });
  }
  return joined;
}

/** The boxes of a stage of a pipeline by its whole name. */
function nameBoxes(row) {
  return row.boxes.map((box) => ({ ...box, name: box.id }));
}

/** How many numbers of tensors are not finite; those that a mask hides do not count. */
function countNotFinite(tensors) {
  return tensors.reduce((sum, one) => sum + one.nan + (one.name.endsWith("masked") ? 0 : one.inf), 0);
}

/** Show the diagram, the tensors of the chosen box, and one cell of attention step by step. */
async function showStages(root, state) {
  const { trace, layer } = chosen(state);
  const rows = diagramOf(trace);
  const boxes = rows.flatMap((row) => row.boxes);
  const box = boxes.find((one) => one.id === (state.stage || (layer && !rows[0].isLoose && layer.name)));
  const tensors = box ? box.tensors : trace.stages;
  root.append(choices(state, { layer: false, head: false }), makeDiagram(rows, box, trace));
  const all = box && make("button", { "data-key": "all-stages", onclick: () => go({ stage: "all" }) }, "all tensors");
  root.append(make("div", { class: "choices" }, make("h3", {}, box ? box.id : "All tensors"), all), makeFacts(tensors));
  const cell = layer ? await showCell(root, state) : null;
  return stagesPicture(rows, box, trace, cell);
}

/** The diagram as buttons that choose a box. */
function makeDiagram(rows, chosenBox, trace) {
  const flat = rows.flatMap((row) => row.boxes);
  const buttons = new Map(flat.map((box, at) => [box, make("button", {
    class: countNotFinite(box.tensors) ? "box bad" : "box", "data-key": `box-${at}`, "aria-pressed": String(box === chosenBox),
    tabindex: (chosenBox ? box === chosenBox : at === 0) ? 0 : -1,
    onclick: () => {
      const layer = trace.attention.findIndex((one) => one.name === box.id);
      go(layer < 0 ? { stage: box.id } : { stage: "", layer });
    },
  }, make("b", {}, shorten(box.name || box.id, 30)), ...describeBox(box).map((line) => make("span", {}, line)))]));
  const list = [...buttons.values()];
  const diagram = make("div", { class: "diagram" }, rows.map((row) => make("div", { class: row.isLoose ? "flow" : "flow ordered", role: "group", "aria-label": row.name || "stages" },
    row.isNumbered ? null : make("h3", {}, row.name), row.boxes.map((box) => buttons.get(box)))));
  diagram.addEventListener("keydown", (event) => arrowKeys(event, list, rowLength(list)));
  return diagram;
}

/** What a box says of its last tensor: its shape and norm, and how many numbers are not finite. */
function describeBox(box) {
  const last = box.tensors[box.tensors.length - 1];
  const bad = countNotFinite(box.tensors);
  return [last.shape.join(" × ") || "scalar", `norm ${formatFact(last.norm)}`, ...(bad ? [`${bad} not finite`] : [])];
}

/** The table of the statistics of tensors. */
function makeFacts(tensors) {
  const rows = tensors.map((one) => [one.name, one.shape.map((size, at) => [one.axes[at], size].filter((part) => part !== "").join(" ")).join(", "), one.dtype,
    ...FACTS.map((fact) => formatFact(one[fact])), one.zeros, one.nan, one.inf]);
  const hides = tensors.some((one) => one.name.endsWith("masked") && one.inf);
  return make("div", {}, makeTable(["tensor", "shape", "dtype", ...FACTS, "zeros", "NaN", "inf"], rows, [0, 1, 2]),
    hides ? make("p", { class: "note" }, "The infinities of masked are the scores that the mask hides.") : null);
}

/** The picture of the diagram, with the lines of a cell below it. */
function stagesPicture(rows, chosenBox, trace, cell) {
  const boxWidth = (box) => Math.max(64, textWidth(shorten(box.name || box.id, 30)), ...describeBox(box).map((line) => textWidth(line, 10))) + 16;
  const left = 8 + Math.max(0, ...rows.map((row) => textWidth(row.name)));
  const most = Math.max(placeWidth(), 640);
  const places = [];
  let [y, width] = [34, 320];
  for (const row of rows) {
    let x = left;
    places.push({ word: row.name, x: 0, y: y + 22 });
    for (const box of row.boxes) {
      const wide = boxWidth(box);
      if (x > left && x + wide > most) [x, y] = [left, y + 66];
      places.push({ box, x, y, wide });
      width = Math.max(width, x + wide);
      x += wide + 22;
    }
    y += 70;
  }
  const lines = cell ? cell.lines : [];
  const bottom = y + 8;
  const paint = (surface) => {
    surface.text(0, 16, trace.name, { size: 14, bold: true });
    let before = null;
    for (const { word, box, x, y, wide } of places) {
      if (box) {
        if (before && !rows[0].isLoose) paintArrow(surface, before, { x, y });
        paintBox(surface, box, { x, y, wide }, box === chosenBox);
        before = { x: x + wide, y };
      } else surface.text(x, y, word);
    }
    lines.forEach((line, at) => surface.text(0, bottom + 14 + at * 18, line, { bold: at === 0 }));
  };
  return { name: "stages", width: Math.max(width, ...lines.map((line) => textWidth(line))) + 16, height: bottom + lines.length * 18 + 8, paint };
}

/** Paint a box of the diagram. */
function paintBox(surface, box, { x, y, wide }, isChosen) {
  const ink = countNotFinite(box.tensors) ? color("not-finite") : color(isChosen ? "ink" : "muted");
  surface.polyline([[x, y], [x + wide, y], [x + wide, y + 52], [x, y + 52], [x, y]], ink, isChosen ? 2 : 1);
  surface.text(x + 8, y + 16, shorten(box.name || box.id, 30), { bold: true });
  describeBox(box).forEach((line, at) => surface.text(x + 8, y + 30 + at * 12, line, { size: 10, color: color("muted") }));
}

/** Paint the arrow from the right of a box to the next: in its row, or down to the next row. */
function paintArrow(surface, from, to) {
  const muted = color("muted");
  const y = to.y + 26;
  if (from.y === to.y) surface.polyline([[from.x + 2, y], [to.x - 2, y], [to.x - 7, y - 4], [to.x - 2, y], [to.x - 7, y + 4]], muted);
  else {
    const low = to.y - 9;
    surface.polyline([[from.x + 2, from.y + 26], [from.x + 9, from.y + 26], [from.x + 9, low], [to.x + 20, low], [to.x + 20, to.y - 1], [to.x + 16, to.y - 5], [to.x + 20, to.y - 1], [to.x + 24, to.y - 5]], muted);
  }
}
