"use strict";
// Shows what the data says; every figure comes with it. Frames are moments of the schedule: [events since the frame before, how many
// changes, then for each change group and bytes, then the change of reserved bytes].
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const ROLES = D.roles.length;
const GROUPS = D.groups.length / 3;  // Label, module, role of each.
const label = g => D.labels[D.groups[3 * g]], module = g => D.modules[D.groups[3 * g + 1]], roleOf = g => D.groups[3 * g + 2];
const words = text => text.replaceAll("_", " ");

function size(bytes) {
  const sign = bytes < 0 ? "-" : "";
  let rest = Math.abs(bytes);
  for (const [unit, of] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (rest >= of) return sign + (rest / of).toFixed(2) + " " + unit;
  return sign + rest + " B";
}

// Level by level, all frames at once.
const frames = [];
for (let at = 0, event = 0; at < D.frames.length;) {
  event += D.frames[at];
  frames.push({event, at: at + 2, changes: D.frames[at + 1]});
  at += 3 + 2 * D.frames[at + 1];
}
// What the chart is of: the job as it is, or the job with one setting changed.
function levels(axes, N) {
  return {axes, N, events: new Float64Array(N), total: new Float64Array(N), reserved: new Float64Array(N), byRole: new Float64Array(N * ROLES), peak: 0, clock: ticking(axes.clock)};
}
// Estimated seconds at each moment, and at the end; null where nobody knows.
function ticking(list) {
  if (!list) return null;
  let now = 0;
  return Float64Array.from(list, tenths => (now += tenths) / 1e7);
}
function highest(of) { for (let i = 1; i < of.N; ++i) if (of.total[i] > of.total[of.peak]) of.peak = i; return of; }
const job = levels(D, frames.length);
{
  const {events, total, reserved, byRole} = job, now = new Float64Array(ROLES);
  let all = 0, kept = 0;
  frames.forEach((frame, i) => {
    for (let c = 0; c < frame.changes; ++c) {
      const group = D.frames[frame.at + 2 * c], bytes = D.frames[frame.at + 2 * c + 1];
      now[roleOf(group)] += bytes;
      all += bytes;
    }
    kept += D.frames[frame.at + 2 * frame.changes];
    events[i] = frame.event; total[i] = all; reserved[i] = kept;
    byRole.set(now, i * ROLES);
  });
  highest(job);
}
const VIEWS = JSON.parse($("views").textContent), made = new Map();
// A changed job's: [events since the moment before, the change of each role, the change of reserved bytes].
function changed(view) {
  const wide = ROLES + 2, of = levels(VIEWS[view], VIEWS[view].levels.length / wide), list = VIEWS[view].levels;
  for (let i = 0; i < of.N; ++i) {
    of.events[i] = (i ? of.events[i - 1] : 0) + list[i * wide];
    for (let r = 0; r < ROLES; ++r) { const bytes = (i ? of.byRole[(i - 1) * ROLES + r] : 0) + list[i * wide + 1 + r]; of.byRole[i * ROLES + r] = bytes; of.total[i] += bytes; }
    of.reserved[i] = (i ? of.reserved[i - 1] : 0) + list[i * wide + 1 + ROLES];
  }
  return highest(of);
}
let S = job;
// What lies from left to right: estimated time where there is one, else events.
let timed = job.clock !== null;
const along = () => timed && S.clock ? S.clock : S.events;
const extent = () => timed && S.clock ? S.clock[S.N] : Math.max(1, S.axes.events);
const duration = seconds => !seconds ? "0" : seconds >= 10 ? seconds.toFixed(1) + " s" : seconds >= 1 ? seconds.toFixed(2) + " s" : seconds >= .01 ? (1000 * seconds).toFixed(0) + " ms" : (1000 * seconds).toFixed(2) + " ms";
// Where an event lies: between two moments in proportion.
function spotOf(event) {
  if (along() === S.events) return event;
  const i = frameAt(event);
  if (event <= S.events[i]) return S.clock[i] * (S.events[i] ? event / S.events[i] : 0);
  const next = i + 1 < S.N ? S.events[i + 1] : S.axes.events;
  return S.clock[i] + (S.clock[i + 1] - S.clock[i]) * (next > S.events[i] ? (event - S.events[i]) / (next - S.events[i]) : 0);
}
// The frame that holds at an event, or at a place along the axis: the last one not after it.
const frameAt = event => frameIn(S.events, event);
function frameIn(list, event) {
  let low = 0, high = S.N;
  while (low < high) { const mid = (low + high) >> 1; if (list[mid] <= event) low = mid + 1; else high = mid; }
  return Math.max(0, low - 1);
}
// What is alive at a frame: bytes of each group, from the nearest state before that was kept.
const KEPT = 1024, states = [];
function aliveAt(frame) {
  let k = Math.min(Math.floor(frame / KEPT), states.length - 1), from = 0, live = new Float64Array(GROUPS);
  if (k >= 0) { live = Float64Array.from(states[k]); from = k * KEPT; }
  for (let i = from; i <= frame; ++i) {
    if (i % KEPT === 0 && i / KEPT === states.length) states.push(Float64Array.from(live));
    const {at, changes} = frames[i];
    for (let c = 0; c < changes; ++c) live[D.frames[at + 2 * c]] += D.frames[at + 2 * c + 1];
  }
  return live;
}
function inside(event) {
  let name = "";
  for (const [what, begin, end] of S.axes.passes) if (begin <= event && event < end) name = what;
  let best = Infinity, where = "";
  for (let i = 0; S === job && i < D.slices.length; i += 3) {
    const begin = D.slices[i], length = D.slices[i + 1];
    if (begin <= event && event < begin + length && length < best) { best = length; where = D.modules[D.slices[i + 2]]; }
  }
  return [name, where].filter(Boolean).join(" · ");
}
const phaseAt = event => (S.axes.phases.find(([, begin, end]) => begin <= event && event < end) || [""])[0];

const view = {from: 0, to: extent()}, hidden = new Set();
let cursor = -1, pinned = -1;

// --- the chart
const chart = $("chart"), tip = $("tip");
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function sharp(canvas) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return [context, width, height];
}
const box = () => ({left: chart.clientWidth < 600 ? 52 : 64, right: 8, top: 20, bottom: along() === S.clock ? 36 : 20});
const placeAtX = x => { const b = box(); return view.from + (view.to - view.from) * (x - b.left) / (chart.clientWidth - b.left - b.right); };
const shown = i => { if (!hidden.size) return S.total[i]; let sum = 0; for (let r = 0; r < ROLES; ++r) if (!hidden.has(r)) sum += S.byRole[i * ROLES + r]; return sum; };
function round(rough) { const power = 10 ** Math.floor(Math.log10(rough)), of = rough / power; return power * (of > 5 ? 10 : of > 2 ? 5 : of > 1 ? 2 : 1); }
function step(range) { const rough = range / 5, power = 2 ** Math.floor(Math.log2(rough)); return rough / power > 1.5 ? power * 2 : power; }

