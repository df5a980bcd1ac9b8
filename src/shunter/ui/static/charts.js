// Charts: the metrics of one or several jobs, drawn while they run. How they are drawn is kept in the URL, after the
// "#", so that a link or a bookmark shows the same.
"use strict";
(() => {
  const COLOURS = ["#3b6fd8", "#d9822b", "#2f9e6b", "#b84bc0", "#c93c37", "#168aa0", "#8a7a1f", "#7a5cd6"];
  const HEIGHT = 190;
  const host = document.getElementById("charts");
  if (!host) return;
  const options = document.getElementById("chart-options");
  const note = host.querySelector(".note");
  const charts = new Map();
  const order = new Map(); // of the lines of all charts, so that each has one colour
  const hidden = new Set();
  let found = { series: [] };

  // ---- what the user wants to see

  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const input of options.elements) {
    if (input.type === "checkbox") input.checked = wanted.has(input.name);
    else if (wanted.has(input.name)) input.value = wanted.get(input.name);
  }
  const by = () => options.elements.by.value;
  const smoothing = () => Number(options.elements.smooth.value) / 100;
  options.addEventListener("submit", (event) => event.preventDefault());
  options.addEventListener("input", (event) => {
    const query = new URLSearchParams([...new FormData(options)].filter(([name, value]) =>
      value && !(name === "smooth" && value === "0") && !(name === "by" && value === "step")));
    history.replaceState(null, "", query.size ? `#${query}` : location.pathname + location.search);
    if (event.target.name === "by") read();
    else drawAll();
  });

  function isWanted(metric) {
    const terms = options.elements.show.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
    return !terms.length || terms.some((term) => metric.toLowerCase().includes(term));
  }

  // ---- text

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }
  const large = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 5 });
  const compact = (value) => Math.abs(value) >= 1e5 ? large.format(value)
    : value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential() : String(value);
  const shown = (value) => value === null || value === undefined ? "–" : compact(Number(value.toPrecision(5)));
  const isUsage = (one) => one.name.startsWith("system/"); // has no steps but seconds
  const shownX = (x, lines) => by() === "time" ? new Date(1000 * x).toLocaleString()
    : by() === "elapsed" || lines.every(isUsage) ? `${shown(x)} s` : `step ${shown(x)}`;
  function ticks(values) { // all of them in one way
    const numbers = values.filter((value) => value !== null);
    const isLarge = numbers.some((value) => Math.abs(value) >= 1e5);
    return values.map((value) => value === null ? "" : isLarge ? large.format(value) : shown(value));
  }
  function colour(line) {
    if (!order.has(line)) order.set(line, order.size);
    const number = order.get(line);
    return COLOURS[number] ?? `hsl(${Math.round(number * 137.5) % 360} 60% ${45 + 12 * (number % 2)}%)`;
  }

  const faint = (fill) => fill.startsWith("#") ? fill + "2b" : fill.replace(")", " / 17%)");

  // ---- numbers

  /** Return a running mean that forgets, without the weight of a first value that was not there. */
  function smoothed(values) {
    const share = smoothing();
    if (!share) return values;
    let mean = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      mean = share * mean + (1 - share) * value;
      weight = share * weight + (1 - share);
      return mean / weight;
    });
  }
  /** Return the columns of a line: where, value, least, greatest. */
  function columns(one, isLog) {
    const positive = (value) => isLog && value <= 0 ? null : value;
    const x = by() === "elapsed" ? one.x.map((each) => each - one.x[0]) : one.x;
    return [x, smoothed(one.last).map(positive), one.low.map(positive), one.high.map(positive)];
  }
  /** Return the last value of a column up to a place: lines of several jobs have values at different ones. */
  function valueAt(column, place) {
    while (place >= 0 && (column[place] === null || column[place] === undefined)) place--;
    return place < 0 ? null : column[place];
  }

  // ---- a chart

  /** Fits charts to the room they have, which changes with the window and when another chart comes beside them. */
  const sizes = new ResizeObserver(() => {
    for (const chart of charts.values()) {
      if (chart.plot && chart.plot.width !== widthOf(chart)) chart.plot.setSize({ width: widthOf(chart), height: HEIGHT });
    }
  });

  function chartOf(title) {
    let chart = charts.get(title);
    if (chart) return chart;
    const figure = element("figure", undefined, "chart");
    const caption = element("figcaption", title);
    const where = element("small", "", "where");
    const place = element("div");
    const values = element("ul", undefined, "values");
    chart = { title, figure, place, values, where, plot: null, shape: "", lines: [] };
    caption.append(where);
    for (const [name, save] of [["PNG", savePicture], ["CSV", saveTable]]) {
      const button = element("button", name, "save");
      button.type = "button";
      button.setAttribute("aria-label", `Save ${title} as ${name}`);
      button.addEventListener("click", () => save(chart));
      caption.append(button);
    }
    figure.append(caption, place, values);
    place.setAttribute("role", "img");
    host.append(figure); // its width is needed
    sizes.observe(figure);
    charts.set(title, chart);
    return chart;
  }

  function draw(title, lines) {
    const chart = chartOf(title);
    const isLog = options.elements.log.checked && lines.some((one) => one.last.some((value) => value > 0));
    const tables = lines.map((one) => columns(one, isLog));
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const shape = JSON.stringify([lines.map((one) => one.line), isLog, by()]);
    chart.lines = lines;
    if (chart.plot && chart.shape === shape) {
      const { min, max } = chart.plot.scales.x;
      const isPart = min > chart.plot.data[0][0] || max < chart.plot.data[0].at(-1); // the user has enlarged one
      chart.plot.setData(data);
      if (isPart) chart.plot.setScale("x", { min, max });
    } else {
      chart.plot?.destroy();
      chart.shape = shape;
      chart.plot = plotOf(chart, lines, data, isLog);
      chart.items = lines.map((one, index) => legendItem(chart, one, index));
      chart.values.replaceChildren(...chart.items);
    }
    chart.place.setAttribute("aria-label", `${title}: ` + lines.map((one) => `${one.line} ${shown(one.value)}`).join(", "));
    chart.figure.dataset.points = String(lines.reduce((sum, one) => sum + one.count, 0));
    showValues(chart);
  }

  function plotOf(chart, lines, data, isLog) {
    const style = getComputedStyle(document.documentElement);
    const [ink, grid] = [getComputedStyle(document.body).color, style.getPropertyValue("--line")];
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui" };
    const series = [{}];
    const bands = [];
    for (const one of lines) {
      const at = series.length;
      const show = !hidden.has(one.line);
      const edge = { stroke: "transparent", points: { show: false }, spanGaps: true, show };
      const points = { show: one.x.length < 3 };
      series.push({ label: one.line, stroke: colour(one.line), width: 1.6, spanGaps: true, points, show });
      series.push(edge, { ...edge });
      bands.push({ series: [at + 2, at + 1], fill: faint(colour(one.line)) });
    }
    return new uPlot({
      width: widthOf(chart), height: HEIGHT, series, bands, legend: { show: false },
      scales: { x: { time: by() === "time" }, y: isLog ? { distr: 3 } : {} },
      axes: [{ ...axis, size: 34 }, { ...axis, size: 62, values: (_, values) => ticks(values) }],
      cursor: { y: false },
      hooks: { setCursor: [() => showValues(chart)] },
    }, data, chart.place);
  }
  const widthOf = (chart) => Math.max(chart.figure.clientWidth - 22, 200);

  // ---- the legend: the values under the pointer, or else the last ones; a click hides a line

  function legendItem(chart, one, index) {
    const item = element("li");
    const button = element("button");
    const swatch = element("span", undefined, "swatch");
    button.type = "button";
    button.setAttribute("aria-pressed", String(!hidden.has(one.line)));
    swatch.style.background = colour(one.line);
    button.append(swatch, element("span", one.line), element("b"));
    button.addEventListener("click", () => {
      if (!hidden.delete(one.line)) hidden.add(one.line);
      for (const each of charts.values()) each.shape = "";
      drawAll();
    });
    item.append(button);
    return item;
  }
  function showValues(chart) {
    if (!chart.plot || !chart.items) return;
    const place = chart.plot.cursor.idx;
    const isPointed = place !== null && place !== undefined && chart.plot.cursor.left >= 0;
    chart.where.textContent = isPointed ? shownX(chart.plot.data[0][place], chart.lines) : "";
    chart.lines.forEach((one, index) => {
      const value = isPointed ? valueAt(chart.plot.data[1 + 3 * index], place) : one.value;
      const at = isPointed || one.step === null ? "" : ` at ${shown(one.step)}${isUsage(one) ? " s" : ""}`;
      chart.items[index].querySelector("b").textContent = `: ${shown(value)}${at}`;
    });
  }

  // ---- saving

  function save(blob, name) {
    const link = element("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  const fileName = (chart) => chart.title.replace(/[^\w.-]+/g, "-");
  function saveTable(chart) {
    const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const safe = (text) => quoted(/^[=+@-]/.test(text) ? `'${text}` : text); // no formula of a spreadsheet
    const data = chart.plot.data.filter((_, index) => index % 3 === 1 || index === 0);
    const rows = [[by(), ...chart.lines.map((one) => safe(one.line))]];
    data[0].forEach((x, at) => rows.push([x, ...data.slice(1).map((column) => column[at] ?? "")]));
    save(new Blob([rows.map((row) => row.join(",")).join("\n") + "\n"], { type: "text/csv" }), `${fileName(chart)}.csv`);
  }
  function savePicture(chart) {
    const plot = chart.plot.ctx.canvas;
    const scale = devicePixelRatio || 1;
    const style = getComputedStyle(document.documentElement);
    const picture = element("canvas");
    picture.width = plot.width;
    picture.height = plot.height + (40 + 18 * chart.lines.length) * scale;
    const pen = picture.getContext("2d");
    pen.fillStyle = style.getPropertyValue("--card");
    pen.fillRect(0, 0, picture.width, picture.height);
    pen.drawImage(plot, 0, 24 * scale);
    const write = (text, x, y, fill, weight) => {
      pen.font = `${weight} ${12 * scale}px system-ui, sans-serif`;
      pen.fillStyle = fill;
      pen.fillText(text, x * scale, y * scale);
    };
    const ink = style.getPropertyValue("--ink");
    write(chart.title, 10, 16, ink, 600);
    chart.lines.forEach((one, index) => {
      const y = plot.height / scale + 42 + 18 * index;
      write("■", 10, y, colour(one.line), 400);
      write(`${one.line}: ${shown(one.value)}`, 28, y, ink, 400);
    });
    picture.toBlob((blob) => save(blob, `${fileName(chart)}.png`), "image/png");
  }

  // ---- all charts

  function drawAll() {
    const metrics = new Map();
    const isTogether = options.elements.together.checked;
    for (const one of found.series ?? []) {
      if (!isWanted(one.name)) continue;
      const title = isTogether ? "all metrics" : one.name;
      if (!metrics.has(title)) metrics.set(title, []);
      metrics.get(title).push({ ...one, line: isTogether ? `${one.name} ${one.label}` : one.label });
    }
    for (const [title, chart] of charts) {
      if (metrics.has(title)) continue;
      chart.plot?.destroy();
      chart.figure.remove();
      charts.delete(title);
    }
    const isNew = [...metrics.keys()].some((title) => !charts.has(title));
    for (const [title, lines] of metrics) draw(title, lines);
    if (isNew) host.append(...[...metrics.keys()].map((title) => charts.get(title).figure)); // in their order
    options.hidden = !(found.series ?? []).length;
    note.textContent = [found.busy ? "Reading the log …" : "", ...(found.problems ?? [])].filter(Boolean).join(" ")
      || (metrics.size ? "" : options.hidden ? "No metrics in the log." : "No metric has such a name.");
  }

  let number = 0;
  let isFirst = true; // the server has only begun to follow the log then
  async function read() {
    const own = ++number; // another choice of the user ends this one
    let live = Number(host.dataset.live) || 0;
    try {
      const axis = by() === "step" ? "step" : "time";
      const answer = await fetch(`${host.dataset.charts}&by=${axis}`, { headers: { Accept: "application/json" } });
      const got = await answer.json();
      if (own !== number) return;
      found = got;
      drawAll();
      if (found.busy) live = live || 2000;
      else if (found.over) live = 0;
    } catch {
      live = live && 2 * live;
    }
    const again = () => { if (own === number) read(); };
    if (live && isFirst) live = 700;
    isFirst = false;
    if (live) setTimeout(() => document.hidden ? document.addEventListener("visibilitychange", again, { once: true }) : again(), live);
  }
  read();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of charts.values()) chart.shape = "";
    drawAll();
  });
})();
