// One cell of attention, step by step: the dot product, the scale, the mask, softmax, and the weighted sum of values.

const TERMS = 16; // most terms of a sum that are all written; of more the largest
const FEW = 8; // how many of the largest
const NEEDED = ["q", "k", "v", "scores", "masked"]; // to explain a weight
const PARTS = new Map();

/** The intermediates of a layer, unpacked once: {name: {shape, values}}. */
function partsOf(layer) {
  if (!PARTS.has(layer)) PARTS.set(layer, unpackParts(layer.parts));
  return PARTS.get(layer);
}

async function unpackParts(packed) {
  const parts = {};
  for (const [name, part] of Object.entries(packed)) {
    const before = parts[part.of];
    if (!part.of) parts[name] = { shape: part.shape, values: await unpack(part.values, part.dtype) };
    else if (part.hidden) {
      const hidden = await unpack(part.hidden, "uint8");
      parts[name] = { shape: before.shape, values: before.values.map((value, at) => (hidden[at] ? -Infinity : value)) };
    } else parts[name] = { shape: before.shape, times: part.times, values: before.values.map((value) => value * part.times) };
  }
  return parts;
}

/** The row of a part for a head and a query or a key; heads may share keys and values. */
function partRow(part, head, heads, at) {
  const [own, rows, size] = part.shape;
  const start = (Math.floor(head / (heads / own)) * rows + at) * size;
  return [...part.values.subarray(start, start + size)];
}

/** Show how a weight is computed; return the same in lines. */
async function showCell(root, state) {
  const { trace, layer } = chosen(state);
  const [weights, parts] = await Promise.all([weightsOf(layer), partsOf(layer)]);
  const cell = readCell(weights, parts, state);
  const words = { queries: wordsOf(trace, layer.queries, weights.queries), keys: wordsOf(trace, layer.keys, weights.keys) };
  const steps = [explainScore, explainScale, explainMask, explainSoftmax, explainSum].map((explain) => explain(cell, words));
  const title = `${layer.name}, head ${cell.head}: ${shorten(words.queries[cell.query], 40)} → ${shorten(words.keys[cell.key], 40)}`;
  root.append(make("h3", { id: "cell" }, title), makeCellChoices(state, cell, words));
  for (const step of steps) root.append(make("div", { class: "step" }, step.lines.map((line) => make("p", {}, line)), step.table ? makeTable(...step.table) : null));
  const missing = NEEDED.filter((name) => !parts[name]);
  if (missing.length) root.append(make("p", { class: "note" }, describeMissing(trace, layer, missing)));
  return { lines: [title, ...steps.flatMap((step) => step.lines)] };
}

/** Which intermediates the page lacks, and how to have them. */
function describeMissing(trace, layer, missing) {
  const names = new Set(trace.stages.map((stage) => stage.name));
  const hasLeft = missing.some((name) => names.has(`${layer.name}.${name}`) || names.has(name));
  const lacks = `The page has no ${missing.join(", ")} of this layer`;
  return hasLeft ? `${lacks}: there are too many numbers. attnkit explore --exact keeps all; --only '${layer.name}.*' makes a page of this layer.` : `${lacks}: the record does not keep them.`;
}

/** The numbers of a cell, as far as the page has them. */
function readCell(weights, parts, state) {
  const head = Math.max(state.head, 0);
  const query = Math.min(state.token < 0 ? weights.queries - 1 : state.token, weights.queries - 1);
  const largest = weights.largest(head, query)[0];
  const key = bound(state.key, weights.keys, largest ? largest.key : 0);
  const row = (name, at) => (parts[name] ? partRow(parts[name], head, weights.heads, at) : null);
  const cell = { weights, head, query, key, place: `[${head},${query},${key}]`, times: parts.scaled && parts.scaled.times };
  for (const [name, axis] of Object.entries(PAYLOAD.look.rows)) cell[name] = row(name, axis === "query" ? query : key);
  cell.dim = bound(state.dim, cell.v ? cell.v.length : 0, 0);
  cell.column = parts.v ? Array.from({ length: weights.keys }, (_, at) => partRow(parts.v, head, weights.heads, at)[cell.dim]) : null;
  return cell;
}

