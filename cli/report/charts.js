// ---- plots: Chart.js draws axes, bars and tips; what is theirs is said here ----

const hasPlots = typeof Chart === "function";

// By key of a part, category of the timeline, and so on: the style sheet has the colours.
const COLOR_OF = {
  compute_s: "compute", recompute_s: "recompute", tp_s: "tp", cp_s: "cp", ep_s: "ep", pp_bubble_s: "bubble",
  pp_p2p_s: "p2p", dp_s: "dp", optimizer_s: "optimizer", offload_s: "offload", host_s: "host",
  weights_gib: "weights", gradients_gib: "gradients", optimizer_gib: "optimizer-state",
  activations_gib: "activations", buffers_gib: "buffers", beside: "beside",
  forward: "forward", backward: "backward", "weight gradient": "weight-gradient", reduce: "reduce",
  send: "send", optimizer: "optimizer", "left out": "left-out",
  table: "compute", formula: "cp", assumed: "tp",
};
const SERIES = ["compute", "tp", "optimizer", "ep", "cp", "p2p", "dp", "host"];

function ink(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}
const colorOf = (key) => ink(COLOR_OF[key] || "host");
const seriesColor = (i) => ink(SERIES[i % SERIES.length]);

// Black or white, whichever is read more easily on "#rrggbb": by relative luminance as WCAG 2 defines it.
function onColor(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

// Every plot on the page: made anew when colours change.
const plots = new Set();

function draw(plot) {
  if (plot.chart) plot.chart.destroy();
  Chart.defaults.locale = "en";
  Chart.defaults.color = ink("ink");
  Chart.defaults.borderColor = ink("grid");
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  const config = plot.config();
  config.options = {responsive: true, maintainAspectRatio: false, animation: false, ...config.options};
  plot.chart = new Chart(plot.canvas, config);
  if (plot.drawn) plot.drawn(plot.chart);
}
function redraw() {
  for (const plot of plots) {
    if (plot.canvas.isConnected) draw(plot);
    else plots.delete(plot);
  }
}
if (hasPlots) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // On paper plots have the page's width and light colours, and the tables behind them are open.
  const PAPER = 680; // pixels of CSS that an A4 sheet or a letter has between its margins
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    redraw();
    for (const plot of plots) {
      if (plot.chart) plot.chart.resize(Math.min(PAPER, plot.canvas.clientWidth || PAPER), plot.height);
    }
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    redraw();
  });
}
addEventListener("beforeprint", () => {
  const short = 40; // rows: a longer table is for the screen
  for (const details of document.querySelectorAll("details:not([open])")) {
    if (details.id === "licence" || details.querySelectorAll("tr").length > short) continue;
    details.open = true;
    details.dataset.printed = "1";
  }
});
addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-printed]")) {
    details.open = false;
    delete details.dataset.printed;
  }
});

// A plot with its caption, and its numbers as a table behind it; without Chart.js the table alone.
//   config: a function that gives Chart.js its configuration; said: what a person hears who cannot see it
function figure(title, {said, text, height, config, behind, extra, drawn, open}) {
  if (!hasPlots && !behind) return null;
  const node = el("figure", {}, el("figcaption", {}, title), text ? el("p", {class: "faint"}, text) : null);
  if (hasPlots) {
    const canvas = el("canvas", {role: "img", "aria-label": said || title});
    const box = el("div", {class: "plot", style: `height: ${height}px`}, canvas);
    node.append(...(extra ? extra(box) : [box]));
    const plot = {canvas, config, height, drawn};
    plots.add(plot);
    // Chart.js measures what holds the canvas, which must be on the page.
    queueMicrotask(() => draw(plot));
  }
  if (behind) {
    const numbers = closed("The same as a table", behind);
    numbers.open = !hasPlots || Boolean(open);
    node.append(numbers);
  }
  return node;
}

const axis = (title, options = {}) => ({title: {display: Boolean(title), text: title}, ...options});
const ROW = 30; // pixels of a horizontal bar
const AROUND = 110; // ... of axis and legend around bars

const legend = (shown = true) => ({display: shown, position: "bottom", labels: {boxWidth: 14, boxHeight: 14}});

