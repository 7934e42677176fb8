"use strict";

// What the explorer shows, its starting points, and how its numbers are written.
const ExplorerState = (() => {
  const SIZE = 8; // rows, and columns
  const END = 8; // anchors lie on 0 to END
  const GRID = 0.05; // and move in steps of this, so that two can be made equal by hand
  const TAU = { most: 10, least: 1e-3 };
  const PERMUTED = [3, 0, 6, 1, 7, 4, 2, 5];

  const places = (make) => Array.from({ length: SIZE }, (_, at) => snap(make(at)));
  const snap = (value) => Number((Math.round(Math.max(0, Math.min(END, value)) / GRID) * GRID).toFixed(4));
  const drawn = () => places(() => Math.random() * END);
  const ascending = (values) => [...values].sort((p, q) => p - q);

  const PRESETS = {
    random: { about: "Anchors drawn at random.", make: () => ({ a: drawn(), b: drawn() }) },
    sorted: {
      about: "Anchors drawn at random and numbered from left to right: K decays away from a ridge.",
      make: () => ({ a: ascending(drawn()), b: ascending(drawn()) }),
    },
    interlaced: {
      about: "Rows and columns take turns: K has full rank.",
      make: () => ({ a: places((at) => at + 0.25), b: places((at) => at + 0.75) }),
    },
    apart: {
      about: "All rows are left of all columns: every row is a multiple of the first, so K has rank 1.",
      make: () => ({ a: places((at) => at * 0.4), b: places((at) => 4.5 + at * 0.45) }),
    },
    ties: {
      about: "Some anchors are equal: equal rows of K, and entries that are exactly 1.",
      make: () => ({ a: [1, 1, 2, 3, 4, 5.5, 6, 7], b: [1, 2, 2, 3.5, 5, 5.5, 6.5, 7] }),
    },
    permutation: {
      about: "Anchors are labels 0 to 7, each once on both sides. Slide tau to its end: K becomes a permutation.",
      make: () => ({ a: places((at) => PERMUTED[at]), b: places((at) => at) }),
    },
  };

  const phase = () => Array.from({ length: SIZE }, () => (Math.random() * 2 - 1) * Math.PI);

  // The start is made by hand, so that the page looks the same each time it is opened.
  function create() {
    return {
      a: [1.4, 6.3, 2.9, 4.55, 0.5, 4.2, 5.2, 3.6],
      b: [2.1, 5.6, 2.4, 6.8, 3.2, 3.3, 7.6, 4.9],
      x: [0.8, -0.5, 0.3, 1, -0.9, 0.6, 0.2, -0.4],
      phi: phase(),
      psi: phase(),
      tau: 1,
      phases: false,
      inOrder: false, // show rows and columns by position
      shares: false, // show rows divided by their sums
      step: null, // of the two sweeps; null shows all of them
      cell: null, // the entry that is pointed at, { i, j }
    };
  }

  function matrixOf({ a, b, tau, phi, psi, phases }) {
    return { a, b, tau, phi: phases ? phi : null, psi: phases ? psi : null };
  }

  const minus = (text) => text.replaceAll("-", "−");

  // Three decimals for a number, or a power of ten where these would all be 0.
  function written(value, digits = 3) {
    if (value === 0) return "0";
    if (Math.abs(value) < 0.5 * Math.pow(10, -digits)) return minus(value.toExponential(1));
    return minus(value.toFixed(digits));
  }

  return { SIZE, END, GRID, TAU, PRESETS, create, matrixOf, snap, phase, written };
})();
