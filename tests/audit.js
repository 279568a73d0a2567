// What holds of every page: its text is legible, nothing but what scrolls is wider than the window, the focus is seen.
// Each function returns faults in words; the debugger runs this file before the scripts of a page.

const AUDIT = (() => {
  const LEGIBLE = 4.5; // the contrast that WCAG 2.2 requires of text, and of what is no text
  const SEEN = 3;
  const USABLE = "a[href], button:enabled, input, select, summary, [tabindex]:not(main)";
  const canvasFaults = new Set();

  /** The red, green, blue and opacity of a computed colour. */
  function channels(color) {
    const [red, green, blue, opacity = 1] = color.match(/[\d.]+(e-?\d+)?/g).map(Number);
    return color.startsWith("color(srgb") ? [255 * red, 255 * green, 255 * blue, opacity] : [red, green, blue, opacity];
  }

  function luminance(color) {
    const [red, green, blue] = color.map((one) => (one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  function contrast(a, b) {
    const [low, high] = [luminance(a), luminance(b)].sort((one, other) => one - other);
    return (high + 0.05) / (low + 0.05);
  }

  /** The colour behind an element; `known` has those of elements around it. */
  function ground(element, known = new Map()) {
    if (!element) return [255, 255, 255, 1];
    if (!known.has(element)) {
      const color = channels(getComputedStyle(element).backgroundColor);
      known.set(element, color[3] > 0 ? color : ground(element.parentElement, known));
    }
    return known.get(element);
  }

  function isShown(element) {
    return element.checkVisibility({ visibilityProperty: true }) && !element.closest("script, style, option");
  }

  function describe(element) {
    return `${element.localName}.${element.getAttribute("class")} ${element.dataset.key || element.textContent.slice(0, 20)}`;
  }

  /** Texts with too little contrast; numbers of an SVG that are black or white are in cells, whose colours others test. */
  function illegible() {
    const [faults, known] = [new Set(), new Map()];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const element = texts.currentNode.parentElement;
      if (!texts.currentNode.data.trim() || !isShown(element)) continue;
      const looks = getComputedStyle(element);
      const ink = channels(element.namespaceURI.endsWith("svg") ? looks.fill : looks.color);
      if (element.namespaceURI.endsWith("svg") && ["0,0,0", "255,255,255"].includes(String(ink.slice(0, 3)))) continue;
      const under = ground(element, known);
      if (contrast(ink, under) < LEGIBLE) faults.add(`${describe(element)}: ${ink} on ${under}`);
    }
    return [...faults];
  }

  /** What is wider than the window, or cut. */
  function overflowing(width) {
    const cut = [...document.querySelectorAll("body *")].filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === "hidden");
    const wide = document.documentElement.scrollWidth;
    return [...(wide > width ? [`the page is ${wide} wide`] : []), ...cut.map((one) => `${describe(one)} is cut`)];
  }

  /** Pictures and controls without a name. */
  function unnamed() {
    const named = [...document.querySelectorAll("[role=img], canvas:not([aria-hidden]), button, select, input")];
    return named.filter((one) => !(one.ariaLabel || one.closest("button, label")?.textContent.trim())).map((one) => `${describe(one)} has no name`);
  }

  /** Whether an element scrolls, and has nothing that the focus could be on instead. */
  function isScroller(element) {
    const isLarger = [element.scrollWidth > element.clientWidth + 1, element.scrollHeight > element.clientHeight + 1];
    if (!isLarger.includes(true) || element.querySelector(USABLE)) return false;
    const { overflowX, overflowY } = getComputedStyle(element);
    return [overflowX, overflowY].some((one, at) => isLarger[at] && /auto|scroll/.test(one));
  }

  /** From now on look at each text that is drawn on a canvas: whether it is within it, and legible on what is there. */
  function watchCanvases() {
    const getContext = HTMLCanvasElement.prototype.getContext;
    HTMLCanvasElement.prototype.getContext = function (kind) {
      return getContext.call(this, kind, { willReadFrequently: true });
    };
    const paint = CanvasSurface.prototype.text;
    CanvasSurface.prototype.text = function (x, y, word, looks = {}) {
      const { size = TEXT_SIZE, anchor = "start", angle = 0, bold = false, color: ink = color("ink") } = looks;
      const { context } = this;
      context.save();
      context.translate(x, y);
      context.rotate((angle * Math.PI) / 180);
      context.font = `${bold ? "bold " : ""}${size}px ${PAYLOAD.look.sans}`;
      const wide = context.measureText(word).width;
      const left = { start: 0, middle: -wide / 2, end: -wide }[anchor];
      const place = context.getTransform();
      const [from, middle, to] = [left, left + wide / 2, left + wide].map((at) => place.transformPoint(new DOMPoint(at, -size / 3)));
      context.restore();
      const { width, height } = context.canvas;
      for (const one of [from, to]) {
        if (one.x < -1 || one.y < -1 || one.x > width + 1 || one.y > height + 1) canvasFaults.add(`${word} at ${one.x}, ${one.y} is not within ${width} × ${height}`);
      }
      const [red, green, blue, opacity] = context.getImageData(middle.x, middle.y, 1, 1).data;
      const under = opacity ? [red, green, blue] : channels(getComputedStyle(document.body).backgroundColor);
      const inked = [1, 3, 5].map((at) => parseInt(ink.slice(at, at + 2), 16));
      if (wide && contrast(inked, under) < LEGIBLE) canvasFaults.add(`${word}: ${inked} on ${under}`);
      paint.call(this, x, y, word, looks);
    };
  }

  /** All faults of what the page shows; a canvas that is watched has those of when it was drawn. */
  function faults(width) {
    const drawn = [...canvasFaults];
    canvasFaults.clear();
    return [...illegible(), ...overflowing(width), ...unnamed(), ...drawn];
  }

  /** How the focus on an element cannot be seen; nothing where it can. */
  function focusFaults(element) {
    const looks = getComputedStyle(element);
    const faults = [];
    if (looks.outlineStyle === "none" || parseFloat(looks.outlineWidth) < 1) faults.push("no outline");
    else if (looks.outlineStyle === "solid" && contrast(channels(looks.outlineColor), ground(element.parentElement)) < SEEN) faults.push(`an outline in ${looks.outlineColor}`);
    const { left, top, right, bottom } = element.getBoundingClientRect();
    const [x, y] = [(Math.max(left, 0) + Math.min(right, innerWidth)) / 2, (Math.max(top, 0) + Math.min(bottom, innerHeight)) / 2];
    const seen = document.elementFromPoint(x, y);
    if (!element.contains(seen) && !(seen && seen.contains(element) && seen.localName === "label")) faults.push(`under ${seen && describe(seen)}`);
    return faults.map((one) => `${describe(element)}: ${one}`);
  }

  const stops = new Set(); // what Tab has reached
  const reached = new Set(); // what Tab or the arrow keys have

  /** Note what has the focus, and of a group of buttons all that arrow keys reach; how it is not seen, null the second time. */
  function visit() {
    const start = document.activeElement;
    if (stops.has(start)) return null;
    const faults = start === document.body ? [] : focusFaults(start);
    stops.add(start);
    reached.add(start);
    if (start.localName !== "button") return faults;
    const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    press("Home");
    for (let before = null; before !== document.activeElement; press("ArrowRight")) {
      before = document.activeElement;
      faults.push(...focusFaults(before));
      reached.add(before);
    }
    start.focus();
    return faults;
  }

  /** What no key has reached since the last call, of all that can be used. */
  function unreached() {
    const usable = [...document.querySelectorAll("body *")].filter((one) => one.matches(USABLE) || isScroller(one));
    const missing = usable.filter((one) => !reached.has(one) && isShown(one)).map((one) => `${describe(one)}: no key reaches it`);
    stops.clear();
    reached.clear();
    return missing;
  }

  return { faults, unreached, visit, watchCanvases };
})();
