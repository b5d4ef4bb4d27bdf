// The console's behaviour beyond what htmx swaps: charts, the light of the connection, marks on changed cells, the theme.
"use strict";

const root = document.documentElement;
const THEME = "millstream-theme";

try {
  const kept = localStorage.getItem(THEME);
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
} catch { /* without storage the system's choice stands */ }

// A canvas needs colours, not variables: an element that nobody sees says what a variable means in the theme of now.
const probe = document.body.appendChild(document.createElement("i"));
probe.hidden = true;
const colour = (name) => {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
};
const HEIGHT = 300;
const plots = new Map(); // element id -> {plot, seen, chosen, shape}

// ---- charts ----

function drawCharts(again) {
  for (const data of document.querySelectorAll(".chart-data")) {
    const element = data.parentElement.querySelector(".chart");
    if (!element || typeof uPlot === "undefined") continue;
    const kept = plots.get(element.id) ?? {};
    if (!again && kept.seen === data.dataset.chart && kept.element === element) continue;
    const chart = JSON.parse(data.dataset.chart);
    const fresh = kept.element !== element;
    const chosen = fresh || !(kept.column && chart.columns.includes(kept.column)) ? chart.columns[chart.chosen] : kept.column;
    const entry = { ...kept, element, seen: data.dataset.chart, column: chosen, chart };
    plots.set(element.id, entry);
    if (fresh) kept.plot?.destroy();
    drawChart(entry, again || fresh);
  }
}

function drawChart(entry, again) {
  const { element, chart } = entry;
  const index = chart.columns.indexOf(entry.column);
  const values = [chart.times, ...chart.series.map((s) => s.values[index])];
  const shape = JSON.stringify([entry.column, chart.columns, chart.series.map((s) => s.label)]);
  if (!again && entry.plot && entry.shape === shape) {
    entry.plot.setData(values);
    return;
  }
  entry.shape = shape;
  entry.plot?.destroy();
  element.replaceChildren(choices(entry));
  entry.plot = new uPlot(options(chart, entry.column, element.clientWidth), values, element);
}

function choices(entry) {
  const group = document.createElement("div");
  group.className = "choices";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Column of the chart");
  for (const column of entry.chart.columns) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.replaceAll("_", " ");
    button.setAttribute("aria-pressed", String(column === entry.column));
    button.addEventListener("click", () => {
      entry.column = column;
      drawChart(entry, true);
    });
    group.append(button);
  }
  return group;
}

function options(chart, column, width) {
  const font = '12px "Inter Variable", system-ui, sans-serif';
  const axis = {
    stroke: colour("--faint"), font,
    grid: { stroke: colour("--line-soft"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 4 },
  };
  const number = (v) => (v == null ? "–" : Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : String(+v.toFixed(1)));
  const few = chart.times.length <= 90;
  return {
    width: Math.max(width, 240), height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { y: false, points: { size: 7 } },
    legend: { live: true },
    scales: { y: { range: { min: { pad: 0.08, soft: 0, mode: 1 }, max: { pad: 0.1, soft: 1, mode: 2 } } } },
    axes: [
      { ...axis, grid: { show: false }, size: 42, values: dayHours },
      { ...axis, size: 54, values: (_, ticks) => ticks.map(number) },
    ],
    series: [
      { label: "UTC", value: (plot, v) => new Date((v ?? plot.data[0].at(-1)) * 1000).toISOString().slice(0, 16).replace("T", " ") },
      ...chart.series.map((s, i) => ({
        label: s.label,
        stroke: colour(`--s${(i % 8) + 1}`),
        fill: chart.series.length === 1 ? colour("--water-soft") : undefined,
        width: 1.8,
        points: { ...(few && { show: true }), size: 4.5, fill: colour(`--s${(i % 8) + 1}`) },
        value: (plot, v, series, at) => number(at == null ? plot.data[series].findLast((known) => known != null) : v),
      })),
    ],
  };
}

// Hours, and the day under the first tick of each.
function dayHours(_, ticks) {
  let day = "";
  return ticks.map((seconds) => {
    const text = new Date(seconds * 1000).toISOString();
    const date = text.slice(0, 10);
    const midnight = text.slice(11, 16) === "00:00";
    const label = (midnight ? "" : text.slice(11, 16)) + (date === day ? "" : (midnight ? "" : "\n") + short(date));
    day = date;
    return label || short(date);
  });
}
const short = (date) => new Date(`${date}T00:00Z`).toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

let resizing;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const { plot, element } of plots.values()) plot?.setSize({ width: Math.max(element.clientWidth, 240), height: HEIGHT });
  }, 80);
});

