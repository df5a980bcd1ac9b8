// What the pages do beyond links and forms, all of which work without it: refreshing, keys, following a log.
// It never makes HTML from text.
"use strict";
(() => {
  const MOST_CHUNKS = 60;
  document.documentElement.classList.add("scripted");

  // ---- parts that reload themselves, but not while the user selects jobs in them or the page is hidden

  const asked = new WeakMap();
  setInterval(() => {
    if (document.hidden) return;
    for (const part of document.querySelectorAll("[data-refresh]")) {
      const now = Date.now();
      if (!asked.has(part)) asked.set(part, now);
      if (now - asked.get(part) < Number(part.dataset.refresh)) continue;
      if (part.querySelector("input[type=checkbox]:checked")) continue;
      asked.set(part, now);
      htmx.trigger(part, "refresh");
    }
  }, 500);

  // A part that is replaced under a pressed button would take the click with it: the next refresh replaces it.
  let pressed = null;
  document.addEventListener("pointerdown", (event) => { pressed = event.target; }, true);
  for (const name of ["pointerup", "pointercancel"]) {
    document.addEventListener(name, () => setTimeout(() => { pressed = null; }), true);
  }

  // A part that was requested before the user selected something in it arrives without that selection. It gets it
  // before it is inserted: htmx reports a swap some time after it, and the user goes on meanwhile.
  const boxes = (place, state) => [...place.querySelectorAll(`input[name=handle]:${state}`)];
  let focused = null;
  document.addEventListener("htmx:before:swap", (event) => {
    const held = pressed?.closest("[data-refresh]");
    if (held && event.detail.tasks.some(({ target }) => target === held)) return event.preventDefault();
    const ticked = new Set(boxes(document, "checked").map((box) => box.value));
    for (const { fragment } of event.detail.tasks) {
      for (const box of fragment ? boxes(fragment, "enabled") : []) box.checked ||= ticked.has(box.value);
    }
    const element = document.activeElement;
    focused = element && (element.id || element.closest("tr")?.id) ? element : null;
  });
  document.addEventListener("htmx:after:swap", () => markRow());
  // At once, since the next key may come before htmx reports the swap.
  new MutationObserver(() => {
    if (!focused || focused.isConnected) return;
    const row = focused.closest("tr")?.id;
    const again = focused.id ? document.getElementById(focused.id)
      : document.getElementById(row)?.querySelector(focused.tagName);
    focused = null;
    again?.focus({ preventScroll: true });
  }).observe(document.body, { childList: true, subtree: true });

  // ---- forms

  document.addEventListener("change", (event) => {
    const input = event.target;
    if (input.matches("[data-all]")) {
      for (const box of input.form.querySelectorAll("input[name=handle]:enabled")) box.checked = input.checked;
    } else if (input.form?.matches("[data-submit-on-change]")) {
      input.form.requestSubmit();
    }
  });
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });

  // After "back" browsers restore what was chosen last, which is not what the page shows.
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("[data-submit-on-change]")) form.reset();
  });

  // ---- saved views: names of URLs, kept by this browser

  const place = document.getElementById("views");
  function showViews() {
    const views = JSON.parse(localStorage.getItem("shunter views") ?? "{}");
    for (const old of place.querySelectorAll(".view-name")) old.remove();
    for (const [name, query] of Object.entries(views)) {
      const entry = document.createElement("span");
      const link = document.createElement("a");
      const remove = document.createElement("button");
      entry.className = "view-name button";
      link.href = "/" + query;
      link.textContent = name;
      if (query === location.search) link.setAttribute("aria-current", "page");
      remove.type = "button";
      remove.textContent = "×";
      remove.setAttribute("aria-label", `Forget the view ${name}`);
      remove.addEventListener("click", () => { delete views[name]; keepViews(views); });
      entry.append(link, remove);
      place.append(entry);
    }
    place.hidden = !place.querySelector("button:not([hidden])");
  }
  function keepViews(views) {
    localStorage.setItem("shunter views", JSON.stringify(views));
    showViews();
  }
  if (place) {
    document.getElementById("save-view").addEventListener("click", () => {
      const name = prompt("Name of this view", new URLSearchParams(location.search).getAll("state").join(" "))?.trim();
      if (name) keepViews({ ...JSON.parse(localStorage.getItem("shunter views") ?? "{}"), [name]: location.search });
    });
    showViews();
  }

  // ---- keys

  let row = 0;
  let isMoving = false;
  const rows = () => [...document.querySelectorAll("[data-row]")];
  function markRow() {
    const all = rows();
    all.forEach((each, index) => each.classList.toggle("here", isMoving && index === row));
    return all[row];
  }
  function move(by) {
    const all = rows();
    if (!all.length) return;
    row = isMoving ? Math.min(Math.max(row + by, 0), all.length - 1) : 0;
    isMoving = true;
    const here = markRow();
    here.scrollIntoView({ block: "nearest" });
    here.querySelector("a")?.focus({ preventScroll: true });
  }
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    x: () => { const box = isMoving && markRow()?.querySelector("input:enabled"); if (box) box.checked = !box.checked; },
    "/": () => document.querySelector("[data-search]")?.focus(),
    g: () => { location.href = "/"; },
    e: () => document.querySelector("[data-end]")?.click(),
    f: () => document.querySelector("[data-find]")?.focus(),
    n: () => nextHit(1),
    p: () => nextHit(-1),
    "?": () => document.getElementById("shortcuts").showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]") || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.querySelector("[data-keys]")?.addEventListener("click", keys["?"]);

  // ---- the log: stays at its end while it is there; old lines leave the page, not the log

  let wasAtEnd = true;
  const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const showEnd = () => {
    const log = document.querySelector(".log");
    if (log?.querySelector("[data-follow]") || log?.querySelector("#later") === null) log.scrollTop = log.scrollHeight;
  };
  document.addEventListener("htmx:before:swap", () => {
    const log = document.querySelector(".log");
    wasAtEnd = !log || atEnd(log);
  });
  document.addEventListener("htmx:after:swap", (event) => {
    const target = event.detail?.ctx?.target;
    if (target?.id === "log-body") showHit(document.querySelector(".search[data-backward]") ? -1 : 0) || showEnd();
    else if (target?.id === "lines") {
      if (wasAtEnd) { trim(); showEnd(); }
    }
  });
  function trim() {
    const lines = document.getElementById("lines");
    const log = lines.closest(".log");
    let first = null;
    while (lines.childElementCount > MOST_CHUNKS) lines.firstElementChild.remove();
    first = lines.querySelector(".chunk[data-start]");
    const before = Number(first?.dataset.before);
    if (!first || !before) return;
    document.getElementById("earlier")?.remove();
    const query = new URLSearchParams(log.dataset.view);
    query.set("end", first.dataset.start);
    const button = document.createElement("button");
    button.id = "earlier";
    button.type = "button";
    button.textContent = "Earlier";
    button.addEventListener("click", () => {
      button.remove();
      const place = document.createElement("div");
      log.prepend(place);
      htmx.ajax("GET", `/job/log/earlier?${query}`, { target: place, swap: "outerHTML" });
    });
    log.prepend(button);
  }
  // ---- what was found in the log: one line after the other, then those of the next part

  let hit = 0;
  function showHit(index) { // -1 is the last one
    const log = document.querySelector(".log");
    const hits = [...document.querySelectorAll(".log .hit")];
    if (index === -1) index = hits.length - 1;
    if (!hits[index]) return false;
    hit = index;
    hits.forEach((each, at) => each.classList.toggle("here", at === index));
    log.scrollTop += hits[index].getBoundingClientRect().top - log.getBoundingClientRect().top - log.clientHeight / 3;
    return true;
  }
  function nextHit(by) {
    const isOutside = hit + by < 0 || !showHit(hit + by);
    if (isOutside) document.getElementById(by > 0 ? "next-match" : "previous-match")?.click();
  }

  document.addEventListener("ended", (event) => {
    if (event.target.matches?.("[data-follow]")) {
      event.target.textContent = "The end: the job has ended.";
    }
  }, true);
  showEnd();
})();
