// One queue in full.
import { ago, amount, clock, el, program, seconds, whole } from "./format.js";

const LEFT = new Set(["WHY", "WHAT", "CAUSE", "STATE"]);

function table(names, rows) {
  const align = (place) => (place === 0 ? "name" : LEFT.has(names[place]) ? "" : "right");
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...names.map((name, place) => el("th", { class: align(place) }, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, place) => el("td", { class: names[place] === "WHY" || names[place] === "WHAT" ? "text" : align(place) }, cell)))))));
}

function facts(queue, detail, now) {
  const writer = queue.writer;
  const rows = [["path", detail.path]];
  if (writer) {
    rows.push(["writer", `${writer.state}, pid ${writer.pid}, ${program(writer.command)}`], ["opened", `${ago(writer.since, now)} ago`]);
  }
  for (const [name, value] of Object.entries(detail.settings || {})) rows.push([name, value]);
  for (const [name, value] of Object.entries(detail.counters || {})) {
    rows.push([name.replaceAll("_", " "), name === "record_bytes" ? amount(value) : whole(value)]);
  }
  const [oldest, last] = queue.format === "java" ? ["oldest cycle", null] : ["oldest message", "last message"];
  if (queue.oldest) rows.push([oldest, `${ago(queue.oldest, now)} ago`]);
  if (last && queue.last) rows.push([last, `${ago(queue.last, queue.looked)} ago`]);
  return el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function readers(queue) {
  if (!queue.readers.length) return el("div", { class: "empty" }, "no reader has a position in it");
  return table(["READER", "PID", "STATE", "LAG", "BYTES", "OLDEST", "HOLDS"], queue.readers.map((one) => [
    one.name, one.pid ? String(one.pid) : "–",
    el("span", { class: one.lost || one.stopped ? "bad-text" : one.live ? "good-text" : "dim" }, one.lost ? "lost" : one.stopped ? "stopped" : one.live ? "open" : "away"),
    whole(one.lag), amount(one.bytes), one.lag ? seconds(one.age) : "–", whole(one.keeps)]));
}

function groups(queue, now) {
  return queue.groups.map((group) => el("div", {},
    el("h3", {}, `GROUP ${group.name}: ${whole(group.pending)} pending, ${whole(group.in_flight)} in flight, ` +
      `${whole(group.delayed)} delayed, ${whole(group.retried)} redelivered, oldest ${ago(group.oldest, now)}`),
    group.members.length ? table(["MEMBER", "IN FLIGHT", "ACKNOWLEDGED", "REDELIVERED"], group.members.map((member) => [
      `pid ${member.pid}${member.alive ? "" : ", died"}`, whole(member.in_flight), whole(member.acked), whole(member.redelivered)]))
      : el("div", { class: "empty" }, "no members")));
}

function part(title, body) {
  return el("div", {}, el("h3", {}, title), body);
}

export function drawDetail(place, queue, detail, now) {
  const slow = (detail.slow || []).slice().reverse();
  const parts = [
    part("WRITER", facts(queue, detail, now)),
    el("div", {}, el("h3", {}, "READERS"), readers(queue), ...groups(queue, now)),
    part("WHY SEGMENTS ARE KEPT, THE OLDEST FIRST", detail.kept.length
      ? table(["SEGMENT", "SIZE", "WHY"], detail.kept.map((one) => [String(one.segment), amount(one.bytes), one.text]))
      : el("div", { class: "empty" }, "nothing to say")),
    part("LAST SLOW APPENDS", slow.length
      ? table(["TIME", "SEQ", "TOOK", "CAUSE"], slow.map((one) => [clock(one.time), Number(one.seq).toLocaleString("en-US"), seconds(one.took_s), one.cause]))
      : el("div", { class: "empty" }, "none")),
  ];
  if (detail.errors && detail.errors.length) {
    parts.push(part("ERRORS", table(["TIME", "TIMES", "WHAT"], detail.errors.map((one) => [clock(one.time), whole(one.count), one.text]))));
  }
  const scrolled = place.querySelector("pre")?.scrollTop ?? 0;
  const messages = el("pre", { id: "messages" }, detail.messages.slice().reverse().join("\n") || "none");
  place.replaceChildren(el("div", { class: "columns" }, ...parts),
    el("h3", {}, "LAST MESSAGES, THE NEWEST FIRST, DECODED BY schema.json"), messages);
  messages.scrollTop = scrolled;
}
