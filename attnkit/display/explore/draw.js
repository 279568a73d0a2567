// Drawing: one interface of a few shapes, on a canvas for the screen and as SVG for a file.
//
// rect(x, y, width, height, color)            line(x1, y1, x2, y2, color, width)
// text(x, y, word, {size, anchor, angle, bold, color})
// cells(x, y, width, height, rows, columns, colorAt, opacity)     colorAt(row, column) -> "#rrggbb" or "" for none
// image(x, y, width, height, image)           an image that has been loaded
// polyline([[x, y], …], color, width)
// Colours are #rrggbb; color("ink") is that of the theme.

const TEXT_SIZE = 12;

/** The colour of a variable of the page: ink, muted, grid, masked, background. */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#000000";
}

/** The red, green and blue of #rrggbb. */
function channels(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

class CanvasSurface {
  constructor(canvas, width, height, scale = window.devicePixelRatio || 1, margin = 0) {
    canvas.width = Math.max(1, Math.round((width + 2 * margin) * scale));
    canvas.height = Math.max(1, Math.round((height + 2 * margin) * scale));
    this.context = canvas.getContext("2d");
    this.context.scale(scale, scale);
    this.context.translate(margin, margin);
  }

  rect(x, y, width, height, fill) {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, width, height);
  }

  line(x1, y1, x2, y2, stroke, width = 1) {
    this.polyline([[x1, y1], [x2, y2]], stroke, width);
  }

  polyline(points, stroke, width = 1) {
    this.context.strokeStyle = stroke;
    this.context.lineWidth = width;
    this.context.beginPath();
    points.forEach(([x, y], at) => (at ? this.context.lineTo(x, y) : this.context.moveTo(x, y)));
    this.context.stroke();
  }

  text(x, y, word, { size = TEXT_SIZE, anchor = "start", angle = 0, bold = false, color: fill = color("ink") } = {}) {
    this.context.save();
    this.context.translate(x, y);
    this.context.rotate((angle * Math.PI) / 180);
    this.context.font = `${bold ? "bold " : ""}${size}px ${PAYLOAD.look.sans}`;
    this.context.textAlign = { start: "left", middle: "center", end: "right" }[anchor];
    this.context.fillStyle = fill;
    this.context.fillText(word, 0, 0);
    this.context.restore();
  }

  cells(x, y, width, height, rows, columns, colorAt, opacity = 1) {
    this.context.imageSmoothingEnabled = false;
    this.context.globalAlpha = opacity;
    this.context.drawImage(cellsImage(rows, columns, colorAt), x, y, width, height);
    this.context.globalAlpha = 1;
  }

  image(x, y, width, height, image) {
    this.context.imageSmoothingEnabled = true;
    this.context.drawImage(image, x, y, width, height);
  }
}