function draw() {
  const {axes, reserved, byRole, peak} = S, places = along();
  const [c, width, height] = sharp(chart), b = box(), w = width - b.left - b.right, h = height - b.top - b.bottom;
  const first = frameIn(places, view.from), last = frameIn(places, view.to);
  let top = 1;
  for (let i = first; i <= last; ++i) top = Math.max(top, shown(i));
  if (!hidden.size) {  // What is reserved beyond the limit is of a device that is larger.
    if (axes.limit !== null) top = Math.max(top, Math.min(axes.limit, 2 * top));
    for (let i = first; i <= last; ++i) if (axes.limit === null || reserved[i] <= axes.limit) top = Math.max(top, reserved[i]);
  }
  top *= 1.04;
  const x = place => b.left + w * (place - view.from) / (view.to - view.from), y = bytes => b.top + h * (1 - bytes / top);
  c.fillStyle = css("--soft"); c.strokeStyle = css("--line"); c.textAlign = "right"; c.textBaseline = "middle";
  const apart = step(top), unit = apart >= 2 ** 30 ? ["GiB", 2 ** 30] : apart >= 2 ** 20 ? ["MiB", 2 ** 20] : ["KiB", 2 ** 10];
  for (let v = 0; v <= top; v += apart) {
    c.beginPath(); c.moveTo(b.left, Math.round(y(v)) + .5); c.lineTo(width - b.right, Math.round(y(v)) + .5); c.stroke();
    c.fillText(+(v / unit[1]).toFixed(1) + " " + unit[0], b.left - 6, y(v));
  }
  // Of the frames that fall into one column, the highest; every column has what held when it began.
  const columns = Math.max(1, Math.floor(w)), picks = new Int32Array(columns);
  for (let col = 0, i = first; col < columns; ++col) {
    const end = view.from + (view.to - view.from) * (col + 1) / columns;
    let best = i;
    while (i < last && places[i + 1] < end) { ++i; if (shown(i) > shown(best)) best = i; }
    picks[col] = best;
  }
  const base = new Float64Array(columns);
  for (let r = 0; r < ROLES; ++r) {
    if (hidden.has(r)) continue;
    c.fillStyle = css("--c" + r); c.beginPath(); c.moveTo(b.left, y(base[0]));
    for (let col = 0; col < columns; ++col) { const v = base[col] + byRole[picks[col] * ROLES + r]; c.lineTo(b.left + col, y(v)); c.lineTo(b.left + col + 1, y(v)); }
    for (let col = columns; col-- > 0;) { c.lineTo(b.left + col + 1, y(base[col])); c.lineTo(b.left + col, y(base[col])); base[col] += byRole[picks[col] * ROLES + r]; }
    c.fill();
  }
  if (!hidden.size) {
    c.strokeStyle = css("--text"); c.setLineDash([4, 3]); c.beginPath();
    for (let col = 0; col < columns; ++col) c[col ? "lineTo" : "moveTo"](b.left + col, Math.max(b.top - 2, y(reserved[picks[col]])));
    c.stroke(); c.setLineDash([]);
  }
  c.textAlign = "left"; c.textBaseline = "alphabetic";
  const write = (text, at, down) => { c.save(); c.strokeStyle = css("--ground"); c.lineWidth = 3; c.lineJoin = "round"; c.strokeText(text, at, down); c.restore(); c.fillText(text, at, down); };
  const marks = (list, at, dashed) => {
    let free = -Infinity;
    for (const [name, event] of list) {
      const begin = spotOf(event);
      if (begin < view.from || begin > view.to) continue;
      if (dashed) { c.strokeStyle = css("--soft"); c.setLineDash([2, 3]); c.beginPath(); c.moveTo(x(begin), b.top - 14); c.lineTo(x(begin), b.top + h); c.stroke(); c.setLineDash([]); }
      const text = words(name).replace(/, micro-batch 1$/, "");
      c.fillStyle = css("--soft");
      if (x(begin) + 3 > free && x(begin) + 3 + c.measureText(text).width < width) { c.fillText(text, x(begin) + 3, at); free = x(begin) + 8 + c.measureText(text).width; }
    }
  };
  marks(axes.phases, b.top - 6, true);
  marks(axes.passes, height - 5, false);
  if (places === S.clock) {
    const every = round((view.to - view.from) / Math.max(2, w / 110));
    c.fillStyle = css("--soft"); c.textAlign = "center";
    for (let at = Math.ceil(view.from / every) * every; at <= view.to; at += every) if (x(at) < width - 24) c.fillText(duration(at), x(at), height - 21);
    c.textAlign = "left";
  }
  if (axes.limit !== null && !hidden.size && axes.limit <= top) {
    c.strokeStyle = c.fillStyle = css("--bad"); c.lineWidth = 1.5; c.beginPath(); c.moveTo(b.left, y(axes.limit)); c.lineTo(width - b.right, y(axes.limit)); c.stroke(); c.lineWidth = 1;
    write("may reserve " + size(axes.limit), b.left + 4, y(axes.limit) - 5);
  }
  const over = axes.over === null ? -1 : spotOf(axes.over);
  if (over >= view.from && over <= view.to) {
    c.fillStyle = css("--bad"); c.beginPath(); c.arc(x(over), y(Math.min(axes.limit, top)), 5, 0, 7); c.fill();
    c.textAlign = x(over) > width * .7 ? "right" : "left";
    write("out of memory", x(over) + (c.textAlign === "right" ? -9 : 9), y(Math.min(axes.limit, top)) + 14); c.textAlign = "left";
  }
  for (const [at, solid] of [[peak, false], [pinned, true], [cursor, false]]) {
    if (at < 0 || places[at] < view.from || places[at] > view.to) continue;
    if (at === peak && at !== cursor && at !== pinned) { c.fillStyle = css("--text"); c.beginPath(); c.moveTo(x(places[at]), y(shown(at)) - 2); c.lineTo(x(places[at]) - 5, y(shown(at)) - 10); c.lineTo(x(places[at]) + 5, y(shown(at)) - 10); c.fill(); continue; }
    c.strokeStyle = css("--text"); c.lineWidth = solid ? 2 : 1; c.beginPath(); c.moveTo(x(places[at]), b.top); c.lineTo(x(places[at]), b.top + h); c.stroke(); c.lineWidth = 1;
  }
}

