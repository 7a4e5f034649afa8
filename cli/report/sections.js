// ---- what an answer's parts are shown as ----

const partsOf = (list, holder) => list.map((part) => ({...part, value: holder ? holder[part.key] : null}))
  .filter((part) => isNumber(part.value) && part.value !== 0);

const exposed = (time) => sum(page.time_parts.filter((part) => part.communication).map((part) => time[part.key]));
const restsOnAssumptions = (plan) => plan.priced_from.assumed > page.much_assumed;
const roomOf = (memory) => memory.capacity_gib - memory.device_peak_gib;
const between = ([low, high], show) => `${show(low)} to ${show(high)}`;
const levelText = (interval) => `${fixed(100 * interval.level, 0)}%`;

// Words that all plans share, and what is left of each.
function commonWords(shorts) {
  const split = shorts.map((short) => short.split(" "));
  const shared = split.length > 1 ? split[0].filter((word) => split.every((words) => words.includes(word))) : [];
  return {shared: shared.join(" "), own: split.map((words) => words.filter((word) => !shared.includes(word)).join(" "))};
}

function defaultsOf(defaults) {
  if (!defaults) return [];
  return [["default batch", defaults.global_batch_size], ["default length", defaults.seq_len]]
    .filter(([, said]) => said).map(([name, said]) => `${name}: ${said}`);
}
const overridesOf = (overrides) => Object.entries(overrides || {})
  .map(([key, value]) => `${key.replaceAll("_", " ")} was set to ${value}`);
const readAsOf = (read) => read ? [`a model of type ${read.model_type} was read as ${read.architecture}` +
  (read.ignored_keys && read.ignored_keys.length ? `, without ${read.ignored_keys.join(", ")}` : "")] : [];

// What is taken for granted: defaults, changed figures, notes.
function assumptions(answer, more = []) {
  const list = [...defaultsOf(answer.defaults), ...overridesOf(answer.overrides), ...readAsOf(answer.read_as),
    ...(answer.notes || []), ...more];
  return [...new Set(list)];
}
function assumptionsSection(list) {
  return list.length ? [el("h3", {}, "Assumptions and notes"), notes(list)] : [];
}

// ---- one plan ----

function timeFigure(plan) {
  const total = plan.step_time_s;
  const parts = partsOf(page.time_parts, plan.time);
  const behind = table("The time of a step by part", [
    {label: "part", text: true, get: (p) => p.label},
    {label: "time", unit: "s", get: (p) => p.value, show: (v) => significant(v, 4)},
    {label: "share", unit: "%", get: (p) => p.value / total, show: percent}], parts, {heads: true});
  return figure("The time of a step by part", {
    said: parts.map((p) => `${p.label} ${percent(p.value / total)}%`).join(", "),
    text: "The parts add up to the step time. Communication counts where no computing covers it.",
    height: AROUND + 60, behind,
    config: () => stackedBars(["step"], parts.map((p) => ({...p, values: [p.value]})),
      {unit: "seconds", show: (v) => `${seconds(v)}, ${percent(v / total)}%`}),
  });
}

function memoryFigure(plan) {
  const memory = plan.memory;
  const stages = memory.stages.map((stage) => ({...stage, beside: stage.device_gib - stage.peak_gib}));
  const all = [...page.memory_parts, {key: "beside", label: page.beside_peak}];
  const parts = all.filter((part) => stages.some((stage) => stage[part.key] > 0));
  const names = stages.map((stage) => `stage ${stage.stage}`);
  const behind = table("Memory of the fullest GPU of each stage, in GiB", [
    {label: "stage", get: (s) => s.stage},
    ...parts.map((part) => ({label: part.label, get: (s) => s[part.key], show: (v) => fixed(v, 2)})),
    {label: "peak", get: (s) => s.peak_gib, show: (v) => fixed(v, 2)},
    {label: "reserved", get: (s) => s.reserved_gib, show: (v) => fixed(v, 2)},
    {label: "device", get: (s) => s.device_gib, show: (v) => fixed(v, 2)}], stages, {heads: true});
  const limit = {type: "line", label: "may be filled", data: names.map(() => memory.capacity_gib), stack: "limit",
    pointRadius: 0, borderWidth: 2};
  return figure("Memory by stage", {
    said: `The fullest stage, ${memory.worst_stage}, takes ${gib(memory.device_peak_gib)} of ${gib(memory.capacity_gib)} that may be filled.`,
    text: `${gib(memory.capacity_gib)} of a GPU may be filled; stage ${memory.worst_stage} takes most, ` +
      `${gib(memory.device_peak_gib)} as the driver shows it.` +
      (memory.host_gib_per_node > 0 ? ` The host holds ${gib(memory.host_gib_per_node)} a node, pinned.` : ""),
    height: 320, behind,
    config: () => stackedBars(names, parts.map((part) => ({...part, values: stages.map((s) => s[part.key])})),
      {unit: "GiB", show: (v) => gib(v), horizontal: false,
        beside: [{...limit, borderColor: ink("bad"), backgroundColor: ink("bad")}]}),
  });
}

