// View: training. The losses of a run, and the norms of its gradients at the recorded steps; a slider chooses a step.

VIEWS.push({ id: "training", title: "Training", fits: isTraining, show: showTraining });

const GRADIENT = ".grad";
const DECADES = 6; // of norms that have different colours
const CURVES = [["loss", "ink"], ["held_out_loss", "glow"]];

/** Whether the records are steps of a training run. */
function isTraining() {
  return PAYLOAD.traces.some((trace) => trace.step !== null);
}

/** The slider of the recorded steps. */
function makeSteps(state) {
  const step = (at) => `step ${PAYLOAD.traces[at].step}`;
  const shown = make("output", {}, step(state.trace));
  const slider = make("input", {
    type: "range", min: 0, max: PAYLOAD.traces.length - 1, value: state.trace, "data-key": "step", "aria-label": "step", "aria-valuetext": step(state.trace),
    oninput: (event) => go({ trace: Number(event.target.value) }, true),
  });
  return make("label", { class: "choice" }, slider, shown);
}

/** Show the curve of the run, the norms of the gradients of all steps, and the gradients of the chosen one. */
async function showTraining(root, state) {
  const { trace } = chosen(state);
  root.append(choices(state, { layer: false, head: false }));
  const picture = trainingPicture(state);
  const canvas = make("canvas", { tabindex: 0, role: "img", "data-key": "training", "aria-label": "The losses of the run, and the norm of the gradient of each parameter at each recorded step. Arrow keys read the losses." });
  showPicture(canvas, picture);
  const reports = PAYLOAD.curve || [];
  let at = 0;
  const read = () => reports.length && say(describeReport(reports[at]));
  canvas.addEventListener("focus", read);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.min(Math.max(at + step, 0), Math.max(reports.length - 1, 0));
    read();
  });
  canvas.addEventListener("pointermove", (event) => picture.read(event.offsetX, event.offsetY));
  canvas.addEventListener("click", (event) => {
    const at = picture.stepAt(event.offsetX, event.offsetY);
    if (at >= 0) go({ trace: at }, true);
  });
  const rows = gradientsOf(trace).map((one) => [one.name.slice(0, -GRADIENT.length), ...["norm", "min", "max"].map((fact) => formatFact(one[fact])), String(one.nan + one.inf)]);
  root.append(make("div", { class: "wide" }, canvas), make("h3", {}, `Gradients of step ${trace.step}`));
  root.append(rows.length ? makeTable(["parameter", "norm", "min", "max", "not finite"], rows) : make("p", { class: "note" }, "The record has no gradients."));
  return picture;
}

/** The gradients of the parameters of a step; those of intermediates have a tensor of their name beside them. */
function gradientsOf(trace) {
  const names = new Set(trace.stages.map((stage) => stage.name));
  return trace.stages.filter((stage) => stage.name.endsWith(GRADIENT) && !names.has(stage.name.slice(0, -GRADIENT.length)));
}

