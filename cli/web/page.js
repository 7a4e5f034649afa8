// ---- elements ----

const byId = (id) => document.getElementById(id);

const say = (text) => { byId("status").textContent = text; };

// ---- the planner: a worker that answers one question after the other ----

const planner = (() => {
  const source = URL.createObjectURL(new Blob([byId("worker").textContent], {type: "text/javascript"}));
  let worker = null, started = null, compiled = null, give_up = null, last = 0;
  const waiting = new Map();

  // Compiled while it is unpacked.
  function compile() {
    const packed = atob(byId("wasm").textContent);
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; ++i) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return WebAssembly.compileStreaming(new Response(stream, {headers: {"Content-Type": "application/wasm"}}));
  }

  function start() {
    const fresh = worker = new Worker(source);
    started = new Promise((ready, failed) => {
      give_up = failed;
      fresh.onerror = (event) => failed(new Error(event.message || "the worker cannot be started"));
      fresh.onmessage = ({data}) => {
        if (data.ready) {
          ready();
          return;
        }
        const question = waiting.get(data.id);
        if (data.percent !== undefined) {
          if (question && question.progress) question.progress(data.percent);
          return;
        }
        if (!question) {
          failed(new Error(data.broken));
          return;
        }
        waiting.delete(data.id);
        if (data.answer) {
          question.done(data.answer);
        } else {
          restart();
          question.failed(new Error(`the planner has failed (${data.broken}); it was started anew`));
        }
      };
      (compiled ||= compile()).then((wasm) => fresh.postMessage({wasm}), failed);
    });
    started.catch(() => {});  // who waits for it is told
    return started;
  }
  function restart() {
    worker.terminate();
    give_up(null);
    for (const question of waiting.values()) question.failed(null);
    waiting.clear();
    return start();
  }

  return {
    start,
    // Ends what is being answered; null is thrown where it was awaited.
    stop: restart,
    async ask(args, files = {}, progress = null) {
      const asked = started;
      await asked;
      if (asked !== started) throw null;  // stopped meanwhile
      return new Promise((done, failed) => {
        waiting.set(++last, {done, failed, progress});
        worker.postMessage({id: last, args, files});
      });
    },
  };
})();

// ---- fields, made of what `--help=json` says ----

const isList = (option) => /,\.\.\.\]?$/.test(option.value || "");
const choicesOf = (option) => option.words.length ? option.words : option.known;
const nameOf = (names, name) => names.has(name) ? `${name}: ${names.get(name)}` : name;

// A control for an option: {node, words()}, the words it adds to a command line.
function fieldOf(option, form, settings = {}) {
  const id = `${form}${option.name}`;
  const label = settings.label || option.name.slice(2).replaceAll("-", " ");
  const text = settings.help === undefined ? option.help : settings.help;
  const help = text ? el("span", {class: "help", id: `${id}-help`}, text) : null;
  const described = help ? `${id}-help` : null;
  if (option.type === "truth" && !option.value) {
    const box = el("input", {type: "checkbox", id, "aria-describedby": described});
    return {node: el("div", {class: "field flag"}, box, el("label", {for: id}, label), help),
            words: () => box.checked ? [option.name] : [], set: (value) => { box.checked = value !== null; }};
  }
  const names = settings.names || new Map();
  const choices = settings.names ? [...names.keys()] : choicesOf(option);
  const usual = settings.usual !== undefined ? settings.usual : option.default;
  let input, list = null;
  if (choices.length && (settings.single || !isList(option)) && !/LIST|WHAT/.test(option.value)) {
    const first = usual ? nameOf(names, usual) : "as the search finds";
    input = el("select", {id, "aria-describedby": described}, el("option", {value: ""}, first),
      choices.filter((choice) => choice !== usual).map((choice) => el("option", {value: choice}, nameOf(names, choice))));
  } else {
    if (choices.length) list = el("datalist", {id: `${id}-list`}, choices.map((choice) => el("option", {value: choice})));
    const digits = option.type === "whole" && !isList(option);
    input = el("input", {id, placeholder: usual || null, "aria-describedby": described, autocomplete: "off",
      autocapitalize: "off", spellcheck: "false", inputmode: digits ? "numeric" : null, list: list ? list.id : null});
  }
  const kind = settings.names ? "field double" : "field";
  return {node: el("div", {class: kind}, el("label", {for: id}, label), input, help, list), input,
          words: () => input.value.trim() === "" ? [] : [option.name, input.value.trim()],
          set: (value) => { input.value = value === null || value === usual ? "" : value; }};
}

