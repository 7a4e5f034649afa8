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

// ---- answers: each gives {title, parts: [[heading, nodes]]} ----

function askedFacts(entry, answer, more = []) {
  return facts([
    ["asked", el("code", {}, entry.asked)],
    ["model", answer.model], ["framework", answer.framework],
    ["machine", answer.hardware ? `${whole(answer.gpus)} × ${answer.hardware}` : null],
    ["global batch", answer.global_batch_size ? `${whole(answer.global_batch_size)} sequences × ${whole(answer.seq_len)} tokens = ` +
      `${count(answer.global_batch_size * answer.seq_len)} tokens a step` : null],
    ["sequence length", !answer.global_batch_size && answer.seq_len ? `${whole(answer.seq_len)} tokens` : null],
    ["precision", answer.precision], ...more]);
}

function rankedTable(plans, words, choose, chosen) {
  const marks = plans.some(restsOnAssumptions);
  const rows = plans.map((plan, i) => ({plan, i, words: words.own[i] || plan.short}));
  const bf16 = plans.every((plan) => !plan.mfu_peak || plan.mfu_peak.precision === "bf16");
  const node = table("The best plans, best first. A row's number shows that plan below.", [
    {label: "#", get: (r) => r.i, show: (v) => el("button", {type: "button", class: "small", "aria-label": `show plan ${v + 1}`,
      onclick: () => choose(v)}, String(v + 1))},
    {label: "step", unit: "s", get: (r) => r.plan.step_time_s,
      show: (v, r) => significant(v, 4) + (marks && restsOnAssumptions(r.plan) ? "*" : "")},
    {label: "interval", unit: "s", get: (r) => r.plan.interval.step_time_s[0],
      show: (v, r) => r.plan.interval.step_time_s.map((x) => significant(x, 3)).join(" … ")},
    {label: "tie", text: false, get: (r) => r.plan.tie ? "tie" : ""},
    {label: "tokens/s/GPU", get: (r) => r.plan.tokens_per_s_per_gpu, show: (v) => significant(v, 4)},
    {label: "MFU", unit: "%", get: (r) => r.plan.mfu, show: percent},
    ...(bf16 ? [] : [{label: "MFU of bf16", unit: "%", get: (r) => r.plan.mfu_bf16, show: percent}]),
    {label: "device", unit: "GiB", get: (r) => r.plan.memory.device_peak_gib, show: (v) => fixed(v, 1)},
    {label: "bubble", unit: "%", get: (r) => r.plan.time.pp_bubble_s / r.plan.step_time_s, show: percent},
    {label: "exposed", unit: "%", get: (r) => exposed(r.plan.time) / r.plan.step_time_s, show: percent},
    {label: "plan", text: true, words: true, get: (r) => r.words}], rows, {chosen: (r) => r.i === chosen()});
  return {node, marks};
}

function intervalsFigure(plans) {
  const names = plans.map((_, i) => `#${i + 1}`);
  const low = Math.min(...plans.map((p) => p.interval.step_time_s[0])), high = Math.max(...plans.map((p) => p.interval.step_time_s[1]));
  return figure("Step time and its interval", {
    said: plans.map((p, i) => `plan ${i + 1}: ${seconds(p.step_time_s)}, ${between(p.interval.step_time_s, (v) => seconds(v, 3))}`).join("; "),
    text: `The mark is the prediction, the bar where the measured time lies with a chance of ${levelText(plans[0].interval)}. ` +
      "Plans whose mark lies in the first one's bar cannot be told from it. The numbers stand in the table of plans.",
    height: AROUND + ROW * plans.length,
    config: () => ({
      type: "bar",
      data: {labels: names, datasets: [
        {type: "line", label: "predicted", data: plans.map((p, i) => ({x: p.step_time_s, y: names[i]})), showLine: false,
          pointRadius: 5, pointStyle: "rectRot", backgroundColor: ink("ink"), borderColor: ink("ink")},
        {label: "interval", data: plans.map((p, i) => ({x: p.interval.step_time_s, y: names[i]})),
          backgroundColor: ink("recompute"), maxBarThickness: 16}]},
      options: {
        indexAxis: "y",
        scales: {x: axis("seconds a step", {min: low - 0.1 * (high - low), max: high + 0.1 * (high - low),
          ticks: {callback: (value) => Number(value.toPrecision(4)), includeBounds: false}}), y: axis("", {grid: {display: false}, ticks: {autoSkip: false}})},
        plugins: {legend: legend(), tooltip: {callbacks: {label: ({raw}) =>
          Array.isArray(raw.x) ? between(raw.x, (v) => seconds(v, 3)) : seconds(raw.x)}}},
      },
    }),
  });
}

