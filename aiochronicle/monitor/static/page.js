// The page: takes frames from /events and draws them. It asks for nothing else, and changes nothing.
import { ago, amount, clock, el, program, rate, seconds, setName, setText, svg, whole } from "./format.js";
import { drawEvents, drawHistogram, drawLag, drawRate, drawWake, shadeOf } from "./charts.js";
import { drawDetail } from "./detail.js";
import { drawTopology } from "./topology.js";

const POINTS = 300;
const SPARK = 60;
const ALARMS = 12;
const $ = (id) => document.getElementById(id);

let stream = null;
let frame = null;
let detail = null;
let totals = null;
let chosen = null;
let sort = { by: null, down: true };
let lastFrame = 0;
const sparks = new Map();
const rows = new Map();
const events = new Map();

const COLUMNS = [
  { title: "QUEUE", value: (q) => q.name },
  { title: "WRITER", value: (q) => (q.writer ? q.writer.state : "") },
  { title: "RATE", right: true, value: (q) => q.rate },
  { title: "", later: true },
  { title: "NEXT SEQ", right: true, later: true, value: (q) => Number(q.seq.replaceAll(",", "")) },
  { title: "READERS", right: true, later: true, value: (q) => q.readers.length },
  { title: "WORST LAG", right: true, value: (q) => q.lag },
  { title: "SEGMENTS", right: true, later: true, value: (q) => q.segments },
  { title: "DISK", right: true, later: true, value: (q) => q.disk },
  { title: "LAST MESSAGE", right: true, value: (q) => q.last },
  { title: "PROCESS", later: true, value: (q) => (q.writer ? q.writer.command : "") },
];

function connect() {
  stream?.close();
  stream = new EventSource(chosen === null ? "/events" : `/events?queue=${chosen}`);
  stream.addEventListener("totals", (event) => { totals = JSON.parse(event.data); });
  stream.addEventListener("detail", (event) => { detail = JSON.parse(event.data); });
  stream.addEventListener("frame", (event) => {
    lastFrame = Date.now();
    frame = JSON.parse(event.data);
    note(frame);
    if (!document.hidden) draw();
  });
}

function push(series, x, y) {
  series.x.push(x); series.y.push(y);
  if (series.x.length > POINTS) { series.x.shift(); series.y.shift(); }
}

function note(now) {
  for (const event of now.events) events.set(event.number, event);
  while (events.size > 500) events.delete(events.keys().next().value);
  for (const queue of now.queues) {
    const points = sparks.get(queue.id) || [];
    points.push(queue.rate);
    if (points.length > SPARK) points.shift();
    sparks.set(queue.id, points);
  }
  if (!totals) return;
  const newest = totals.series.rate.x.at(-1) ?? 0;
  if (now.time <= newest) return;
  for (const [name, series] of Object.entries(totals.series)) push(series, now.time, now.totals[name]);
  if (now.totals.wake_s !== null) {
    totals.wake.x.push(now.time); totals.wake.median.push(now.totals.wake_s); totals.wake.longest.push(now.totals.wake_longest_s);
    if (totals.wake.x.length > POINTS) { totals.wake.x.shift(); totals.wake.median.shift(); totals.wake.longest.shift(); }
  }
  totals.histogram = now.totals.histogram ?? totals.histogram;
}

function level(alarms) {
  if (alarms.some((alarm) => alarm.level === "critical")) return "bad";
  return alarms.length ? "warn" : "good";
}

function drawAlarm(alarm) {
  return el("div", { class: alarm.level }, el("b", {}, alarm.name || frame.root), alarm.text);
}

function drawHead() {
  const bad = frame.alarms.filter((alarm) => alarm.level === "critical").length;
  const warn = frame.alarms.length - bad;
  const health = $("health");
  health.className = `badge ${level(frame.alarms)}`;
  setText(health, bad ? `${bad} critical${warn ? `, ${warn} warning${warn > 1 ? "s" : ""}` : ""}` : warn ? `${warn} warning${warn > 1 ? "s" : ""}` : "healthy");
  setText($("root"), frame.root);
  setText($("clock"), `${clock(frame.time).slice(0, 8)} UTC`);
  document.title = `${bad ? "✗ " : warn ? "! " : ""}${frame.root} – aioc monitor`;
  const alarms = $("alarms");
  const shown = frame.alarms.slice(0, ALARMS); // the worst first; then what may be why readers are late
  alarms.hidden = !frame.alarms.length && !frame.stalls.length;
  alarms.replaceChildren(
    ...shown.filter((alarm) => alarm.level === "critical").map(drawAlarm),
    ...frame.stalls.slice(0, 6).map((stall) => el("div", { class: "warning" }, el("b", {}, `fan-in ${stall.reader}`),
      `pid ${stall.pid} has messages that are ${seconds(stall.waiting_s)} old, and ${stall.name} is silent: if its order is strict, it waits for that queue`)),
    ...shown.filter((alarm) => alarm.level !== "critical").map(drawAlarm),
    ...(frame.alarms.length > ALARMS ? [el("div", { class: "warning" }, `and ${frame.alarms.length - ALARMS} more`)] : []),
  );
}