// What stands in the page for an option already, or is of no use in it.
const OWN = ["--model", "--json", "--format", "--sarif", "--fix", "--output", "--threads", "--timing", "--help", "--each", "--skip-unknown"];

// All options of a verb that have no field of their own, in the groups of its help.
function moreFields(place, options, form, shown) {
  const fields = [], groups = new Map();
  for (const option of options) {
    if (option.positional || OWN.includes(option.name) || shown.includes(option.name) || option.value === "FILE") continue;
    const field = fieldOf(option, form);
    fields.push([option.name, field]);
    if (!groups.has(option.group)) groups.set(option.group, []);
    groups.get(option.group).push(field.node);
  }
  for (const [group, nodes] of groups) {
    place.append(el("fieldset", {}, el("legend", {}, group), el("div", {class: "fields"}, nodes)));
  }
  return fields;
}

// A config.json's folder is the model's name.
const OWN_MODEL = "my-model/config.json";

// A built-in model, or a config.json. `none`: words for no model at all.
function modelChooser(place, form, models, none = null) {
  const name = `${form}-kind`;
  const select = el("select", {id: `${form}-model-name`}, none ? el("option", {value: ""}, none) : null,
    [...models.keys()].map((model) => el("option", {value: model}, nameOf(models, model))));
  const text = el("textarea", {id: `${form}-config`, spellcheck: "false", autocapitalize: "off",
    placeholder: '{"model_type": "qwen3_moe", "hidden_size": 2048, ...}'});
  const open = el("input", {type: "file", accept: ".json,application/json", onchange: async () => {
    if (open.files.length) text.value = await open.files[0].text();
    open.value = "";
  }});
  const built_in = el("input", {type: "radio", name, id: `${form}-built-in`, checked: true});
  const own = el("input", {type: "radio", name, id: `${form}-own`});
  const named = el("div", {class: "field double"}, el("label", {for: select.id}, "Model"), select);
  const pasted = el("div", {class: "field wide", hidden: true},
    el("label", {for: text.id}, "config.json, as Hugging Face has it"), text,
    el("div", {}, el("label", {class: "button"}, "Open a file ", open)));
  const show = () => {
    named.hidden = own.checked;
    pasted.hidden = !own.checked;
  };
  for (const radio of [built_in, own]) radio.addEventListener("change", show);
  place.append(
    el("div", {class: "field wide choices", role: "radiogroup", "aria-label": "Which model"},
      el("label", {}, built_in, "a built-in model"), el("label", {}, own, "my config.json")),
    named, pasted);
  return {
    select,
    words: () => own.checked ? ["--model", OWN_MODEL] : select.value ? ["--model", select.value] : [],
    files: () => own.checked ? {[OWN_MODEL]: text.value} : {},
    set: (value) => {
      if (!models.has(value)) return;
      select.value = value;
      built_in.checked = true;
      show();
    },
  };
}

// ---- answers ----