// Where each plan's time goes, and what it loses by against the first.
function lossesFigure(plans, words) {
  const parts = page.time_parts.filter((part) => plans.some((plan) => plan.time[part.key] !== 0));
  const rows = plans.map((plan, i) => ({plan, i}));
  const best = plans[0];
  // What is less than a millionth of a step is the rounding of sums.
  const difference = (value) => Math.abs(value) < 1e-6 * best.step_time_s ? "0"
    : (value > 0 ? "+" : "") + significant(value * 1e3, 3);
  const behind = [table("Seconds a step by part", [
    {label: "#", get: (r) => r.i + 1}, {label: "step", get: (r) => r.plan.step_time_s, show: (v) => significant(v, 4)},
    ...parts.map((part) => ({label: part.label, get: (r) => r.plan.time[part.key], show: (v) => significant(v, 3)}))],
  rows, {heads: true})];
  const losses = plans.length > 1 ? [
    el("p", {}, "Against the best plan, in milliseconds a step: where each of the others loses, and where it gains."),
    table("Milliseconds a step more or less than the best plan", [
      {label: "#", get: (r) => r.i + 1},
      {label: "step", get: (r) => r.plan.step_time_s - best.step_time_s, show: difference},
      ...parts.map((part) => ({label: part.label, get: (r) => r.plan.time[part.key] - best.time[part.key], show: difference})),
      {label: "device", unit: "GiB", get: (r) => r.plan.memory.device_peak_gib - best.memory.device_peak_gib,
        show: (v) => (v > 0 ? "+" : "") + fixed(v, 1)},
      {label: "what it does otherwise", text: true, words: true, get: (r) => words.own[r.i]}], rows.slice(1))] : [];
  return [figure("Where the time of the best plans goes", {
    said: "Step time by part of every plan in the ranking; the table below has the numbers.",
    height: AROUND + ROW * plans.length, behind,
    config: () => stackedBars(plans.map((_, i) => `#${i + 1}`),
      parts.map((part) => ({...part, values: plans.map((plan) => plan.time[part.key])})),
      {unit: "seconds a step", show: (v) => seconds(v)}),
  }), losses];
}

function lostSection(answer) {
  const refused = Object.entries(answer.infeasible || {}).map(([rule, count]) => ({rule, count,
    example: (answer.infeasible_examples || {})[rule], source: (answer.infeasible_sources || {})[rule]}))
    .sort((a, b) => b.count - a.count);
  const fates = [
    {fate: "against a rule", count: sum(refused.map((r) => r.count)), means: "a rule forbids the plan, or the framework's files cannot say it"},
    {fate: "out of memory", count: answer.out_of_memory, means: "its memory does not fit"},
    {fate: "bounded out", count: answer.bounded_out, means: "it cannot be faster than those found: its computing alone takes longer"},
    {fate: "simulated", count: answer.simulated, means: "its step was simulated"}];
  const nodes = [
    el("p", {}, `${plural(answer.considered, "plan")} considered.`),
    figure("What became of the plans that were considered", {
      said: fates.map((f) => `${f.fate} ${whole(f.count)}`).join(", "), height: AROUND + ROW * fates.length,
      behind: table("What became of the plans that were considered", [
        {label: "fate", text: true, get: (f) => f.fate}, {label: "plans", get: (f) => f.count, show: whole},
        {label: "it means", text: true, get: (f) => f.means}], fates, {heads: true}),
      config: () => groupedBars(fates.map((f) => f.fate), [{label: "plans", values: fates.map((f) => f.count)}],
        {unit: "plans", show: whole}),
    })];
  if (refused.length) {
    nodes.push(table("Plans that a rule forbids, with the reason of one of them", [
      {label: "rule", text: true, get: (r) => r.rule}, {label: "plans", get: (r) => r.count, show: whole},
      {label: "for example", text: true, get: (r) => r.example},
      {label: "who says so", text: true, get: (r) => r.source}], refused, {heads: true}));
  }
  return nodes;
}

function paretoFigure(list) {
  if (!list || list.length < 2) return [];
  const points = list.filter((p) => isNumber(p.step_time_s)).map((p) => ({x: p.device_peak_gib, y: p.step_time_s, title: p.short}));
  return [figure("Less memory, more time", {
    said: "Plans that need less memory, by step time.", height: 320,
    text: "Of the plans that were simulated, those that no other beats in both.",
    behind: table("Plans that no other beats in both memory and time", [
      {label: "device", unit: "GiB", get: (p) => p.device_peak_gib, show: (v) => fixed(v, 1)},
      {label: "step", unit: "s", get: (p) => p.step_time_s, show: (v) => significant(v, 4)},
      {label: "plan", text: true, words: true, get: (p) => p.short}], list),
    config: () => lines([{label: "plans", points}], {x: "GiB on the fullest GPU", y: "seconds a step", fromZero: false,
      show: (p) => [`${gib(p.x)}, ${seconds(p.y)}`, p.title]}),
  })];
}

