// The canvas of a picture with cells: the pointer and the arrow keys read them, a click and Enter choose one.

/** Make the canvas, which scrolls in itself; the cell that the keys are at is framed.
 * cells: {key and label of the canvas, rows, columns, places: [{x, y, width, height}] of all cells in the picture,
 *         at: [row, column] to begin with, read(row, column) -> words, choose(row, column)} */
function makeCells(picture, { key, label, rows, columns, places, at, read, choose }) {
  const canvas = make("canvas", { tabindex: 0, role: "img", "data-key": key, "aria-label": label });
  showPicture(canvas, picture);
  const frame = make("div", { class: "frame" });
  let [row, column] = at;
  const enter = (i, j) => {
    [row, column] = [i, j];
    const { x, y, width, height } = places[places.length - 1];
    const box = { left: x + (j * width) / columns, top: y + (i * height) / rows, width: width / columns, height: height / rows };
    for (const [name, size] of Object.entries(box)) frame.style[name] = `${size}px`;
  };
  const tell = () => say(read(row, column));
  const point = (event) => {
    for (const place of places) {
      const [i, j] = [Math.floor(((event.offsetY - place.y) / place.height) * rows), Math.floor(((event.offsetX - place.x) / place.width) * columns)];
      if (bound(i, rows, -1) < 0 || bound(j, columns, -1) < 0) continue;
      enter(i, j);
      return true;
    }
    return false;
  };
  canvas.addEventListener("pointermove", (event) => point(event) && tell());
  canvas.addEventListener("click", (event) => point(event) && choose(row, column));
  canvas.addEventListener("focus", tell);
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Enter") choose(row, column);
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [down, over] = steps[event.key];
    enter(Math.min(Math.max(row + down, 0), rows - 1), Math.min(Math.max(column + over, 0), columns - 1));
    frame.scrollIntoView({ block: "nearest", inline: "nearest" });
    tell();
  });
  enter(row, column);
  return make("div", { class: "wide" }, make("div", { class: "cells" }, canvas, frame));
}
