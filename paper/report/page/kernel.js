"use strict";

// The mathematics of the explorer: K, its product by two sweeps, its rank, and what it becomes as tau tends to 0.
// `matrix` is { a, b, tau, phi, psi }; phi and psi are null without phases.
const Kernel = (() => {
  const TOLERANCE = 1e-10; // of the numeric rank: smaller pivots, against the largest one, count as zero

  const decay = (gap, tau) => Math.exp(-Math.abs(gap) / tau);

  // K as its definition says, row by row.
  function entries({ a, b, tau, phi, psi }) {
    return a.map((ai, i) => b.map((bj, j) => decay(ai - bj, tau) * (phi ? Math.cos(phi[i] - psi[j]) : 1)));
  }

  function dense(K, x) {
    return K.map((row) => row.reduce((sum, entry, j) => sum + entry * x[j], 0));
  }

  // All anchors from left to right. At equal positions columns come first, so that the sweep from the left has seen
  // tied columns when it reads a row, and the sweep from the right has not: a tie counts once.
  function merged(a, b) {
    const rows = a.map((at, index) => ({ kind: "a", index, at }));
    const cols = b.map((at, index) => ({ kind: "b", index, at }));
    // The sort keeps the order of what is equal: columns, then rows, each by number.
    return [...cols, ...rows].sort((p, q) => p.at - q.at);
  }

  // cos(phi - psi) = cos phi cos psi + sin phi sin psi: with phases there are two sweeps of numbers instead of one.
  function channels({ phi, psi }) {
    if (!phi) return [{ ofRow: () => 1, ofCol: () => 1 }];
    return [Math.cos, Math.sin].map((wave) => ({ ofRow: (i) => wave(phi[i]), ofCol: (j) => wave(psi[j]) }));
  }

  // One sweep: a column joins the sum, a row reads it. The sum decays over the gap from the last column.
  function sweep(order, matrix, x, parts) {
    let position = null;
    let sum = parts.map(() => 0);
    return order.map((anchor) => {
      const factor = position === null ? 0 : decay(anchor.at - position, matrix.tau);
      const carried = sum.map((value) => value * factor);
      const isColumn = anchor.kind === "b";
      const value = isColumn ? carried.map((old, c) => old + parts[c].ofCol(anchor.index) * x[anchor.index]) : carried;
      const step = { anchor, factor, before: sum, value };
      if (isColumn) [position, sum] = [anchor.at, value];
      return step;
    });
  }

  // y = K x in two sweeps over the sorted anchors, with every step.
  function scans(matrix, x) {
    const order = merged(matrix.a, matrix.b);
    const parts = channels(matrix);
    const left = sweep(order, matrix, x, parts);
    const right = sweep([...order].reverse(), matrix, x, parts);
    const y = matrix.a.map(() => 0);
    for (const { anchor, value } of [...left, ...right]) {
      if (anchor.kind !== "a") continue;
      y[anchor.index] += value.reduce((sum, each, c) => sum + parts[c].ofRow(anchor.index) * each, 0);
    }
    return { order, left, right, y };
  }

  // The exact rank without phases: the largest number of disjoint intervals with an a at one end and a b at the other.
  // From left to right, the interval that ends first is taken; a tied position is a pair by itself.
  function exactRank(a, b) {
    const places = [...new Set([...a, ...b])].sort((p, q) => p - q);
    const pairs = [];
    let waiting = null;
    for (const at of places) {
      const hasA = a.includes(at);
      const tied = hasA && b.includes(at);
      if (tied) pairs.push([at, at]);
      else if (waiting !== null && waiting.hasA !== hasA) pairs.push([waiting.at, at]);
      else {
        waiting = { at, hasA };
        continue;
      }
      waiting = null;
    }
    return { rank: pairs.length, pairs };
  }

  function largest(rows, from) {
    let best = { size: 0, i: from, j: from };
    for (let i = from; i < rows.length; i += 1) {
      for (let j = from; j < rows[i].length; j += 1) {
        if (Math.abs(rows[i][j]) > best.size) best = { size: Math.abs(rows[i][j]), i, j };
      }
    }
    return best;
  }

  // The numeric rank: pivots of an elimination that always takes the largest entry left.
  function numericRank(K) {
    const rows = K.map((row) => [...row]);
    const most = Math.min(rows.length, rows[0].length);
    let first = 0;
    for (let step = 0; step < most; step += 1) {
      const { size, i, j } = largest(rows, step);
      if (step === 0) first = size;
      if (size === 0 || size <= TOLERANCE * first) return step;
      [rows[step], rows[i]] = [rows[i], rows[step]];
      for (const row of rows) [row[step], row[j]] = [row[j], row[step]];
      for (let r = step + 1; r < rows.length; r += 1) {
        const factor = rows[r][step] / rows[step][step];
        for (let c = step; c < rows[r].length; c += 1) rows[r][c] -= factor * rows[step][c];
      }
    }
    return most;
  }

  // The limit of K for tau to 0: the cosine where anchors are tied, 0 elsewhere; and how far K is from it.
  function limit(matrix, K) {
    const R = matrix.a.map((ai, i) =>
      matrix.b.map((bj, j) => (ai !== bj ? 0 : matrix.phi ? Math.cos(matrix.phi[i] - matrix.psi[j]) : 1)));
    const far = Math.max(...K.flatMap((row, i) => row.map((entry, j) => Math.abs(entry - R[i][j]))));
    return { R, far };
  }

  // Each row's decays divided by their sum: a softmax of -distance / tau. It is computed from differences of distances,
  // so that a row whose decays all round to 0 still has one.
  function shares({ a, b, tau }) {
    return a.map((ai) => {
      const gaps = b.map((bj) => Math.abs(ai - bj));
      const least = Math.min(...gaps);
      const weights = gaps.map((gap) => decay(gap - least, tau));
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      const nearest = gaps.map((gap) => gap - least <= 1e-12);
      return { shares: weights.map((weight) => weight / total), nearest };
    });
  }

  return { TOLERANCE, entries, dense, merged, scans, exactRank, numericRank, limit, shares };
})();
