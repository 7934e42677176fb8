"use strict";

// Axes: where a number lies on a line of pixels, which numbers are marked, and how they are written.
const Scales = (() => {
  const STEPS = [1, 2, 2.5, 5, 10];

  // A function from numbers to pixels. `scale` is "linear", "log2" or "log10"; `from` and `to` are pixels.
  function scale(kind, low, high, from, to) {
    const bend = kind === "linear" ? (v) => v : Math.log;
    const start = bend(low);
    const span = bend(high) - start || 1;
    return (value) => from + ((bend(value) - start) / span) * (to - from);
  }

  // The ends of an axis that shows all of these numbers, with some room.
  function ends(kind, values) {
    let low = Math.min(...values);
    let high = Math.max(...values);
    if (kind !== "linear") {
      const room = low === high ? 2 : Math.pow(high / low, 0.05);
      return [low / room, high * room];
    }
    if (low === high) {
      const room = Math.abs(low) * 0.5 || 1;
      return [low - room, high + room];
    }
    const room = (high - low) * 0.06;
    // Zero belongs on the axis where the numbers come near it: else a small change looks large.
    const fromZero = low >= 0 && low < 0.4 * high;
    return [fromZero ? 0 : low - room, high + room];
  }

  function linearTicks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = power * STEPS.find((each) => each * power >= rough);
    const ticks = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high * (1 + 1e-12) + step * 1e-9; index += 1) {
      ticks.push(Number((index * step).toPrecision(12)));
    }
    return ticks;
  }

  // Whole powers of the base, of many every second or third; where there are fewer than three, numbers between them.
  function logTicks(base, low, high, count) {
    const log = (value) => Math.log(value) / Math.log(base);
    const first = Math.ceil(log(low) - 1e-9);
    const last = Math.floor(log(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, count)));
    const powers = [];
    for (let power = first; power <= last; power += 1) {
      if (power % every === 0) powers.push(Math.pow(base, power));
    }
    const many = last - first >= 2;
    if (base === 2 || many) return powers.length ? powers : linearTicks(low, high, count);
    const between = [];
    for (let power = first - 1; power <= last; power += 1) {
      for (const digit of [1, 2, 5]) between.push(Number((digit * Math.pow(10, power)).toPrecision(6)));
    }
    const inside = between.filter((value) => value >= low * 0.999999 && value <= high * 1.000001);
    return inside.length >= 2 ? inside : linearTicks(low, high, count);
  }

  function ticks(kind, low, high, count) {
    if (kind === "linear") return linearTicks(low, high, count);
    return logTicks(kind === "log2" ? 2 : 10, low, high, count);
  }

  const minus = (text) => String(text).replaceAll("-", "−");

  // A number as [text, exponent]; the exponent, if there is one, is to be raised.
  function label(kind, value) {
    if (kind === "log2" && value > 0 && Number.isInteger(Math.log2(value))) {
      return ["2", String(Math.log2(value))];
    }
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
      // toExponential rounds first: 9.9996e-5 is 1e-4, not 10e-5.
      const [digits, power] = value.toExponential(2).split("e").map(Number);
      return [digits === 1 ? "10" : `${minus(digits)}·10`, minus(power)];
    }
    return [minus(Number(value.toPrecision(6)).toLocaleString("en-US", { maximumSignificantDigits: 6 })), ""];
  }

  // A number for a sentence or a tooltip, as HTML; nothing in it comes from the results' texts.
  function html(kind, value) {
    if (value === null || value === undefined) return "–";
    const rounded = kind === "log2" ? value : Number(value.toPrecision(5));
    const [text, power] = label(kind, rounded);
    return power ? `${text}<sup>${power}</sup>` : text;
  }

  return { scale, ends, ticks, label, html };
})();
