"use strict";

// The two number lines: rows a above, columns b below, and between them a link for every entry of K.
const ExplorerLine = (() => {
  const { END, GRID } = ExplorerState;
  const HEAD = 12; // radius of a handle
  const LEVELS = 3; // handles at one place stand on each other, this high at most
  const GAP = 74; // between the two lines
  const TOP = LEVELS * 2 * HEAD + 10;
  const HEIGHT = 2 * TOP + GAP;

  class Line {
    // `changed` is called after the state has a new position.
    constructor(holder, state, changed) {
      Object.assign(this, { holder, state, changed });
      this.svg = Plots.svg("svg", { class: "line-drawing", height: HEIGHT, role: "group" });
      this.svg.setAttribute("aria-label", "Anchors: rows a above, columns b below");
      holder.append(this.svg);
      this.back = Plots.svg("g", {}, this.svg);
      const behind = Plots.svg("g", {}, this.svg); // all handles: the stem of a higher one passes lower ones
      this.links = Plots.svg("g", { class: "links" }, behind);
      this.stems = Plots.svg("g", {}, behind);
      this.handles = { a: state.a.map((_, i) => this.handle("a", i)), b: state.b.map((_, j) => this.handle("b", j)) };
      new ResizeObserver(() => this.update()).observe(holder);
    }

    handle(kind, index) {
      const group = Plots.svg("g", { class: `handle of-${kind}`, tabindex: "0", role: "slider" }, this.svg);
      group.setAttribute("aria-label", `anchor ${kind}${index + 1}`);
      group.setAttribute("aria-valuemin", "0");
      group.setAttribute("aria-valuemax", String(END));
      group.stem = Plots.svg("line", { class: `stem of-${kind}` }, this.stems);
      if (kind === "a") Plots.svg("circle", { r: HEAD, class: "head" }, group);
      else Plots.svg("rect", { x: -HEAD, y: -HEAD, width: 2 * HEAD, height: 2 * HEAD, rx: 3, class: "head" }, group);
      const text = Plots.svg("text", { y: 4, class: "head-name" }, group);
      text.textContent = kind + (index + 1);
      this.listen(group, kind, index);
      return group;
    }

    listen(group, kind, index) {
      group.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        group.setPointerCapture(event.pointerId);
        group.focus();
        group.dragging = true;
      });
      group.addEventListener("pointermove", (event) => {
        if (!group.dragging) return;
        const x = event.clientX - this.svg.getBoundingClientRect().left;
        this.move(kind, index, ((x - this.left) / (this.right - this.left)) * END);
      });
      for (const end of ["pointerup", "pointercancel"]) group.addEventListener(end, () => (group.dragging = false));
      group.addEventListener("keydown", (event) => {
        const way = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
        if (!way) return;
        event.preventDefault();
        this.move(kind, index, this.state[kind][index] + way * (event.shiftKey ? 10 : 1) * GRID);
      });
    }

    move(kind, index, value) {
      const snapped = ExplorerState.snap(value);
      if (snapped === this.state[kind][index]) return;
      this.state[kind] = this.state[kind].map((old, at) => (at === index ? snapped : old));
      this.changed();
    }

    update() {
      const width = this.holder.clientWidth;
      if (!width) return;
      this.svg.setAttribute("width", width);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`); // on paper it is scaled
      [this.left, this.right] = [HEAD + 4, width - HEAD - 4];
      this.drawAxes();
      this.place("a", TOP, -1);
      this.place("b", TOP + GAP, 1);
      this.drawLinks();
    }

    toX(value) {
      return this.left + (value / END) * (this.right - this.left);
    }

    drawAxes() {
      this.back.replaceChildren();
      for (const y of [TOP, TOP + GAP]) {
        Plots.svg("line", { x1: this.left, x2: this.right, y1: y, y2: y, class: "base" }, this.back);
      }
      for (let at = 0; at <= END; at += 1) {
        const x = this.toX(at);
        Plots.svg("line", { x1: x, x2: x, y1: TOP, y2: TOP + GAP, class: "grid" }, this.back);
        Plots.svg("text", { x: x + 3, y: TOP + GAP / 2 + 4, class: "place" }, this.back).textContent = at;
      }
    }

    // Handles that would cover each other stand one above the other.
    place(kind, y, way) {
      const levels = [];
      const order = this.state[kind].map((at, index) => ({ at, index }));
      order.sort((p, q) => p.at - q.at || p.index - q.index);
      for (const { at, index } of order) {
        const x = this.toX(at);
        let level = 0;
        while (level < LEVELS - 1 && levels[level] !== undefined && x - levels[level] < 2 * HEAD + 1) level += 1;
        levels[level] = x;
        const up = (HEAD + 6 + level * 2 * HEAD) * way;
        const group = this.handles[kind][index];
        group.setAttribute("transform", `translate(${x},${y + up})`);
        group.setAttribute("aria-valuenow", String(at));
        const ends = { x1: x, x2: x, y1: y, y2: y + up };
        for (const [name, value] of Object.entries(ends)) group.stem.setAttribute(name, String(value));
        const { cell } = this.state;
        group.classList.toggle("pointed", Boolean(cell) && (kind === "a" ? cell.i : cell.j) === index);
      }
    }

    // A link is as strong as its entry: with a large tau everything is linked, with a small one only ties are.
    drawLinks() {
      this.links.replaceChildren();
      const K = Kernel.entries(ExplorerState.matrixOf(this.state));
      K.forEach((row, i) => row.forEach((entry, j) => {
        const strength = Math.abs(entry);
        if (strength < 0.02) return;
        const ends = { x1: this.toX(this.state.a[i]), x2: this.toX(this.state.b[j]), y1: TOP, y2: TOP + GAP };
        const look = { class: entry < 0 ? "link negative" : "link", "stroke-opacity": strength.toFixed(3) };
        Plots.svg("line", { ...ends, ...look, "stroke-width": (0.5 + 2.5 * strength).toFixed(2) }, this.links);
      }));
    }
  }

  return { Line };
})();
