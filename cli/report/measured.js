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
    ["As predicted", planDetails(predicted, (entry.timelines || [])[0], sourcesOf(entry, predicted))]]};
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
