// The data of the page: payload.py describes it. Blobs are unpacked when they are first needed.

const PAYLOAD = JSON.parse(document.getElementById("payload").textContent);
const NUMBERS = { uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, uint32: Uint32Array, float32: Float32Array, float64: Float64Array };

/** Unpack a blob: base64 of compressed bytes to an array of numbers. */
async function unpack(blob, dtype) {
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(blob) : Uint8Array.from(atob(blob), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new NUMBERS[dtype](await new Response(stream).arrayBuffer());
}

/** The weights of a layer, or A − B of two traces: numbers with what is known of each. */
class Weights {
  static async of(layer) {
    const { values, scale } = layer.map;
    const dtype = layer.map.dtype || (layer.signed ? "int8" : "uint8");
    const largest = layer.largest;
    const parts = await Promise.all([
      unpack(values, dtype),
      scale ? unpack(scale, "float32") : null,
      largest ? unpack(largest.keys, layer.shape[2] < 65536 ? "uint16" : "uint32") : null,
      largest ? unpack(largest.values, "float32") : null,
    ]);
    return new Weights(layer, ...parts);
  }

  constructor(layer, values, scale, topKeys, topValues) {
    Object.assign(this, { layer, values, scale, topKeys, topValues, peaks: [] });
    [this.heads, this.queries, this.keys] = layer.shape;
    this.form = layer.map.form;
    const [rows, columns] = this.form === "pooled" ? layer.map.block : [1, 1];
    this.block = { rows, columns };
    this.rows = Math.ceil(this.queries / rows); // of the map
    this.columns = Math.ceil(this.keys / columns);
    this.notFinite = layer.signed ? -128 : 255; // of the levels
    this.isSigned = layer.signed || !layer.kinds.length;
  }

  /** The number of a cell of the map: a weight, or of a pooled map a bound of the weights of a block. */
  cell(head, row, column) {
    const level = this.values[(head * this.rows + row) * this.columns + column];
    if (this.form === "exact") return level;
    if (level === this.notFinite) return NaN;
    return level * this.scale[this.form === "pooled" ? head : head * this.queries + row];
  }

  /** The weight of a query on a key: {value, error}; with `most`, it is only known to be at most that. */
  at(head, query, key) {
    if (this.form === "exact") return { value: this.cell(head, query, key), error: 0 };
    const found = this.largest(head, query).find((one) => one.key === key);
    if (found) return { value: found.value, error: 0 };
    const value = this.cell(head, Math.floor(query / this.block.rows), Math.floor(key / this.block.columns));
    const least = this.least(head, query);
    if (this.form === "pooled") return { most: this.layer.map.kept ? least : Math.min(Math.abs(value), least) };
    return { value, error: Number.isNaN(value) ? 0 : this.scale[head * this.queries + query] / 2 };
  }

  /** The smallest of the weights of a row that are kept as they are. */
  least(head, query) {
    return this.topKeys ? Math.abs(this.topValues[(head * this.queries + query + 1) * this.layer.largest.count - 1]) : Infinity;
  }

  /** The largest weights of a row, as they are in the file: [{key, value}], largest first. */
  largest(head, query) {
    if (!this.topKeys) {
      const all = Array.from({ length: this.keys }, (_, key) => ({ key, value: this.cell(head, query, key) }));
      return all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    }
    const { count } = this.layer.largest;
    const start = (head * this.queries + query) * count;
    const kept = Array.from({ length: count }, (_, at) => ({ key: this.topKeys[start + at], value: this.topValues[start + at] }));
    return kept.filter((one) => one.key < this.keys);
  }

  /** All weights of a row as far as they are known: a list of {value, error} or {most}. */
  row(head, query) {
    return Array.from({ length: this.keys }, (_, key) => this.at(head, query, key));
  }

  /** The largest magnitude in the map of a head, of those that are finite. */
  peak(head) {
    return (this.peaks[head] ??= this.findPeak(head));
  }

  findPeak(head) {
    const numbers = this.scale || this.values; // the largest level of a scale stands for the largest number under it
    const [size, times] = [numbers.length / this.heads, this.scale ? Math.abs(this.notFinite) - 1 : 1];
    let most = 0;
    for (let at = head * size; at < (head + 1) * size; at++) {
      const number = Math.abs(numbers[at]);
      if (number > most && number < Infinity) most = number;
    }
    return most * times;
  }
}

const WEIGHTS = new Map();

/** The weights of a layer, unpacked once. */
function weightsOf(layer) {
  if (!WEIGHTS.has(layer)) WEIGHTS.set(layer, Weights.of(layer));
  return WEIGHTS.get(layer);
}

/** Write what is known of a weight: as in the file, rounded to a step of 8 bits, or a bound. */
function formatWeight({ value, error, most }) {
  if (most !== undefined) return `at most ${formatNumber(most)}`;
  return error ? `${formatNumber(value, 3)} ± ${formatNumber(error, 1)}` : formatNumber(value);
}

/** The words of an axis of a trace; numbers where it has none. Words from right to left keep to their place in a line. */
function wordsOf(trace, axis, size) {
  const words = trace.labels[axis] || [];
  if (words.length !== size) return Array.from({ length: size }, (_, at) => String(at));
  return words.map((word) => (RIGHT_TO_LEFT.test(word) ? `${ISOLATE}${word}${END_ISOLATE}` : word));
}
