// What the page's forms are made of, as the planner says it: a page has them before its own planner has started.
//   node make_forms.js MODULE.js MODULE.wasm engine.js FORMS.json
"use strict";
const fs = require("fs");

const [module_file, wasm_file, engine_file, output] = process.argv.slice(2);
const text = (path) => fs.readFileSync(path, "utf8");
const load = new Function("require", "__dirname", "__filename", `${text(module_file)}\n${text(engine_file)}\nreturn startEngine;`);
const billions = (count) => `${(count / 1e9).toPrecision(3)}B`;

(async () => {
  const engine = await load(require, __dirname, __filename)(await WebAssembly.compile(fs.readFileSync(wasm_file)), () => {});
  const said = (...args) => {
    const {code, out, err} = engine.ask(args);
    if (code !== 0) throw new Error(`qplan ${args.join(" ")}: ${err}`);
    return out;
  };
  const listed = (verb, words) => JSON.parse(said(verb, "--json"))[verb].map((one) => [one.name, words(one)]);
  const forms = {
    version: said("--version").replace("qplan", "").trim(),
    models: listed("models", ({parameters: {total, active}}) =>
      billions(total) + (active < total ? `, ${billions(active)} active` : "")),
    hardware: listed("hardware", (one) => one.description),
  };
  for (const verb of ["search", "emit", "check"]) forms[verb] = JSON.parse(said(verb, "--help=json"));
  fs.writeFileSync(output, JSON.stringify(forms).replaceAll("<", "\\u003c"));  // ends no <script>
})().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