// Stacked bars: `series` are {key, label, values}, one value a name.
function stackedBars(names, series, {unit, show, horizontal = true, beside = []}) {
  const value = horizontal ? "x" : "y", name = horizontal ? "y" : "x";
  return {
    type: "bar",
    data: {
      labels: names,
      datasets: [...beside, ...series.map((s) => ({
        label: s.label, data: s.values, backgroundColor: colorOf(s.key), stack: "all",
        borderColor: ink("ground"), borderWidth: horizontal ? {right: 1} : {top: 1}, borderSkipped: false,
        maxBarThickness: 56,
      }))],
    },
    options: {
      indexAxis: horizontal ? "y" : "x",
      interaction: {mode: "nearest", intersect: true},
      scales: {[value]: axis(unit, {stacked: true, beginAtZero: true}), [name]: axis("", {stacked: true, grid: {display: false}})},
      plugins: {
        legend: legend(),
        tooltip: {callbacks: {label: (item) => `${item.dataset.label}: ${show(item.raw, item)}`}},
      },
    },
  };
}

// Bars side by side.
function groupedBars(names, series, {unit, show, horizontal = true, logarithmic = false}) {
  const value = horizontal ? "x" : "y", name = horizontal ? "y" : "x";
  return {
    type: "bar",
    data: {labels: names, datasets: series.map((s, i) => ({
      label: s.label, data: s.values, backgroundColor: s.color ? ink(s.color) : seriesColor(i), maxBarThickness: 30,
    }))},
    options: {
      indexAxis: horizontal ? "y" : "x",
      scales: {
        [value]: axis(unit, logarithmic ? {type: "logarithmic"} : {beginAtZero: true}),
        [name]: axis("", {grid: {display: false}, ticks: {autoSkip: false}}),
      },
      plugins: {
        legend: legend(series.length > 1),
        tooltip: {callbacks: {label: (item) => `${item.dataset.label}: ${show(item.raw)}`}},
      },
    },
  };
}

// Lines over numbers: `series` are {label, points: [{x, y, title}]}.
function lines(series, {x, y, show, logX = false, logY = false, fromZero = true, joined = true, wholeX = false, ticks}) {
  return {
    type: "scatter",
    data: {datasets: series.map((s, i) => ({
      label: s.label, data: s.points, showLine: s.joined ?? joined, borderColor: s.color ? ink(s.color) : seriesColor(i),
      backgroundColor: s.color ? ink(s.color) : seriesColor(i), borderWidth: 2,
      pointRadius: s.radius ?? 4, pointHoverRadius: (s.radius ?? 4) + 2, pointHitRadius: s.radius === 0 ? 0 : 6,
    }))},
    options: {
      scales: {
        x: axis(x, {type: logX ? "logarithmic" : "linear", grid: {display: false},
          ...(ticks ? {afterBuildTicks: (scale) => { scale.ticks = ticks.map((value) => ({value})); },
            ticks: {callback: (value) => whole(value), autoSkip: true}} : wholeX ? {ticks: {precision: 0}} : {})}),
        y: axis(y, {type: logY ? "logarithmic" : "linear", beginAtZero: fromZero && !logY}),
      },
      plugins: {
        legend: legend(series.length > 1),
        tooltip: {callbacks: {label: (item) => show(item.raw, item.dataset.label)}},
      },
    },
  };
}

// ---- the timeline of a step ----