function searchAnswer(entry) {
  const answer = entry.answer, plans = answer.plans;
  const title = `${answer.model} on ${whole(answer.gpus)} × ${answer.hardware}`;
  if (!plans.length) {
    return {title, parts: [
      ["Asked", [el("p", {class: "alert"}, "Nothing fits."), askedFacts(entry, answer),
        answer.smallest ? el("p", {}, `The plan that needs least takes ${gib(answer.smallest.device_peak_gib)}: `,
          el("span", {class: "words"}, answer.smallest.short)) : null,
        adviceSection(answer.would_fit), assumptionsSection(assumptions(answer))]],
      ["Why plans were refused", lostSection(answer)]]};
  }
  const words = commonWords(plans.map((plan) => plan.short));
  const best = plans[0];
  let chosen = 0;
  const details = el("div", {});
  const heading = el("h3", {id: newId("plan"), tabindex: "-1"});
  const choice = el("select", {id: newId("choice"), onchange: (event) => choose(Number(event.target.value))},
    plans.map((plan, i) => el("option", {value: i}, `#${i + 1}: ${seconds(plan.step_time_s)}`)));
  const ranked = rankedTable(plans, words, (i) => {
    choose(i);
    heading.scrollIntoView({block: "start"});
    heading.focus({preventScroll: true});
  }, () => chosen);
  function choose(i) {
    chosen = i;
    choice.value = String(i);
    heading.textContent = i === 0 ? "Plan 1, the best" : `Plan ${i + 1}`;
    details.replaceChildren(...planDetails(plans[i], (entry.timelines || [])[i], entry.sources).flat(Infinity).filter(Boolean));
    ranked.node.refresh();
  }
  choose(0);
  return {title, parts: [
    ["Asked", [el("p", {class: "lead"}, `The best of ${plural(answer.considered, "plan")}: ${seconds(best.step_time_s)} a step ` +
      `(${between(best.interval.step_time_s, (v) => significant(v, 3))} s with a chance of ${levelText(best.interval)}), ` +
      `${significant(best.tokens_per_s_per_gpu, 4)} tokens a second and GPU.`),
      el("p", {class: "words"}, best.short), askedFacts(entry, answer),
      assumptionsSection(assumptions({...answer, overrides: best.overrides, read_as: best.read_as}))]],
    ["Ranked plans", [ranked.node, ranked.marks ? el("p", {class: "faint"}, page.assumed_mark) : null,
      words.shared ? el("p", {}, "All with: ", el("span", {class: "words"}, words.shared)) : null,
      plans.length > 1 ? intervalsFigure(plans) : null]],
    ["A plan in detail", [el("div", {class: "controls"}, el("label", {for: choice.id}, "Plan "), choice), heading, details,
      assumptionsSection(best.notes.filter((note) => !answer.notes.includes(note)).map((note) => `plan 1: ${note}`))]],
    ["Why others lost", [lossesFigure(plans, words), lostSection(answer), paretoFigure(answer.pareto)]]]};
}

function predictAnswer(entry) {
  const answer = entry.answer, saved = answer.checkpoint;
  const batch = {...answer, global_batch_size: answer.plan.global_batch_size, seq_len: answer.plan.seq_len, precision: answer.plan.precision};
  return {title: `One plan: ${answer.model} on ${whole(answer.gpus)} × ${answer.hardware}`, parts: [
    ["Asked", [askedFacts(entry, batch, [["checkpoint", saved ? `${gib(saved.gib)}, ${significant(saved.bytes_per_parameter)} bytes a parameter; ` +
      `${seconds(saved.save_s, 3)} to save at ${significant(saved.storage_gb_per_s_per_node)} GB/s a node` : null]]),
      adviceSection(answer.would_fit), assumptionsSection(assumptions(answer))]],
    ...(answer.step ? [["The step around it", stepDetails(answer.step)]] : []),
    ["The plan", planDetails(answer, (entry.timelines || [])[0], entry.sources)]]};
}

// ---- steps of fine-tuning and reinforcement learning ----

