// Heat maps: the colours of numbers, small maps, and a large one with words on both axes.

/** The colour of a number from 0 to `peak`, or, with both signs, from -peak to `peak`. */
function heat(value, peak, isSigned = false) {
  if (!Number.isFinite(value)) return color("not-finite");
  const colors = PAYLOAD.look.maps[isSigned ? "bwr" : "viridis"];
  const share = peak > 0 ? (isSigned ? (value / peak + 1) / 2 : value / peak) : isSigned ? 0.5 : 0;
  return colors[Math.round(Math.min(Math.max(share, 0), 1) * (colors.length - 1))];
}

/** Black or white, whichever has more contrast with a colour: 4.5 at least, by the luminance of WCAG. */
function contrastingInk(hex) {
  const [red, green, blue] = channels(hex).map((one) => (one <= 10 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

/** The colours of a head, cell by cell; what a causal mask hides is in the colour of masked cells. */
function headColors(weights, head, peak) {
  const masked = color("masked");
  const notFinite = color("not-finite");
  const { isSigned } = weights;
  const colors = PAYLOAD.look.maps[isSigned ? "bwr" : "viridis"];
  const last = colors.length - 1;
  const { rows: high, columns: wide } = weights.block;
  return (row, column) => {
    if (weights.layer.causal && column * wide > (row + 1) * high - 1) return masked;
    const value = weights.cell(head, row, column);
    if (!Number.isFinite(value)) return notFinite;
    const share = peak > 0 ? (isSigned ? (value / peak + 1) / 2 : value / peak) : isSigned ? 0.5 : 0;
    return colors[Math.round(Math.min(Math.max(share, 0), 1) * last)];
  };
}

/** The end of the range of the colours: 1, or the largest magnitude of a head where that is above 1, or each has its own. */
function colorPeak(weights, head, state) {
  const peak = weights.peak(head);
  return state.range === "each" || weights.isSigned || peak > 1.001 ? peak : 1;
}

/** Paint a small map of a head: not more cells than pixels, each the largest of what it covers. */
function paintSmall(surface, weights, head, x, y, size, state) {
  const ratio = Math.max(1, Math.ceil(Math.max(weights.rows, weights.columns) / size));
  const rows = Math.ceil(weights.rows / ratio);
  const columns = Math.ceil(weights.columns / ratio);
  const { isSigned } = weights;
  const peak = colorPeak(weights, head, state);
  const colorAt = headColors(weights, head, peak);
  if (ratio === 1) {
    surface.cells(x, y, size, size, rows, columns, colorAt);
    return;
  }
  const masked = color("masked");
  surface.cells(x, y, size, size, rows, columns, (row, column) => {
    let most = -1;
    let signed = 0;
    for (let i = row * ratio; i < Math.min((row + 1) * ratio, weights.rows); i++) {
      for (let j = column * ratio; j < Math.min((column + 1) * ratio, weights.columns); j++) {
        if (weights.layer.causal && j * weights.block.columns > (i + 1) * weights.block.rows - 1) continue;
        const value = weights.cell(head, i, j);
        if (Number.isNaN(value)) return color("not-finite");
        if (Math.abs(value) > most) [most, signed] = [Math.abs(value), value];
      }
    }
    return most < 0 ? masked : heat(signed, peak, isSigned);
  });
}

const MOST_LABEL = 120; // pixels of a word beside a map

/** The picture of one head with words on both axes. */
function largePicture(weights, head, trace, title, width, state) {
  const { queries, keys } = weights.layer;
  const rowWords = wordsOf(trace, queries, weights.queries);
  const columnWords = wordsOf(trace, keys, weights.keys);
  const size = weights.queries > 8 ? TEXT_SIZE : 15;
  const fit = (word) => fitWord(word, MOST_LABEL, size);
  const widest = (words) => words.reduce((most, word) => Math.max(most, textWidth(fit(word), size)), 12);
  const left = Math.max(1.1 * widest(rowWords), textWidth(`${queries} ↓`, 11)) + 10;
  const top = widest(columnWords) + 44;
  const room = Math.max(width - left - 4, 120);
  const largest = Math.min(Math.max((0.6 * innerHeight) / weights.queries, 34), 60);
  const cell = Math.min(largest, Math.max(room / weights.keys, weights.keys > 64 ? 0 : 12));
  const [mapWidth, mapHeight] = [cell * weights.keys, cell * weights.queries];
  const peak = colorPeak(weights, head, state);
  const scale = { low: weights.isSigned ? -peak : 0, high: peak, isSigned: weights.isSigned, name: weights.layer.kinds.length ? "weight" : "A − B" };
  const end = left + scaleWidth(scale);
  const right = weights.layer.causal ? end + 31 + textWidth("masked", 11) : end;
  const paint = (surface) => {
    const step = Math.max(1, Math.ceil(13 / cell));
    const muted = { size: 11, color: color("muted") };
    surface.text(0, 16, title, { size: 14, bold: true });
    surface.text(left, 33, `${keys} →`, muted);
    surface.text(left - 6, top - 9, `${queries} ↓`, { ...muted, anchor: "end" });
    const [wide, high] = [weights.columns * weights.block.columns * cell, weights.rows * weights.block.rows * cell];
    surface.cells(left, top, wide, high, weights.rows, weights.columns, headColors(weights, head, peak));
    for (let at = 0; at < weights.queries; at += step) {
      const bold = at === state.token;
      surface.text(left - 6, top + (at + 0.5) * cell + 4, fit(rowWords[at]), { size, anchor: "end", bold });
    }
    for (let at = 0; at < weights.keys; at += step) {
      surface.text(left + (at + 0.5) * cell + 4, top - 6, fit(columnWords[at]), { size, angle: -90 });
    }
    if (cell >= 30 && weights.form === "exact") paintNumbers(surface, weights, head, { left, top, cell, peak });
    paintScale(surface, left, top + mapHeight + 12, scale);
    if (weights.layer.causal) {
      surface.rect(end + 16, top + mapHeight + 12, 10, 10, color("masked"));
      surface.text(end + 31, top + mapHeight + 21, "masked", muted);
    }
    if (state.token >= 0 && state.token < weights.queries) {
      const y = top + state.token * cell;
      const corners = [[left, y], [left + mapWidth, y], [left + mapWidth, y + cell], [left, y + cell], [left, y]];
      surface.polyline(corners, color("glow"), cell > 6 ? 2 : 1);
    }
  };
  return { name: `${weights.layer.name}-head-${head}`, width: Math.max(left + mapWidth, right, 16 + textWidth(title, 14) * 1.1) + 8, height: top + mapHeight + 28, paint, left, top, cell };
}

/** A number in four or five characters. */
function formatCell(value) {
  const size = Math.abs(value);
  if (size < 10) return value.toFixed(2).replace(/^-0\.00$/, "0.00");
  return size < 1000 ? value.toFixed(0) : size < Infinity ? value.toExponential(0).replace("+", "") : formatNumber(value);
}

/** Paint the numbers of a map into its cells. */
function paintNumbers(surface, weights, head, { left, top, cell, peak }) {
  const colorAt = headColors(weights, head, peak);
  for (let row = 0; row < weights.queries; row++) {
    for (let column = 0; column < weights.keys; column++) {
      if (weights.layer.causal && column > row) continue;
      const text = formatCell(weights.cell(head, row, column));
      const ink = contrastingInk(colorAt(row, column));
      surface.text(left + (column + 0.5) * cell, top + (row + 0.5) * cell + 4, text, { size: cell < 44 ? 10 : 13, anchor: "middle", color: ink });
    }
  }
}

/** The words at the end of a scale: its highest number, or what that is, and what the colours are of. */
function scaleLabel({ high, name }) {
  return `${typeof high === "string" ? high : formatNumber(high)}\u2003${name}`;
}

/** How wide a scale is, in pixels. */
function scaleWidth(scale) {
  return textWidth(formatNumber(scale.low), 11) + 132 + textWidth(scaleLabel(scale), 11);
}

/** Paint the scale of the colours: {low, high, isSigned, name}. */
function paintScale(surface, x, y, scale) {
  const muted = { size: 11, color: color("muted") };
  surface.text(x, y + 9, formatNumber(scale.low), muted);
  const from = x + textWidth(formatNumber(scale.low), 11) + 6;
  const colors = PAYLOAD.look.maps[scale.isSigned ? "bwr" : "viridis"];
  surface.cells(from, y, 120, 10, 1, colors.length, (_, at) => colors[at]);
  surface.text(from + 126, y + 9, scaleLabel(scale), muted);
}
