"use strict";

// K as a heat map; a cell that is pointed at is written out as its formula.
const ExplorerMatrix = (() => {
  const { SIZE } = ExplorerState;
  const EDGE = 26; // for the names of rows and columns
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  class Matrix {
    constructor(holder, told, state, pointed) {
      Object.assign(this, { holder, told, state, pointed });
      this.svg = Plots.svg("svg", { class: "matrix", tabindex: "0", role: "img" });
      this.svg.setAttribute("aria-label", "The matrix K; arrow keys read its entries");
      holder.append(this.svg);
      this.cells = Array.from({ length: SIZE * SIZE }, () => this.cell());
      this.names = Array.from({ length: 2 * SIZE }, () => Plots.svg("text", { class: "cell-name" }, this.svg));
      this.svg.addEventListener("pointerleave", (event) => event.pointerType === "touch" || this.pointed(null));
      this.svg.addEventListener("blur", () => this.pointed(null));
      this.svg.addEventListener("keydown", (event) => this.onKey(event));
      new ResizeObserver(() => this.update()).observe(holder);
    }

    cell() {
      const group = Plots.svg("g", { class: "cell" }, this.svg);
      Plots.svg("rect", {}, group);
      Plots.svg("text", {}, group);
      group.addEventListener("pointerenter", () => this.pointed(group.entry));
      group.addEventListener("pointerdown", () => this.pointed(group.entry));
      return group;
    }

    // Which row or column stands at each place: by number, or by position.
    order(values) {
      const all = values.map((_, index) => index);
      return this.state.inOrder ? all.sort((p, q) => values[p] - values[q] || p - q) : all;
    }

    // What the cells show: K, or its rows divided by the sums of their decays.
    shown() {
      const matrix = ExplorerState.matrixOf(this.state);
      const K = Kernel.entries(matrix);
      if (!this.state.shares) return K;
      const rows = Kernel.shares(matrix);
      const sign = (i, j) => (matrix.phi ? Math.cos(matrix.phi[i] - matrix.psi[j]) : 1);
      return rows.map((row, i) => row.shares.map((share, j) => share * sign(i, j)));
    }

    update() {
      const width = Math.min(this.holder.clientWidth, 460);
      if (!width) return;
      const side = (width - EDGE) / SIZE;
      this.svg.setAttribute("width", width);
      this.svg.setAttribute("height", width);
      this.svg.setAttribute("viewBox", `0 0 ${width} ${width}`);
      [this.rows, this.cols] = [this.order(this.state.a), this.order(this.state.b)];
      const values = this.shown();
      this.rows.forEach((i, r) => this.cols.forEach((j, c) => {
        this.draw(this.cells[r * SIZE + c], { i, j }, values[i][j], EDGE + c * side, EDGE + r * side, side);
      }));
      this.rows.forEach((i, r) => this.name(r, `a${i + 1}`, EDGE - 6, EDGE + (r + 0.5) * side + 4, "end"));
      this.cols.forEach((j, c) => this.name(SIZE + c, `b${j + 1}`, EDGE + (c + 0.5) * side, EDGE - 8, "middle"));
      this.tell(values);
    }

    draw(group, entry, value, x, y, side) {
      const [box, text] = group.children;
      const strength = Math.min(1, Math.abs(value));
      group.entry = entry;
      const { cell } = this.state;
      group.classList.toggle("pointed", Boolean(cell) && cell.i === entry.i && cell.j === entry.j);
      group.classList.toggle("strong", strength > 0.5);
      group.classList.toggle("negative", value < 0);
      group.style.setProperty("--strength", `${(100 * strength).toFixed(1)}%`);
      const bounds = { x, y, width: side - 1, height: side - 1 };
      for (const [key, number] of Object.entries(bounds)) box.setAttribute(key, number);
      text.setAttribute("x", x + side / 2);
      text.setAttribute("y", y + side / 2 + 4);
      text.textContent = strength < 0.005 ? (value === 0 ? "0" : "") : value.toFixed(2).replace("-", "−");
    }

    name(place, text, x, y, side) {
      const made = this.names[place];
      made.textContent = text;
      for (const [key, value] of Object.entries({ x, y, "text-anchor": side })) made.setAttribute(key, value);
    }

    tell(values) {
      const { cell, shares } = this.state;
      if (!cell) {
        this.told.textContent =
          "Point at a cell to see how it is computed. A cell without a number is below 0.005, but not 0.";
        return;
      }
      const K = Kernel.entries(ExplorerState.matrixOf(this.state));
      const share = shares ? values[cell.i][cell.j] : null;
      this.told.textContent = ExplorerWords.entry(this.state, cell, K[cell.i][cell.j], share);
    }

    onKey(event) {
      if (!MOVES[event.key]) return;
      event.preventDefault();
      const [down, across] = MOVES[event.key];
      const { cell } = this.state;
      const [r, c] = cell ? [this.rows.indexOf(cell.i) + down, this.cols.indexOf(cell.j) + across] : [0, 0];
      const inside = (value) => Math.max(0, Math.min(SIZE - 1, value));
      this.pointed({ i: this.rows[inside(r)], j: this.cols[inside(c)] });
    }
  }

  return { Matrix };
})();
