// The charts, by plotly, which comes from the same server.
import { el } from "./format.js";

const CONFIG = { displayModeBar: false, responsive: true };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function layout(extra) {
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), automargin: true };
  const made = {
    margin: { l: 52, r: 12, t: 6, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("dim"), size: 11 },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("text") } },
    ...extra,
  };
  made.xaxis = { ...axis, ...(extra.xaxis || {}) };
  made.yaxis = { ...axis, rangemode: "tozero", ...(extra.yaxis || {}) };
  return made;
}

function line(series, name, shade, options = {}) {
  return {
    x: series.x.map((moment) => new Date(moment)), y: series.y, name, mode: "lines",
    line: { color: colour(shade), width: 1.8 }, ...options,
  };
}

const LEGEND = { showlegend: true, legend: { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom" },
  margin: { l: 52, r: 12, t: 22, b: 30 } };

function draw(id, traces, extra, empty) {
  const place = document.getElementById(id);
  if (!traces.some((trace) => trace.y.length)) {
    if (place.dataset.drawn) { Plotly.purge(place); delete place.dataset.drawn; }
    place.replaceChildren(el("div", { class: "empty" }, empty));
    return;
  }
  if (!place.dataset.drawn) place.replaceChildren();
  place.dataset.drawn = "yes";
  Plotly.react(place, traces, layout(extra), CONFIG);
}

// Its own round ticks: by default they would stand where those of the left axis do.
const RIGHT = { overlaying: "y", side: "right", rangemode: "tozero", showgrid: false, automargin: true, tickmode: "auto", nticks: 6 };

export function drawRate(data) {
  draw("chart-rate", [
    line(data.series.rate, "messages/s", "accent", { fill: "tozeroy", fillcolor: `${colour("accent")}22` }),
    line(data.series.rate_bytes, "bytes/s", "warn", { yaxis: "y2", line: { color: colour("warn"), width: 1.2, dash: "dot" } }),
  ], {
    ...LEGEND, margin: { l: 52, r: 52, t: 22, b: 30 },
    yaxis: { tickformat: ".3~s", title: { text: "messages/s" } },
    yaxis2: { ...RIGHT, tickformat: ".3~s", title: { text: "bytes/s" } },
  }, "no look has been made yet");
}

export function drawLag(data) {
  draw("chart-lag", [
    line(data.series.lag_messages, "messages waiting", "accent"),
    line(data.series.lag_s, "oldest, s", "bad", { yaxis: "y2", line: { color: colour("bad"), width: 1.2, dash: "dot" } }),
  ], {
    ...LEGEND, margin: { l: 52, r: 52, t: 22, b: 30 },
    yaxis: { tickformat: ".3~s", title: { text: "messages" } },
    yaxis2: { ...RIGHT, title: { text: "seconds" } },
  }, "no look has been made yet");
}

export function drawWake(data) {
  const x = data.wake.x;
  draw("chart-wake", [
    line({ x, y: data.wake.longest.map((value) => value * 1e6) }, "longest", "bad"),
    line({ x, y: data.wake.median.map((value) => value * 1e6) }, "median", "accent"),
  ], { ...LEGEND, yaxis: { type: "log", rangemode: "normal", title: { text: "µs" }, dtick: 1 } },
  "nothing measured: no queue moves, or its writer may not wake this reader");
}

export function drawHistogram(data) {
  let before = 0;
  const x = []; const y = [];
  let least = Infinity; let most = -1;
  const counts = data.histogram.map(([bound, count]) => {
    const here = count - before; before = count; return [bound, here];
  });
  counts.forEach(([, count], place) => { if (count) { least = Math.min(least, place); most = place; } });
  for (let place = Math.max(0, least - 1); place <= Math.min(counts.length - 1, most + 1); place += 1) {
    const [bound, count] = counts[place];
    x.push(bound === null ? "more" : `≤${bound >= 1 ? `${bound} s` : bound >= 1e-3 ? `${+(bound * 1e3).toPrecision(3)} ms` : `${+(bound * 1e6).toPrecision(3)} µs`}`);
    y.push(count);
  }
  draw("chart-histogram", [{ type: "bar", x, y: most < 0 ? [] : y, name: "samples", marker: { color: colour("accent") } }],
    { xaxis: { type: "category", tickangle: -40 }, bargap: 0.12, margin: { l: 52, r: 12, t: 6, b: 56 },
      yaxis: { title: { text: "samples" } } }, "nothing measured yet");
}

const BAD = new Set(["killed", "stopped", "unreadable", "error", "reader lost", "reader killed"]);
const ODD = new Set(["slow append", "recovered", "vanished"]);

export function shadeOf(kind) {
  return BAD.has(kind) ? "bad" : ODD.has(kind) ? "warn" : "accent";
}

export function drawEvents(events, now) {
  const recent = events.filter((event) => event.time > now - 600000);
  draw("chart-events", [{
    x: recent.map((event) => new Date(event.time)), y: recent.map((event) => event.kind), mode: "markers",
    text: recent.map((event) => escaped(`${event.name}: ${event.text}`).slice(0, 160)), hovertemplate: "%{text}<extra></extra>",
    marker: { size: 9, color: recent.map((event) => colour(shadeOf(event.kind))) },
  }], { hovermode: "closest", yaxis: { type: "category", rangemode: "normal", categoryorder: "category descending" },
    margin: { l: 90, r: 12, t: 6, b: 28 } }, "no event in the last ten minutes");
}

// Plotly knows a little markup in its texts.
function escaped(text) {
  return text.replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
}