/** The picture of a run: its losses above, the norms of gradients by parameter and step below. */
function trainingPicture(state) {
  const gradients = PAYLOAD.traces.map((trace) => new Map(gradientsOf(trace).map((one) => [one.name, one.norm])));
  const names = [...new Set(gradients.flatMap((one) => [...one.keys()]))];
  const left = Math.min(260, Math.max(90, ...names.map((name) => textWidth(name.slice(0, -GRADIENT.length), 11)))) + 12;
  const title = "norm of the gradient, by parameter and step (logarithmic colours)";
  const width = Math.min(Math.max(placeWidth(), 16 + textWidth(title) * 1.1), 1200);
  const curve = curveBox(left, width);
  const top = curve.points.length ? curve.bottom + 78 : 48;
  const [wide, high] = [Math.min(60, (width - left - 8) / PAYLOAD.traces.length), 15];
  const norms = gradients.flatMap((one) => [...one.values()]).filter((norm) => norm > 0 && Number.isFinite(norm)).map(Math.log10);
  const peak = Math.max(...norms);
  const low = Math.max(Math.min(...norms), peak - DECADES);
  const colorAt = (row, column) => {
    const norm = gradients[column].get(names[row]);
    if (norm === undefined) return "";
    return norm > 0 ? heat(Math.log10(norm) - low, peak - low || 1) : color(norm === 0 ? "masked" : "not-finite");
  };
  const paint = (surface) => {
    if (curve.points.length) paintCurve(surface, curve, state);
    if (!names.length) return;
    surface.text(0, top - 26, title, { bold: true });
    surface.cells(left, top, wide * gradients.length, high * names.length, names.length, gradients.length, colorAt);
    names.forEach((name, at) => surface.text(left - 6, top + at * high + 11, fitWord(name.slice(0, -GRADIENT.length), left), { size: 11, anchor: "end" }));
    PAYLOAD.traces.forEach((trace, at) => surface.text(left + (at + 0.5) * wide, top - 5, String(trace.step), { size: 11, anchor: "middle", bold: at === state.trace }));
    const x = left + state.trace * wide;
    surface.polyline([[x, top], [x + wide, top], [x + wide, top + high * names.length], [x, top + high * names.length], [x, top]], color("ink"), 1.5);
    if (norms.length) paintScale(surface, left, top + high * names.length + 10, { low: 10 ** low, high: 10 ** peak, name: "norm" });
  };
  const read = (x, y) => {
    const [column, row] = [Math.floor((x - left) / wide), Math.floor((y - top) / high)];
    if (row >= 0 && row < names.length && column >= 0 && column < gradients.length) say(`step ${PAYLOAD.traces[column].step}, ${names[row]}: norm ${formatFact(gradients[column].get(names[row]))}`);
    else if (curve.points.length && y < curve.bottom) say(describeReport(nearestReport(curve, x)));
  };
  const stepAt = (x, y) => (y > top ? bound(Math.floor((x - left) / wide), gradients.length, -1) : -1);
  return { name: "training", width, height: top + high * names.length + 30, paint, read, stepAt };
}

/** Where the curve of a run is drawn, and the points of its lines. */
function curveBox(left, width) {
  const points = PAYLOAD.curve || [];
  const values = points.flatMap((one) => CURVES.map(([name]) => one[name])).filter(Number.isFinite);
  const box = { points, left, right: width - 12, top: 34, bottom: 200, low: Math.min(...values), peak: Math.max(...values) };
  const steps = [...points, ...PAYLOAD.traces].map((one) => one.step);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  box.x = (step) => box.left + ((step - first) / (last - first || 1)) * (box.right - box.left);
  box.y = (value) => box.bottom - ((value - box.low) / (box.peak - box.low || 1)) * (box.bottom - box.top);
  box.ends = [first, last];
  return box;
}

/** Paint the losses of a run, and the recorded steps as ticks below them. */
function paintCurve(surface, box, state) {
  const muted = color("muted");
  let x = box.left;
  for (const [name, ink] of CURVES) {
    const points = box.points.filter((one) => Number.isFinite(one[name])).map((one) => [box.x(one.step), box.y(one[name])]);
    if (!points.length) continue;
    const label = name.replaceAll("_", " ").replace("held out", "held-out");
    surface.polyline(points, color(ink), 2);
    if (points.length === 1) surface.rect(points[0][0] - 3, points[0][1] - 3, 6, 6, color(ink));
    surface.line(x, 12, x + 18, 12, color(ink), 2);
    surface.text(x + 24, 16, label);
    x += 48 + textWidth(label);
  }
  for (const value of [box.low, box.peak]) {
    surface.line(box.left, box.y(value), box.right, box.y(value), color("grid"));
    surface.text(box.left - 6, box.y(value) + 4, formatNumber(value), { size: 11, anchor: "end", color: muted });
  }
  surface.text((box.left + box.right) / 2, box.bottom + 24, "step", { size: 11, anchor: "middle", color: muted });
  for (const [step, anchor] of [[box.ends[0], "start"], [box.ends[1], "end"]]) surface.text(box.x(step), box.bottom + 24, String(step), { size: 11, anchor, color: muted });
  PAYLOAD.traces.forEach((trace, at) => {
    const place = box.x(trace.step);
    surface.line(place, box.bottom + 2, place, box.bottom + (at === state.trace ? 12 : 7), color(at === state.trace ? "glow" : "ink"), at === state.trace ? 3 : 1.5);
  });
}

/** The report nearest to a place of the curve. */
function nearestReport(box, x) {
  return box.points.reduce((best, one) => (Math.abs(box.x(one.step) - x) < Math.abs(box.x(best.step) - x) ? one : best));
}

/** A report in words. */
function describeReport(report) {
  return Object.entries(report).map(([name, value]) => `${name.replaceAll("_", " ")} ${formatNumber(value)}`).join(", ");
}
