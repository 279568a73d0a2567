// The start: the title, the switch of the theme, the buttons that save, the foot, and the first state.

/** Show the page in another theme, or in that of the browser. */
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  showState();
}

/** Show what does not change with the state. */
function showFrame() {
  document.title = document.getElementById("title").textContent = PAYLOAD.look.title;
  const theme = document.documentElement.dataset.theme || "";
  const themes = [["", "as the browser"], ["light", "light"], ["dark", "dark"]];
  const buttons = ["svg", "png"].map((kind) =>
    make("button", { "data-save": kind, disabled: true, onclick: () => savePicture(APP.picture, kind) }, `save ${kind.toUpperCase()}`));
  document.getElementById("tools").append(makeChoice("theme", themes, theme, setTheme), ...buttons);
  document.getElementById("foot").append(...(isTraining() ? PAYLOAD.traces.slice(0, 1) : PAYLOAD.traces).map((trace) =>
    make("div", {}, make("h3", {}, isTraining() ? trace.name.replace(/ step \d+$/, "") : trace.name), trace.history.length
      ? make("pre", { tabindex: 0, "aria-label": `commands that made ${trace.name}` }, trace.history.join("\n"))
      : make("p", { class: "note" }, "The record has no history."))));
}

/** Keys of the whole page: the number of a view, and Escape, from a head to all of them. */
function handleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const state = readState();
  const isTyped = event.target.tagName === "SELECT" || event.target.type === "number"; // a digit is of the field
  const view = isTyped ? null : fittingViews(state)[Number(event.key) - 1];
  if (view) go({ view: view.id });
  else if (event.key === "Escape" && state.view === "heads" && state.head >= 0) go({ head: -1 }).then(() => focusOn(`head-${state.layer}-${state.head}`));
}

showFrame();
addEventListener("popstate", showState);
addEventListener("hashchange", showState);
addEventListener("keydown", handleKey);
for (const change of ["print", "(prefers-color-scheme: dark)"]) matchMedia(change).addEventListener("change", showState); // the colours of pictures
addEventListener("resize", () => {
  if (placeWidth() === APP.width) return; // as when a telephone hides its bars
  clearTimeout(APP.resized);
  APP.resized = setTimeout(showState, 150);
});
showState();
