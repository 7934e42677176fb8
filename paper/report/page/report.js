"use strict";

// The page around the plots: filters, search, links to entries that are folded or hidden, and enlarged pictures.
const Report = (() => {
  const entries = [...document.querySelectorAll("section.entry")];
  const search = document.getElementById("search");
  const buttons = [...document.querySelectorAll("[data-filter]")];
  let verdict = "all";

  function matches(entry) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = entry.textContent.toLowerCase();
    return (verdict === "all" || entry.dataset.verdict === verdict) && words.every((word) => text.includes(word));
  }

  function apply() {
    let count = 0;
    for (const entry of entries) {
      entry.hidden = !matches(entry);
      count += entry.hidden ? 0 : 1;
    }
    hideEmpty();
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.filter === verdict));
    document.getElementById("none-matches").hidden = count > 0;
    const narrowed = count < entries.length;
    document.getElementById("shown").textContent = narrowed ? `${count} of ${entries.length} entries` : "";
  }

  // A group without a visible entry goes, and so do its lines in the contents.
  function hideEmpty() {
    for (const group of document.querySelectorAll("section.group")) {
      group.hidden = !group.querySelector("section.entry:not([hidden])");
    }
    for (const item of document.querySelectorAll("#contents li")) {
      item.hidden = document.getElementById(item.dataset.entry).hidden;
    }
    for (const part of document.querySelectorAll("#contents section:has(li)")) {
      part.hidden = !part.querySelector("li:not([hidden])");
    }
  }

  function choose(name) {
    verdict = name === verdict ? "all" : name;
    apply();
  }

  // A link to an entry unfolds it; where it is hidden, everything is shown first.
  function followHash() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.matches("section.entry")) target.querySelector("details").open = true;
    if (target.closest("[hidden]")) {
      verdict = "all";
      search.value = "";
      apply();
    }
    target.scrollIntoView();
  }

  // Paper cannot be unfolded: what is folded is opened, and its plots are drawn, before the page is printed.
  function unfold(plots) {
    const folded = [...document.querySelectorAll("#contents details, .entry > details, details.long")];
    const closed = folded.filter((one) => !one.open);
    for (const one of closed) one.open = true;
    for (const plot of plots) plot.resized();
    window.addEventListener("afterprint", () => closed.forEach((one) => (one.open = false)), { once: true });
  }

  function enlarge(image) {
    const dialog = Plots.element("dialog", { class: "enlarged" }, document.body);
    const shown = Plots.element("img", { src: image.src, alt: image.alt }, dialog);
    shown.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
  }

  function start() {
    for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.filter));
    search.addEventListener("input", apply);
    window.addEventListener("hashchange", followHash);
    for (const button of document.querySelectorAll(".enlarge")) {
      button.addEventListener("click", () => enlarge(button.querySelector("img")));
    }
    const contents = document.querySelector("#contents details");
    if (window.matchMedia("(max-width: 62rem)").matches) contents.open = false;
    const plots = Plots.drawAll();
    window.addEventListener("beforeprint", () => unfold(plots));
    followHash();
  }

  return { start };
})();

Report.start();
