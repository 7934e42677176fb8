"use strict";

// Line plots in SVG, drawn anew for every width so that letters keep their size. The paper names points and no curves:
// its marks have no line.
const Plots = (() => {
  const COLOURS = 8;
  const SHAPES = ["circle", "square", "triangle", "diamond", "down", "plus"];
  const TEXT = 12; // pixels, of letters in a plot

  function create(space, name, attributes, parent) {
    const node = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (parent) parent.append(node);
    return node;
  }

  const svg = (...content) => create("http://www.w3.org/2000/svg", ...content);
  const element = (...content) => create("http://www.w3.org/1999/xhtml", ...content);

  // The outline of a mark around a point: shapes differ, so that colour is not needed to tell lines apart.
  function mark(shape, x, y, r) {
    const paths = {
      circle: `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
      square: `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
      triangle: `M${x},${y - 1.2 * r}l${1.2 * r},${2.1 * r}h${-2.4 * r}z`,
      diamond: `M${x},${y - 1.35 * r}l${1.35 * r},${1.35 * r}l${-1.35 * r},${1.35 * r}l${-1.35 * r},${-1.35 * r}z`,
      down: `M${x},${y + 1.2 * r}l${1.2 * r},${-2.1 * r}h${-2.4 * r}z`,
      plus: `M${x - 1.3 * r},${y}h${2.6 * r}M${x},${y - 1.3 * r}v${2.6 * r}`,
    };
    return paths[shape];
  }

  // What a line is of: its name up to the first comma, less the words "paper" and "ours".
  function method(label) {
    const plain = label.toLowerCase().replace(/\b(the )?paper('s)?\b|\bours\b/g, "");
    return plain.split(",")[0].replace(/[^a-z0-9]+/g, "");
  }

  // Every line of ours has a colour and a mark. A line of the paper takes the colour of ours of the same method; the
  // first one its mark, too, and further ones other marks.
  function styled(plot) {
    const ours = plot.series.filter((series) => !series.from_paper);
    const named = (name) => ours.findIndex((series) => method(series.label).startsWith(name));
    const theirs = plot.series.filter((series) => series.from_paper).map((series) => method(series.label));
    const others = [...new Set(theirs)].filter((name) => named(name) < 0); // methods that only the paper has
    const used = new Map(); // lines of the paper by colour
    return plot.series.map((series) => {
      const name = method(series.label);
      const ofPaper = named(name) >= 0 ? named(name) : ours.length + others.indexOf(name);
      const place = series.from_paper ? ofPaper : ours.indexOf(series);
      const further = series.from_paper ? used.get(place) || 0 : 0;
      if (series.from_paper) used.set(place, further + 1);
      const shape = SHAPES[(place + 2 * further) % SHAPES.length];
      return { ...series, colour: place % COLOURS, shape, hidden: false };
    });
  }

  // The points of a line that an axis can show; a logarithm needs positive numbers.
  function points(series, xKind, yKind) {
    return series.x
      .map((x, index) => ({ x, y: series.y[index] }))
      .filter(({ x, y }) => x !== null && y !== null && (xKind === "linear" || x > 0) && (yKind === "linear" || y > 0));
  }

  class Plot {
    constructor(box, data) {
      Object.assign(this, { box, data, series: styled(data), yKind: data.y_scale });
      this.legend = element("div", { class: "legend", role: "group", "aria-label": "Lines; press one to hide it" });
      this.holder = element("div", { class: "drawing" });
      this.tip = element("div", { class: "tip", role: "status", hidden: "" });
      box.querySelector("figcaption").after(this.legend, this.holder);
      this.holder.append(this.tip);
      this.fillLegend();
      this.width = 0;
      new ResizeObserver(() => this.resized()).observe(this.holder);
      this.resized();
    }

    resized() {
      const width = Math.round(this.holder.clientWidth);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.draw();
      }
    }

    fillLegend() {
      this.series.forEach((series) => {
        const button = element("button", { type: "button", "aria-pressed": "true" }, this.legend);
        button.append(swatch(series), series.label);
        button.addEventListener("click", () => {
          series.hidden = !series.hidden;
          button.setAttribute("aria-pressed", String(!series.hidden));
          this.draw();
        });
      });
      if (this.series.every((series) => series.y.every((y) => y === null || y > 0))) this.addScaleButton();
    }

    addScaleButton() {
      const button = element("button", { type: "button", class: "scale" }, this.legend);
      const name = () => (button.textContent = this.yKind === "linear" ? "log axis" : "linear axis");
      button.addEventListener("click", () => {
        this.yKind = this.yKind === "linear" ? "log10" : "linear";
        name();
        this.draw();
      });
      name();
    }

    draw() {
      if (this.svg) this.svg.remove();
      const height = Math.round(Math.min(320, Math.max(220, this.width * 0.62)));
      const size = { viewBox: `0 0 ${this.width} ${height}`, width: this.width, height };
      this.svg = svg("svg", { ...size, role: "img", tabindex: "0", "aria-label": this.spoken() });
      this.holder.prepend(this.svg);
      this.shown = this.series
        .filter((series) => !series.hidden)
        .map((series) => ({ series, points: points(series, this.data.x_scale, this.yKind) }))
        .filter((line) => line.points.length);
      this.tip.hidden = true;
      if (!this.shown.length) {
        svg("text", { x: this.width / 2, y: height / 2, class: "empty" }, this.svg).textContent = "no values to draw";
        return;
      }
      this.place(height);
      this.shown.forEach((line) => this.drawLine(line));
      PlotHover.attach(this);
    }

    spoken() {
      const names = this.series.map((series) => series.label).join(", ");
      const { title, x_label: x, y_label: y } = this.data;
      return `${title}. ${y} over ${x}. Lines: ${names}. Arrow keys read values.`;
    }

    // Lay out the axes: the left margin is as wide as the widest label.
    place(height) {
      const all = this.shown.flatMap((line) => line.points);
      const [xLow, xHigh] = Scales.ends(this.data.x_scale, all.map((point) => point.x));
      const [yLow, yHigh] = Scales.ends(this.yKind, all.map((point) => point.y));
      const yTicks = Scales.ticks(this.yKind, yLow, yHigh, Math.max(3, Math.round(height / 50)));
      const letters = Math.max(...yTicks.map((tick) => lengthOf(Scales.label(this.yKind, tick))));
      const frame = { left: Math.max(28, letters * 6.8 + 12), right: this.width - 14, top: 26, bottom: height - 42 };
      const room = Math.max(3, Math.floor((frame.right - frame.left) / 60));
      const xTicks = Scales.ticks(this.data.x_scale, xLow, xHigh, room);
      this.frame = frame;
      // Small powers of two are known by heart; large ones are read by their exponent.
      this.xLabels = this.data.x_scale === "log2" && xHigh < 5000 ? "linear" : this.data.x_scale;
      this.toX = Scales.scale(this.data.x_scale, xLow, xHigh, frame.left, frame.right);
      this.toY = Scales.scale(this.yKind, yLow, yHigh, frame.bottom, frame.top);
      this.drawAxes(xTicks, yTicks, height);
    }

    drawAxes(xTicks, yTicks, height) {
      const { left, right, top, bottom } = this.frame;
      const axes = svg("g", { class: "axes" }, this.svg);
      let least = Infinity; // labels that would touch the one before are left out
      for (const tick of yTicks) {
        const y = this.toY(tick);
        svg("line", { x1: left, x2: right, y1: y, y2: y, class: "grid" }, axes);
        if (y > least) continue;
        write(axes, Scales.label(this.yKind, tick), left - 7, y + 4, "end");
        least = y - TEXT - 4;
      }
      let free = -Infinity;
      for (const tick of xTicks) {
        const x = this.toX(tick);
        svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 5, class: "tick" }, axes);
        const label = Scales.label(this.xLabels, tick);
        const half = lengthOf(label) * 3.4;
        if (x - half < free || x + half > this.width) continue;
        write(axes, label, x, bottom + 19, "middle");
        free = x + half + 6;
      }
      svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "base" }, axes);
      write(axes, [this.data.y_label, ""], 2, TEXT, "start", "name");
      write(axes, [this.data.x_label, ""], right, height - 4, "end", "name");
    }

    drawLine({ series, points: own }) {
      const group = svg("g", { class: `line colour-${series.colour}${series.from_paper ? " of-paper" : ""}` }, this.svg);
      const pixels = own.map((point) => [this.toX(point.x), this.toY(point.y)]);
      const path = pixels.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(2)},${y.toFixed(2)}`).join("");
      if (!series.from_paper) svg("path", { d: path, class: "curve" }, group);
      const radius = own.length > 40 ? 1.8 : series.from_paper ? 4.4 : 3.6;
      svg("path", { d: pixels.map(([x, y]) => mark(series.shape, x, y, radius)).join(""), class: "marks" }, group);
    }
  }

  const lengthOf = ([text, power]) => text.length + power.length * 0.75;

  function write(parent, [text, power], x, y, side, name) {
    const node = svg("text", { x, y, "text-anchor": side, class: name || "label" }, parent);
    node.textContent = text;
    if (power) svg("tspan", { dy: "-0.45em", class: "power" }, node).textContent = power;
  }

  function swatch(series) {
    const size = { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true" };
    const node = svg("svg", { ...size, class: `line colour-${series.colour}${series.from_paper ? " of-paper" : ""}` });
    if (!series.from_paper) svg("path", { d: "M1,6H29", class: "curve" }, node);
    svg("path", { d: mark(series.shape, 15, 6, series.from_paper ? 4 : 3.4), class: "marks" }, node);
    return node;
  }

  function drawAll() {
    const data = JSON.parse(document.getElementById("plot-data").textContent);
    return [...document.querySelectorAll("figure.plot")].map((box) => new Plot(box, data[Number(box.dataset.plot)]));
  }

  return { drawAll, svg, element };
})();