function phasesFigure(step) {
  const phases = step.phases, names = phases.map((phase) => phase.name);
  return figure("The phases of the step", {
    said: phases.map((p) => `${p.name} ${seconds(p.begin_s, 3)} to ${seconds(p.end_s, 3)}`).join(", "),
    height: AROUND + ROW * phases.length,
    behind: table("The phases of the step", [
      {label: "phase", text: true, get: (p) => p.name},
      {label: "from", unit: "s", get: (p) => p.begin_s, show: (v) => significant(v, 4)},
      {label: "to", unit: "s", get: (p) => p.end_s, show: (v) => significant(v, 4)},
      {label: "takes", unit: "s", get: (p) => p.end_s - p.begin_s, show: (v) => significant(v, 4)},
      {label: "GPUs", get: (p) => p.gpus, show: whole},
      {label: "device", unit: "GiB", get: (p) => p.device_peak_gib, show: (v) => fixed(v, 1)},
      {label: "what", text: true, get: (p) => p.note}], phases, {heads: true}),
    config: () => ({
      type: "bar",
      data: {labels: names, datasets: [{label: "phase", data: phases.map((p) => [p.begin_s, p.end_s]),
        backgroundColor: phases.map((_, i) => seriesColor(i)), maxBarThickness: 22}]},
      options: {indexAxis: "y", scales: {x: axis("seconds", {beginAtZero: true}), y: axis("", {grid: {display: false}, ticks: {autoSkip: false}})},
        plugins: {legend: legend(false), tooltip: {callbacks: {label: ({dataIndex}) => {
          const p = phases[dataIndex];
          return [`${between([p.begin_s, p.end_s], (v) => seconds(v, 4))} on ${plural(p.gpus, "GPU")}`, p.note];
        }}}}},
    }),
  });
}

function stepDetails(step) {
  return [step.fits ? null : el("p", {class: "alert"}, sentence(step.misfit || "It does not fit")),
    cards([["step", seconds(step.step_time_s)], ["tokens a second and GPU", significant(step.tokens_per_s_per_gpu, 4)],
      ["fullest GPU", gib(step.device_peak_gib)], ["host memory a node", gib(step.host_per_node_gib)]]),
    facts([["algorithm", step.algorithm], ["prompts", `${whole(step.prompts)} × ${whole(step.samples)} answers`],
      ["prompt", `${whole(step.prompt_len)} tokens`],
      ["answer", `${whole(step.response_len)} tokens in the mean, ${whole(step.max_response_len)} at most`],
      ["optimizer steps", whole(step.optimizer_steps)],
      ["rollout", step.rollout ? `${step.rollout.layout}, on ${plural(step.rollout.gpus, "GPU")}` : null]]),
    phasesFigure(step)];
}

function stepsAnswer(entry) {
  const answer = entry.answer, fits = answer.steps.length > 0, list = fits ? answer.steps : answer.misfits;
  const title = `${answer.model} on ${whole(answer.gpus)} × ${answer.hardware}: whole steps`;
  const phase = (step, name) => {
    const found = step.phases.find((p) => p.name === name);
    return found ? found.end_s - found.begin_s : null;
  };
  const words = commonWords(list.map((step) => step.short));
  const rows = list.map((step, i) => ({step, i}));
  let chosen = 0;
  const details = el("div", {}), heading = el("h3", {tabindex: "-1"});
  const ranked = table("Combinations of a training plan and engines, best first. A row's number shows it below.", [
    {label: "#", get: (r) => r.i, show: (v) => el("button", {type: "button", class: "small", "aria-label": `show step ${v + 1}`,
      onclick: () => { choose(v); heading.focus(); }}, String(v + 1))},
    {label: "step", unit: "s", get: (r) => r.step.step_time_s, show: (v) => significant(v, 4)},
    {label: "tokens/s/GPU", get: (r) => r.step.tokens_per_s_per_gpu, show: (v) => significant(v, 4)},
    {label: "update", unit: "s", get: (r) => phase(r.step, "update"), show: (v) => significant(v, 3)},
    {label: "rollout", unit: "s", get: (r) => phase(r.step, "rollout"), show: (v) => significant(v, 3)},
    {label: "device", unit: "GiB", get: (r) => r.step.device_peak_gib, show: (v) => fixed(v, 1)},
    {label: "host", unit: "GiB", get: (r) => r.step.host_per_node_gib, show: (v) => fixed(v, 0)},
    {label: "training plan", text: true, words: true, get: (r) => words.own[r.i] || r.step.short},
    {label: "engines", text: true, words: true, get: (r) => r.step.rollout ? `${r.step.rollout.layout} on ${r.step.rollout.gpus}` : ""}],
  rows, {chosen: (r) => r.i === chosen});
  function choose(i) {
    chosen = i;
    heading.textContent = `Step ${i + 1}`;
    details.replaceChildren(...stepDetails(list[i]).filter(Boolean));
    ranked.refresh();
  }
  if (list.length) choose(0);
  return {title, parts: [
    ["Asked", [fits ? null : el("p", {class: "alert"}, "Nothing fits. Below stand the fastest that do not."), askedFacts(entry, answer),
      el("p", {}, `${plural(answer.considered, "training plan")} and ${plural(answer.layouts, "rollout layout")} considered over ` +
        `${plural(answer.splits, "way")} to share the GPUs, ${plural(answer.combined, "combination")} priced whole.`)]],
    ...(list.length ? [["Ranked steps", [ranked, words.shared ? el("p", {}, "All train with: ", el("span", {class: "words"}, words.shared)) : null,
      heading, details]]] : [])]};
}