function pricesFigure(plan, sources) {
  const from = plan.priced_from;
  const kinds = [
    {key: "table", label: "measured tables", value: from.table},
    {key: "formula", label: "fitted formulas", value: from.formula},
    {key: "assumed", label: "assumed efficiencies", value: from.assumed}];
  const behind = table("Shares of the priced time", [
    {label: "from", text: true, get: (k) => k.label},
    {label: "share", unit: "%", get: (k) => k.value, show: percent}], kinds, {heads: true});
  return [figure("Where prices come from", {
    said: kinds.map((k) => `${k.label} ${percent(k.value)}%`).join(", "),
    text: "Shares of the priced time: of kernels and collectives that were measured on this machine, of formulas fitted to " +
      "measurements, and of efficiencies that are assumed.",
    height: AROUND + 50, behind,
    config: () => stackedBars(["prices"], kinds.filter((k) => k.value > 0).map((k) => ({...k, values: [100 * k.value]})),
      {unit: "% of the priced time", show: (v) => fixed(v, 1) + "%"}),
  }), sourcesTable(sources, plan.hardware)].flat();
}

// Of the machine that a plan's search was of.
const sourcesOf = (entry, plan) => entry.sources_of ? entry.sources_of[plan.search] : entry.sources;

function sourcesTable(sources, hardware) {
  if (!sources || !sources.length) return [];
  return [closed(`Sources of the profile ${hardware}`, table(`Where the figures of ${hardware} come from`, [
    {label: "section", text: true, get: (s) => s.section},
    {label: "figure", text: true, get: (s) => s.figure},
    {label: "source", text: true, get: (s) => s.source}], sources, {heads: true}))];
}

function groupsTable(plan) {
  if (!plan.groups || !plan.groups.length) return [];
  return [closed("Groups of ranks", table("Groups of ranks, and the nodes that each touches", [
    {label: "axis", text: true, get: (g) => g.axis}, {label: "ranks", get: (g) => g.size},
    {label: "of them in a node", get: (g) => g.ranks_per_node}, {label: "nodes", get: (g) => g.nodes}],
  plan.groups, {heads: true}))];
}

const wordText = (value) => Array.isArray(value) ? value.join(", ") || "none" : String(value);
function wordsTable(plan) {
  return closed("Every word of the plan", table("Every word of the plan", [
    {label: "word", text: true, get: (w) => w[0]}, {label: "value", text: true, get: (w) => wordText(w[1])}],
  Object.entries(plan.plan), {heads: true}));
}

function refusedSection(plan) {
  const reasons = plan.infeasible || [];
  if (!reasons.length) return [];
  return [el("div", {class: "alert"}, el("p", {}, plan.time ? "This plan does not fit." : "This plan cannot run."),
    el("ul", {class: "notes"}, reasons.map((reason) =>
      el("li", {}, `${reason.rule}: ${reason.message}`, reason.source ? ` [${reason.source}]` : ""))))];
}

function adviceSection(list) {
  if (!list) return [];
  if (!list.length) return [el("p", {}, "No change that was tried fits.")];
  return [el("h3", {}, "It would fit with"), table("Changes that were tried, and fit", [
    {label: "change", text: true, get: (a) => a.change}, {label: "GPUs", get: (a) => a.gpus, show: whole},
    {label: "step", unit: "s", get: (a) => a.step_time_s, show: (v) => significant(v, 4)},
    {label: "device", unit: "GiB", get: (a) => a.device_peak_gib, show: (v) => fixed(v, 1)},
    {label: "plan", text: true, words: true, get: (a) => a.short}], list)];
}

function planCards(plan) {
  const peak = plan.mfu_peak && plan.mfu_peak.precision !== "bf16" ? ` of the ${plan.mfu_peak.precision} peak` : "";
  return cards([
    ["step time", seconds(plan.step_time_s), `${between(plan.interval.step_time_s, (v) => significant(v, 3))} s at ${levelText(plan.interval)}`],
    ["tokens a second and GPU", significant(plan.tokens_per_s_per_gpu, 4), `${significant(plan.tokens_per_s, 4)} in all`],
    ["MFU", percent(plan.mfu) + "%" , peak ? peak + `; ${percent(plan.mfu_bf16)}% of bf16's` : `${significant(plan.model_tflops_per_gpu, 3)} TFLOP/s a GPU`],
    ["fullest GPU", gib(plan.memory.device_peak_gib), roomOf(plan.memory) >= 0
      ? `${gib(roomOf(plan.memory))} to spare` : `${gib(-roomOf(plan.memory))} too much`],
    ["exposed communication", percent(exposed(plan.time) / plan.step_time_s) + "%", "of the step"],
    ["pipeline bubble", percent(plan.time.pp_bubble_s / plan.step_time_s) + "%", "of the step"],
  ]);
}

function intervalText(plan) {
  const {interval} = plan;
  return el("p", {}, `With a chance of ${levelText(interval)} a step takes ` +
    `${between(interval.step_time_s, (v) => seconds(v, 3))}, and the most bytes allocated at once are ` +
    `${between(interval.peak_gib, gib)}. ` +
    (restsOnAssumptions(plan) ? sentence(page.assumed_mark.replace(/^\* /, "")) : ""));
}

function planDetails(plan, timeline, sources) {
  const words = el("p", {class: "words"}, plan.short);
  if (!plan.time) return [words, refusedSection(plan), wordsTable(plan)];
  return [words, refusedSection(plan), planCards(plan), intervalText(plan), timeFigure(plan), memoryFigure(plan),
    timelineFigure(timeline), pricesFigure(plan, sources), groupsTable(plan), wordsTable(plan)];
}