// Names in the bars that are wide enough.
const namesInBars = {
  id: "namesInBars",
  afterDatasetsDraw(chart) {
    const {ctx, scales: {x}, chartArea} = chart;
    ctx.save();
    ctx.beginPath();
    ctx.rect(chartArea.left, chartArea.top, chartArea.width, chartArea.height);
    ctx.clip();
    ctx.font = `11px ${Chart.defaults.font.family}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    chart.data.datasets.forEach((dataset, d) => {
      ctx.fillStyle = onColor(dataset.backgroundColor);
      const bars = chart.getDatasetMeta(d).data;
      dataset.data.forEach((event, i) => {
        if (!event.name) return;
        const left = Math.max(chartArea.left, x.getPixelForValue(event.x[0]));
        const right = Math.min(chartArea.right, x.getPixelForValue(event.x[1]));
        if (right - left < 8 + 6.5 * event.name.length || bars[i].height < 11) return;
        ctx.fillText(event.name, (left + right) / 2, bars[i].y);
      });
    });
    ctx.restore();
  },
};

function timelineTable(timeline) {
  const scale = timeline.end_s / timeline.ticks;
  const order = Object.keys(COLOR_OF);
  const kinds = [...new Set(timeline.rows.map((row) => row.category))].sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const busy = new Map();
  for (const row of timeline.rows) {
    const total = sum(row.end.map((end, i) => end - row.begin[i])) * scale;
    const rank = busy.get(row.rank) || {rank: row.rank, computing: 0};
    rank[row.category] = (rank[row.category] || 0) + total;
    if (row.lane === "compute") rank.computing += total;
    busy.set(row.rank, rank);
  }
  return table("What each pipeline rank does in a step, in seconds" + (timeline.left_out ? ", as far as it is drawn" : ""),
    [{label: "rank", get: (r) => r.rank},
      ...kinds.map((kind) => ({label: kind, get: (r) => r[kind] || 0, show: (v) => significant(v, 4)})),
      {label: "idle", get: (r) => timeline.left_out ? null : Math.max(0, timeline.end_s - r.computing),
        show: (v) => significant(v, 4)}],
    [...busy.values()], {heads: true});
}

function timelineFigure(timeline) {
  if (typeof timeline !== "object" || timeline === null) {
    return timeline ? el("p", {class: "faint"}, sentence(`No timeline: ${timeline}`)) : null;
  }
  const scale = timeline.end_s / timeline.ticks;
  const thousandth = timeline.end_s < 0.2; // seconds of a step that is told in milliseconds
  const unit = thousandth ? "ms" : "s", factor = thousandth ? 1e3 : 1;
  const end = timeline.end_s * factor;
  const kinds = new Map();
  for (const row of timeline.rows) {
    const key = `${row.category}|${row.lane}`;
    const kind = kinds.get(key) || {category: row.category, lane: row.lane, data: []};
    row.begin.forEach((begin, i) => kind.data.push(
      {x: [begin * scale * factor, row.end[i] * scale * factor], y: `rank ${row.rank}`, name: row.name[i]}));
    kinds.set(key, kind);
  }
  const order = Object.keys(COLOR_OF);
  const drawnKinds = [...kinds.values()].sort((a, b) => order.indexOf(a.category) - order.indexOf(b.category));
  const durations = drawnKinds.flatMap((kind) => kind.data.map((bar) => bar.x[1] - bar.x[0])).sort((a, b) => a - b);
  const middling = durations[Math.floor(durations.length / 2)] || end;
  const ranks = Array.from({length: timeline.ranks}, (_, rank) => `rank ${rank}`);
  const lanes = new Set(timeline.rows.map((row) => row.lane)).size;
  if (timeline.left_out) {
    const [from, to] = timeline.left_out.map((tick) => tick * scale * factor);
    kinds.set("left out", {category: "left out", lane: "compute",
      data: ranks.map((rank) => ({x: [from, to], y: rank, name: "not drawn"}))});
  }
  let chart = null, low = 0, high = end;

  function show(from, to) {
    const least = end / 2000; // closer there is nothing more to see
    const width = Math.min(end, Math.max(least, to - from));
    low = Math.min(Math.max(0, from), end - width);
    high = low + width;
    status.textContent = `${significant(low, 4)} to ${significant(high, 4)} ${unit} of ${significant(end, 4)} ${unit}`;
    if (!chart) return;
    // Lines between bars where there is room for them.
    const pixels = chart.chartArea.width * middling / (high - low);
    for (const dataset of chart.data.datasets) {
      dataset.borderWidth = pixels > 5 ? {left: 0.5, right: 0.5} : 0;
    }
    chart.options.scales.x.min = low;
    chart.options.scales.x.max = high;
    chart.update("none");
  }
  function zoom(by, around = (low + high) / 2) {
    show(around - (around - low) * by, around + (high - around) * by);
  }
  const pan = (share) => show(low + share * (high - low), high + share * (high - low));
  const at = (event) => chart.scales.x.getValueForPixel(event.clientX - chart.canvas.getBoundingClientRect().left);

  const status = el("span", {class: "faint", role: "status"});
  const button = (label, name, action) =>
    el("button", {type: "button", class: "small", "aria-label": name, title: name, onclick: action}, label);
  const controls = el("div", {class: "controls"},
    button("+", "zoom in", () => zoom(0.5)), button("−", "zoom out", () => zoom(2)),
    button("←", "earlier", () => pan(-0.25)), button("→", "later", () => pan(0.25)),
    button("whole step", "whole step", () => show(0, end)), status);

  function keys(event) {
    const does = {"+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => pan(-0.25),
      ArrowRight: () => pan(0.25), Home: () => show(0, high - low), End: () => show(end - (high - low), end),
      0: () => show(0, end)}[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }
  // A wheel scrolls the page, unless the timeline was chosen or Ctrl is held (which pinching does, too).
  function wheel(event) {
    if (!chart || !(event.ctrlKey || document.activeElement === event.currentTarget)) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(Math.sign(event.deltaX) * 0.1);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event));
  }
  let held = null;
  const box = (plot) => {
    plot.classList.add("timeline");
    plot.setAttribute("tabindex", "0");
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", "Timeline. Plus and minus zoom, arrow keys move, Home and End go to the ends, 0 shows the whole step.");
    plot.addEventListener("keydown", keys);
    plot.addEventListener("wheel", wheel, {passive: false});
    plot.addEventListener("pointerdown", (event) => { held = {x: event.clientX, low, high}; });
    plot.addEventListener("pointermove", (event) => {
      if (!held || !chart || Math.abs(event.clientX - held.x) < 3) return;
      const moved = (event.clientX - held.x) / chart.chartArea.width * (held.high - held.low);
      show(held.low - moved, held.high - moved);
    });
    for (const over of ["pointerup", "pointerleave", "pointercancel"]) plot.addEventListener(over, () => { held = null; });
    return [controls, plot];
  };
  const text = "A row is a pipeline rank; whole ranks of a stage behave alike. Numbers in bars: stage, F forward or " +
    "B backward, microbatch." + (lanes > 1 ? " The lower half of a row is what runs beside the computing." : "") +
    (timeline.left_out ? " The middle of the step is left out to keep the page small." : "");
  const node = figure("The step over time", {
    said: `Timeline of one step of ${seconds(timeline.end_s)} on ${plural(timeline.ranks, "pipeline rank")}; the table below has what each does.`,
    text, extra: box, height: AROUND + timeline.ranks * (lanes > 1 ? 38 : 26), behind: timelineTable(timeline),
    drawn: (made) => {
      chart = made;
      show(low, high);
    },
    config: () => ({
      type: "bar",
      data: {labels: ranks, datasets: drawnKinds.map((kind) => ({
        label: kind.category, data: kind.data, backgroundColor: colorOf(kind.category), stack: kind.lane,
        borderColor: ink("ground"), borderWidth: 0, borderSkipped: false, inflateAmount: 0, barPercentage: 0.92,
        categoryPercentage: 0.9,
      }))},
      options: {
        indexAxis: "y",
        interaction: {mode: "nearest", intersect: true},
        scales: {
          // Bars of one lane share its place (their stack), and none is put upon another.
          x: axis(unit, {min: low, max: high, stacked: false, ticks: {callback: (value) => Number(value.toPrecision(5)), maxRotation: 0, includeBounds: false}}),
          y: axis("", {grid: {display: false}, ticks: {autoSkip: false}}),
        },
        plugins: {
          legend: legend(),
          tooltip: {callbacks: {
            title: (items) => items.length ? `${items[0].raw.y}: ${items[0].raw.name}` : "",
            label: ({raw, dataset}) =>
              `${dataset.label}, ${significant(raw.x[0], 5)} to ${significant(raw.x[1], 5)} ${unit} (${seconds((raw.x[1] - raw.x[0]) / factor, 3)})`,
          }},
        },
      },
      plugins: [namesInBars],
    }),
  });
  show(0, end);
  return node;
}