function drawCards() {
  const open = frame.queues.filter((queue) => queue.writer?.state === "open").length;
  const readers = frame.queues.reduce((sum, queue) => sum + queue.readers.filter((one) => one.live).length, 0);
  const used = frame.disk.total ? 1 - frame.disk.free / frame.disk.total : 0;
  const cards = [
    [rate(frame.totals.rate), "messages appended"],
    [`${amount(frame.totals.rate_bytes)}/s`, "written"],
    [whole(frame.totals.lag_messages), `waiting for open readers, oldest ${seconds(frame.totals.lag_s)}`],
    [seconds(totals?.wake.median.at(-1)), "wake latency, median"],
    [`${open} of ${frame.queues.length}`, `queues with a writer, ${whole(readers)} readers open`],
    [amount(frame.disk.free), `free on disk, ${Math.round(used * 100)} % used`],
  ];
  const place = $("cards");
  if (place.children.length !== cards.length) {
    place.replaceChildren(...cards.map(() => el("div", { class: "card" }, el("b"), el("span"))));
  }
  cards.forEach(([value, text], number) => {
    setText(place.children[number].firstChild, value);
    setText(place.children[number].lastChild, text);
  });
}

function spark(points) {
  const most = Math.max(...points, 1e-9);
  const step = 90 / (SPARK - 1);
  const begin = SPARK - points.length;
  return points.map((value, place) => `${place ? "L" : "M"}${((begin + place) * step).toFixed(1)},${(17 - (value / most) * 15).toFixed(1)}`).join("");
}

function cells(queue) {
  const writer = queue.writer;
  const live = queue.readers.filter((one) => one.live).length;
  const state = queue.problem ? "unreadable" : queue.format === "java" ? "Java queue" : writer ? writer.state : "–";
  return [
    queue.name, state, queue.problem ? "–" : rate(queue.rate), null, queue.seq,
    !queue.readers.length ? "–" : queue.format === "java" ? `${queue.readers.length}` : `${live} of ${queue.readers.length}`, queue.readers.length ? whole(queue.lag) : "–",
    whole(queue.segments), amount(queue.disk), ago(queue.last, queue.looked),
    queue.problem ?? (writer ? `${writer.pid} ${program(writer.command)}` : ""),
  ];
}

function makeRow(queue) {
  const row = el("tr", { tabindex: "0", "data-queue": String(queue.id) }, ...COLUMNS.map((column, place) => {
    const names = [column.right ? "right" : "", column.later ? "later" : "", ["name", "state"][place] ?? (place === 10 ? "command" : "")];
    return el("td", { class: names.filter(Boolean).join(" ") });
  }));
  row.cells[0].append(el("span", { class: "dot" }), el("span"));
  row.cells[3].append(svg("svg", { class: "spark", viewBox: "0 0 90 18" }, svg("path")));
  row.addEventListener("click", () => choose(queue.id));
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(queue.id); });
  return row;
}

function drawRow(queue) {
  const row = rows.get(queue.id) ?? makeRow(queue);
  rows.set(queue.id, row);
  const state = queue.writer?.state;
  row.className = [queue.level ?? "", queue.problem || state === "died" || state === "stopped" ? "broken" : "", chosen === queue.id ? "chosen" : ""].join(" ").trim();
  row.cells[0].firstChild.className = `dot ${queue.problem || state === "died" ? "bad" : queue.level === "critical" ? "bad" : queue.level ? "warn" : state === "open" ? "good" : ""}`;
  cells(queue).forEach((text, place) => {
    if (place === 0) setName(row.cells[0].lastChild, text);
    else if (text === null) row.cells[place].firstChild.firstChild.setAttribute("d", spark(sparks.get(queue.id) ?? [0]));
    else setText(row.cells[place], text);
    if (place === 10) row.cells[place].title = text;
  });
  return row;
}

