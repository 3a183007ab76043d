/**
 * Starts a kernel in a realm of its own: whatever cells do to the methods of arrays, strings or promises does not reach it.
 *
 * A realm has its own `Array`, `JSON`, `Map` and all that belongs to JavaScript itself; what belongs to Node is handed in.
 */
'use strict';

const fs = require('fs');
const path = require('path');
const vm = require('vm');

const FIRST_VERSION = [20, 12];
const PARSER = 'internal/deps/acorn/acorn/dist/acorn';

const [major, minor] = process.versions.node.split('.').map(Number);
if (major < FIRST_VERSION[0] || (major === FIRST_VERSION[0] && minor < FIRST_VERSION[1])) {
  process.stderr.write(
    `a kernel needs Node ${FIRST_VERSION.join('.')} or newer; this is ${process.version}\n`,
  );
  process.exit(1);
}

const { internalBinding } = require('internal/test/binding');
const given = { Buffer, clearTimeout, performance, process, scope: globalThis, setImmediate };
const realm = vm.createContext(vm.constants.DONT_CONTEXTIFY ?? {});
const loaded = new Map();

/** Load a file of the kernel's, the parser that Node carries, or a module of Node's. */
function load(name) {
  if (name === PARSER) return make(name, internalBinding('builtins').natives[PARSER]);
  if (!name.startsWith('./')) return require(name);
  const file = path.join(__dirname, name);
  return make(file, fs.readFileSync(file, 'utf8'));
}

function make(filename, code) {
  if (!loaded.has(filename)) {
    const module = { exports: {} };
    loaded.set(filename, module);
    const names = ['exports', 'require', 'module', '__dirname', ...Object.keys(given)];
    const body = vm.compileFunction(code, names, { filename, parsingContext: realm });
    body(module.exports, load, module, __dirname, ...Object.values(given));
  }
  return loaded.get(filename).exports;
}

const { Kernel } = load('./kernel.js');
new Kernel().serve();
