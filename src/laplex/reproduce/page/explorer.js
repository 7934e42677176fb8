"use strict";

// The explorer: one state, and everything on the page that follows from it.
const Explorer = (() => {
  const { TAU, SIZE, PRESETS, written } = ExplorerState;
  const { STEPS } = ExplorerProduct;
  const byId = (id) => document.getElementById(id);
  const state = ExplorerState.create();
  let line, matrix, barsX, barsY;

  // The slider goes from a large tau on the left to a small one on the right.
  const tauAt = (place) => TAU.most * Math.pow(TAU.least / TAU.most, place);
  const placeOf = (tau) => Math.log(tau / TAU.most) / Math.log(TAU.least / TAU.most);

  function update() {
    line.update();
    matrix.update();
    updateControls();
    updateRank();
    updateRouting();
    updateProduct();
  }

  function updateControls() {
    byId("tau-value").textContent = state.tau < 0.01 ? state.tau.toFixed(4) : state.tau.toPrecision(3);
    byId("explorer").classList.toggle("with-phases", state.phases);
  }

  // --- rank ---

  function updateRank() {
    const { rank, pairs } = Kernel.exactRank(state.a, state.b);
    const numeric = Kernel.numericRank(Kernel.entries({ ...ExplorerState.matrixOf(state), phi: null }));
    byId("exact-rank").textContent = rank;
    byId("numeric-rank").textContent = numeric;
    if (state.phases) byId("phased-rank").textContent = Kernel.numericRank(Kernel.entries(ExplorerState.matrixOf(state)));
    byId("rank-note").textContent = rankNote(rank, numeric);
    fillChips(pairs);
  }

  function rankNote(rank, numeric) {
    const phased = state.phases ? "With phases K is a sum of two such matrices with scaled rows and columns, so its rank is at most twice that without." : "";
    if (rank === numeric) return phased;
    const why = "Here elimination finds fewer: at this tau some rows or columns are so small, or so nearly dependent, that they fall below the tolerance.";
    return `${why} ${phased}`;
  }

  // The merged order as chips; those of an interval stand in one box.
  function fillChips(pairs) {
    const holder = byId("rank-order");
    holder.replaceChildren();
    let box = null;
    for (const anchor of Kernel.merged(state.a, state.b)) {
      const pair = pairs.find(([from, to]) => anchor.at >= from && anchor.at <= to);
      if (!pair || !box || box.pair !== pair) {
        box = Plots.element("span", { class: pair ? "interval" : "alone" }, holder);
        box.pair = pair;
      }
      Plots.element("span", { class: `chip of-${anchor.kind}` }, box).textContent = anchor.kind + (anchor.index + 1);
    }
  }

  // --- routing ---

  function updateRouting() {
    const given = ExplorerState.matrixOf(state);
    const { R, far } = Kernel.limit(given, Kernel.entries(given));
    const ties = R.flatMap((row, i) => row.map((_, j) => [i, j])).filter(([i, j]) => state.a[i] === state.b[j]);
    const limit = byId("routing-limit");
    limit.textContent = `${limitWords(ties)} ${distanceWords(far, ties)}`;
    limit.dataset.far = String(far);
    byId("explorer").classList.toggle("is-routing", far === 0 && ties.length > 0);
    byId("routing-shares").textContent = shareWords(Kernel.shares(given));
  }

  function limitWords(ties) {
    const rule = "For fixed anchors K tends to 1 where a row and a column are tied, and to 0 elsewhere";
    if (!ties.length) return `${rule}. No row is tied with a column here, so K tends to 0 (drag a row onto a column, or take the preset “permutation”).`;
    const sent = ties.slice(0, 8).map(([i, j]) => `x${j + 1} to y${i + 1}`).join(", ");
    const cosine = state.phases ? " (times the cosine of their phases)" : "";
    return `${rule}${cosine}: it becomes routing. It sends ${sent}${ties.length > 8 ? " and more" : ""}${kindWords(ties)}.`;
  }

  function kindWords(ties) {
    const [rows, cols] = [0, 1].map((side) => new Set(ties.map((tie) => tie[side])).size);
    const [once, onceEach] = [rows === ties.length, cols === ties.length];
    if (once && onceEach && ties.length === SIZE) return ": a permutation";
    if (once) return "; every output takes at most one input: a selection";
    if (onceEach) return "; every input goes to at most one output, where inputs are added up in buckets";
    return "; equal columns are added up, and equal rows repeat";
  }

  function distanceWords(far, ties) {
    if (far === 0) return ties.length ? "At this tau the limit is reached: K is this routing matrix exactly, because all other entries are 0 in floating point." : "At this tau K is 0 in floating point.";
    return `At this tau the largest difference from the limit is ${written(far, 3)}.`;
  }

  // Divided by its sum, a row keeps its nearest columns, tied or not.
  function shareWords(rows) {
    const left = Math.max(...rows.map(({ shares, nearest }) => shares.reduce((sum, share, j) => sum + (nearest[j] ? 0 : share), 0)));
    const equal = rows.some(({ nearest }) => nearest.filter(Boolean).length > 1);
    const rule = `Divided by the sum of its decays, a row keeps only its nearest column as tau tends to 0, tied or not${equal ? "; columns at equal distance share it" : ""}.`;
    const now = left < 1e-6 ? "At this tau every row has come so far" : "At this tau the row that is furthest from it";
    return `${rule} ${now}: ${left < 1e-6 ? "less than a millionth of a row lies elsewhere" : `has ${written(left, 3)} of its sum elsewhere`}.`.replace("it: has", "it has");
  }

  // --- product ---

  function updateProduct() {
    const given = ExplorerState.matrixOf(state);
    const scans = Kernel.scans(given, state.x);
    const dense = Kernel.dense(Kernel.entries(given), state.x);
    const difference = Math.max(...dense.map((value, i) => Math.abs(value - scans.y[i])));
    barsX.update(state.x);
    barsY.update(scans.y);
    byId("difference").textContent = difference === 0 ? "0" : difference.toExponential(1).replace("-", "−");
    byId("difference").dataset.value = String(difference);
    ExplorerProduct.fillTable(byId("sweeps"), scans, state);
    const now = state.step ? ExplorerProduct.inTime(scans)[state.step - 1] : null;
    byId("step-told").textContent = now ? ExplorerProduct.sentence(now, state.x, state.phases) : "";
    byId("step-count").textContent = now ? `step ${state.step} of ${STEPS}` : "";
  }

  // --- controls ---

  function change(values) {
    Object.assign(state, values);
    update();
  }

  function choosePreset(name) {
    byId("preset-about").textContent = PRESETS[name].about;
    change({ ...PRESETS[name].make(), cell: null });
  }

  function addPresets() {
    const holder = document.querySelector("#explorer .presets");
    for (const name of Object.keys(PRESETS)) {
      const button = Plots.element("button", { type: "button", "data-preset": name }, holder);
      button.textContent = name;
      button.addEventListener("click", () => choosePreset(name));
    }
  }

  function listen() {
    const slider = byId("tau");
    slider.value = placeOf(state.tau);
    slider.addEventListener("input", () => change({ tau: tauAt(Number(slider.value)) }));
    byId("phases").addEventListener("change", (event) => {
      change({ phases: event.target.checked, phi: ExplorerState.phase(), psi: ExplorerState.phase() });
    });
    byId("in-order").addEventListener("change", (event) => change({ inOrder: event.target.checked }));
    byId("shares").addEventListener("change", (event) => change({ shares: event.target.checked }));
    const step = (to) => change({ step: to === null ? null : Math.max(1, Math.min(STEPS, to)) });
    byId("step-first").addEventListener("click", () => step(1));
    byId("step-back").addEventListener("click", () => step((state.step || 2) - 1));
    byId("step-on").addEventListener("click", () => step((state.step || 0) + 1));
    byId("step-all").addEventListener("click", () => step(null));
  }

  function start() {
    byId("tolerance").textContent = Kernel.TOLERANCE.toExponential(0).replace("-", "−");
    line = new ExplorerLine.Line(byId("explorer-line"), state, update);
    matrix = new ExplorerMatrix.Matrix(byId("explorer-matrix"), byId("cell-told"), state, (cell) => change({ cell }));
    barsX = new ExplorerProduct.Bars(byId("bars-x"), "x", 1, (index, value) => {
      const held = Math.round(Math.max(-1, Math.min(1, value)) * 100) / 100;
      change({ x: state.x.map((old, at) => (at === index ? held : old)) });
    });
    barsY = new ExplorerProduct.Bars(byId("bars-y"), "y", 1, null);
    addPresets();
    listen();
    update();
  }

  return { start, state };
})();

Explorer.start();
