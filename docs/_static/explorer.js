"use strict";

// The explorer of the front page: a small K whose anchors can be dragged. `draw` shows all that follows from the state.
const Explorer = (() => {
  const SIZE = 8; // rows, and columns
  const END = 8; // anchors lie on 0 to END, on a grid, so that two can be made equal by hand
  const GRID = 0.05;
  const TAU = { most: 10, least: 1e-3 };
  const indices = [...Array(SIZE).keys()];
  const snap = (value) => Number((Math.round(Math.max(0, Math.min(END, value)) / GRID) * GRID).toFixed(4));
  const random = () => indices.map(() => snap(Math.random() * END));
  const angles = () => indices.map(() => (Math.random() * 2 - 1) * Math.PI);
  const PRESETS = {
    random: () => ({ a: random(), b: random() }),
    interlaced: () => ({ a: indices.map((i) => i + 0.25), b: indices.map((j) => j + 0.75) }),
    apart: () => ({ a: indices.map((i) => snap(0.4 * i)), b: indices.map((j) => snap(4.5 + 0.45 * j)) }),
    ties: () => ({ a: [1, 1, 2, 3, 4, 5.5, 6, 7], b: [1, 2, 2, 3.5, 5, 5.5, 6.5, 7] }),
    permutation: () => ({ a: [3, 0, 6, 1, 7, 4, 2, 5], b: [...indices] }),
  };
  const state = {
    a: [1.4, 6.3, 2.9, 4.55, 0.5, 4.2, 5.2, 3.6],
    b: [2.1, 5.6, 2.4, 6.8, 3.2, 3.7, 7.6, 4.9],
    x: [0.8, -0.5, 0.3, 1, -0.9, 0.6, 0.2, -0.4],
    phi: null, // null without phases
    psi: null,
    tau: 1,
    sorted: false, // show K by the order of its anchors
    step: 4 * SIZE, // of the two sweeps, over rows and columns
    cell: null, // the entry that is pointed at, [i, j]
  };

  // --- The mathematics ---

  const decay = (gap) => Math.exp(-Math.abs(gap) / state.tau);
  const cosine = (i, j) => (state.phi ? Math.cos(state.phi[i] - state.psi[j]) : 1);
  const entry = (i, j) => decay(state.a[i] - state.b[j]) * cosine(i, j);

  // All anchors from left to right. At equal positions columns come first: the sweep from the left has then passed a
  // tied column when it reads a row, and the sweep from the right has not, so that a tie counts once.
  function merged() {
    const anchors = (kind) => state[kind].map((position, index) => ({ kind, index, position }));
    return [...anchors("b"), ...anchors("a")].sort((p, q) => p.position - q.position);
  }

  // One sweep: the sum decays over each gap, a column adds its x, a row reads. With phases two sums run along, because
  // cos(phi - psi) = cos phi cos psi + sin phi sin psi.
  function sweep(order, direction) {
    const waves = state.phi ? [Math.cos, Math.sin] : [() => 1];
    let [position, sums] = [order[0].position, waves.map(() => 0)];
    return order.map(({ kind, index, position: next }) => {
      const [before, factor] = [sums, decay(next - position)];
      const added = (wave) => (kind === "b" ? wave(state.psi ? state.psi[index] : 0) * state.x[index] : 0);
      [position, sums] = [next, sums.map((sum, w) => sum * factor + added(waves[w]))];
      const read = sums.reduce((total, sum, w) => total + sum * waves[w](state.phi ? state.phi[index] : 0), 0);
      return { direction, kind, index, before, factor, sums, read };
    });
  }

  const sweeps = () => [...sweep(merged(), "left"), ...sweep(merged().reverse(), "right")];

  // y after so many steps of the two sweeps.
  function product(steps) {
    const y = indices.map(() => 0);
    for (const { kind, index, read } of steps) if (kind === "a") y[index] += read;
    return y;
  }

  // The intervals that make up the rank. From left to right the one that ends first is taken; a tie is one by itself.
  function intervals() {
    const pairs = [];
    let waiting = null;
    for (const position of [...new Set([...state.a, ...state.b])].sort((p, q) => p - q)) {
      const isRow = state.a.includes(position);
      if (isRow && state.b.includes(position)) pairs.push([position, position]);
      else if (waiting && waiting.isRow !== isRow) pairs.push([waiting.position, position]);
      else {
        waiting = { position, isRow };
        continue;
      }
      waiting = null;
    }
    return pairs;
  }

  // --- Words ---

  const minus = (text) => text.replaceAll("-", "−");

  function written(value, digits = 2) {
    const tiny = value !== 0 && Math.abs(value) < 0.5 * Math.pow(10, -digits);
    return minus(tiny ? value.toExponential(1) : value.toFixed(digits));
  }

  const together = (sums) => (sums.length === 1 ? written(sums[0]) : `(${sums.map((sum) => written(sum)).join(", ")})`);

  function entryText() {
    if (!state.cell) return "Drag the anchors, or the bars of x. Point at an entry of K to see how it is computed.";
    const [i, j] = state.cell;
    const wave = state.phi ? ` × ${written(cosine(i, j))}, the cosine of its phases,` : "";
    return `K[a${i + 1}, b${j + 1}] = exp(−|${state.a[i]} − ${state.b[j]}| / ${written(state.tau, 3)})${wave} = ` +
      written(entry(i, j), 4);
  }

  // As tau tends to 0, K keeps its ties.
  function limitText() {
    const ties = indices.flatMap((i) => indices.filter((j) => state.a[i] === state.b[j]).map((j) => [i, j]));
    if (!ties.length) return "No row is tied with a column, so K tends to 0 as tau does.";
    const far = Math.max(...indices.flatMap((i) => indices.map((j) =>
      (state.a[i] === state.b[j] ? 0 : Math.abs(entry(i, j))))));
    const now = far === 0 ? "At this tau that is exact." : `At this tau the largest other entry is ${written(far)}.`;
    const named = ties.slice(0, SIZE).map(([i, j]) => `x${j + 1} to y${i + 1}`).join(", ");
    return `As tau tends to 0, K keeps only its ties: it sends ${named}. ${now}`;
  }

  function productText(steps) {
    if (state.step === 0) return "Two sweeps over the sorted anchors compute y = K x without forming K: move the slider.";
    if (state.step < steps.length) {
      const { direction, kind, index, before, factor, sums } = steps[state.step - 1];
      const name = index + 1;
      const does = kind === "a" ? `row a${name} reads it` : `column b${name} adds x${name} = ${written(state.x[index])}`;
      return `Sweep from the ${direction}: the sum decays over the gap, ${together(before)} × ${written(factor)}, and ` +
        `${does}: ${together(sums)}.`;
    }
    const y = product(steps);
    const definition = indices.map((i) => indices.reduce((sum, j) => sum + entry(i, j) * state.x[j], 0));
    const difference = Math.max(...indices.map((i) => Math.abs(y[i] - definition[i])));
    return "y = K x by two sweeps over 16 sorted anchors. Its largest difference from the definition, a sum over all 64 " +
      `entries, is ${difference === 0 ? "0" : minus(difference.toExponential(1))}.`;
  }

  // --- Drawing ---

  const byId = (id) => document.getElementById(`explorer-${id}`);

  function set(element, attributes) {
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  function svg(name, attributes, parent) {
    const element = set(document.createElementNS("http://www.w3.org/2000/svg", name), attributes);
    parent.append(element);
    return element;
  }

  function slider(group, label, least, most, drag, move) {
    set(group, { tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": least, "aria-valuemax": most });
    group.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      group.setPointerCapture(event.pointerId);
      group.focus();
    });
    group.addEventListener("pointermove", (event) => group.hasPointerCapture(event.pointerId) && drag(event));
    group.addEventListener("keydown", (event) => {
      const sign = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
      if (!sign) return;
      event.preventDefault();
      move(sign * (event.shiftKey ? 10 : 1));
    });
  }

  function change(values) {
    Object.assign(state, values);
    draw();
  }

  const replaced = (values, index, value) => values.map((old, other) => (other === index ? value : old));

  // The two number lines, and between them a link for every entry.
  const HEAD = 11; // radius of a handle
  const LEVELS = 3; // handles at one position stand on each other, this high at most
  const TOP = LEVELS * 2 * HEAD + 8;
  const GAP = 70;

  function line() {
    const drawing = byId("line");
    const back = svg("g", {}, drawing); // behind all handles
    const handles = {};
    const toX = (value) => HEAD + 3 + (value / END) * (drawing.clientWidth - 2 * HEAD - 6);
    const toValue = (x) => ((x - HEAD - 3) / (drawing.clientWidth - 2 * HEAD - 6)) * END;

    function handle(kind, index) {
      const group = svg("g", { class: `handle of-${kind}` }, drawing);
      const square = { x: -HEAD, y: -HEAD, width: 2 * HEAD, height: 2 * HEAD, rx: 3 };
      svg(kind === "a" ? "circle" : "rect", { class: "head", ...(kind === "a" ? { r: HEAD } : square) }, group);
      svg("text", { y: 4 }, group).textContent = kind + (index + 1);
      const move = (value) => change({ [kind]: replaced(state[kind], index, snap(value)) });
      slider(group, `anchor ${kind}${index + 1}`, 0, END,
        (event) => move(toValue(event.clientX - drawing.getBoundingClientRect().left)),
        (steps) => move(state[kind][index] + steps * GRID));
      return group;
    }

    // Handles that would cover each other stand one above the other.
    function place(kind, y, up, now) {
      const levels = [];
      for (const index of [...indices].sort((p, q) => state[kind][p] - state[kind][q])) {
        const x = toX(state[kind][index]);
        let level = 0;
        while (level < LEVELS - 1 && x - levels[level] < 2 * HEAD + 1) level += 1;
        levels[level] = x;
        const height = y + up * (HEAD + 5 + level * 2 * HEAD);
        svg("line", { x1: x, x2: x, y1: y, y2: height, class: `stem of-${kind}`, "stroke-width": 2 }, back);
        const pointed = state.cell && state.cell[kind === "a" ? 0 : 1] === index;
        set(handles[kind][index], { transform: `translate(${x},${height})`, "aria-valuenow": state[kind][index] });
        handles[kind][index].classList.toggle("now", Boolean(pointed || (now && now.kind === kind && now.index === index)));
      }
    }

    for (const kind of ["a", "b"]) handles[kind] = indices.map((index) => handle(kind, index));
    return (steps) => {
      back.replaceChildren();
      set(drawing, { height: 2 * TOP + GAP });
      for (const [from, to] of intervals()) {
        svg("rect", { x: toX(from) - 2, y: TOP, width: toX(to) - toX(from) + 4, height: GAP, class: "interval" }, back);
      }
      for (const y of [TOP, TOP + GAP]) svg("line", { x1: toX(0), x2: toX(END), y1: y, y2: y, class: "axis" }, back);
      for (const i of indices) for (const j of indices) {
        const strength = Math.abs(entry(i, j));
        const ends = { x1: toX(state.a[i]), x2: toX(state.b[j]), y1: TOP, y2: TOP + GAP };
        const look = { "stroke-opacity": strength.toFixed(3), "stroke-width": (0.5 + 2.5 * strength).toFixed(2) };
        if (strength > 0.02) svg("line", { ...ends, ...look, class: `link of-${entry(i, j) < 0 ? "b" : "a"}` }, back);
      }
      const now = state.step > 0 && state.step < steps.length ? steps[state.step - 1] : null;
      place("a", TOP, -1, now);
      place("b", TOP + GAP, 1, now);
    };
  }

  // K as a heat map, the bars of x above its columns, and those of y next to its rows.
  function matrix() {
    const drawing = byId("matrix");
    const [side, left, top] = [27, 24, 70];
    const [zero, unit] = [42, 24]; // of the bars of x, upwards from the cells
    const cells = indices.map((i) => indices.map((j) => {
      const group = svg("g", { class: "cell" }, drawing);
      svg("rect", { width: side - 1, height: side - 1 }, group);
      svg("text", { x: side / 2, y: side / 2 + 3 }, group);
      for (const name of ["pointerenter", "pointerdown"]) group.addEventListener(name, () => change({ cell: [i, j] }));
      return group;
    }));
    drawing.addEventListener("pointerleave", (event) => event.pointerType === "touch" || change({ cell: null }));
    const bars = indices.map((j) => {
      const group = svg("g", { class: "bar of-b" }, drawing);
      svg("rect", { class: "reach", y: -top, width: side, height: top }, group);
      svg("rect", { class: "value", x: 6, width: side - 13 }, group);
      svg("text", { x: side / 2, y: -3, "text-anchor": "middle" }, group).textContent = `b${j + 1}`;
      const move = (value) => {
        change({ x: replaced(state.x, j, Math.round(Math.max(-1, Math.min(1, value)) * 100) / 100) });
      };
      slider(group, `x${j + 1}`, -1, 1, (event) => {
        const box = drawing.getBoundingClientRect();
        const y = ((event.clientY - box.top) / box.height) * drawing.viewBox.baseVal.height;
        move((top - zero - y) / unit);
      }, (steps) => move(state.x[j] + 0.05 * steps));
      return group;
    });
    const rows = indices.map((i) => {
      const group = svg("g", { class: "row of-a" }, drawing);
      svg("text", { x: -5, y: side / 2 + 4, "text-anchor": "end" }, group).textContent = `a${i + 1}`;
      svg("rect", { class: "value", y: 6, height: side - 13 }, group);
      return group;
    });
    for (const [name, x, y] of [["x", left - 12, top - zero + 4], ["y", left + SIZE * side + 34, top - 6]]) {
      svg("text", { x, y, "text-anchor": "middle", "font-weight": 600 }, drawing).textContent = name;
    }
    svg("line", { x1: left, x2: left + SIZE * side, y1: top - zero, y2: top - zero, class: "axis" }, drawing);
    const rank = (values, index) => (state.sorted
      ? values.filter((value, other) => value < values[index] || (value === values[index] && other < index)).length
      : index);
    const shift = (group, column, row) => {
      group.style.transform = `translate(${left + column * side}px, ${top + row * side}px)`;
    };

    return (steps) => {
      const y = product(steps.slice(0, state.step));
      const most = Math.max(1, ...product(steps).map(Math.abs));
      for (const i of indices) {
        shift(rows[i], 0, rank(state.a, i));
        const width = (Math.abs(y[i]) / most) * 30;
        set(rows[i].children[1], { x: SIZE * side + 34 - (y[i] < 0 ? width : 0), width: Math.max(1, width) });
        shift(bars[i], rank(state.b, i), 0);
        set(bars[i], { "aria-valuenow": state.x[i] });
        set(bars[i].children[1], { y: -zero - unit * Math.max(0, state.x[i]), height: Math.max(1, unit * Math.abs(state.x[i])) });
        for (const j of indices) drawCell(cells[i][j], i, j);
      }
    };

    function drawCell(group, i, j) {
      const [value, strength] = [entry(i, j), Math.abs(entry(i, j))];
      shift(group, rank(state.b, j), rank(state.a, i));
      set(group, { class: `cell of-${value < 0 ? "b" : "a"}` });
      group.classList.toggle("strong", strength > 0.65);
      group.classList.toggle("now", Boolean(state.cell) && state.cell[0] === i && state.cell[1] === j);
      group.style.setProperty("--strength", `${(100 * strength).toFixed(1)}%`);
      group.children[1].textContent = strength < 0.005 ? (value === 0 ? "0" : "") : minus(value.toFixed(2));
    }
  }

  // --- The page ---

  const drawings = [matrix(), line()]; // the line measures the page, and so would start the transitions of the matrix

  function draw() {
    const steps = sweeps();
    for (const drawing of drawings) drawing(steps);
    byId("tau-value").textContent = state.tau < 0.01 ? state.tau.toFixed(4) : state.tau.toPrecision(3);
    byId("rank").textContent = intervals().length;
    byId("entry").textContent = entryText();
    byId("limit").textContent = limitText();
    byId("product").textContent = productText(steps);
  }

  // The slider goes from a large tau on the left to a small one on the right.
  const ratio = Math.log(TAU.least / TAU.most);
  byId("tau").value = Math.log(state.tau / TAU.most) / ratio;
  byId("tau").addEventListener("input", (event) => change({ tau: TAU.most * Math.exp(ratio * event.target.value) }));
  byId("step").addEventListener("input", (event) => change({ step: Number(event.target.value) }));
  byId("sorted").addEventListener("change", (event) => change({ sorted: event.target.checked }));
  byId("phases").addEventListener("change", ({ target: { checked } }) =>
    change({ phi: checked ? angles() : null, psi: checked ? angles() : null }));
  for (const button of document.querySelectorAll("#explorer [data-preset]")) {
    button.addEventListener("click", () => change({ ...PRESETS[button.dataset.preset](), cell: null }));
  }
  new ResizeObserver(draw).observe(byId("line"));
  draw();
  return { state, product: () => product(sweeps()) };
})();
