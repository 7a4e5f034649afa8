// ---- elements, numbers and tables ----

const page = JSON.parse(document.getElementById("answers").textContent);

let ids = 0;
const newId = (stem) => `${stem}-${++ids}`;

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const MISSING = "–";

// Digits in groups of three, from 10 000 on; a true minus.
function grouped(text) {
  const [, sign, whole, rest] = /^(-?)(\d+)(.*)$/.exec(text);
  const digits = whole.length < 5 ? whole : whole.replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return (sign ? "\u2212" : "") + digits + rest;
}
function fixed(value, decimals) {
  return isNumber(value) ? grouped(value.toFixed(decimals)) : MISSING;
}
// As many digits as say something, and all before the point.
function significant(value, digits = 3) {
  if (!isNumber(value)) return MISSING;
  if (value === 0) return "0";
  const exponent = Number(value.toExponential(digits - 1).split("e")[1]);
  if (exponent < -6) return value.toExponential(digits - 1).replaceAll("-", "\u2212");
  return grouped(value.toFixed(Math.max(0, Math.min(20, digits - 1 - exponent))));
}
const whole = (value) => fixed(value, 0);
const percent = (share) => isNumber(share) ? fixed(100 * share, 1) : MISSING;
const signedPercent = (share) => isNumber(share) ? (share > 0 ? "+" : "") + percent(share) : MISSING;
function seconds(value, digits = 4) {
  if (!isNumber(value)) return MISSING;
  const size = Math.abs(value);
  if (size >= 1 || size === 0) return significant(value, digits) + " s";
  if (size >= 1e-3) return significant(value * 1e3, digits) + " ms";
  return significant(value * 1e6, digits) + " µs";
}
// "1.00T", "300B".
function count(value) {
  if (value < 1e6) return whole(value);
  const [size, letter] = value >= 1e12 ? [1e12, "T"] : value >= 1e9 ? [1e9, "B"] : [1e6, "M"];
  return significant(value / size) + letter;
}
function gib(value) {
  if (!isNumber(value)) return MISSING;
  return Math.abs(value) >= 1 || value === 0 ? fixed(value, 1) + " GiB" : significant(value * 1024) + " MiB";
}
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
const sum = (list) => list.reduce((total, value) => total + value, 0);
const plural = (count, one, many = one + "s") => `${whole(count)} ${count === 1 ? one : many}`;

// A table that sorts by any column: columns are {label, unit, show, text, get}, rows anything.
//   get: the value of a row, which is sorted by; show: the value as text or node; text: words, not a number;
//   brief: a word or two;
//   words: a line of a plan's words, which stands below the row's other cells, as wide as all of them
function table(caption, all, rows, options = {}) {
  const body = el("tbody");
  const columns = all.filter((column) => !column.words), lines = all.filter((column) => column.words);
  const heads = columns.map((column) => {
    const unit = column.unit ? el("span", {class: "unit"}, ` ${column.unit}`) : null;
    const sorts = rows.length > 1 && column.label !== "";
    const button = sorts ? el("button", {type: "button", onclick: () => sort(column)}, column.label, unit)
                         : [column.label, unit];
    return el("th", {scope: "col", class: column.text ? "text" : "number"}, button);
  });
  let shown = [...rows], sorted = null, direction = 1;

  function fill() {
    body.replaceChildren(...shown.flatMap((row) => {
      const cells = columns.map((column, i) => {
        const value = column.get(row);
        const content = column.show ? column.show(value, row) : value;
        const cell = content === null || content === undefined || content === "" ? MISSING : content;
        const kind = !column.text ? "number" : column.brief ? "text brief" : "text";
        return i === 0 && options.heads ? el("th", {scope: "row", class: kind}, cell)
                                        : el("td", {class: kind}, cell);
      });
      const chosen = options.chosen && options.chosen(row) ? " chosen" : "";
      const said = lines.map((column) => [column.label, column.get(row)]).filter(([, words]) => words);
      if (!said.length) return [el("tr", {class: chosen}, cells)];
      return [el("tr", {class: "above" + chosen}, cells), el("tr", {class: "below" + chosen}, el("td", {class: "words", colspan: columns.length},
        said.map(([label, words]) => el("div", {}, el("span", {class: "unit"}, `${label} `), words))))];
    }));
  }
  // What is missing stays at the end, whichever way; equal rows keep their order.
  function sort(column) {
    direction = sorted === column ? -direction : 1;
    sorted = column;
    const lacks = (value) => value === null || value === undefined || Number.isNaN(value);
    shown.sort((a, b) => {
      const x = column.get(a), y = column.get(b);
      if (lacks(x) || lacks(y)) return Number(lacks(x)) - Number(lacks(y));
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en");
      return direction * order;
    });
    heads.forEach((head, i) => {
      if (columns[i] === column) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    fill();
  }

  const name = newId("table");
  const node = el("table", {id: name}, el("caption", {}, el("span", {}, caption)), el("thead", {}, el("tr", {}, heads)), body);
  const region = el("div", {class: "scroll", role: "region", tabindex: "0", "aria-label": caption}, node);
  fill();
  const parts = [region];
  if (options.filter && rows.length > 20) {
    const count = el("span", {class: "faint", role: "status"}, plural(rows.length, "row"));
    const narrow = (event) => {
      const word = event.target.value.toLowerCase();
      shown = rows.filter((row) => all.some((c) => String(c.get(row)).toLowerCase().includes(word)));
      count.textContent = plural(shown.length, "row");
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      sorted = null;
      fill();
    };
    const input = el("input", {type: "search", oninput: narrow, id: name + "-filter"});
    parts.unshift(el("div", {class: "controls"},
      el("label", {for: name + "-filter"}, "Rows that contain "), input, count));
  }
  const whole_table = el("div", {}, parts);
  whole_table.refresh = fill;
  return whole_table;
}

// Keys and values, of which those without a value are left out.
function facts(pairs) {
  const list = el("dl", {class: "facts"});
  for (const [key, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(el("dt", {}, key), el("dd", {}, value));
  }
  return list;
}
function cards(pairs) {
  return el("div", {class: "cards"}, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([label, value, note]) => el("div", {class: "card"},
      el("span", {}, label), el("b", {}, value), note ? el("span", {}, note) : null)));
}
function notes(list) {
  return list.length ? el("ul", {class: "notes"}, list.map((note) => el("li", {}, note))) : null;
}
function closed(title, ...content) {
  return el("details", {}, el("summary", {}, title), content);
}