// ---- what the stream brings ----

let heard = Date.now(); // when the page last showed what the console knew
let connected = false;

const live = (state, text) => {
  const pill = document.getElementById("live");
  pill.dataset.state = state;
  pill.lastElementChild.textContent = text;
  if (state === "live") delete document.body.dataset.stale;
  else if (connected) document.body.dataset.stale = "";
};
const time = (ms) => new Date(ms).toLocaleTimeString("en-GB");
addEventListener("htmx:sse:after:connection", () => {
  connected = true;
  live("live", "live");
});
addEventListener("htmx:sse:error", (event) => {
  if (event.detail.status === 403) live("down", "signed out: run millstream console for a link");
  else live("down", `reconnecting, as of ${time(heard)}`);
});
addEventListener("htmx:sse:before:connection", (event) => {
  const { attempt } = event.detail.connection;
  // One that ends after a moment with what it brought is how a page too many is served: it is live at intervals.
  if (attempt > 1) live("connecting", `reconnecting, as of ${time(heard)}`);
});
addEventListener("htmx:after:swap", () => {
  heard = Date.now();
  drawCharts(false);
  ages();
});
// A first connection that fails is not tried again by the extension; a page that is loaded again shows how to sign in.
setInterval(() => { if (!connected && !document.hidden) location.reload(); }, 15_000);

// ---- ages ----

const FRESH_S = 10; // what is younger says nothing
const ago = (s) => (s < 90 ? `${Math.round(s)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`);
function ages() {
  for (const element of document.querySelectorAll(".age[data-at]")) {
    const seconds = Date.now() / 1000 - Number(element.dataset.at);
    const text = seconds > FRESH_S ? `${ago(seconds)} ago` : "";
    if (element.textContent !== text) element.textContent = text;
    element.title = `as of ${time(Number(element.dataset.at) * 1000)}`;
  }
}
setInterval(ages, 1000);

// A cell of a view whose text was patched is marked for a moment; rows that are new are not.
const changed = new Set();
new MutationObserver((records) => {
  for (const record of records) {
    const cell = record.target.parentElement?.closest?.(".rows td");
    if (cell && record.oldValue !== record.target.data) changed.add(cell);
  }
  for (const cell of changed) cell.classList.add("changed");
  if (changed.size) {
    const cells = [...changed];
    changed.clear();
    setTimeout(() => cells.forEach((cell) => cell.classList.remove("changed")), 250);
  }
}).observe(document.body, { subtree: true, characterData: true, characterDataOldValue: true });

// ---- the bar at the top ----

document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem(THEME, root.dataset.theme); } catch { /* only for this page, then */ }
  drawCharts(true);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(true));

document.getElementById("share").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  const answer = await fetch("/link", { method: "POST" });
  if (!answer.ok) return;
  const link = await answer.text();
  try {
    await navigator.clipboard.writeText(link);
    button.dataset.done = "";
    button.title = "Copied: the link works once";
    setTimeout(() => { delete button.dataset.done; }, 2000);
  } catch {
    prompt("This link works once, in another browser:", link);
  }
});

drawCharts(false);
ages();
document.fonts?.ready.then(() => drawCharts(true));
