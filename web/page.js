"use strict";
// The form says a command line, the program answers it in a worker (worker.js), and this shows the answer. No figure is made
// here: what is shown is the program's JSON, and the chart is the program's own page, in a frame.
const $ = id => document.getElementById(id);
const EXAMPLE = ["llama-3-8b", "--hardware", "h100-sxm", "--gpus", "8", "--zero-stage", "3", "--micro-batch", "1", "--seq", "2048"];
// Options of `simulate` that say how to print, or where, and not which job it is.
const NOT_OF_THE_JOB = ["--help", "--format", "--out", "--explain", "--verbose", "--color", "--offline", "--rank", "--phase"];
// What `plan` chooses itself.
const CHOSEN_BY_PLAN = ["--zero-stage", "--micro-batch", "--grad-accum", "--checkpoint", "--runtime", "--tp", "--strict"];
const ROLES = ["parameters", "gradients", "optimizer", "runtime_buffers", "activations", "temporaries", "inputs", "module_buffers", "workspace"];

// --- the program

class Program {
  constructor() { this.worker = new Worker("worker.js"); this.open = new Map(); this.next = 1; this.worker.onmessage = ({data}) => this.take(data); }
  take(data) { const done = this.open.get(data.id); this.open.delete(data.id); done(data); }
  ask(words, call = "dsplan_answer") {
    return new Promise(done => { this.open.set(this.next, done); this.worker.postMessage({id: this.next++, call, words, files: Object.fromEntries(files)}); });
  }
}
// Of several wishes in a row the last: nobody waits for what has been changed already.
function latest(work) {
  let running = false, waiting = null;
  return async function wish(...what) {
    if (running) { waiting = what; return; }
    running = true;
    try { await work(...what); } finally { running = false; }
    if (waiting) { const then = waiting; waiting = null; wish(...then); }
  };
}
const files = new Map();
const answers = new Program();
let pictures = null;  // A second one, for what takes longer; made when it is wanted.
const painter = () => pictures ??= new Program();

// --- words

