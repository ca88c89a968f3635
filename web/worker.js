"use strict";
// The program in a thread of its own: one command after another, and what each wrote.
importScripts("dsplan.js");

class Said {
  constructor() { this.bytes = new Uint8Array(1 << 16); this.length = 0; }
  put(byte) {
    if (this.length === this.bytes.length) { const more = new Uint8Array(2 * this.length); more.set(this.bytes); this.bytes = more; }
    this.bytes[this.length++] = byte & 255;
  }
  take() { const text = new TextDecoder().decode(this.bytes.subarray(0, this.length)); this.length = 0; return text; }
}
const out = new Said(), err = new Said();
const FOLDER = "/model";  // What a config.json is called that lies in it.

const ready = makeDsplan({preRun: [module => {
  module.FS.init(() => null, byte => { if (byte !== null) out.put(byte); }, byte => { if (byte !== null) err.put(byte); });
  module.FS.mkdir(FOLDER);
  module.FS.chdir(FOLDER);
}]});

onmessage = async ({data: {id, call, words, files}}) => {
  try {
    const program = await ready, began = performance.now();
    for (const [name, text] of Object.entries(files || {})) program.FS.writeFile(`${FOLDER}/${name}`, text);
    const code = program.ccall(call, "number", ["string"], [words.join("\n")]);
    postMessage({id, code, out: out.take(), err: err.take(), ms: performance.now() - began});
  } catch (fault) {
    out.take();
    postMessage({id, code: 1, out: "", err: `${err.take()}dsplan: ${fault}\n`, ms: 0, broken: true});
  }
};
