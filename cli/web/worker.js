// The page's worker: {wasm}, a compiled module, starts it, {id, args, files} asks it.
let engine = null;
let asked = 0;
let told = -1;

onmessage = async ({data}) => {
  try {
    if (data.wasm) {
      engine = await startEngine(data.wasm, (done) => {
        const percent = Math.floor(100 * done);
        if (percent !== told) postMessage({id: asked, percent});
        told = percent;
      });
      postMessage({ready: true});
      return;
    }
    asked = data.id;
    postMessage({id: data.id, answer: engine.ask(data.args, data.files)});
  } catch (error) {
    // The module itself has failed: what it holds is not to be trusted any more.
    postMessage({id: data.id, broken: String(error && error.message || error)});
  }
};