const answer_place = byId("answer");
const quoted = (word) => /^[A-Za-z0-9_=+.,:/@%-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
const command_text = (args) => ["qplan", ...args].map(quoted).join(" ");

function saving(name, text, label, type = "text/plain") {
  const link = el("a", {class: "save", download: name.split("/").pop(), href: "#"}, label || name);
  link.href = URL.createObjectURL(new Blob([text], {type}));
  return link;
}
const as_shell = (args) => el("p", {class: "faint"}, "The same by the command: ", el("code", {}, command_text(args)));
const complaint = (text) => el("div", {class: "alert", role: "alert"}, text.replace(/^qplan: /gm, "").trim());

function writtenFiles(files) {
  return Object.entries(files).map(([name, text]) => el("details", {},
    el("summary", {}, name), el("p", {}, saving(name, text, `Save ${name.split("/").pop()}`)), el("pre", {class: "terminal", tabindex: "0"}, text)));
}

let busy = null;
// Asks, with the form's buttons and the progress in order. Null: it was stopped, or the planner failed.
async function ask(form, args, files, done = "Answered") {
  if (busy) return null;
  busy = form;
  const buttons = [...document.querySelectorAll("form button[type=submit]")];
  const stop = byId(`${form}-stop`), bar = byId("progress");
  for (const button of buttons) button.disabled = true;
  stop.hidden = false;
  bar.hidden = false;
  bar.removeAttribute("value");  // how far it is, is not known at first
  say("Working.");
  const begin = performance.now();
  try {
    const answer = await planner.ask(args, files, (percent) => { bar.value = percent; });
    answer.seconds = (performance.now() - begin) / 1000;
    say(`${done} in ${answer.seconds.toFixed(1)} s.`);
    return answer;
  } catch (error) {
    say(error ? "" : "Stopped.");
    answer_place.replaceChildren(...(error ? [complaint(error.message)] : []));
    return null;
  } finally {
    busy = null;
    for (const button of buttons) button.disabled = false;
    stop.hidden = true;
    bar.hidden = true;
  }
}

// A report in a frame of its own, as high as it is.
function reportFrame(html) {
  const frame = el("iframe", {title: "The answer", srcdoc: html});
  frame.addEventListener("load", () => {
    const inner = frame.contentDocument;
    const fit = () => { frame.style.height = `${inner.documentElement.offsetHeight + 4}px`; };
    new ResizeObserver(fit).observe(inner.documentElement);
    fit();
    // Its links to its own sections are relative to this page: followed, they would load it into the frame.
    inner.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#']");
      if (!link) return;
      event.preventDefault();
      const place = inner.getElementById(link.getAttribute("href").slice(1));
      if (!place) return;
      place.scrollIntoView();
      place.setAttribute("tabindex", "-1");
      place.focus({preventScroll: true});
    });
  });
  return frame;
}

// Files of a framework for one of the answer's plans.
function emitting(html, question, files, emit_options) {
  const data = JSON.parse(new DOMParser().parseFromString(html, "text/html").getElementById("answers").textContent);
  const answer = data.answers[0].answer;
  if (!answer.plans || !answer.plans.length) return null;
  const frameworks = choicesOf(emit_options.find((option) => option.name === "--framework"));
  const which = el("select", {id: "emit-plan"}, answer.plans.map((plan, i) => el("option", {value: i}, `plan ${i + 1}`)));
  const how = el("select", {id: "emit-framework"}, frameworks.map((name) => el("option", {value: name}, name)));
  how.value = frameworks.includes(answer.framework) ? answer.framework : frameworks[0];
  const place = el("div", {"aria-live": "polite"});
  const write = async () => {
    const args = ["emit", "plan.json", "--framework", how.value, "--out", "job"];
    if (files[OWN_MODEL] !== undefined) args.push("--model", OWN_MODEL);
    const given = {...files, "plan.json": JSON.stringify(answer.plans[Number(which.value)], null, 2) + "\n"};
    const written = await ask("search", args, given, "Written");
    if (!written) return;
    place.replaceChildren(written.code === 0 ? el("div", {}, writtenFiles(written.files)) : complaint(written.err || written.out));
  };
  return el("section", {}, el("h2", {}, "The plan in a framework's files"),
    el("div", {class: "controls"}, el("label", {for: which.id}, "Of"), which, el("label", {for: how.id}, "for"), how,
      el("button", {class: "small", type: "button", onclick: write}, "Write the files")), place);
}

function shownReport(question, files, answer, emit_options) {
  const page = answer.files["report.html"];
  if (!page) {
    answer_place.replaceChildren(complaint(answer.err || answer.out || "no answer"));
    return;
  }
  const shown = question.slice(1, -2);
  answer_place.replaceChildren(
    el("p", {}, saving("report.html", page, "Save this answer as a page", "text/html")),
    as_shell(shown), reportFrame(page), emitting(page, question, files, emit_options) || "");
}

