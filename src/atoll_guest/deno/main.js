/**
 * Starts a kernel in a realm of its own: whatever cells do to the methods of arrays, strings or promises does not reach it.
 *
 * A file of the kernel is one of this folder, else that of its name in Node's: most of both kernels is the same.
 */
import fs from 'node:fs';
import { createRequire } from 'node:module';
import process from 'node:process';
import vm from 'node:vm';

const FIRST_VERSION = [2, 9];

const [major, minor] = Deno.version.deno.split('.').map(Number);
if (major < FIRST_VERSION[0] || (major === FIRST_VERSION[0] && minor < FIRST_VERSION[1])) {
  console.error(
    `a kernel needs Deno ${FIRST_VERSION.join('.')} or newer; this is ${Deno.version.deno}`,
  );
  Deno.exit(1);
}

const folder = import.meta.dirname;
const folders = [folder, folder.replace(/[^/]+$/, 'node')];
const require = createRequire(import.meta.url);
const [immediate, soon, timeout] = [setImmediate, queueMicrotask, setTimeout];
const iterate = Array.prototype[Symbol.iterator];
const given = {
  Buffer,
  Deno,
  Worker,
  clearInterval,
  clearTimeout,
  performance,
  process,
  queueMicrotask,
  scope: globalThis,
  setImmediate: later,
  setInterval,
  setTimeout,
};
/** Call a function in the next turn; Deno's own way to that needs what a cell may have broken. */
function later(callback) {
  // An interrupt in the midst of a turn's own call would end Deno itself.
  const call = () => soon(callback);
  if (Array.prototype[Symbol.iterator] === iterate) immediate(call);
  else timeout(call, 1);
}

const realm = vm.createContext(vm.constants.DONT_CONTEXTIFY);
const loaded = new Map();

/** Load a file of the kernel's, or a module of Node's. */
function load(name) {
  if (!name.startsWith('./')) return require(name);
  if (!loaded.has(name)) {
    const file = findFile(name);
    const module = { exports: {} };
    loaded.set(name, module);
    const names = ['exports', 'require', 'module', '__dirname', ...Object.keys(given)];
    const code = fs.readFileSync(file, 'utf8');
    const body = vm.compileFunction(code, names, { filename: file, parsingContext: realm });
    body(module.exports, load, module, folder, ...Object.values(given));
  }
  return loaded.get(name).exports;
}

function findFile(name) {
  const files = folders.map((each) => `${each}/${name.slice(2)}`);
  return files.find((each) => fs.existsSync(each)) ?? files[0];
}

const { Kernel } = load('./kernel.js');
new Kernel().serve();
