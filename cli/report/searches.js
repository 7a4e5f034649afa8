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

// ---- searches of several machines, frameworks or precisions ----

// What the searches of a list may differ in, of a search or of a plan.
const LISTED = [
  ["machine", (of) => of.hardware], ["framework", (of) => filesOf((of.plans || [])[0] || of)],
  ["precision", (of) => of.precision || of.plan.precision]];
const filesOf = (plan) => (plan.overrides || {}).files || plan.framework;
const listed = (searches) => LISTED.filter(([, get]) => new Set((searches || []).map(get)).size > 1);

// The searches of a list as one: what each says, once, and their counts summed.
function joined(answer) {
  const searches = answer.searches;
  const all = (get) => [...new Set(searches.map(get))].join(", ");
  const total = (key) => sum(searches.map((search) => search[key]));
  const infeasible = {};
  for (const search of searches) {
    for (const [rule, count] of Object.entries(search.infeasible)) infeasible[rule] = (infeasible[rule] || 0) + count;
  }
  const examples = (key) => Object.assign({}, ...searches.map((search) => search[key] || {}));
  return {...answer, infeasible, infeasible_examples: examples("infeasible_examples"), infeasible_sources: examples("infeasible_sources"),
    hardware: all((s) => s.hardware), framework: all(LISTED[1][1]), precision: all((s) => s.precision),
    considered: total("considered"), out_of_memory: total("out_of_memory"), bounded_out: total("bounded_out"),
    simulated: total("simulated"), defaults: searches[0].defaults, overrides: searches[0].overrides, read_as: searches[0].read_as,
    notes: [...new Set(searches.flatMap((search) => search.notes))]};
}

function searchesTable(searches) {
  const best = (get) => (search) => search.plans.length ? get(search.plans[0]) : null;
  return [el("h3", {}, "Each search"), table("Each search, with its best plan", [
    ...LISTED.map(([label, get]) => ({label, text: true, brief: true, get})),
    {label: "plans", get: (s) => s.considered, show: whole},
    {label: "out of memory", get: (s) => s.out_of_memory, show: whole},
    {label: "step", unit: "s", get: best((p) => p.step_time_s), show: (v) => significant(v, 4)},
    {label: "tokens/s/GPU", get: best((p) => p.tokens_per_s_per_gpu), show: (v) => significant(v, 4)},
    {label: "best plan", text: true, words: true, get: (s) => s.plans.length ? s.plans[0].short : "nothing fits"}], searches)];
}

function rankedTable(plans, searches, words, choose, chosen) {
  const marks = plans.some(restsOnAssumptions);
  const rows = plans.map((plan, i) => ({plan, i, words: words.own[i] || plan.short}));
  const bf16 = plans.every((plan) => !plan.mfu_peak || plan.mfu_peak.precision === "bf16");
  const node = table("The best plans, best first. A row's number shows that plan below.", [
    {label: "#", get: (r) => r.i, show: (v) => el("button", {type: "button", class: "small", "aria-label": `show plan ${v + 1}`,
      onclick: () => choose(v)}, String(v + 1))},
    ...listed(searches).map(([label, get]) => ({label, text: true, brief: true, get: (r) => get(r.plan)})),
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
    ...(plans.some((plan) => plan.usd_per_million_tokens)
      ? [{label: "cost", unit: "USD/M tokens", get: (r) => r.plan.usd_per_million_tokens, show: (v) => significant(v, 3)}] : []),
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
  const searches = entry.answer.searches, answer = searches ? joined(entry.answer) : entry.answer, plans = answer.plans;
  const title = `${answer.model} on ${whole(answer.gpus)} × ${answer.hardware}`;
  if (!plans.length) {
    return {title, parts: [
      ["Asked", [el("p", {class: "alert"}, "Nothing fits."), askedFacts(entry, answer),
        answer.smallest ? el("p", {}, `The plan that needs least takes ${gib(answer.smallest.device_peak_gib)}: `,
          el("span", {class: "words"}, answer.smallest.short)) : null,
        adviceSection(answer.would_fit), assumptionsSection(assumptions(answer))]],
      ["Why plans were refused", [lostSection(answer), searches ? searchesTable(searches) : null]]]};
  }
  const words = commonWords(plans.map((plan) => plan.short));
  const best = plans[0];
  let chosen = 0;
  const details = el("div", {});
  const heading = el("h3", {id: newId("plan"), tabindex: "-1"});
  const choice = el("select", {id: newId("choice"), onchange: (event) => choose(Number(event.target.value))},
    plans.map((plan, i) => el("option", {value: i}, `#${i + 1}: ${seconds(plan.step_time_s)}`)));
  const ranked = rankedTable(plans, searches, words, (i) => {
    choose(i);
    heading.scrollIntoView({block: "start"});
    heading.focus({preventScroll: true});
  }, () => chosen);
  function choose(i) {
    chosen = i;
    choice.value = String(i);
    heading.textContent = i === 0 ? "Plan 1, the best" : `Plan ${i + 1}`;
    details.replaceChildren(...planDetails(plans[i], (entry.timelines || [])[i], sourcesOf(entry, plans[i])).flat(Infinity).filter(Boolean));
    ranked.node.refresh();
  }
  choose(0);
  return {title, parts: [
    ["Asked", [el("p", {class: "lead"}, `The best of ${plural(answer.considered, "plan")}: ${seconds(best.step_time_s)} a step ` +
      `(${between(best.interval.step_time_s, (v) => significant(v, 3))} s with a chance of ${levelText(best.interval)}), ` +
      `${significant(best.tokens_per_s_per_gpu, 4)} tokens a second and GPU.`),
      el("p", {class: "words"}, [...listed(searches).map(([, get]) => get(best)), best.short].join(", ")), askedFacts(entry, answer),
      assumptionsSection(assumptions({...answer, overrides: best.overrides, read_as: best.read_as}))]],
    ["Ranked plans", [ranked.node, ranked.marks ? el("p", {class: "faint"}, page.assumed_mark) : null,
      words.shared ? el("p", {}, "All with: ", el("span", {class: "words"}, words.shared)) : null,
      plans.length > 1 ? intervalsFigure(plans) : null, searches ? searchesTable(searches) : null]],
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
    ["The plan", planDetails(answer, (entry.timelines || [])[0], sourcesOf(entry, answer))]]};
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