// ---- sweep ----

// What differs among points, the first that is a number of several values.
function sweptKey(points) {
  const several = (key) => new Set(points.map((p) => p[key])).size > 1;
  return ["gpus", "seq_len", "global_batch_size"].find(several) || (several("hardware") ? "hardware" : "gpus");
}
const SWEPT = {gpus: "GPUs", seq_len: "tokens of a sequence", global_batch_size: "sequences a step", hardware: "machine"};

function sweepAnswer(entry) {
  const points = entry.answer.points, key = sweptKey(points);
  const others = ["hardware", "gpus", "seq_len", "global_batch_size"].filter((k) => k !== key &&
    new Set(points.map((p) => p[k])).size > 1);
  const nameOf = (p) => others.map((k) => k === "hardware" ? p[k] : `${whole(p[k])} ${SWEPT[k]}`).join(", ") || p.model;
  const names = [...new Set(points.map(nameOf))];
  const answered = points.filter((p) => p.feasible && p.run);
  const curve = (title, unit, get, show, text) => {
    if (!answered.some((p) => isNumber(get(p)))) return null;
    const values = [...new Set(answered.map((p) => p[key]))];
    const numeric = key !== "hardware";
    return figure(title, {
      said: answered.map((p) => `${whole(p.gpus)} GPUs ${show(get(p))}`).join(", "), text, height: 300,
      config: () => numeric && values.length > 1
        ? lines(names.map((name) => ({label: name, points: answered.filter((p) => nameOf(p) === name && isNumber(get(p)))
          .map((p) => ({x: p[key], y: get(p), title: p.short}))})),
        {x: SWEPT[key], y: unit, logX: true, ticks: values, show: (p, label) => [`${label}: ${whole(p.x)} ${SWEPT[key]}, ${show(p.y)}`, p.title]})
        : groupedBars(answered.map((p) => numeric ? nameOf(p) : p.hardware), [{label: unit, values: answered.map(get)}], {unit, show}),
    });
  };
  const run = (get) => (p) => p.run ? get(p.run) : null;
  const first = points[0];
  const all = table("The best plan of each point", [
    {label: "GPUs", get: (p) => p.gpus, show: whole}, {label: "machine", text: true, get: (p) => p.hardware},
    {label: "length", get: (p) => p.seq_len, show: whole}, {label: "batch", get: (p) => p.global_batch_size, show: whole},
    {label: "step", unit: "s", get: (p) => p.step_time_s, show: (v) => significant(v, 4)},
    {label: "tokens/s/GPU", get: (p) => p.tokens_per_s_per_gpu, show: (v) => significant(v, 4)},
    {label: "MFU", unit: "%", get: (p) => p.mfu, show: percent},
    {label: "scaling", unit: "%", get: (p) => p.scaling, show: percent},
    {label: "days", get: run((r) => r.days), show: (v) => significant(v, 3)},
    {label: "GPU hours", get: run((r) => r.gpu_hours), show: (v) => significant(v, 3)},
    {label: "cost", unit: "USD", get: run((r) => r.cost_usd), show: (v) => significant(v, 3)},
    {label: "energy", unit: "MWh", get: run((r) => r.energy_kwh / 1e3), show: (v) => significant(v, 3)},
    {label: "goodput", unit: "%", get: run((r) => r.goodput), show: percent},
    {label: "plan", text: true, words: true, get: (p) => p.short || "nothing fits"}], points);
  const tokens = answered.length ? answered[0].run.tokens : null;
  const list = [...new Set(points.flatMap((p) => assumptions(p)))];
  return {title: `${first.model}: scaling and cost`, parts: [["Scaling and cost", [
    facts([["asked", el("code", {}, entry.asked)], ["run", tokens ? `${count(tokens)} tokens` : null]]),
    all,
    curve("Speed of a GPU", "tokens a second and GPU", (p) => p.tokens_per_s_per_gpu, (v) => significant(v, 4) + " tokens/s"),
    curve("Scaling", "% of the first point's", (p) => isNumber(p.scaling) ? 100 * p.scaling : null, (v) => fixed(v, 1) + "%",
      "Throughput a GPU over that of the first size."),
    curve("Days of the run", "days", run((r) => r.days), (v) => significant(v, 3) + " days"),
    curve("Cost of the run", "USD", run((r) => r.cost_usd), (v) => significant(v, 3) + " USD",
      "Failures, restarts, checkpoints and stragglers are in it, and the price a GPU and hour that was given."),
    assumptionsSection(list)]]]};
}

