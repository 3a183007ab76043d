/**
 * What a cell can load, and where from: the directory that the kernel is in.
 */
'use strict';

const Module = require('module');
const path = require('path');
const { pathToFileURL } = require('url');

const NAMES = ['require', 'module', 'exports', '__filename', '__dirname'];
const defineProperty = Object.defineProperty;
const CellsSyntaxError = scope.SyntaxError;
const currentDirectoryOf = process.cwd.bind(process);
const hasOwn = Object.hasOwn;

/** `require` and its like for cells, made anew when the directory is another. */
class Modules {
  constructor() {
    this._directory = '';
    this._given = {};
    this.meta = { __proto__: null };
  }

  /** Let cells load from the current directory; what they put in a name's place stays. */
  follow() {
    const directory = currentDirectory();
    if (directory === this._directory) return;
    this._directory = directory;
    const file = path.join(directory, '[cell]');
    const module = new Module(file);
    module.filename = file;
    module.paths = Module._nodeModulePaths(directory);
    const require = Module.createRequire(file);
    require.main = undefined;
    const url = pathToFileURL(file).href;
    const resolve = (name) => pathToFileURL(require.resolve(name)).href;
    this.meta = { __proto__: null, dirname: directory, filename: file, url, resolve };
    this._give({
      require,
      module,
      exports: module.exports,
      __filename: file,
      __dirname: directory,
    });
  }

  _give(values) {
    for (const name of NAMES) {
      if (hasOwn(scope, name) && scope[name] !== this._given[name]) continue;
      defineProperty(scope, name, {
        value: values[name],
        writable: true,
        configurable: true,
        enumerable: false,
      });
    }
    this._given = values;
  }
}

function currentDirectory() {
  try {
    return currentDirectoryOf();
  } catch {
    // It has been removed.
    return '/';
  }
}

/** Return a module's names, after a look that those which are wanted are there. */
function exported(names, from, wanted) {
  for (const name of wanted) {
    if (!(name in names))
      throw new CellsSyntaxError(
        `The requested module '${from}' does not provide an export named '${name}'`,
      );
  }
  return names;
}

module.exports = { Modules, exported };