/** The controls of a cell: layer, head, query, key, and the number of the value. */
function makeCellChoices(state, cell, words) {
  const row = choices(state);
  row.querySelectorAll("[data-key=step]").forEach((one) => one.parentElement.remove()); // the record is chosen above
  if (!isTraining() && PAYLOAD.traces.length > 1) row.firstChild.remove();
  const options = (list) => list.map((word, at) => [at, `${at} ${shorten(word, 30)}`]);
  const add = (name, list, value, change) => {
    row.append(list.length > 1000 ? makeNumber(name, list.length, value, change) : makeChoice(name, options(list), value, change));
  };
  add("query", words.queries, cell.query, (value) => go({ token: Number(value) }));
  add("key", words.keys, cell.key, (value) => go({ token: cell.query, key: Number(value) }));
  if (cell.v) add("dimension of v", cell.v.map(() => ""), cell.dim, (value) => go({ dim: Number(value) }));
  return row;
}

/** A field for a number from 0 to below a size. */
function makeNumber(label, size, value, change) {
  const input = make("input", { type: "number", min: 0, max: size - 1, value, "data-key": `choice-${label}`, onchange: () => change(Math.min(Math.max(Math.floor(input.value), 0), size - 1)) });
  return make("label", { class: "choice" }, `${label} `, input);
}

/** The terms of a sum to write: all of a few, else the largest, in their order; and the sum of the others. */
function chooseTerms(terms, always = -1) {
  const all = terms.map((value, at) => ({ at, value }));
  if (all.length <= TERMS) return { shown: all, hidden: 0, rest: 0 };
  const ranked = [...all].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const kept = new Set(ranked.slice(0, FEW).map((one) => one.at));
  if (always >= 0) kept.add(always);
  const rest = all.filter((one) => !kept.has(one.at)).reduce((sum, one) => sum + one.value, 0);
  return { shown: all.filter((one) => kept.has(one.at)), hidden: all.length - kept.size, rest };
}

/** The last rows of a table of terms: what is not written, and the sum. */
function sumRows({ hidden, rest }, terms, columns, write) {
  const blank = Array(columns - 1).fill("");
  const others = hidden ? [[`${hidden} others`, ...blank, write(rest)]] : [];
  return [...others, ["sum", ...blank, write(terms.reduce((sum, one) => sum + one, 0))]];
}

/** The dot product of query and key. */
function explainScore({ q, k, scores, key, place }) {
  if (!q || !k) return { lines: scores ? [`scores${place} = ${numberFormat(scores)(scores[key])}`] : [] };
  const terms = q.map((value, at) => value * k[at]);
  const sum = terms.reduce((total, one) => total + one, 0);
  const [writeQ, writeK, write] = [numberFormat(q), numberFormat(k), numberFormat(terms)];
  const some = chooseTerms(terms);
  const rows = some.shown.map(({ at, value }) => [String(at), writeQ(q[at]), writeK(k[at]), write(value)]);
  const table = [["dimension", "q", "k", "q × k"], [...rows, ...sumRows(some, terms, 3, write)], [0]];
  if (!scores) return { lines: [`q · k = ${write(sum)}`], table };
  const isSame = Math.abs(sum - scores[key]) <= 1e-4 * Math.max(1, terms.reduce((most, one) => Math.max(most, Math.abs(one)), 0));
  const note = isSame ? "" : ` in the record, and not q · k = ${write(sum)}: the score adds more, such as relative positions, or is of another kind`;
  return { lines: [`scores${place} = ${isSame ? "q · k = " : ""}${numberFormat(scores)(scores[key])}${note}`], table };
}