// ---- run and validate ----

function lossFigure(answer) {
  const first = answer.first_step, series = [["loss", answer.loss], ["loss of the second token", answer.mtp_loss],
    ["gradient norm", answer.grad_norm]].filter(([, values]) => values && values.length);
  return figure("Loss and gradient norm", {
    said: `Loss from ${significant(answer.loss[0], 4)} to ${significant(answer.loss[answer.loss.length - 1], 4)}.`, height: 280,
    behind: table("Loss and gradient norm of each step", [
      {label: "step", get: (row) => row.step},
      ...series.map(([label, values]) => ({label, get: (row) => values[row.i], show: (v) => significant(v, 6)}))],
    answer.loss.map((_, i) => ({step: first + i, i})), {heads: true}),
    config: () => lines(series.map(([label, values]) => ({label, points: values.map((y, i) => ({x: first + i, y}))})),
      {x: "step", y: "", fromZero: false, wholeX: true, show: (p, label) => `step ${p.x}: ${label} ${significant(p.y, 6)}`}),
  });
}

function comparisonSection(c, answer) {
  const error = (p, x) => x ? p / x - 1 : null;
  const opsPlot = [["predicted", "predicted_s"], ["executed", "executed_s"]];
  return [
    cards([["error of the step time", signedPercent(c.step_time_error) + "%"], ["error of the memory", percent(c.memory_error) + "%"],
      ["ops", c.same_ops ? "the same" : "others", "of each kind, as many as predicted"]]),
    answer.backend === "cpu" ? el("p", {class: "alert"}, `It was executed by this machine's processor: its times say nothing of ${answer.predicted.hardware}. ` +
      "Ops, losses and memory can be compared.") : null,
    figure("Kinds of ops", {
      said: "Time of each kind of op, predicted and executed; the table below has the numbers.",
      text: "One step of pipeline rank " + c.kinds_of_pipeline_ranks.join(", ") + ". The axis is logarithmic.",
      height: AROUND + 34 * c.kinds.length, open: true,
      behind: table("Kinds of ops, predicted and executed", [
        {label: "kind", text: true, get: (k) => k.kind},
        {label: "predicted", unit: "ops", get: (k) => k.predicted_ops, show: whole},
        {label: "executed", unit: "ops", get: (k) => k.executed_ops, show: whole},
        {label: "predicted", unit: "ms", get: (k) => k.predicted_s * 1e3, show: (v) => significant(v, 3)},
        {label: "executed", unit: "ms", get: (k) => k.executed_s * 1e3, show: (v) => significant(v, 3)},
        {label: "error", unit: "%", get: (k) => error(k.predicted_s, k.executed_s), show: signedPercent}], c.kinds, {heads: true}),
      config: () => groupedBars(c.kinds.map((k) => k.kind), opsPlot.map(([label, key]) => ({label, values: c.kinds.map((k) => k[key] * 1e3)})),
        {unit: "milliseconds", show: (v) => significant(v, 3) + " ms", logarithmic: true}),
    }),
    figure("Memory of each stage", {
      said: "Most bytes allocated at once on each stage, predicted and executed.", height: 280, open: true,
      behind: table("Most bytes allocated at once, in GiB", [
        {label: "stage", get: (s) => s.stage},
        {label: "predicted", get: (s) => s.predicted_peak_gib, show: (v) => significant(v, 5)},
        {label: "executed", get: (s) => s.executed_peak_gib, show: (v) => significant(v, 5)},
        {label: "error", unit: "%", get: (s) => error(s.predicted_peak_gib, s.executed_peak_gib), show: signedPercent}], c.stages, {heads: true}),
      config: () => groupedBars(c.stages.map((s) => `stage ${s.stage}`),
        [["predicted", "predicted_peak_gib"], ["executed", "executed_peak_gib"]].map(([label, key]) =>
          ({label, values: c.stages.map((s) => s[key])})), {unit: "GiB", show: (v) => significant(v, 4) + " GiB", horizontal: false}),
    }),
    c.as_routed ? el("p", {}, `Of tokens as the routers spread them ${seconds(c.as_routed.predicted_step_s)} are predicted ` +
      `(${signedPercent(c.as_routed.step_time_error)}%): ${percent(c.as_routed.active_experts)}% of the experts had any, ` +
      `the busiest rank ${significant(c.as_routed.busiest_rank)} times the mean.`) : null];
}