/** A canvas with one pixel a cell. */
function cellsImage(rows, columns, colorAt) {
  const canvas = make("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const known = new Map([["", [0, 0, 0, 0]]]);
  for (let row = 0, at = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, at += 4) {
      const hex = colorAt(row, column);
      if (!known.has(hex)) known.set(hex, [...channels(hex), 255]);
      image.data.set(known.get(hex), at);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

const MOST_CELLS = 100000; // of heat maps in an SVG that are shapes; those after them are pictures

class SvgSurface {
  constructor(width, height, margin) {
    this.cellCount = 0;
    const namespace = "http://www.w3.org/2000/svg";
    this.create = (tag, attributes) => {
      const element = document.createElementNS(namespace, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? +value.toFixed(2) : value);
      return element;
    };
    const [wide, high] = [width, height].map((one) => +(one + 2 * margin).toFixed(2));
    this.svg = this.create("svg", {
      width: wide, height: high, viewBox: `${-margin} ${-margin} ${wide} ${high}`, role: "img", "font-family": PAYLOAD.look.sans,
    });
  }

  add(tag, attributes, parent = this.svg) {
    return parent.appendChild(this.create(tag, attributes));
  }

  rect(x, y, width, height, fill) {
    this.add("rect", { x, y, width, height, fill });
  }

  line(x1, y1, x2, y2, stroke, width = 1) {
    this.add("line", { x1, y1, x2, y2, stroke, "stroke-width": width });
  }

  polyline(points, stroke, width = 1) {
    const all = points.map(([x, y]) => `${+x.toFixed(2)},${+y.toFixed(2)}`).join(" ");
    this.add("polyline", { points: all, fill: "none", stroke, "stroke-width": width });
  }

  text(x, y, word, { size = TEXT_SIZE, anchor = "start", angle = 0, bold = false, color: fill = color("ink") } = {}) {
    const place = angle ? { transform: `translate(${+x.toFixed(2)} ${+y.toFixed(2)}) rotate(${angle})` } : { x, y };
    const looks = { ...place, "font-size": size, "text-anchor": anchor, fill, ...(bold ? { "font-weight": "bold" } : {}) };
    this.add("text", looks).textContent = word;
  }

  /** Maps as a path for each colour, a stroke through each run of equal cells; many cells as a picture. */
  cells(x, y, width, height, rows, columns, colorAt, opacity = 1) {
    this.cellCount += rows * columns;
    if (this.cellCount > MOST_CELLS) {
      const href = cellsImage(rows, columns, colorAt).toDataURL();
      this.add("image", { x, y, width, height, href, opacity, preserveAspectRatio: "none", style: "image-rendering:pixelated" });
      return;
    }
    const paths = new Map();
    for (let row = 0; row < rows; row++) {
      for (let start = 0, end; start < columns; start = end) {
        const hex = colorAt(row, start);
        for (end = start + 1; end < columns && colorAt(row, end) === hex; end++);
        if (hex) paths.set(hex, `${paths.get(hex) || ""}M${start} ${row + 0.5}h${end - start}`);
      }
    }
    const place = `translate(${+x.toFixed(2)} ${+y.toFixed(2)}) scale(${width / columns} ${height / rows})`;
    const looks = { "shape-rendering": "crispEdges", fill: "none", ...(opacity < 1 ? { opacity } : {}) };
    const group = this.add("g", { transform: place, ...looks });
    for (const [stroke, d] of paths) this.add("path", { stroke, d }, group);
  }

  image(x, y, width, height, image) {
    this.add("image", { x, y, width, height, href: image.src, preserveAspectRatio: "none" });
  }

  toString() {
    return `${new XMLSerializer().serializeToString(this.svg)}\n`;
  }
}

/** The width of a word in pixels. */
function textWidth(word, size = TEXT_SIZE) {
  textWidth.context ||= document.createElement("canvas").getContext("2d");
  textWidth.context.font = `${size}px ${PAYLOAD.look.sans}`;
  return textWidth.context.measureText(word).width;
}

/** Shorten a word to a width in pixels. */
function fitWord(word, width, size = TEXT_SIZE) {
  let text = shorten(word, 24);
  for (let most = [...text].length - 1; most > 1 && textWidth(text, size) > width; most--) text = shorten(word, most);
  return text;
}

/** Put a picture on a canvas. A picture is {name, width, height, paint(surface)}. */
function showPicture(canvas, picture) {
  canvas.style.width = `${picture.width}px`;
  canvas.style.height = `${picture.height}px`;
  picture.paint(new CanvasSurface(canvas, picture.width, picture.height));
}

const MARGIN = 12; // pixels around a picture in its file

/** Return the file of a picture: a Blob of SVG or PNG. */
async function pictureFile(picture, kind) {
  const paint = (surface) => {
    surface.rect(-MARGIN, -MARGIN, picture.width + 2 * MARGIN, picture.height + 2 * MARGIN, color("background"));
    picture.paint(surface);
  };
  if (kind === "svg") {
    const surface = new SvgSurface(picture.width, picture.height, MARGIN);
    paint(surface);
    return new Blob([surface.toString()], { type: "image/svg+xml" });
  }
  const canvas = make("canvas");
  paint(new CanvasSurface(canvas, picture.width, picture.height, 2, MARGIN));
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Save a picture as a file. */
async function savePicture(picture, kind) {
  const url = URL.createObjectURL(await pictureFile(picture, kind));
  make("a", { href: url, download: `${picture.name}.${kind}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
