// Draws the charts, lets their time be zoomed together, and makes tables sort and filter. Needs uPlot, and nothing else.
"use strict";
{
  const HEIGHTS = { lifetimes: 320, stalls: 160, links: 160 };
  const ZOOM = 0.5; // part of what is shown that one step of zoom leaves
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const digits = (value) => (value == null ? "-" : value.toLocaleString("en", { maximumSignificantDigits: 4 }));

  // ---- tables ----------------------------------------------------------------------------------------------------

  function sortable(block) {
    const table = block.querySelector("table");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const compared = (cell) => (cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value));
    const order = (left, right) =>
      typeof left === "number" && typeof right === "number" ? left - right
        : typeof left === typeof right ? left.localeCompare(right)
          : typeof left === "number" ? 1 : -1; // what is unknown is least
    heads.forEach((head, column) => {
      const button = make("button", { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numbers = rows.some((row) => row.cells[column].dataset.value !== undefined);
        const before = head.getAttribute("aria-sort");
        const way = before ? (before === "descending" ? 1 : -1) : numbers ? -1 : 1;
        heads.forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
        const keys = new Map(rows.map((row) => [row, compared(row.cells[column])]));
        rows.sort((left, right) => way * order(keys.get(left), keys.get(right)));
        body.append(...rows);
      });
    });
    if (rows.length < 6) return;
    const said = make("output");
    const field = make("input", { type: "search" });
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      said.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
    });
    const label = make("label", {}, `Filter “${table.caption.textContent}” `, field);
    block.prepend(make("div", { className: "filter" }, label, " ", said));
  }

  // ---- charts ----------------------------------------------------------------------------------------------------

  const plots = []; // of one step's time, which are zoomed together
  let whole = [0, 1];
  let shown = null;

  function zoomTo(min, max) {
    const length = Math.min(Math.max(max - min, (whole[1] - whole[0]) / 1e5), whole[1] - whole[0]);
    const first = Math.min(Math.max(min, whole[0]), whole[1] - length);
    shown = [first, first + length];
    for (const plot of plots) {
      const { min: left, max: right } = plot.scales.x;
      if (left !== shown[0] || right !== shown[1]) plot.setScale("x", { min: shown[0], max: shown[1] });
    }
    const said = document.querySelector("#zoom output");
    if (said) said.textContent = `${digits(shown[0])} to ${digits(shown[1])} ms of ${digits(whole[1])} ms`;
  }
  const zoomBy = (factor, middle = (shown[0] + shown[1]) / 2) =>
    zoomTo(middle - (middle - shown[0]) * factor, middle + (shown[1] - middle) * factor);
  const moveBy = (part) => zoomTo(shown[0] + (shown[1] - shown[0]) * part, shown[1] + (shown[1] - shown[0]) * part);

  function zoomButtons(place) {
    const buttons = [
      ["Zoom in", () => zoomBy(ZOOM)], ["Zoom out", () => zoomBy(1 / ZOOM)], ["Earlier", () => moveBy(-0.5)],
      ["Later", () => moveBy(0.5)], ["Whole step", () => zoomTo(...whole)],
    ].map(([textContent, act]) => {
      const button = make("button", { type: "button", textContent });
      button.addEventListener("click", act);
      return button;
    });
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", "Time shown");
    place.replaceChildren(...buttons, make("output"));
  }

  // Of a stack each series is drawn with all before it below; those that are hidden count for nothing.
  function columns(chart, hidden) {
    const below = chart.x.map(() => 0);
    const stacked = chart.series.map((series) =>
      chart.kind !== "stack" ? series.values
        : series.values.map((value, index) => (hidden.has(series.name) ? below[index] : (below[index] += value ?? 0))));
    return [chart.x, ...stacked, ...(chart.lines ?? []).map((series) => series.values)];
  }

  function drawLives(chart, hidden) {
    return (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      const height = Math.max(bbox.height / chart.lives.length, 1);
      const colours = chart.series.map((each) => ({ ...each, css: css(`--c${each.colour}`) }));
      chart.lives.forEach(([start, end, , role], row) => {
        const series = colours.find((each) => each.colour === role);
        if (hidden.has(series.name)) return;
        const left = plot.valToPos(start, "x", true);
        ctx.fillStyle = series.css;
        ctx.fillRect(left, bbox.top + row * height, Math.max(plot.valToPos(end, "x", true) - left, 1), height);
      });
      ctx.restore();
    };
  }

  function drawLimit(chart) {
    return (plot) => {
      const { ctx, bbox } = plot;
      const y = plot.valToPos(chart.limit.value, "y", true);
      if (y < bbox.top) return;
      ctx.save();
      ctx.strokeStyle = css("--text");
      ctx.setLineDash([6, 4]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      const width = ctx.measureText(chart.limit.name).width + 8;
      const height = 18 * devicePixelRatio;
      ctx.fillStyle = css("--page");
      ctx.fillRect(bbox.left + bbox.width - width, y - height, width, height);
      ctx.fillStyle = css("--text");
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillText(chart.limit.name, bbox.left + bbox.width - 4, y - height / 2);
      ctx.restore();
    };
  }

  function readAt(chart, plot, hidden) {
    const { left, top, idx } = plot.cursor;
    if (left == null || left < 0) return "";
    if (chart.kind === "lives") {
      const at = plot.posToVal(left, "x");
      const row = Math.floor((Math.max(top, 0) / plot.over.clientHeight) * chart.lives.length);
      const [start, end, bytes, , name] = chart.lives[Math.min(row, chart.lives.length - 1)];
      return `At ${digits(at)} ms, row ${row + 1}: ${name}, ${digits(bytes / 2 ** 20)} MiB, from ${digits(start)} to ${digits(end)} ms`;
    }
    if (idx == null) return "";
    const place = chart.axis === "step" ? `Step ${chart.x[idx]}` : `At ${digits(chart.x[idx])} ms`;
    const all = [...chart.series, ...(chart.lines ?? [])].filter((series) => !hidden.has(series.name));
    return `${place}: ${all.map((series) => `${series.name} ${digits(series.values[idx])} ${chart.unit}`).join(", ")}`;
  }

  function draw(figure, chart) {
    const hidden = new Set();
    const timed = chart.axis !== "step";
    const all = [...chart.series, ...(chart.lines ?? [])];
    const colour = (series) => css(`--c${series.colour}`);
    const place = make("div", { className: "plot", tabIndex: 0 });
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", `Chart: ${chart.title}. Its numbers are in the tables.`);
    const legend = make("fieldset", {}, make("legend", { textContent: `Shown in “${chart.title}”` }));
    const readout = make("p", { className: "readout" });
    const axis = { stroke: css("--text"), grid: { stroke: css("--grid") }, ticks: { stroke: css("--grid") } };
    const left = { ...axis, size: 64 };
    const series = all.map((each, index) => ({
      label: each.name,
      stroke: colour(each),
      width: chart.kind === "stack" && index < chart.series.length ? 0.5 : 1.5,
      dash: each.dashed ? [6, 4] : undefined,
      paths: chart.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: chart.axis === "step" && chart.x.length < 80 },
    }));
    const bands = chart.kind !== "stack" ? [] : chart.series.map((each, index) =>
      index === 0 ? null : { series: [index + 1, index], fill: colour(each) }).filter(Boolean);
    if (chart.kind === "stack" && series.length) series[0].fill = colour(chart.series[0]);
    const hooks = {
      draw: [],
      setCursor: [(plot) => { readout.textContent = readAt(chart, plot, hidden) || "\u00a0"; }],
      setScale: timed ? [(plot, key) => {
        const { min, max } = plot.scales.x;
        if (key === "x" && shown && plots.includes(plot) && (min !== shown[0] || max !== shown[1])) zoomTo(min, max);
      }] : [],
    };
    if (chart.kind === "lives") hooks.draw.push(drawLives(chart, hidden));
    if (chart.limit) hooks.draw.push(drawLimit(chart));
    const lives = chart.kind === "lives";
    const options = {
      width: figure.clientWidth, height: HEIGHTS[chart.name] ?? 240, series: [{}, ...(lives ? [{ show: false }] : series)], bands,
      legend: { show: false }, hooks,
      cursor: { drag: { x: true, y: false }, ...(timed ? { sync: { key: "time" } } : {}) },
      scales: {
        x: { time: false, ...(timed ? { range: (_, min, max) => (min == null ? whole : [min, max]) } : {}) },
        y: lives ? { range: [0, chart.lives.length] } : { range: (_, __, max) => [0, (max || 1) * 1.05] },
      },
      axes: [{ ...axis, size: 30, label: timed ? "ms" : "step", labelSize: 18 }, lives ? { ...left, values: () => [] } : left],
    };
    const data = lives ? [chart.x, chart.x.map(() => null)] : columns(chart, hidden);
    figure.querySelector("noscript")?.remove();
    figure.querySelectorAll(".plot, fieldset, .readout").forEach((old) => old.remove());
    for (const each of all) {
      const box = make("input", { type: "checkbox", checked: true });
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = colour(each);
      swatch.setAttribute("aria-hidden", "true");
      legend.append(make("label", {}, box, swatch, each.name));
      box.addEventListener("change", () => {
        box.checked ? hidden.delete(each.name) : hidden.add(each.name);
        if (lives) return plot.redraw();
        if (chart.kind === "stack") plot.setData(columns(chart, hidden), false);
        plot.setSeries(all.indexOf(each) + 1, { show: box.checked });
        plot.redraw();
      });
    }
    figure.append(legend, place, readout);
    const plot = new uPlot(options, data, place);
    if (timed) plots.push(plot);
    place.addEventListener("keydown", (event) => keyed(event, plot, timed));
    return plot;
  }

  function keyed(event, plot, timed) {
    const width = plot.over.clientWidth;
    const left = plot.cursor.left >= 0 ? plot.cursor.left : width / 2;
    const at = () => plot.posToVal(left, "x");
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && event.shiftKey && timed) moveBy(step * 0.25);
    else if (step) {
      const top = plot.cursor.top >= 0 ? plot.cursor.top : plot.over.clientHeight / 2;
      plot.setCursor({ left: Math.min(Math.max(left + step * Math.max(width / 100, 1), 0), width - 1), top });
    } else if (timed && (event.key === "+" || event.key === "=")) zoomBy(ZOOM, at());
    else if (timed && event.key === "-") zoomBy(1 / ZOOM, at());
    else if (timed && event.key === "0") zoomTo(...whole);
    else return;
    event.preventDefault();
  }

  const charts = JSON.parse(document.getElementById("charts").textContent);
  const drawn = [];
  function drawAll() {
    drawn.splice(0).forEach((plot) => plot.destroy());
    plots.splice(0);
    for (const chart of charts) {
      const figure = document.querySelector(`figure[data-chart="${chart.name}"]`);
      drawn.push(draw(figure, chart));
    }
    if (plots.length) zoomTo(...(shown ?? whole));
  }
  const lifetimes = charts.find((chart) => chart.axis !== "step");
  if (lifetimes) {
    const ends = charts.filter((chart) => chart.axis !== "step").map((chart) => chart.x[chart.x.length - 1]);
    whole = [0, Math.max(...ends)];
    zoomButtons(document.getElementById("zoom"));
  }
  document.querySelectorAll(".table").forEach(sortable);
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", () => drawn.forEach((plot) =>
    plot.setSize({ width: plot.root.closest("figure").clientWidth, height: plot.height })));
  document.documentElement.dataset.ready = "yes";
}