// --- words for one moment
function cell(row, text, kind) { const td = row.insertCell(); if (kind) td.className = kind; td.append(text); return td; }
function swatch(role) { const i = document.createElement("i"); i.style.background = `var(--c${role})`; return i; }
function say(frame) {
  const {events, total, reserved, byRole} = S;
  const lines = [];
  for (let r = 0; r < ROLES; ++r) if (byRole[frame * ROLES + r] > 0) lines.push([byRole[frame * ROLES + r], r]);
  lines.sort((a, b) => b[0] - a[0]);
  tip.replaceChildren();
  const head = document.createElement("b"); head.textContent = size(total[frame]);
  const where = document.createElement("div"); where.className = "soft"; where.textContent = `${words(phaseAt(events[frame]))}, ${S.clock ? duration(S.clock[frame]) + ", " : ""}event ${events[frame]}: ${inside(events[frame])}`;
  tip.append(head, where);
  for (const [bytes, r] of lines) { const div = document.createElement("div"); div.className = "key"; div.append(swatch(r), `${words(D.roles[r])} ${size(bytes)}`); tip.append(div, document.createElement("br")); }
  const rest = document.createElement("div"); rest.className = "soft"; rest.textContent = `reserved ${size(reserved[frame])}` + (pinned >= 0 ? "" : " · click to keep");
  tip.append(rest);
}
function place(frame) {
  const b = box(), x = b.left + (chart.clientWidth - b.left - b.right) * (along()[frame] - view.from) / (view.to - view.from);
  tip.style.display = "block";
  const right = x + 14 + tip.offsetWidth < chart.clientWidth;
  tip.style.left = Math.max(0, right ? x + 14 : x - 14 - tip.offsetWidth) + "px"; tip.style.top = b.top + "px";
}
// Tables and map of the pinned moment, else of the peak.
function moment() {
  const {events, total, byRole} = S, frame = pinned >= 0 ? pinned : S.peak;
  $("when").textContent = (pinned >= 0 ? "at the chosen moment" : "at the peak") + `: ${size(total[frame])} in ${words(phaseAt(events[frame]))}, event ${events[frame]}, ${inside(events[frame])}`;
  $("back").hidden = pinned < 0;
  const roles = $("roles").tBodies[0]; roles.replaceChildren();
  const order = [...D.roles.keys()].filter(r => byRole[frame * ROLES + r] > 0).sort((a, b) => byRole[frame * ROLES + b] - byRole[frame * ROLES + a]);
  for (const r of order) {
    const row = roles.insertRow(), bytes = byRole[frame * ROLES + r], bar = document.createElement("span");
    cell(row, swatch(r)).append(words(D.roles[r])); cell(row, size(bytes)); cell(row, (100 * bytes / total[frame]).toFixed(1) + " %");
    bar.className = "share"; bar.style.background = `var(--c${r})`; bar.style.width = 100 * bytes / byRole[frame * ROLES + order[0]] + "%";
    cell(row, bar).style.width = "40%";
  }
  // Modules are known of the job as it is alone.
  for (const part of document.querySelectorAll(".of-job")) part.hidden = S !== job;
  if (S !== job) return;
  const live = aliveAt(frame), groups = [...live.keys()].filter(g => live[g] > 0).sort((a, b) => live[b] - live[a]), alike = new Map();
  for (const g of groups) {
    const place = module(g).replace(/\.\d+(?=\.|$)/, ".*"), key = label(g) + "|" + place + "|" + roleOf(g);
    const one = alike.get(key) || {what: label(g), place, role: roleOf(g), bytes: 0, modules: 0};
    one.bytes += live[g]; ++one.modules; alike.set(key, one);
  }
  const wanted = $("filter").value.toLowerCase(), table = $("live").tBodies[0]; table.replaceChildren();
  const rows = [...alike.values()].filter(one => !wanted || `${one.what} ${one.place} ${words(D.roles[one.role])}`.toLowerCase().includes(wanted)).sort((a, b) => b.bytes - a.bytes);
  let rest = 0;
  rows.forEach((one, i) => {
    if (i >= 25) { rest += one.bytes; return; }
    const row = table.insertRow(), what = cell(row, swatch(one.role)), place = document.createElement("span");
    place.className = "soft"; place.textContent = " " + one.place; what.append(one.what, place); cell(row, size(one.bytes)); cell(row, one.modules);
  });
  if (rest) { const row = table.insertRow(); cell(row, `${rows.length - 25} more`); cell(row, size(rest)); cell(row, ""); }
  map(groups, live);
}

