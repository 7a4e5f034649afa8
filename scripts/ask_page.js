// The planner of a page that scripts/web built, in node, without the page around it:
//   node scripts/ask_page.js build/web/qplan.html < questions > answers
// A question is a line of JSON {"args": [...], "files": {name: text}}; its answer is a line {code, out, err,
// files, seconds, cpu_seconds}. The first line says how long the start took.
"use strict";
const fs = require("fs");
const readline = require("readline");
const zlib = require("zlib");

const begin = [performance.now(), process.cpuUsage()];
const since = ([time, cpu]) => {
  const used = process.cpuUsage(cpu);
  return {seconds: (performance.now() - time) / 1000, cpu_seconds: (used.user + used.system) / 1e6};
};
const page = fs.readFileSync(process.argv[2], "utf8");
const part = (id) => page.split(`<script type="text/plain" id="${id}">`)[1].split("</script>")[0];
const load = new Function("require", "__dirname", "__filename", "onmessage", `${part("worker")}; return startEngine;`);

(async () => {
  const wasm = zlib.gunzipSync(Buffer.from(part("wasm"), "base64"));
  const engine = await load(require, __dirname, __filename, null)(await WebAssembly.compile(wasm), () => {});
  const tell = (object) => process.stdout.write(JSON.stringify(object) + "\n");
  tell({started: true, ...since(begin)});
  for await (const line of readline.createInterface({input: process.stdin})) {
    const question = JSON.parse(line), asked = [performance.now(), process.cpuUsage()];
    const answer = engine.ask(question.args, question.files);
    tell({...answer, ...since(asked)});
  }
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
