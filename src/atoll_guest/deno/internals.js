/**
 * What a kernel needs of Deno, under the names that Node's kernel has for what it needs of Node.
 */
'use strict';

const vm = require('vm');
const { pathToFileURL } = require('url');

const LANGUAGE = 'deno';
const KERNEL = __dirname.replace(/[^/]+$/, '').replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
// Frames that are no business of the cells: those of the kernel, and of Deno's own parts.
const OWN_FRAMES = `ext:|\\bnode:|${KERNEL}(?:deno|node)/`;
const INNER_FRAMES = OWN_FRAMES;
const BARE = /^[\w@]/;
const WITH_SCHEME = /^[a-z][a-z\d+.-]*:/i;
// Deno's own way out may never come to its end while another thread has its inspector open.
const { _exit: exitNow } = Deno.dlopen('libc.so.6', {
  _exit: { parameters: ['i32'], result: 'void' },
}).symbols;
const currentDirectory = process.cwd.bind(process);

/** Nothing of the kind is kept by Deno. */
function clearAsyncIdStack() {}

/** Deno does so by itself, and what it runs can be interrupted. */
function runTicks() {}

/** Return what cells use to load modules by `import()`: as from a file in the current directory. */
function makeImporter() {
  const importers = new Map();
  return (specifier, _script, attributes) => {
    const file = pathToFileURL(`${currentDirectory()}/[cell]`).href;
    if (!importers.has(file)) importers.set(file, importerFor(file));
    const options = Object.keys(attributes ?? {}).length ? { with: { ...attributes } } : undefined;
    return importers.get(file)(whereIs(specifier), options);
  };
}

function importerFor(filename) {
  const importModuleDynamically = vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
  const code = '(specifier, options) => import(specifier, options)';
  return new vm.Script(code, { filename, importModuleDynamically }).runInThisContext();
}

/** Return where a package of the workspace, or a module of Node's, is: without a `package.json` Deno knows neither by its name. */
function whereIs(specifier) {
  if (!BARE.test(specifier) || WITH_SCHEME.test(specifier)) return specifier;
  try {
    const found = scope.require.resolve(specifier);
    return found.startsWith('/') ? pathToFileURL(found).href : `node:${specifier}`;
  } catch {
    return specifier;
  }
}

function isOfRuntime() {
  return false;
}

/** Deno tells of them itself. */
function tellWarning() {}

/** Put in the place of what would end the process what ends a cell; `end` is called with how it was called. */
function replaceExits(end) {
  process.exit = (code = '') => end(`process.exit(${code})`);
  Deno.exit = (code = '') => end(`Deno.exit(${code})`);
  scope.close = () => end('close()');
}

module.exports = {
  INNER_FRAMES,
  LANGUAGE,
  OWN_FRAMES,
  clearAsyncIdStack,
  exitNow,
  isOfRuntime,
  makeImporter,
  replaceExits,
  runTicks,
  tellWarning,
};
