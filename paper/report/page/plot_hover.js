"use strict";

// What a plot says where the pointer is, or where the arrow keys have gone: all values at the nearest x.
const PlotHover = (() => {
  // Distances along x count more: who moves along a curve means its points, even if they are far above the pointer.
  const ACROSS = 0.35;

  function nearest(plot, x, y) {
    let best = null;
    for (const line of plot.shown) {
      for (const point of line.points) {
        const far = Math.hypot(plot.toX(point.x) - x, ACROSS * (plot.toY(point.y) - y));
        if (!best || far < best.far) best = { far, line, point };
      }
    }
    return best;
  }

  function same(x, other) {
    return Math.abs(x - other) <= 1e-9 * Math.max(Math.abs(x), Math.abs(other));
  }

  function show(plot, x, chosen) {
    plot.cursor.replaceChildren();
    const { top, bottom } = plot.frame;
    const middle = plot.toX(x);
    Plots.svg("line", { x1: middle, x2: middle, y1: top, y2: bottom, class: "crosshair" }, plot.cursor);
    const rows = [];
    for (const line of plot.shown) {
      const point = line.points.find((each) => same(each.x, x));
      if (!point) continue;
      rows.push({ series: line.series, y: point.y, chosen: line === chosen });
      const ring = { cx: middle, cy: plot.toY(point.y), r: 6, class: `ring colour-${line.series.colour}` };
      Plots.svg("circle", ring, plot.cursor);
    }
    fill(plot, x, rows);
    placeTip(plot, middle);
  }

  function fill(plot, x, rows) {
    plot.tip.replaceChildren();
    const head = Plots.element("div", { class: "tip-x" }, plot.tip);
    head.append(`${plot.data.x_label}: `);
    head.insertAdjacentHTML("beforeend", Scales.html(plot.xLabels, x));
    const table = Plots.element("table", {}, plot.tip);
    for (const { series, y, chosen } of rows) {
      const row = Plots.element("tr", chosen ? { class: "chosen" } : {}, table);
      Plots.element("td", { class: `key colour-${series.colour}` }, row).textContent = series.from_paper ? "┅" : "━";
      Plots.element("td", {}, row).textContent = series.label;
      Plots.element("td", { class: "value" }, row).innerHTML = Scales.html("linear", y);
    }
    plot.tip.hidden = false;
  }

  // Next to the crosshair, on the side with more room; below the plot where it would cover much of it.
  function placeTip(plot, middle) {
    const { offsetWidth: width, offsetHeight: height } = plot.tip;
    const { top, bottom } = plot.frame;
    const onLeft = middle > plot.width / 2;
    const covers = width > 0.45 * plot.width || height > 0.75 * (bottom - top);
    const left = covers ? middle - width / 2 : onLeft ? middle - width - 12 : middle + 12;
    plot.tip.style.left = `${Math.max(0, Math.min(plot.width - width, left))}px`;
    plot.tip.style.top = `${covers ? bottom + 26 : top}px`;
  }

  function hide(plot) {
    plot.cursor.replaceChildren();
    plot.tip.hidden = true;
    plot.focusAt = null;
  }

  function onKey(plot, event) {
    if (event.key === "Escape") return hide(plot);
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return undefined;
    event.preventDefault();
    const all = [...new Set(plot.shown.flatMap((line) => line.points.map((point) => point.x)))].sort((p, q) => p - q);
    const step = event.key === "ArrowLeft" ? -1 : 1;
    const from = plot.focusAt === null ? (step > 0 ? -1 : all.length) : all.indexOf(plot.focusAt);
    plot.focusAt = all[Math.max(0, Math.min(all.length - 1, from + step))];
    return show(plot, plot.focusAt, null);
  }

  function attach(plot) {
    plot.cursor = Plots.svg("g", { class: "cursor" }, plot.svg);
    plot.focusAt = null;
    const onPointer = (event) => {
      const box = plot.svg.getBoundingClientRect();
      const hit = nearest(plot, event.clientX - box.left, event.clientY - box.top);
      show(plot, hit.point.x, hit.line);
    };
    plot.svg.addEventListener("pointermove", onPointer);
    plot.svg.addEventListener("pointerdown", onPointer);
    // A finger leaves when it is lifted; what it has shown stays until something else is touched.
    plot.svg.addEventListener("pointerleave", (event) => event.pointerType === "touch" || hide(plot));
    plot.svg.addEventListener("blur", () => hide(plot));
    plot.svg.addEventListener("keydown", (event) => onKey(plot, event));
  }

  return { attach };
})();
