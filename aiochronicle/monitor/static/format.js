// Numbers and times as people read them. Every text goes through textContent: no name is ever markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A name that is too long for its place loses its middle: names and paths differ at their ends.
const TAIL = 8;

export function setName(node, name) {
  if (node.textContent === name) return;
  const cut = name.length > 15 ? name.length - TAIL : name.length;
  node.className = "cut";
  node.replaceChildren(el("span", {}, name.slice(0, cut)), ...(cut < name.length ? [el("span", {}, name.slice(cut))] : []));
  node.title = name;
}

export function middle(text, length) {
  const tail = Math.floor(length / 2);
  return text.length > length ? `${text.slice(0, length - 1 - tail)}…${text.slice(-tail)}` : text;
}

export function whole(value) {
  return Math.round(value).toLocaleString("en-US");
}

export function rate(value) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size * 0.9995) return `${(value / size).toPrecision(3)}${unit}/s`;
  }
  return `${value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3))}/s`;
}

export function amount(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit === 0 || bytes >= 99.95 ? bytes.toFixed(0) : bytes.toFixed(1)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${Number((value * 1e6).toPrecision(3))} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (value < 60) return `${Number(value.toPrecision(2))} s`;
  if (value < 3600) return `${Math.floor(value / 60)}m ${Math.floor(value % 60)}s`;
  if (value < 86400) return `${Math.floor(value / 3600)}h ${Math.floor((value % 3600) / 60)}m`;
  return `${Math.floor(value / 86400)}d ${Math.floor((value % 86400) / 3600)}h`;
}

export function ago(moment, now) {
  return moment ? seconds(Math.max(0, (now - moment) / 1000)) : "–";
}

export function clock(moment) {
  return new Date(moment).toISOString().slice(11, 23);
}

// The program of a command line, without its directory, and without the interpreter of a script.
export function program(command) {
  if (!command) return "";
  const words = command.split(" ");
  const name = (path) => path.slice(path.lastIndexOf("/") + 1);
  if (/^python[0-9.]*$/.test(name(words[0])) && words.length > 1) {
    if (words[1] === "-m") return words.slice(2).join(" ");
    if (!words[1].startsWith("-")) return [name(words[1]), ...words.slice(2)].join(" ");
  }
  return [name(words[0]), ...words.slice(1)].join(" ");
}
