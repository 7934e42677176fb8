"use strict";

// The page around the plots: filters, search, links to entries that a filter hides, and enlarged pictures.
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

  // A link to an entry that is hidden shows everything first.
  function followHash() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.closest("[hidden]")) return;
    verdict = "all";
    search.value = "";
    apply();
    target.scrollIntoView();
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
    // Paper cannot be unfolded.
    window.addEventListener("beforeprint", () => {
      for (const folded of [contents, ...document.querySelectorAll("details.long")]) folded.open = true;
    });
    Plots.drawAll();
    followHash();
  }

  return { start };
})();

Report.start();