// --- the map: every byte in a rectangle with a name
let by = "module", tiles = [];
function layerOf(path) { const m = /^(.*?\.\d+)(\.|$)/.exec(path); return m ? m[1] : path.split(".").slice(0, 2).join(".") || "no module"; }
function squares(items, x, y, w, h, put) {  // Squarified: rows as long as they make the rectangles squarer.
  let sum = items.reduce((s, i) => s + i.bytes, 0);
  for (let at = 0; at < items.length;) {
    const short = Math.min(w, h), scale = w * h / sum;
    let end = at, row = 0, worst = Infinity;
    while (end < items.length) {
      const next = row + items[end].bytes, side = next * scale / short;
      let bad = 0;
      for (let i = at; i <= end; ++i) { const other = items[i].bytes * scale / side; bad = Math.max(bad, side / other, other / side); }
      if (bad > worst) break;
      worst = bad; row = next; ++end;
    }
    const side = row * scale / short;
    let offset = 0;
    for (let i = at; i < end; ++i) { const long = items[i].bytes * scale / side; put(items[i], ...(w >= h ? [x, y + offset, side, long] : [x + offset, y, long, side])); offset += long; }
    if (w >= h) { x += side; w -= side; } else { y += side; h -= side; }
    sum -= row; at = end;
  }
}
function map(groups, live) {
  const outer = new Map();
  for (const g of groups) {
    const key = by === "role" ? words(D.roles[roleOf(g)]) : layerOf(module(g));
    const one = outer.get(key) || {name: key, bytes: 0, inner: new Map()};
    const name = by === "role" ? label(g) + " " + module(g).replace(/\.\d+(?=\.|$)/, ".*") : label(g) + " " + module(g).slice(key.length + 1), id = name + roleOf(g);
    const part = one.inner.get(id) || {name, bytes: 0, role: roleOf(g)};
    part.bytes += live[g]; one.bytes += live[g]; one.inner.set(id, part); outer.set(key, one);
  }
  tiles = [...outer.values()].sort((a, b) => b.bytes - a.bytes);
  for (const one of tiles) one.parts = [...one.inner.values()].sort((a, b) => b.bytes - a.bytes);
  paint();
}
let rectangles = [];
function paint() {
  const [c, width, height] = sharp($("map"));
  rectangles = [];
  if (!tiles.length) return;
  c.textBaseline = "top"; c.textAlign = "left";
  const write = (text, x, y, w, h) => { if (w < 26 || h < 14) return; let t = text; while (t && c.measureText(t).width > w - 6) t = t.slice(0, -1); if (t.length > 2 || t === text) c.fillText(t === text ? t : t.slice(0, -1) + "…", x + 3, y + 2); };
  squares(tiles, 0, 0, width, height, (one, x, y, w, h) => {
    const head = w > 40 && h > 30 ? 15 : 0;
    squares(one.parts, x + 1, y + head + 1, Math.max(.5, w - 2), Math.max(.5, h - head - 2), (part, px, py, pw, ph) => {
      c.fillStyle = css("--c" + part.role); c.fillRect(px, py, Math.max(.4, pw - .6), Math.max(.4, ph - .6));
      c.fillStyle = "#000"; write(part.name, px, py, pw, ph);
      rectangles.push({x: px, y: py, w: pw, h: ph, text: `${part.name.trim()}: ${size(part.bytes)} of ${one.name}'s ${size(one.bytes)}`});
    });
    if (head) { c.fillStyle = css("--text"); write(`${one.name.split(".").slice(-2).join(".")} ${size(one.bytes)}`, x, y, w, 15); }
    c.strokeStyle = css("--ground"); c.lineWidth = 2; c.strokeRect(x, y, w, h); c.lineWidth = 1;
  });
}