const shellWord = word => /^[\w\-./:,+=@%]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
const shellLine = words => words.map(shellWord).join(" ");
function shellWords(line) {
  const words = [];
  for (const [whole] of line.matchAll(/(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+/g)) words.push(whole.replace(/'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)/g, (_, a, b, c) => a ?? c ?? b.replace(/\\(.)/g, "$1")));
  return words;
}
const controls = () => [...document.querySelectorAll("[data-option]")];
function said(control) {
  if (control.type === "checkbox") return control.checked ? [control.dataset.option] : [];
  if (control.type === "radio") return control.checked && control.value ? [control.dataset.option, control.value] : [];
  const value = control.value.trim();
  return value ? [control.dataset.option, value] : [];
}
const words = () => [$("MODEL").value.trim(), ...controls().flatMap(said)].filter(Boolean);
function fill(list) {
  for (const control of controls()) if (control.type === "checkbox" || control.type === "radio") control.checked = control.type === "radio" && !control.value; else control.value = "";
  $("MODEL").value = "";
  for (let i = 0; i < list.length; ++i) {
    const [name, joined] = list[i].split(/=(.*)/s), found = controls().filter(one => one.dataset.option === name);
    if (!list[i].startsWith("--")) { $("MODEL").value = list[i]; continue; }
    if (!found.length) continue;
    if (found[0].type === "checkbox") { found[0].checked = true; continue; }
    const value = joined ?? list[++i] ?? "";
    if (found[0].type === "radio") { for (const one of found) one.checked = one.value === value; continue; }
    if (found[0].tagName === "SELECT" && ![...found[0].options].some(one => one.value === value)) found[0].add(new Option(value, value));
    found[0].value = value;
  }
  slidersFollow();
}

// --- sliders: powers of two beside an exact number

function slidersFollow() {
  for (const slider of document.querySelectorAll("[data-of]")) {
    const value = Number($(slider.dataset.of).value);
    slider.value = value > 0 ? Math.log2(value) : slider.min;
    slider.classList.toggle("unsaid", !(value > 0));
  }
}
function slid(slider) { $(slider.dataset.of).value = Math.round(2 ** Number(slider.value)); slider.classList.remove("unsaid"); }

// --- the answer

const grouped = value => String(value).replace(/\B(?=(\d{3})+$)/g, ",");
function size(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  const sign = bytes < 0 ? "-" : "", all = Math.abs(bytes);
  for (const [unit, of] of [["PiB", 2 ** 50], ["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (all >= of) return `${sign}${(all / of).toFixed(2)} ${unit}`;
  return `${sign}${all} B`;
}
const spaced = text => text.replaceAll("_", " ");
const element = (name, text, kind) => { const made = document.createElement(name); if (text !== undefined) made.textContent = text; if (kind) made.className = kind; return made; };
function row(table, ...cells) { const made = table.tBodies[0].insertRow(); for (const one of cells) made.insertCell().append(one); return made; }
const kindOf = verdict => ({fits: "good", tight: "warn", fits_after_retries: "warn", does_not_fit: "bad"})[verdict] ?? "soft";
function bytesCell(bytes) { const cell = element("span", size(bytes)); if (bytes !== null && bytes !== undefined) cell.append(element("small", `${grouped(bytes)} B`, "soft exact")); return cell; }
function card(title, figure, more, kind) { const made = element("div", undefined, "card"); made.append(element("span", title, "soft"), element("b", figure, kind), element("span", more, "soft")); return made; }
const duration = seconds => seconds >= 10 ? `${seconds.toFixed(1)} s` : seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(1000 * seconds).toFixed(0)} ms`;
const swatch = kind => { const made = element("i"); made.style.background = kind; return made; };

// What stands on the device at the peak, from below: roles, then what the allocator keeps beyond them, then the rest of the process.
function layersOf(said, peak) {
  const list = ROLES.map((role, i) => ({name: spaced(role), bytes: peak.by_role[role], colour: `var(--c${i})`}));
  if (peak.reserved !== null) list.push({name: "kept by the allocator, at most", bytes: peak.reserved - peak.requested, colour: "var(--kept)"});
  list.push({name: "CUDA context", bytes: said.context_bytes, colour: "var(--context)"}, {name: "communicators", bytes: said.communicators_bytes, colour: "var(--wires)"});
  return list.filter(one => one.bytes > 0);
}
function showStack(said, layers) {
  const stack = $("stack"), keys = $("keys"), all = layers.reduce((sum, one) => sum + one.bytes, 0), whole = Math.max(all, said.capacity_bytes ?? 0);
  stack.replaceChildren(); keys.replaceChildren();
  for (const one of layers) {
    const part = element("span"); part.style.background = one.colour; part.style.width = `${100 * one.bytes / whole}%`; part.title = `${one.name}: ${size(one.bytes)}`;
    stack.append(part);
    const key = element("span", undefined, "key"); key.append(swatch(one.colour), `${one.name} ${size(one.bytes)}`); keys.append(key);
  }
  if (said.capacity_bytes) { const mark = element("b", undefined, all > said.capacity_bytes ? "over" : ""); mark.style.left = `${100 * said.capacity_bytes / whole}%`; mark.title = `capacity ${size(said.capacity_bytes)}`; stack.append(mark); }
  stack.setAttribute("aria-label", layers.map(one => `${one.name} ${size(one.bytes)}`).join(", "));
}
function showCards(said) {
  const peak = said.memory?.peak, cards = $("cards"), kind = kindOf(said.verdict), of = said.capacity_bytes ? `of ${size(said.capacity_bytes)}` : "capacity unknown";
  cards.replaceChildren();
  const rest = (said.context_bytes ?? 0) + (said.communicators_bytes ?? 0);
  if (peak?.reserved_expected) cards.append(card("takes", size(peak.reserved_expected + rest), of, kind));
  if (peak?.process) cards.append(card("at most", size(peak.process), `needs at least ${size(said.needed_bytes)}`));
  else if (said.needed_bytes) cards.append(card("needs at least", size(said.needed_bytes), of, kind));
  if (said.memory?.states) cards.append(card("states", size(said.memory.states.total), "parameters, gradients, optimizer"));
  if (said.time?.seconds) cards.append(card("one step, estimated", duration(said.time.seconds), `${duration(said.time.low_seconds)} to ${duration(said.time.high_seconds)}, ${grouped(Math.round(said.time.tokens_per_second))} tokens/s`));
  if (said.memory?.host?.per_node) cards.append(card("host memory of a node", size(said.memory.host.per_node), said.memory.host.verdict === "unknown" ? "--host-memory says what there is" : spaced(said.memory.host.verdict)));
}
function showTables(said) {
  const peak = said.memory?.peak, layers = peak?.by_role ? layersOf(said, peak) : [], most = Math.max(...layers.map(one => one.bytes));
  showStack(said, layers);
  $("event").textContent = peak ? `${size(peak.requested)} requested: ${peak.event}` : "no schedule of this job: formulas answer for the states";
  for (const id of ["roles", "phases", "assumed"]) $(id).tBodies[0].replaceChildren();
  for (const one of layers) {
    const bar = element("span", undefined, "share"); bar.style.width = `${100 * one.bytes / most}%`; bar.style.background = one.colour;
    row($("roles"), one.name, bytesCell(one.bytes), bar);
  }
  for (const phase of said.memory?.phases ?? []) row($("phases"), spaced(phase.name), ...["peak_requested", "peak_allocated", "peak_reserved"].map(key => bytesCell(phase[key])));
  for (const one of said.assumptions ?? []) row($("assumed"), one.name, one.value, one.reason);
  for (const one of said.not_modelled ?? []) row($("assumed"), one.what, "not modelled", one.why);
}
let shown = null;
function show(answer, asked) {
  const understood = answer.code === 0 || answer.code === 3, refusal = $("refusal");
  refusal.hidden = understood;
  $("figures").hidden = !understood && !shown;
  $("answer").classList.toggle("old", !understood);
  $("notes").hidden = !understood || !answer.err;
  $("said").textContent = answer.err;
  if (!understood) { refusal.textContent = answer.err; $("verdict").textContent = answer.code === 2 ? "refused" : "failed"; $("verdict").className = "bad"; $("model").textContent = asked[0] ?? ""; $("reason").textContent = answer.err.trim().split("\n")[0]; return; }
  shown = JSON.parse(answer.out);
  $("model").textContent = shown.model;
  $("verdict").textContent = spaced(shown.verdict); $("verdict").className = kindOf(shown.verdict);
  $("reason").textContent = shown.verdict_reason;
  $("json").textContent = answer.out;
  showCards(shown);
  showTables(shown);
}

// --- the chart: the program's own page, twice, so that the next is ready before the last one goes

let frame = null, rest = 0;
const QUIET = "h1, #job, #reason, #cards { display: none } body { padding: 0 0 1.5em; max-width: none; overflow: hidden } body.other #switches, body.other .what-if { visibility: hidden }";
function fit(of) { const body = of.contentDocument?.body; if (body) of.style.height = `${body.scrollHeight + 4}px`; }
function putPage(html) {
  return new Promise(done => {
    const next = element("iframe"); next.title = "Memory over the step"; next.className = "coming"; next.srcdoc = html;
    next.onload = () => {
      const page = next.contentDocument;
      page.head.append(Object.assign(page.createElement("style"), {textContent: QUIET}));
      new ResizeObserver(() => fit(next)).observe(page.body);
      next.className = ""; fit(next);
      frame?.remove(); frame = next; done();
    };
    $("frames").append(next);
  });
}
const hideFrame = () => { frame?.remove(); frame = null; };
const paint = latest(async (asked, whole) => {
  if (!whole && !frame) return;
  const answer = await (whole ? painter().ask(["emit", ...asked, "--format", "html"]) : painter().ask(asked, "dsplan_chart"));
  if (answer.code !== 0) return hideFrame();
  if (whole) return putPage(answer.out);
  frame?.contentDocument.body.classList.add("other");
  frame?.contentWindow.dsplan.turnTo(JSON.parse(answer.out));
});
function paintSoon(asked) {
  clearTimeout(rest);
  paint(asked, false);
  rest = setTimeout(() => paint(asked, true), 400);
}

// --- from a change to an answer

const taken = [];  // How long answers took, in milliseconds, from the change to what is shown.
const answer = latest(async (asked, began) => {
  const got = await answers.ask(["simulate", ...asked, "--format", "json"]);
  show(got, asked);
  taken.push(performance.now() - began);
  if (got.code === 0 || got.code === 3) paintSoon(asked); else { clearTimeout(rest); hideFrame(); }
});
function changed() {
  const asked = words();
  $("command").textContent = `dsplan simulate ${shellLine(asked)}`;
  history.replaceState(null, "", `#${encodeURIComponent(shellLine(asked))}`);
  $("plans").hidden = true;
  return answer(asked, performance.now());
}
function withoutChosen(list) {
  const kept = [];
  for (let i = 0; i < list.length; ++i) if (CHOSEN_BY_PLAN.includes(list[i])) { if (list[i] !== "--strict") ++i; } else kept.push(list[i]);
  return kept;
}
async function plan() {
  const asked = ["plan", ...withoutChosen(words())], area = $("plans"), line = `$ dsplan ${shellLine(asked)}\n`;
  area.hidden = false; area.textContent = `${line}searching ...`;
  $("plan").disabled = true;
  const got = await painter().ask(asked);
  $("plan").disabled = false;
  area.textContent = line + got.err + got.out;
}

// --- what the program has: its lists, its options and their words

function lines(text) { return text.split("\n").slice(1).map(line => line.split(/\s+/)[0]).filter(Boolean); }
function addOptions(help) {
  const known = new Set(controls().map(one => one.dataset.option));
  let last = null;
  for (const line of help.split("\n")) {
    const found = /^ {2}(?:-\w,)?(--[\w-]+)(?: (\S+))?(?: {2,}(.*))?$/.exec(line);
    const more = /^ {20,}(\S.*)$/.exec(line);
    if (found) {
      const [, name, type, text = ""] = found;
      last = null;
      for (const one of controls()) if (one.dataset.option === name) { one.title = text; last = one; }
      if (known.has(name) || NOT_OF_THE_JOB.includes(name)) continue;
      known.add(name);
      const box = element("div"), label = element("label", name), id = `o${name}`;
      const flag = type === undefined, choices = /^[\w.]+(\|[\w.]+)+$/.test(type ?? "") && !/FILE|NAME/.test(type) ? type.split("|") : null;
      const input = element(choices ? "select" : "input");
      if (choices) for (const one of ["", ...choices]) input.add(new Option(one, one));
      if (flag) input.type = "checkbox"; else if (!choices) { input.placeholder = type; input.spellcheck = false; input.autocapitalize = "off"; }
      input.id = id; label.htmlFor = id; input.dataset.option = name; input.title = text;
      box.append(label, input, last = element("small", text, "soft")); $("options").append(box);
    } else if (more && last) { if (last.tagName === "SMALL") last.textContent += ` ${more[1]}`; else last.title += ` ${more[1]}`; }
    else if (!more) last = null;
  }
}
function keepFile(name, text) { files.set(name.replaceAll("/", "_"), text); listFiles(); }
function listFiles() {
  $("names").textContent = [...files.keys()].join(", ");
  for (const list of ["models", "deepspeeds", "trainings"]) for (const name of files.keys()) if (![...$(list).options].some(one => one.value === name)) $(list).append(new Option("", name));
}
async function begin() {
  const [version, models, hardware, clusters, deepspeeds, trainings, help] = await Promise.all(
    [["--version"], ["show", "models"], ["show", "hardware"], ["show", "clusters"], ["show", "deepspeed"], ["show", "training"], ["simulate", "--help"]].map(one => answers.ask(one)));
  $("version").textContent = version.out.split("\n")[0].replace("dsplan ", "");
  for (const name of lines(models.out)) $("models").append(new Option("", name));
  for (const name of lines(hardware.out)) $("hardware").add(new Option(name, name));
  for (const name of lines(clusters.out)) $("cluster").add(new Option(name, name));
  for (const [list, text] of [["deepspeeds", deepspeeds.out], ["trainings", trainings.out]]) for (const line of text.split("\n").filter(Boolean)) $(list).append(new Option("", line.split(/\s+/)[0]));
  for (const stage of ["", "0", "1", "2", "3"]) {
    const label = element("label"), input = Object.assign(element("input"), {type: "radio", name: "stage", value: stage}); input.dataset.option = "--zero-stage";
    label.append(input, stage || "not said"); $("stages").append(label);
  }
  addOptions(help.out);
  let asked = EXAMPLE;
  try { if (location.hash.length > 1) asked = shellWords(decodeURIComponent(location.hash.slice(1))); } catch { /* no words of ours */ }
  fill(asked);
  await changed();
  document.body.dataset.ready = "yes";
}

$("form").addEventListener("submit", event => event.preventDefault());
$("form").addEventListener("input", event => {
  const target = event.target;
  if (target.dataset.of) slid(target); else if (target.type === "number") slidersFollow();
  if (target.value && target.id === "hardware") $("cluster").value = "";
  if (target.value && target.id === "cluster") $("hardware").value = "";
  if (target.dataset.of || target.dataset.option || target.id === "MODEL") changed();
});
$("files").addEventListener("change", async event => { for (const file of event.target.files) keepFile(file.name, await file.text()); changed(); });
$("keep").addEventListener("click", () => { if ($("text-name").value.trim()) keepFile($("text-name").value.trim(), $("text").value); changed(); });
$("plan").addEventListener("click", plan);
const copied = (button, text) => navigator.clipboard?.writeText(text).then(() => { const before = button.textContent; button.textContent = "copied"; setTimeout(() => { button.textContent = before; }, 1200); });
for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copied(button, $(button.dataset.copy).textContent));
$("share").addEventListener("click", () => copied($("share"), location.href));
window.addEventListener("hashchange", () => { try { fill(shellWords(decodeURIComponent(location.hash.slice(1)))); changed(); } catch { /* no words of ours */ } });
begin();
// What a test can ask for.
window.dsplanPage = {ask: list => answers.ask(list), words, taken, shown: () => shown, keepFile, frame: () => frame};
