// Numbers as the tables of `show` write them, with the decimals of --precision.

/** The decimals of a number, of which a half is rounded to even, as Python does. */
function roundFixed(value, digits) {
  const text = value.toFixed(digits);
  const [whole, rest] = [Math.abs(value).toFixed(100).slice(0, digits - 100), Math.abs(value).toFixed(100).slice(digits - 100)];
  const isTie = /^50*$/.test(rest) && Math.abs(value) < 1e21;
  const even = isTie && Number(whole[whole.length - 1]) % 2 === 0 ? `${value < 0 ? "-" : ""}${whole.replace(/\.$/, "")}` : text;
  return Number(even) === 0 ? even.replace("-", "") : even;
}

/** A function that writes numbers in one format: fixed, or scientific where fixed would not show the largest. */
function numberFormat(values, digits = PAYLOAD.look.precision) {
  let peak = 0;
  for (const value of values) if (Number.isFinite(value) && Math.abs(value) > peak) peak = Math.abs(value);
  const isFixed = peak === 0 || (peak >= Math.min(10 ** (1 - digits), 0.1) && peak < 1e6);
  return (value) => {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
    return isFixed ? roundFixed(value, digits) : padExponent(value.toExponential(digits));
  };
}

/** Write a probability; one that would be 0 in these decimals as below the least of them. */
function formatFixed(value) {
  const text = numberFormat([1])(value);
  return value > 0 && Number(text) === 0 ? `< ${10 ** -PAYLOAD.look.precision}` : text;
}

/** Write a statistic with significant digits; – for one that is not known. */
function formatFact(value) {
  if (value === undefined || value === null) return "–";
  if (value === 0 || !Number.isFinite(value)) return String(value);
  const digits = Math.max(PAYLOAD.look.precision, 1);
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const short = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent < -4 || exponent >= digits) return padExponent(`${short(mantissa)}e${exponent}`);
  return short(value.toFixed(digits - 1 - exponent));
}

/** The exponent of a number in two digits: 1e-7 is 1e-07. */
function padExponent(text) {
  return text.replace(/e([+-])(\d)$/, "e$10$2");
}
