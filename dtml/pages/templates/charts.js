// Draw every chart of the page from the description beside it: see dtml/pages/charts.py.
(() => {
  const style = getComputedStyle(document.documentElement);
  const painted = text => text.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
  const rows = each => each.rows.map(row => Object.fromEntries(row.map((value, i) => [each.names[i], value])));
  const figures = [...document.querySelectorAll("figure.chart")].filter(each => each.querySelector("script"));

  async function draw(figure) {
    const box = figure.querySelector(".drawn"), place = document.createElement("div");
    const spec = JSON.parse(painted(figure.querySelector("script").textContent));
    for (const name in spec.datasets) spec.datasets[name] = rows(spec.datasets[name]);
    if (spec.usermeta?.fluid) for (const unit of spec.vconcat ?? [spec]) unit.width = Math.max(160, figure.clientWidth - 96);
    const old = figure.view;
    if (!figure.view) box.replaceChildren();
    const before = box.firstChild;
    box.prepend(place);
    const { view } = await vegaEmbed(place, spec, { ast: true, actions: false, renderer: "canvas" });
    old?.finalize();
    before?.remove();
    figure.view = view;
    figure.classList.add("live");
    const boxes = [...figure.querySelectorAll("input[data-key]")];
    const show = () => view.signal("hidden", boxes.filter(each => !each.checked).map(each => each.dataset.key)).runAsync();
    for (const each of boxes) each.onchange = show;
    if (boxes.some(each => !each.checked) || old) boxes.length && await show();
    for (const button of figure.querySelectorAll("button[data-zoom]")) button.onclick = () => zoom(view, +button.dataset.zoom);
  }

  // Zoom about the right end, where the newest values are; 0 shows all again.
  function zoom(view, factor) {
    const [first, last] = view.scale(names(view)).domain().map(Number);
    view.signal("zoom_t", factor ? [last - (last - first) * factor, last] : null).runAsync();
  }
  const names = view => "x" in view._runtime.scales ? "x" : "concat_0_x";

  const seen = new IntersectionObserver(entries => {
    for (const each of entries) if (each.isIntersecting) { seen.unobserve(each.target); draw(each.target); }
  }, { rootMargin: "300px" });
  for (const each of figures) seen.observe(each);
  const again = () => figures.filter(each => each.view).forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; again(); } });
})();