/** The scale, and the soft cap where there is one. */
function explainScale({ q, scores, scaled, capped, key, place, times }) {
  if (!scores || !scaled) return { lines: [] };
  const ratio = times || scaled[key] / scores[key];
  const root = q ? 1 / Math.sqrt(q.length) : NaN;
  const isRoot = Math.abs(ratio - root) < 1e-6 * root;
  const factor = `${formatFact(ratio)}${isRoot ? ` (1/√${q.length})` : ""}`;
  const lines = [`scaled${place} = ${numberFormat(scores)(scores[key])} × ${factor} = ${numberFormat(scaled)(scaled[key])}`];
  if (capped && capped[key] !== scaled[key]) lines.push(`capped${place} = ${numberFormat(capped)(capped[key])}, by the soft cap`);
  return { lines };
}

/** What the mask does to the score. */
function explainMask({ weights, scaled, capped, masked, query, key, place }) {
  const before = capped || scaled;
  if (!masked || !before) return { lines: [] };
  const write = numberFormat(masked);
  const value = masked[key];
  if (value === -Infinity) {
    const rule = weights.layer.causal && key > query ? `the mask is causal: key ${key} is after query ${query}` : "the mask hides this key";
    return { lines: [`masked${place} = -inf: ${rule}`] };
  }
  if (value === before[key]) return { lines: [`masked${place} = ${write(value)}: the mask allows this key`] };
  return { lines: [`masked${place} = ${write(before[key])} + ${write(value - before[key])} = ${write(value)}: a bias is added`] };
}

/** Softmax over the row. */
function explainSoftmax({ weights, masked, head, query, key, place }, words) {
  const row = weights.row(head, query);
  const line = `weights${place} = `;
  if (!masked) return { lines: [`${line}${formatWeight(row[key])}`] };
  const peak = Math.max(...masked);
  if (peak === -Infinity) return { lines: [`${line}${formatWeight(row[key])}: the mask hides every key`] };
  const powers = masked.map((value) => Math.exp(value - peak));
  const total = powers.reduce((sum, one) => sum + one, 0);
  const write = numberFormat(row.map((one) => (one.value === undefined ? 0 : one.value)));
  const shown = (known) => (known.value === undefined || known.error ? formatWeight(known) : write(known.value));
  const [writeMasked, writePower] = [numberFormat(masked), numberFormat(powers)];
  const some = chooseTerms(powers, key);
  const rows = some.shown.map(({ at }) => [`${at} ${shorten(words.keys[at], 30)}`, writeMasked(masked[at]), writePower(powers[at]), shown(row[at])]);
  const sum = [...(some.hidden ? [[`${some.hidden} others`, "", writePower(some.rest), ""]] : []), ["sum", "", writePower(total), ""]];
  const lines = [`${line}exp(${writeMasked(masked[key])} − ${writeMasked(peak)}) / ${writePower(total)} = ${shown(row[key])}`];
  return { lines, table: [["key", "masked", `exp(masked − ${writeMasked(peak)})`, "weight"], [...rows, ...sum], [0]] };
}

/** The weighted sum of the values: one number of it. */
function explainSum({ weights, column, heads, head, query, dim, key }, words) {
  const row = weights.row(head, query).map((one) => one.value);
  if (!column || row.some((value) => value === undefined)) return { lines: heads ? [`heads[${head},${query},${dim}] = ${numberFormat(heads)(heads[dim])}`] : [] };
  const terms = row.map((value, at) => (value === 0 ? 0 : value * column[at]));
  const [writeWeight, writeValue, write] = [numberFormat(row), numberFormat(column), numberFormat(terms)];
  const some = chooseTerms(terms, key);
  const rows = some.shown.map(({ at, value }) => [`${at} ${shorten(words.keys[at], 30)}`, writeWeight(row[at]), writeValue(column[at]), write(value)]);
  const result = heads ? numberFormat(heads)(heads[dim]) : write(terms.reduce((sum, one) => sum + one, 0));
  const lines = [`heads[${head},${query},${dim}] = sum of weight × v[${dim}] over the keys = ${result}`];
  return { lines, table: [["key", "weight", `v[${dim}]`, "weight × v"], [...rows, ...sumRows(some, terms, 3, write)], [0]] };
}