function drawTable() {
  const wanted = $("filter").value.toLowerCase();
  let shown = frame.queues.filter((queue) => queue.name.toLowerCase().includes(wanted));
  if (sort.by !== null) {
    const value = COLUMNS[sort.by].value;
    const sign = sort.down ? -1 : 1;
    shown = shown.slice().sort((a, b) => { const [x, y] = [value(a), value(b)]; return sign * (x < y ? -1 : x > y ? 1 : 0); });
  }
  const body = $("queues").tBodies[0];
  const order = shown.map(drawRow);
  if (order.length !== body.children.length || order.some((row, place) => body.children[place] !== row)) body.replaceChildren(...order);
  const there = new Set(frame.queues.map((queue) => queue.id));
  for (const id of rows.keys()) if (!there.has(id)) { rows.delete(id); sparks.delete(id); }
  setText($("count"), shown.length === frame.queues.length ? `${shown.length}` : `${shown.length} of ${frame.queues.length}`);
  if (!frame.queues.length) body.replaceChildren(el("tr", {}, el("td", { colspan: String(COLUMNS.length), class: "empty" }, "There are no queues here yet.")));
}

function drawHeadings() {
  const head = $("queues").tHead.rows[0];
  head.replaceChildren(...COLUMNS.map((column, place) => {
    const arrow = sort.by === place ? (sort.down ? " ↓" : " ↑") : "";
    const cell = el("th", { class: [column.right ? "right" : "", column.later ? "later" : "", column.value ? "sortable" : ""].join(" ") }, column.title + arrow);
    if (column.value) {
      cell.addEventListener("click", () => {
        sort = { by: place, down: sort.by === place ? !sort.down : place > 1 };
        drawHeadings();
        if (frame) drawTable();
      });
    }
    return cell;
  }));
}

function drawTimeline() {
  const all = [...events.values()].sort((a, b) => b.time - a.time);
  drawEvents(all, frame.time);
  const state = all.slice(0, 100).map((event) => `${event.number}/${event.count}`).join();
  const body = $("events").tBodies[0];
  if (body.dataset.state === state) return;
  body.dataset.state = state;
  body.replaceChildren(...all.slice(0, 100).map((event) => el("tr", {},
    el("td", { class: "dim" }, clock(event.time)),
    el("td", {}, el("span", { class: shadeOf(event.kind) === "accent" ? "" : `${shadeOf(event.kind)}-text` }, event.kind + (event.count > 1 ? ` ×${event.count}` : ""))),
    el("td", { class: "name" }, event.name), el("td", { class: "text" }, event.text))));
}

function chartData() {
  const queue = chosen !== null && detail?.id === chosen ? detail : null;
  const data = queue ?? totals;
  if (!data || !window.Plotly) return null;
  for (const place of document.querySelectorAll(".of")) setText(place, queue ? queue.name : "all queues");
  return data;
}

function chart(make) {
  const data = chartData();
  if (data) make(data);
}

// What changes at once is drawn with each frame. The rest is drawn piece by piece, and takes at most a third of
// the time: on a slow machine it is drawn less often, and the page still answers.
const SLOW = [
  () => drawTopology($("topology"), frame.queues, frame.stalls, choose),
  drawOpen,
  () => chart(drawRate), () => chart(drawLag), () => chart(drawWake), () => chart(drawHistogram),
  drawTimeline,
];
let pending = false;

function drawSlowly(piece = 0) {
  pending = true;
  const began = performance.now();
  try { SLOW[piece](); } catch (error) { setTimeout(() => { throw error; }); }
  const took = performance.now() - began;
  if (piece + 1 < SLOW.length) setTimeout(drawSlowly, 2 * took, piece + 1);
  else setTimeout(() => { pending = false; if (!document.hidden && frame.time > drawn) draw(); }, Math.max(2 * took, 300));
}

let drawn = 0;

function draw() {
  if (!frame) return;
  drawHead(); drawCards(); drawTable();
  if (pending) return;
  drawn = frame.time;
  drawSlowly();
}

function drawOpen() {
  const queue = frame.queues.find((one) => one.id === chosen);
  $("detail").hidden = !queue;
  if (queue) {
    setText($("detail-name"), queue.name);
    if (detail?.id === chosen) drawDetail($("detail-body"), queue, detail, frame.time);
    else $("detail-body").replaceChildren(el("div", { class: "empty" }, "loading …"));
  }
}

function choose(id) {
  chosen = chosen === id ? null : id;
  detail = null;
  connect();
  drawOpen();
  draw();
}

$("close").addEventListener("click", () => choose(chosen));
$("filter").addEventListener("input", () => frame && drawTable());
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  draw();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) draw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(() => {
  if (lastFrame && Date.now() - lastFrame > 5000) {
    $("health").className = "badge bad";
    setText($("health"), "no answer from the monitor");
  }
}, 1000);
drawHeadings();
connect();