function runAnswer(entry) {
  const answer = entry.answer, predicted = answer.predicted;
  const plan = {...predicted, global_batch_size: predicted.plan.global_batch_size, seq_len: predicted.plan.seq_len, precision: predicted.plan.precision};
  const executed = [
    askedFacts(entry, plan, [["executed by", `${answer.backend}, ${plural(answer.ranks, "rank")}`]]),
    cards([["executed step", seconds(answer.step_time_s.median), `${between([answer.step_time_s.min, answer.step_time_s.max], (v) => seconds(v, 3))}`],
      ["predicted step", seconds(predicted.step_time_s), `on ${predicted.hardware}`],
      ["allocated", gib(answer.memory.live_peak_gib)], ["device", answer.memory.device_peak_gib === null ? null : gib(answer.memory.device_peak_gib)]]),
    lossFigure(answer), assumptionsSection(assumptions({notes: answer.notes, overrides: predicted.overrides, read_as: predicted.read_as}))];
  return {title: `${entry.verb === "validate" ? "Executed and predicted" : "Executed"}: ${predicted.model} on ${plural(answer.ranks, "rank")}`, parts: [
    ["Asked and executed", executed],
    ...(answer.comparison ? [["Predicted and executed, side by side", comparisonSection(answer.comparison, answer)]] : []),
    ["As predicted", planDetails(predicted, (entry.timelines || [])[0], entry.sources)]]};
}

// ---- accuracy ----

// A table of many rows is closed at first, and not printed.
const long = (title, rows, node) => rows.length > 40 ? closed(`${title} (${whole(rows.length)})`, node) : node;

function scatterFigure(rows) {
  const timed = rows.filter((r) => isNumber(r.error));
  const inside = (r) => r.interval_s && r.interval_s[0] <= r.measured_step_time_s && r.measured_step_time_s <= r.interval_s[1];
  const values = timed.flatMap((r) => [r.measured_step_time_s, r.predicted_step_time_s]);
  if (!timed.length) return null;
  const low = Math.min(...values), high = Math.max(...values);
  const points = (list) => list.map((r) => ({x: r.measured_step_time_s, y: r.predicted_step_time_s, title: r.id, error: r.error}));
  return figure("Predicted and measured step time", {
    said: `${plural(timed.length, "run")}; ${whole(timed.filter(inside).length)} of them within their interval.`,
    text: "A point is a run; on the line prediction and measurement are equal.", height: 420,
    config: () => lines([
      {label: "within the interval", points: points(timed.filter(inside)), joined: false, radius: 3, color: "compute"},
      {label: "outside", points: points(timed.filter((r) => !inside(r))), joined: false, radius: 4, color: "tp"},
      {label: "equal", points: [{x: low, y: low}, {x: high, y: high}], radius: 0, color: "faint"}],
    {x: "measured, s", y: "predicted, s", logX: true, logY: true,
      show: (p) => p.title ? [p.title, `measured ${seconds(p.x)}, predicted ${seconds(p.y)} (${signedPercent(p.error)}%)`] : ""}),
  });
}

function errorsFigure(rows) {
  const errors = rows.map((r) => r.error).filter(isNumber);
  if (errors.length < 5) return null;
  const width = 5, most = 50; // percent: a bin, and where the last ones begin
  const bins = [];
  for (let from = -most; from < most; from += width) bins.push({from, to: from + width, count: 0});
  for (const error of errors) {
    const i = Math.floor((100 * error + most) / width);
    bins[Math.max(0, Math.min(bins.length - 1, i))].count += 1;
  }
  const first = bins.findIndex((b) => b.count), last = bins.length - [...bins].reverse().findIndex((b) => b.count);
  const shown = bins.slice(first, last);
  const nameOf = (b) => `${b.from === -most ? "below" : b.from} to ${b.to === most ? "above" : b.to}`;
  return figure("Errors of the step time", {
    said: shown.map((b) => `${nameOf(b)}% ${b.count}`).join(", "), text: "Predicted over measured, less 1; in percent.", height: 260,
    behind: table("Runs by the error of their step time", [{label: "error", unit: "%", text: true, get: nameOf},
      {label: "runs", get: (b) => b.count, show: whole}], shown, {heads: true}),
    config: () => groupedBars(shown.map((b) => `${b.from}…${b.to}`), [{label: "runs", values: shown.map((b) => b.count)}],
      {unit: "runs", show: whole, horizontal: false}),
  });
}

