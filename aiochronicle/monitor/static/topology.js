// Who writes what, who reads it: processes and queues as a graph in layers.
import { middle, program, rate, svg } from "./format.js";

const QUEUES_MAX = 24;
const WIDTH = 190; const HEIGHT = 40; const ACROSS = 270; const DOWN = 52;

function nodesAndEdges(queues) {
  const nodes = new Map(); const edges = [];
  const fanIns = new Map();
  for (const queue of queues) {
    for (const reader of queue.readers) {
      const key = `${reader.pid}/${reader.name}`;
      if (reader.live && reader.pid) fanIns.set(key, (fanIns.get(key) || 0) + 1);
    }
  }
  const node = (key, made) => { if (!nodes.has(key)) nodes.set(key, { key, ...made }); return nodes.get(key); };
  for (const queue of queues) {
    node(`q${queue.id}`, {
      kind: "queue", id: queue.id, title: queue.name, level: queue.level,
      text: queue.problem ? "cannot be read" : rate(queue.rate),
    });
    const writer = queue.writer;
    if (writer && writer.state !== "closed") {
      const made = node(`p${writer.pid}`, { kind: "process", title: program(writer.command) || "writer", program: program(writer.command), pid: writer.pid });
      made.dead = writer.state === "died";
      made.writes = true;
      edges.push({ from: made.key, to: `q${queue.id}`, moving: queue.rate > 0 && !made.dead });
    }
    for (const reader of queue.readers.flatMap((one) => membersOf(queue, one))) {
      const several = fanIns.get(`${reader.pid}/${reader.name}`) > 1;
      const own = nodes.get(`p${reader.pid}`);
      const key = reader.live && reader.pid ? `p${reader.pid}` : `r${queue.id}/${reader.name}`;
      const made = own || node(key, { kind: reader.live ? "process" : "away", title: reader.name, program: program(reader.command), pid: reader.pid });
      made.reads = (made.reads || new Set()).add(reader.name);
      if (made.reads.size === 1) made.title = reader.name; // says more than the name of the program
      made.merges = made.merges || (several && reader.of !== "group");
      made.shares = made.shares || reader.of === "group";
      edges.push({ from: `q${queue.id}`, to: made.key, moving: reader.live && queue.rate > 0 });
    }
  }
  return { nodes, edges };
}

// The members of a group share one position, which has the name of the group.
function membersOf(queue, reader) {
  const group = queue.groups.find((one) => one.name === reader.name);
  const alive = group ? group.members.filter((member) => member.alive) : [];
  return alive.length ? alive.map((member) => ({ ...reader, pid: member.pid, live: true, of: "group" })) : [reader];
}

function layer(nodes, edges) {
  const out = new Map([...nodes.keys()].map((key) => [key, []]));
  for (const edge of edges) out.get(edge.from).push(edge.to);
  const depth = new Map(); const active = new Set(); const order = [];
  const back = new Set();
  const visit = (key) => {
    active.add(key); depth.set(key, 0);
    for (const next of out.get(key)) {
      if (active.has(next)) back.add(`${key}>${next}`); // a loop: replies, for instance
      else if (!depth.has(next)) visit(next);
    }
    active.delete(key); order.push(key);
  };
  for (const [key, node] of nodes) if (node.writes && !node.reads && !depth.has(key)) visit(key);
  for (const key of nodes.keys()) if (!depth.has(key)) visit(key);
  for (const key of order.reverse()) {
    const node = nodes.get(key);
    if (node.kind === "queue" && depth.get(key) === 0) depth.set(key, 1); // written by nobody now
    for (const next of out.get(key)) {
      if (!back.has(`${key}>${next}`)) depth.set(next, Math.max(depth.get(next), depth.get(key) + 1));
    }
  }
  return depth;
}

function caption(node) {
  if (node.kind === "queue") return node.text;
  if (node.kind === "away") return "reader, away"; // its name is the title
  const role = node.dead ? "writer, died"
    : node.merges && node.writes ? "router" : node.merges ? "fan-in" : node.writes && node.reads ? "reads and writes" : node.writes ? "writer" : node.shares ? "member" : "reader";
  const more = node.reads && node.reads.size > 1 ? ` and ${[...node.reads].slice(1).join(", ")}` : "";
  const what = node.reads && node.program ? ` · ${node.program}` : ""; // else it is the title
  return `${role}${more}${node.pid ? ` · pid ${node.pid}` : ""}${what}`;
}

function short(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

export function drawTopology(place, all, stalls, open) {
  const shown = [...all].sort((a, b) => Number(b.level !== null) - Number(a.level !== null) || b.rate - a.rate)
    .slice(0, QUEUES_MAX).sort((a, b) => a.id - b.id);
  const { nodes, edges } = nodesAndEdges(shown);
  for (const stall of stalls) if (nodes.has(`p${stall.pid}`)) nodes.get(`p${stall.pid}`).level = "warning";
  const state = JSON.stringify([[...nodes.values()].map((node) => [node.key, node.title, caption(node), node.level, node.dead]),
    edges.map((edge) => [edge.from, edge.to, edge.moving])]);
  if (place.dataset.state === state) return;
  place.dataset.state = state;
  const depth = layer(nodes, edges);
  const columns = [];
  for (const [key, node] of nodes) (columns[depth.get(key)] ||= []).push(node);
  const filled = columns.filter((column) => column);
  filled.forEach((column, across) => {
    if (across > 0) { // near what feeds them
      const mean = (node) => {
        const from = edges.filter((edge) => edge.to === node.key).map((edge) => nodes.get(edge.from).y ?? 0);
        return from.length ? from.reduce((a, b) => a + b, 0) / from.length : 0;
      };
      column.sort((a, b) => mean(a) - mean(b));
    }
    column.forEach((node, row) => { node.x = 4 + across * ACROSS; node.y = 4 + row * DOWN; });
  });
  const tallest = Math.max(1, ...filled.map((column) => column.length));
  for (const column of filled) { // centred
    const shift = ((tallest - column.length) * DOWN) / 2;
    for (const node of column) node.y += shift;
  }
  const width = Math.max(1, filled.length - 1) * ACROSS + WIDTH + 8;
  const height = tallest * DOWN + 4;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "topology" });
  for (const edge of edges) {
    const from = nodes.get(edge.from); const to = nodes.get(edge.to);
    const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
    const bend = Math.max(40, (x2 - x1) / 2);
    drawing.append(svg("path", { d: `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`, class: edge.moving ? "moving" : "" }));
  }
  for (const node of nodes.values()) {
    const name = svg("text", { x: node.x + 10, y: node.y + 17 });
    name.textContent = node.kind === "queue" ? middle(node.title, 25) : short(node.title, 25);
    const below = svg("text", { x: node.x + 10, y: node.y + 32, class: "small" });
    below.textContent = short(caption(node), 29);
    const hint = svg("title"); hint.textContent = `${node.title}\n${caption(node)}`;
    const box = svg("g", { class: [node.kind, node.level || "", node.dead ? "dead" : ""].join(" ") },
      svg("rect", { x: node.x, y: node.y, width: WIDTH, height: HEIGHT, rx: node.kind === "queue" ? 3 : 14 }), name, below, hint);
    if (node.kind === "queue") box.addEventListener("click", () => open(node.id));
    drawing.append(box);
  }
  const note = all.length > shown.length ? `${all.length - shown.length} more queues are not drawn: those with alarms come first, then the busiest` : "";
  const remark = document.createElement("div");
  remark.className = "dim"; remark.textContent = note;
  place.replaceChildren(drawing, remark);
}
