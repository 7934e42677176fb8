"use strict";

// The explorer: one state, and everything on the page that follows from it.
const Explorer = (() => {
  const { TAU, PRESETS } = ExplorerState;
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
    byId("phased-rank").textContent = Kernel.numericRank(Kernel.entries(ExplorerState.matrixOf(state)));
    byId("rank-note").textContent = ExplorerWords.rankNote(rank, numeric, state.phases);
    fillChips(pairs);
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
    limit.textContent = `${ExplorerWords.limit(ties, state.phases)} ${ExplorerWords.distance(far, ties)}`;
    limit.dataset.far = String(far);
    byId("explorer").classList.toggle("is-routing", far === 0 && ties.length > 0);
    byId("routing-shares").textContent = ExplorerWords.shares(Kernel.shares(given));
  }

  // --- product ---

  function updateProduct() {
    const given = ExplorerState.matrixOf(state);
    const scans = Kernel.scans(given, state.x);
    const dense = Kernel.dense(Kernel.entries(given), state.x);
    const difference = Math.max(...dense.map((value, i) => Math.abs(value - scans.y[i])));
    barsX.update(state.x);
    barsY.update(scans.y);
    byId("difference").textContent = difference === 0 ? "0" : difference.toExponential(1).replaceAll("-", "−");
    byId("difference").dataset.value = String(difference);
    ExplorerProduct.fillTable(byId("sweeps"), scans, state);
    const now = state.step ? ExplorerProduct.inTime(scans)[state.step - 1] : null;
    byId("step-told").textContent = now ? ExplorerWords.step(now, state.x, state.phases) : "";
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
    byId("tolerance").textContent = Kernel.TOLERANCE.toExponential(0).replaceAll("-", "−");
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