function shownText(question, answer) {
  const parts = [as_shell(question)];
  if (answer.err.trim()) parts.push(answer.out ? el("pre", {class: "terminal", tabindex: "0"}, answer.err) : complaint(answer.err));
  if (answer.out) parts.push(el("pre", {class: "terminal", tabindex: "0", "aria-label": "what the command prints"}, answer.out));
  const files = writtenFiles(answer.files);
  if (files.length) parts.push(el("h2", {}, "Files that it wrote"), ...files);
  answer_place.replaceChildren(...parts);
}

// ---- tabs ----

const tabs = [...document.querySelectorAll("[role=tab]")];
function choose(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  answer_place.replaceChildren();
  if (!busy) say("");
}
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const next = tabs[(i + step + tabs.length) % tabs.length];
    choose(next);
    next.focus();
  });
});

// ---- the three forms ----

// As a shell splits words, without what else a shell does.
function words_of(line) {
  const words = [];
  for (const [found] of line.matchAll(/(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/g)) {
    words.push(found.replace(/"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.)/g,
      (all, double, single, escaped) => double !== undefined ? double.replace(/\\(["\\])/g, "$1") : single ?? escaped));
  }
  return words;
}

// The values of a command line's options, by name; null where one stands alone.
function valuesOf(words) {
  const values = new Map();
  for (let i = 0; i < words.length; ++i) {
    const alone = i + 1 === words.length || words[i + 1].startsWith("--");
    if (words[i].startsWith("--")) values.set(words[i], alone ? null : words[++i]);
  }
  return values;
}

function searchForm({options, example}, emit_options, models, hardware) {
  const option = (name) => options.find((one) => one.name === name);
  const model = modelChooser(byId("search-model"), "search", models);
  const shown = ["--hardware", "--gpus", "--framework", "--precision", "--seq-len", "--global-batch-size"];
  const main = [
    ["--gpus", fieldOf(option("--gpus"), "search", {label: "Number of GPUs", help: ""})],
    ["--hardware", fieldOf(option("--hardware"), "search", {label: "Hardware", single: true, help: "", names: hardware})],
    ["--framework", fieldOf(option("--framework"), "search", {label: "Framework", single: true, help: ""})],
    ["--precision", fieldOf(option("--precision"), "search", {label: "Precision", single: true, help: ""})],
    ["--seq-len", fieldOf(option("--seq-len"), "search", {label: "Sequence length, tokens", help: ""})],
    ["--global-batch-size", fieldOf(option("--global-batch-size"), "search", {label: "Global batch, sequences", help: ""})],
  ];
  byId("search-fields").append(...main.map(([, field]) => field.node));
  const more = moreFields(byId("search-more"), options, "search", shown);
  const fields = new Map([...main, ...more]);

  byId("search-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const words = [...model.words(), ...[...fields.values()].flatMap((field) => field.words())];
    const question = ["report", "search", ...words, "-o", "report.html"], files = model.files();
    answer_place.replaceChildren();
    const answer = await ask("search", question, files);
    if (!answer) return;
    shownReport(question, files, answer, emit_options);
    if (Object.keys(files).length === 0) history.replaceState(null, "", "#" + encodeURIComponent(command_text(["search", ...words]).slice(6)));
  });
  // At first the example of the verb's help; or what a link asks, whose part after "#" is a command line.
  const usual = valuesOf(words_of(example.split("\n")[0]));
  model.set(usual.get("--model"));
  fields.get("--gpus").set(usual.get("--gpus"));
  let asked = [];
  try {
    asked = words_of(decodeURIComponent(location.hash.slice(1)));
  } catch {
    // No question: somebody else's address.
  }
  if (asked[0] !== "search") return;
  for (const [name, value] of valuesOf(asked)) {
    if (name === "--model") model.set(value);
    else if (fields.has(name)) fields.get(name).set(value);
  }
}

function checkForm(options, models, hardware) {
  const option = (name) => options.find((one) => one.name === name);
  const list = byId("check-files");
  let count = 0;
  function add(name = "", text = "") {
    const id = `check-file-${++count}`;
    const title = el("input", {id: `${id}-name`, value: name, placeholder: "ds_config.json", autocomplete: "off", autocapitalize: "off", spellcheck: "false"});
    const content = el("textarea", {id, spellcheck: "false", autocapitalize: "off"});
    content.value = text;
    const node = el("fieldset", {class: "file"}, el("legend", {}, `File ${count}`),
      el("div", {class: "field"}, el("label", {for: title.id}, "Name"), title,
        el("span", {class: "help"}, "its ending tells what it is: ds_config.json, train.sh, axolotl.yaml")),
      el("div", {class: "field"}, el("label", {for: id}, "Text"), content),
      el("button", {class: "small", type: "button", onclick: () => node.remove()}, "Remove"));
    node.file = () => [title.value.trim(), content.value];
    list.append(node);
  }
  add();
  byId("check-add").addEventListener("click", () => add());
  byId("check-open").addEventListener("change", async (event) => {
    const empty = [...list.children].filter((node) => node.file().join("") === "");
    for (const node of empty) node.remove();
    for (const file of event.target.files) add(file.name, await file.text());
    event.target.value = "";
  });
  const model = modelChooser(byId("check-model"), "check", models, "the one that the files describe or name");
  const shown = ["--hardware", "--gpus"];
  const main = [
    fieldOf(option("--gpus"), "check", {label: "Number of GPUs", help: ""}),
    fieldOf(option("--hardware"), "check", {label: "Hardware", single: true, help: "", names: hardware}),
  ];
  const fix = el("input", {type: "checkbox", id: "check-fix"});
  byId("check-fields").append(...main.map((field) => field.node),
    el("div", {class: "field flag"}, fix, el("label", {for: "check-fix"}, "also corrected copies")));
  const fields = [...main, ...moreFields(byId("check-more"), options, "check", shown).map(([, field]) => field)];

  byId("check-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = [...list.children].map((node) => node.file()).filter(([name, text]) => name !== "" || text.trim() !== "");
    answer_place.replaceChildren();
    if (!given.length || given.some(([name]) => name === "")) {
      answer_place.append(complaint(given.length ? "Every file needs a name, such as ds_config.json." : "Paste or open a file first."));
      return;
    }
    const names = given.map(([name]) => name.replace(/^.*[\\/]/, ""));
    const files = {...model.files(), ...Object.fromEntries(given.map(([, text], i) => [names[i], text]))};
    const question = ["check", ...names, ...model.words(), ...fields.flatMap((field) => field.words()), ...(fix.checked ? ["--fix", "corrected"] : [])];
    const answer = await ask("check", question, files);
    if (answer) shownText(question, answer);
  });
}

function commandForm() {
  const files = {};
  byId("command-open").addEventListener("change", async (event) => {
    for (const file of event.target.files) files[file.name] = await file.text();
    event.target.value = "";
    byId("command-files").textContent = Object.keys(files).join(", ");
  });
  byId("command-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const question = words_of(byId("command-line").value);
    answer_place.replaceChildren();
    const answer = await ask("command", question, {...files});
    if (answer) shownText(question, answer);
  });
}

// ---- start ----

function main() {
  const begin = performance.now();
  planner.start().then(
    () => { if (!busy) say(`Ready after ${((performance.now() - begin) / 1000).toFixed(1)} s.`); },
    (error) => {
      if (!error) return;  // stopped before it had started
      say("");
      answer_place.replaceChildren(complaint(`The planner cannot be started: ${error.message}`));
    });
  const forms = JSON.parse(byId("forms").textContent);
  const models = new Map(forms.models), hardware = new Map(forms.hardware);
  byId("version").textContent = forms.version;
  searchForm(forms.search, forms.emit.options, models, hardware);
  checkForm(forms.check.options, models, hardware);
  commandForm();
  for (const form of ["search", "check", "command"]) byId(`${form}-stop`).addEventListener("click", () => planner.stop());
  for (const button of document.querySelectorAll("form button[type=submit]")) button.disabled = false;
  document.documentElement.dataset.ready = "true";
}

if (typeof WebAssembly !== "object" || typeof DecompressionStream !== "function") {
  say("");
  answer_place.replaceChildren(complaint("This browser is too old for the planner: it needs WebAssembly with exceptions and DecompressionStream (2023 and later)."));
} else {
  main();
}
