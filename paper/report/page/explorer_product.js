"use strict";

// The product y = K x: bars of x to drag, bars of y, and the two sweeps that compute y without K, step by step.
const ExplorerProduct = (() => {
  const { SIZE, written } = ExplorerState;
  const HEIGHT = 150;
  const STEPS = 4 * SIZE; // two sweeps over rows and columns

  class Bars {
    // `changed(index, value)` is called when a bar is dragged; without it the bars only show.
    constructor(holder, name, most, changed) {
      Object.assign(this, { holder, name, most, changed });
      const spoken = { role: "group", "aria-label": `Bars of ${name}` };
      this.svg = Plots.svg("svg", { class: `bars of-${name}`, height: HEIGHT, ...spoken });
      holder.append(this.svg);
      this.base = Plots.svg("line", { class: "base" }, this.svg);
      this.bars = Array.from({ length: SIZE }, (_, index) => this.bar(index));
      new ResizeObserver(() => this.values && this.update(this.values)).observe(holder);
    }

    bar(index) {
      const group = Plots.svg("g", { class: "bar" }, this.svg);
      const parts = {};
      parts.reach = Plots.svg("rect", { class: "reach" }, group); // where the bar can be taken hold of
      parts.bar = Plots.svg("rect", { class: "value" }, group);
      parts.text = Plots.svg("text", { class: "bar-value" }, group);
      parts.name = Plots.svg("text", { class: "bar-name" }, group);
      parts.name.textContent = this.name + (index + 1);
      if (this.changed) this.listen(group, index);
      return { group, ...parts };
    }

    listen(group, index) {
      const limits = { "aria-valuemin": -this.most, "aria-valuemax": this.most };
      set(group, { tabindex: "0", role: "slider", "aria-label": this.name + (index + 1), ...limits });
      const drag = (event) => {
        const y = event.clientY - this.svg.getBoundingClientRect().top;
        this.changed(index, ((HEIGHT / 2 - y) / (HEIGHT / 2 - 22)) * this.most);
      };
      group.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        group.setPointerCapture(event.pointerId);
        group.dragging = true;
        drag(event);
      });
      group.addEventListener("pointermove", (event) => group.dragging && drag(event));
      for (const end of ["pointerup", "pointercancel"]) group.addEventListener(end, () => (group.dragging = false));
      group.addEventListener("keydown", (event) => {
        const way = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
        if (!way) return;
        event.preventDefault();
        this.changed(index, this.values[index] + 0.1 * way);
      });
    }

    update(values) {
      this.values = values;
      const width = this.holder.clientWidth;
      if (!width) return;
      this.svg.setAttribute("width", width);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      const [step, middle] = [width / SIZE, HEIGHT / 2];
      const most = this.changed ? this.most : Math.max(this.most, ...values.map(Math.abs));
      set(this.base, { x1: 0, x2: width, y1: middle, y2: middle });
      this.bars.forEach((parts, index) => {
        const length = (values[index] / most) * (middle - 22);
        set(parts.reach, { x: index * step, y: 0, width: step, height: HEIGHT });
        const tall = { y: middle - Math.max(0, length), height: Math.max(1, Math.abs(length)) };
        set(parts.bar, { x: (index + 0.2) * step, width: 0.6 * step, ...tall });
        set(parts.name, { x: (index + 0.5) * step, y: length < 0 ? middle - 5 : middle + 14 });
        set(parts.text, { x: (index + 0.5) * step, y: length < 0 ? middle - length + 13 : middle - length - 5 });
        parts.text.textContent = written(values[index], 2);
        parts.group.setAttribute("aria-valuenow", values[index].toFixed(3));
      });
    }
  }

  function set(element, attributes) {
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  }

  // The steps in the order in which they happen: from the left, then from the right.
  function inTime({ left, right }) {
    return [...left.map((step) => ({ ...step, way: "left" })), ...right.map((step) => ({ ...step, way: "right" }))];
  }

  // The sorted anchors, one a line, with both sums where the sweeps have come by.
  function fillTable(body, scans, state) {
    const upTo = state.step === null ? STEPS : state.step;
    const count = scans.order.length;
    body.replaceChildren();
    scans.order.forEach((anchor, at) => {
      const row = Plots.element("tr", { class: `of-${anchor.kind}` }, body);
      const back = count - 1 - at; // the place in the sweep from the right
      const name = anchor.index + 1;
      const isRow = anchor.kind === "a";
      const [leftDone, rightDone] = [at < upTo, count + back < upTo];
      const cells = [
        anchor.kind + name,
        String(anchor.at),
        isRow ? "" : `x${name} = ${written(state.x[anchor.index], 2)}`,
        leftDone ? ExplorerWords.sums(scans.left[at].value) : "",
        rightDone ? ExplorerWords.sums(scans.right[back].value) : "",
        isRow && rightDone ? `y${name} = ${written(scans.y[anchor.index])}` : "",
      ];
      for (const text of cells) Plots.element("td", {}, row).textContent = text;
      row.classList.toggle("now", state.step !== null && (at === upTo - 1 || count + back === upTo - 1));
    });
  }

  return { Bars, STEPS, inTime, fillTable };
})();