function accuracyAnswer(entry) {
  const answer = entry.answer, all = answer.all;
  const errorColumns = (of, name) => [
    {label: `${name} runs`, get: (g) => g[of].rows, show: whole},
    {label: `${name} median`, unit: "%", get: (g) => g[of].median_abs, show: percent},
    {label: `${name} 90th`, unit: "%", get: (g) => g[of].p90_abs, show: percent},
    {label: `${name} worst`, unit: "%", get: (g) => g[of].worst_abs, show: percent},
    {label: `${name} signed`, unit: "%", get: (g) => g[of].median_signed, show: signedPercent}];
  const groupName = (g) => Object.values(g.by).join(", ");
  const groups = answer.groups.filter((g) => g.step_time.rows > 0);
  const unpriced = Object.entries(all.unpriced || {});
  return {title: "Predictions beside measured runs", parts: [
    ["Asked", [facts([["asked", el("code", {}, entry.asked)], ["files", answer.files.join(", ")], ["grades", answer.grades.join(", ")],
      ["runs", `${whole(all.rows)}, of which ${whole(all.priced)} could be priced; ${whole(answer.left_out)} of other grades`]]),
      cards([["step time, median error", percent(all.step_time.median_abs) + "%", plural(all.step_time.rows, "run")],
        ["90th percentile", percent(all.step_time.p90_abs) + "%"], ["worst", percent(all.step_time.worst_abs) + "%"],
        ["memory, median error", percent(all.memory.median_abs) + "%", plural(all.memory.rows, "run")],
        ["interval holds", percent(all.interval.coverage) + "%", "of the measured times"],
        ["ranking", significant(all.ranking.kendall_tau, 2), `Kendall's tau, ${plural(all.ranking.sets, "set")}`]]),
      unpriced.length ? notes(unpriced.map(([reason, count]) => `${plural(count, "run")} not priced: ${reason}`)) : null,
      answer.set_aside.ids.length ? notes([`set aside (${answer.set_aside.rule}): ${answer.set_aside.ids.join(", ")}`]) : null]],
    ["Errors", [scatterFigure(answer.rows), errorsFigure(answer.rows)]],
    ["By group", [
      table("Errors by group", [{label: Object.keys((answer.groups[0] || {by: {group: ""}}).by).join(", "), text: true, get: groupName},
        ...errorColumns("step_time", "step"), ...errorColumns("memory", "memory"),
        {label: "in the interval", unit: "%", get: (g) => g.interval.coverage, show: percent}], answer.groups, {heads: true}),
      groups.length > 1 ? figure("Error of the step time by group", {
        said: "Median and 90th percentile of the error by group; the table above has the numbers.", height: AROUND + 34 * groups.length,
        config: () => groupedBars(groups.map(groupName), [["median", "median_abs"], ["90th percentile", "p90_abs"]].map(([label, key]) =>
          ({label, values: groups.map((g) => 100 * g.step_time[key])})), {unit: "% of the step time", show: (v) => fixed(v, 1) + "%"}),
      }) : null]],
    ["Runs", [long("Every run", answer.rows, table("Every run", [
      {label: "run", text: true, get: (r) => r.id},
      {label: "measured", unit: "s", get: (r) => r.measured_step_time_s, show: (v) => significant(v, 4)},
      {label: "predicted", unit: "s", get: (r) => r.predicted_step_time_s, show: (v) => significant(v, 4)},
      {label: "error", unit: "%", get: (r) => r.error, show: signedPercent},
      {label: "memory error", unit: "%", get: (r) => r.memory_error, show: signedPercent},
      {label: "model", text: true, get: (r) => r.model}, {label: "machine", text: true, get: (r) => r.hardware},
      {label: "recipe", text: true, get: (r) => r.recipe}, {label: "grade", text: true, get: (r) => r.grade},
      {label: "plan", text: true, words: true, get: (r) => r.plan || r.unpriced}], answer.rows, {heads: true, filter: true}))]]]};
}

// ---- the page ----

const ANSWERS = {
  search: (entry) => entry.answer.plans ? searchAnswer(entry) : stepsAnswer(entry),
  predict: predictAnswer, sweep: sweepAnswer, run: runAnswer, validate: runAnswer, accuracy: accuracyAnswer,
};

const content = document.getElementById("content");
const links = el("ul", {});
content.replaceChildren();
page.answers.forEach((entry, i) => {
  let shown;
  try {
    shown = ANSWERS[entry.verb](entry);
  } catch (problem) {
    shown = {title: "An answer that cannot be shown", parts: [["Asked", [
      el("p", {class: "alert"}, `${entry.asked}: this answer lacks what one of ${entry.verb} has (${problem.message}).`)]]]};
  }
  if (i === 0) {
    document.title = `${shown.title} (qplan)`;
    content.append(el("h1", {}, shown.title), el("nav", {"aria-label": "Sections"}, links));
  }
  const article = el("article", {}, i === 0 ? null : el("h1", {}, shown.title));
  for (const [heading, nodes] of shown.parts) {
    const id = newId("section");
    links.append(el("li", {}, el("a", {href: "#" + id}, heading)));
    article.append(el("section", {"aria-labelledby": id}, el("h2", {id}, heading), nodes));
  }
  content.append(article);
});
document.getElementById("version").textContent = page.version;
document.getElementById("licence").hidden = !hasPlots;