// --- what one can do
let drawing = false;
const soon = () => { if (!drawing) { drawing = true; requestAnimationFrame(() => { drawing = false; draw(); }); } };
function zoom(factor, around) {
  const from = around - (around - view.from) * factor, to = around + (view.to - around) * factor;
  view.from = Math.max(0, from); view.to = Math.min(extent(), Math.max(view.from + extent() / 1e4, to)); soon();
}
// The highest moment within the pixel under the pointer: what the chart shows there.
function frameAtX(x) {
  const list = along(), place = placeAtX(x), wide = (view.to - view.from) / Math.max(1, chart.clientWidth - box().left - box().right);
  let best = frameIn(list, place);
  for (let i = best; i < S.N && list[i] < place + wide / 2; ++i) if (shown(i) > shown(best)) best = i;
  return best;
}
function look(frame) { cursor = Math.max(0, Math.min(S.N - 1, frame)); say(cursor); place(cursor); soon(); }
function pin(frame) { pinned = frame; moment(); soon(); }
const spot = event => event.clientX - chart.getBoundingClientRect().left;
let drag = null;
chart.addEventListener("pointermove", event => {
  if (drag && Math.abs(spot(event) - drag.x) > 4) {
    drag.moved = true;
    const shift = (drag.x - spot(event)) * (drag.to - drag.from) / chart.clientWidth, by = Math.max(-drag.from, Math.min(extent() - drag.to, shift));
    view.from = drag.from + by; view.to = drag.to + by;
  }
  look(frameAtX(spot(event)));
});
chart.addEventListener("pointerleave", () => { cursor = -1; tip.style.display = "none"; soon(); });
chart.addEventListener("pointerdown", event => { drag = {x: spot(event), from: view.from, to: view.to, moved: false}; });
window.addEventListener("pointerup", event => {
  if (drag && !drag.moved && event.target === chart) pin(pinned >= 0 && Math.abs(pinned - frameAtX(spot(event))) < 2 ? -1 : frameAtX(spot(event)));
  drag = null;
});
chart.addEventListener("wheel", event => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : .8, placeAtX(spot(event))); }, {passive: false});
const whole = () => { view.from = 0; view.to = extent(); soon(); };
function oneStep() { const [, begin, end] = S.axes.phases.find(([name]) => name === "steady") || ["", 0, S.axes.events]; view.from = spotOf(begin); view.to = spotOf(end); soon(); }
chart.addEventListener("dblclick", whole);
chart.addEventListener("keydown", event => {
  const at = cursor >= 0 ? cursor : pinned >= 0 ? pinned : S.peak, far = event.shiftKey ? Math.ceil(S.N / 50) : 1;
  const act = {ArrowLeft: () => look(at - far), ArrowRight: () => look(at + far), Home: () => look(0), End: () => look(S.N - 1), Enter: () => pin(at), " ": () => pin(at),
    Escape: () => { tip.style.display = "none"; cursor = -1; pin(-1); }, "+": () => zoom(.7, along()[at]), "-": () => zoom(1.4, along()[at]), "0": whole}[event.key];
  if (act) { event.preventDefault(); act(); }
});
$("map").addEventListener("pointermove", event => {
  const at = $("map").getBoundingClientRect(), x = event.clientX - at.left, y = event.clientY - at.top;
  const hit = rectangles.find(r => x >= r.x && x < r.x + r.w && y >= r.y && y < r.y + r.h);
  $("tile").textContent = hit ? hit.text : "";
});
$("map").addEventListener("pointerleave", () => { $("tile").textContent = ""; });
D.roles.forEach((name, r) => {
  let most = 0;
  for (let i = 0; i < job.N; ++i) most = Math.max(most, job.byRole[i * ROLES + r]);
  if (!most) return;
  const button = document.createElement("button");
  button.className = "key"; button.setAttribute("aria-pressed", "true"); button.append(swatch(r), words(name));
  button.addEventListener("click", () => { hidden.has(r) ? hidden.delete(r) : hidden.add(r); button.setAttribute("aria-pressed", String(!hidden.has(r))); soon(); });
  $("keys").append(button);
});
for (const how of ["module", "role"]) $("by-" + how).addEventListener("click", () => {
  by = how;
  for (const one of ["module", "role"]) $("by-" + one).setAttribute("aria-pressed", String(one === how));
  moment();
});
$("all").addEventListener("click", whole);
$("steady").addEventListener("click", oneStep);
$("axis").hidden = !job.clock;
$("axis").addEventListener("click", () => { timed = !timed; $("axis").setAttribute("aria-pressed", String(timed)); whole(); });
// What if: verdict, cards, chart and roles become those of the changed job.
const asItIs = {verdict: $("verdict").textContent, kind: $("verdict").className, job: $("job").textContent, reason: $("reason").textContent, cards: $("cards").innerHTML};
const switches = [...document.querySelectorAll("[data-view]")];
function turnTo(which) {
  const said = which === "" ? asItIs : VIEWS[which];
  if (which !== "" && !made.has(which)) made.set(which, changed(which));
  S = which === "" ? job : made.get(which);
  for (const one of switches) one.setAttribute("aria-pressed", String(one.dataset.view === which));
  $("verdict").textContent = said.verdict; $("verdict").className = said.kind; $("job").textContent = said.job; $("reason").textContent = said.reason;
  $("cards").innerHTML = said.cards;
  pinned = cursor = -1; tip.style.display = "none"; whole(); moment();
}
for (const button of switches) button.addEventListener("click", () => turnTo(button.dataset.view));
$("back").addEventListener("click", () => pin(-1));
$("filter").addEventListener("input", moment);
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => {
  const text = $(button.dataset.copy).textContent, done = () => { button.textContent = "copied"; };
  const select = () => { getSelection().selectAllChildren($(button.dataset.copy)); document.execCommand("copy"); done(); };
  navigator.clipboard ? navigator.clipboard.writeText(text).then(done, select) : select();  // A page from a disk may have no clipboard.
});
new ResizeObserver(() => { soon(); paint(); }).observe(chart);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { soon(); paint(); });
moment();
draw();
// What a test can ask for, and a page around this one: `turnTo` shows a job that this page did not know, in the form of the views.
window.dsplan = {
  turnTo: view => { VIEWS.other = view; made.delete("other"); turnTo("other"); },
  view, draw, frames: job.N, peak: job.total[job.peak], peakEvent: job.events[job.peak], byRole: Array.from(job.byRole.subarray(job.peak * ROLES, (job.peak + 1) * ROLES)),
  alive: () => aliveAt(pinned >= 0 ? pinned : job.peak).reduce((a, b) => a + b, 0), shownPeak: () => S.total[S.peak], shownEvent: () => S.events[S.peak], seconds: () => S.clock ? S.clock[S.N] : null, spotOf};
