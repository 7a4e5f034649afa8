// What stands between the module and whoever asks: the page's worker, or a test in node.
//   startEngine(wasm, progress), of a compiled module, gives {ask(args, files)}: `files` are texts by name, laid down in
//   an empty folder; the answer is {code, out, err, files}, the last of them what the command wrote there.

const FOLDER = "/job";
const decode = (bytes) => new TextDecoder().decode(bytes);

async function startEngine(wasm, progress) {
  const instantiateWasm = (imports, done) => {
    WebAssembly.instantiate(wasm, imports).then((instance) => done(instance, wasm));
    return {};
  };
  const qplan = await makeQplan({progress, instantiateWasm});

  function removeAll(path) {
    for (const name of qplan.FS.readdir(path)) {
      if (name === "." || name === "..") continue;
      const inner = `${path}/${name}`;
      if (qplan.FS.isDir(qplan.FS.stat(inner).mode)) {
        removeAll(inner);
        qplan.FS.rmdir(inner);
      } else {
        qplan.FS.unlink(inner);
      }
    }
  }
  function collect(path, prefix, into) {
    for (const name of qplan.FS.readdir(path).sort()) {
      if (name === "." || name === "..") continue;
      const inner = `${path}/${name}`;
      if (qplan.FS.isDir(qplan.FS.stat(inner).mode)) collect(inner, `${prefix}${name}/`, into);
      else into[prefix + name] = qplan.FS.readFile(inner);
    }
  }

  function ask(args, files = {}) {
    if (!qplan.FS.analyzePath(FOLDER).exists) qplan.FS.mkdir(FOLDER);
    removeAll(FOLDER);
    qplan.FS.chdir(FOLDER);
    for (const [name, text] of Object.entries(files)) {
      const at = name.lastIndexOf("/");
      if (at > 0) qplan.FS.mkdirTree(`${FOLDER}/${name.slice(0, at)}`);
      qplan.FS.writeFile(`${FOLDER}/${name}`, text);
    }
    const words = qplan.stringToNewUTF8(JSON.stringify(args));
    const code = qplan._qplan_ask(words);
    qplan._free(words);
    const text = (error) => {
      const at = qplan._qplan_text(error);
      return decode(qplan.HEAPU8.subarray(at, at + qplan._qplan_size(error)));
    };
    const written = {}, kept = {};
    collect(FOLDER, "", written);
    for (const [name, bytes] of Object.entries(written)) {
      const content = decode(bytes);
      if (files[name] !== content) kept[name] = content;
    }
    removeAll(FOLDER);
    return {code, out: text(0), err: text(1), files: kept};
  }
  return {ask};
}
