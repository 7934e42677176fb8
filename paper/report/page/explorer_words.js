"use strict";

// What the explorer says in sentences. Each function takes numbers and gives text.
const ExplorerWords = (() => {
  const { SIZE, written } = ExplorerState;
  const NAMED = 8; // connections that are told one by one

  function rankNote(rank, numeric, phases) {
    const fewer = "Here elimination finds fewer: at this tau some rows or columns are so small, or so nearly " +
      "dependent, that they fall below the tolerance.";
    const phased = "With phases K is a sum of two such matrices with scaled rows and columns, so its rank is at most " +
      "twice that without.";
    return [rank === numeric ? "" : fewer, phases ? phased : ""].filter(Boolean).join(" ");
  }

  // --- routing ---

  // The limit for tau to 0; `ties` are pairs [row, column] with equal anchors.
  function limit(ties, phases) {
    const rule = "For fixed anchors K tends to 1 where a row and a column are tied, and to 0 elsewhere";
    if (!ties.length) {
      return `${rule}. No row is tied with a column here, so K tends to 0 (drag a row onto a column, or take the ` +
        "preset “permutation”).";
    }
    const sent = ties.slice(0, NAMED).map(([i, j]) => `x${j + 1} to y${i + 1}`).join(", ");
    const more = ties.length > NAMED ? " and more" : "";
    const cosine = phases ? " (times the cosine of their phases)" : "";
    return `${rule}${cosine}: it becomes routing. It sends ${sent}${more}${kind(ties)}.`;
  }

  function kind(ties) {
    const [rows, columns] = [0, 1].map((side) => new Set(ties.map((tie) => tie[side])).size);
    const [rowsOnce, columnsOnce] = [rows === ties.length, columns === ties.length];
    if (rowsOnce && columnsOnce && ties.length === SIZE) return ": a permutation";
    if (rowsOnce) return "; every output takes at most one input: a selection";
    if (columnsOnce) return "; every input goes to at most one output, where inputs are added up in buckets";
    return "; equal columns are added up, and equal rows repeat";
  }

  // How far K is from the limit now.
  function distance(far, ties) {
    if (far > 0) return `At this tau the largest difference from the limit is ${written(far)}.`;
    if (!ties.length) return "At this tau K is 0 in floating point.";
    return "At this tau the limit is reached: K is this routing matrix exactly, because all other entries are 0 in " +
      "floating point.";
  }

  // Divided by its sum, a row keeps its nearest columns, tied or not.
  function shares(rows) {
    const elsewhere = ({ shares: own, nearest }) => own.reduce((sum, share, j) => sum + (nearest[j] ? 0 : share), 0);
    const most = Math.max(...rows.map(elsewhere));
    const equal = rows.some(({ nearest }) => nearest.filter(Boolean).length > 1);
    const shared = equal ? "; columns at equal distance share it" : "";
    const now = most < 1e-6
      ? "every row has come so far: less than a millionth of it lies elsewhere"
      : `the row that is furthest from it has ${written(most)} of its sum elsewhere`;
    return "Divided by the sum of its decays, a row keeps only its nearest column as tau tends to 0, tied or not" +
      `${shared}. At this tau ${now}.`;
  }

  // --- entries and steps ---

  // An entry of K as its formula.
  function entry(state, { i, j }, value, share) {
    const { a, b, tau, phases, phi, psi } = state;
    const angle = phases ? `${written(phi[i], 2)} − ${written(psi[j], 2)}`.replace("− −", "+ ") : "";
    const wave = phases ? ` × cos(${angle})` : "";
    const formula = `exp(−|${a[i]} − ${b[j]}| / ${written(tau)})${wave} = ${written(value, 4)}`;
    const ofRow = share === null ? "" : `; its share of the row is ${written(share, 4)}`;
    return `K[a${i + 1}, b${j + 1}] = ${formula}${ofRow}`;
  }

  // One sum, or with phases two.
  function sums(values) {
    const texts = values.map((value) => written(value));
    return texts.length === 1 ? texts[0] : `(${texts.join(", ")})`;
  }

  // One step of a sweep.
  function step({ way, anchor, before, factor, value }, x, phases) {
    const start = `Sweep from the ${way}:`;
    const carried = `${sums(before)} × ${written(factor)}`;
    const name = anchor.kind + (anchor.index + 1);
    if (anchor.kind === "a") {
      return `${start} row ${name} reads the sum, decayed over the gap: ${carried} = ${sums(value)}.`;
    }
    const joined = phases ? `x${anchor.index + 1} times (cos ψ, sin ψ)` : written(x[anchor.index]);
    return `${start} column ${name} joins. The sum decays over the gap and takes in ${joined}: ` +
      `${carried} + ${joined} = ${sums(value)}.`;
  }

  return { rankNote, limit, distance, shares, entry, step, sums };
})();
