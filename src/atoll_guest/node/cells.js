/**
 * Cells as scripts of one global scope, which is that of all that they load: an array is an `Array` everywhere.
 */
'use strict';

const vm = require('vm');
const { makeImporter } = require('./internals.js');
const { exported } = require('./modules.js');
const { parse } = require('./parser.js');
const { OURS, asItIs, transform } = require('./transform.js');
const { blank, placeAt } = require('./edits.js');
const { hintFor, stripCalls, stripTypes } = require('./typescript.js');

const { Script } = vm;
const runScript = Function.prototype.call.bind(Script.prototype.runInThisContext);
const importModuleDynamically = makeImporter();
const CellsTypeError = scope.TypeError;
const { defineProperty, freeze, getOwnPropertyDescriptor, hasOwn } = Object;

const BUILT_IN = new Set(Object.getOwnPropertyNames(scope));
// Sources that tracebacks can quote.
const MOST_SOURCES = 200;
const ABOUT_MODULES = /\b(import|export)\b/;
const PLACE = / \((\d+):(\d+)\)$/;

/** The cells of one kernel, and what they need of it. */
class Cells {
  constructor(modules) {
    this._modules = modules;
    this._sources = new Map();
    this._apart = new Set();
    const apart = { __proto__: null };
    const ours = { apart, constants: new Proxy(apart, CONSTANTS), exported };
    defineProperty(ours, 'meta', { get: () => modules.meta });
    defineProperty(scope, OURS, { value: freeze(ours) });
  }

  /** Return a cell that can be run; throw a `SyntaxError` that shows the place. */
  compile(source, name) {
    let cell;
    try {
      cell = new Cell(this._transform(stripCalls(source) ?? source), name);
    } catch (error) {
      cell = new Cell(this._understand(error, source, name), name);
    }
    this._apart = cell.apart ?? this._apart;
    this._keep(name, { source: cell.source ?? source, moves: cell.moves });
    return cell;
  }

  /** Return the source of a cell and what was moved in it, if it is not too long ago. */
  find(name) {
    return this._sources.get(name);
  }

  _transform(source) {
    return transform(source, BUILT_IN, this._apart);
  }

  /** Return what a parser of JavaScript alone does not understand: TypeScript, and what only the machine itself knows. */
  _understand(error, source, name) {
    const refusal = refusalOf(source, name);
    if (refusal === null) return asItIs(source);
    const stripped = stripTypes(source);
    if (stripped === null || stripped === source) throw explain(error, refusal, source, name);
    // One that keeps every place is shown as it was written.
    const shown = stripped.length === source.length ? source : stripped;
    try {
      return { ...this._transform(stripped), source: shown };
    } catch (failure) {
      throw explain(failure, refusalOf(stripped, name) ?? failure, shown, name);
    }
  }

  _keep(name, source) {
    this._sources.set(name, source);
    if (this._sources.size > MOST_SOURCES) this._sources.delete(this._sources.keys().next().value);
  }
}

/** One cell, to be run once. */
class Cell {
  constructor(scripts, name) {
    const { functions, isAsync, main } = scripts;
    this.isAsync = isAsync;
    this.isShown = scripts.isShown;
    this.apart = scripts.apart;
    this.source = scripts.source; // if it is another than was given
    this.moves = functions ? [...main.moves, ...functions.moves] : main.moves;
    this._scripts = scripts;
    this._functions = functions && compile(functions.code, name);
    this._main = isAsync ? compileAsync(main.code, name) : compile(main.code, name);
    this._before = [];
  }

  /** Run it, or its part up to the first `await`: then a promise comes back. */
  run() {
    this._begin();
    if (this._functions) runScript(this._functions, QUIETLY);
    return runScript(this._main, QUIETLY);
  }

  /** Take the names that it declares away, so that nobody sees them before their declaration. */
  _begin() {
    for (const name of this._scripts.names) {
      const before = getOwnPropertyDescriptor(scope, name);
      if (before?.configurable) {
        this._before.push([name, before]);
        delete scope[name];
      }
      if (this._scripts.isStrict && !hasOwn(scope, name)) define(name);
    }
    for (const name of this._scripts.variables) if (!(name in scope)) define(name);
  }

  /** Put those back whose declaration it did not come to. */
  end() {
    for (const [name, before] of this._before) {
      if (!hasOwn(scope, name)) defineProperty(scope, name, before);
    }
  }
}

const QUIETLY = { displayErrors: false };

// A cell's own constants, when it assigns to them.
const CONSTANTS = {
  get: (apart, name) => (name in apart ? apart[name] : scope[name]),
  set: () => {
    throw new CellsTypeError('Assignment to constant variable.');
  },
};

function define(name) {
  defineProperty(scope, name, {
    value: undefined,
    writable: true,
    configurable: true,
    enumerable: true,
  });
}

function compile(code, filename) {
  return new Script(code, { filename, importModuleDynamically });
}

function compileAsync(code, filename) {
  return new Script(`(async () => {\n${code}\n})()`, {
    filename,
    lineOffset: -1,
    importModuleDynamically,
  });
}

/** Return the error that the machine itself has for a piece of code, null if it has none. */
function refusalOf(source, name) {
  let refusal = null;
  for (const attempt of [compile, compileAsync]) {
    try {
      attempt(source, name);
      break;
    } catch (error) {
      refusal = error;
    }
  }
  return refusal;
}

/** Return the machine's own words where they fit, with the place if it does not tell it itself: a cell may import, a script may not. */
function explain(error, refusal, source, name) {
  const hint = hintFor(source);
  const isAboutModules = ABOUT_MODULES.test(refusal.message);
  const isPlaced = refusal.stack.startsWith(name);
  const at = error.pos ?? (isPlaced ? undefined : placeOfError(source));
  if (typeof at !== 'number' || (isPlaced && !isAboutModules)) {
    if (hint) refusal.stack += `\n${hint}`;
    return isAboutModules ? error : refusal;
  }
  const { line, column } = placeAt(source, at);
  const message = isAboutModules ? error.message.replace(PLACE, '') : refusal.message;
  const found = new SyntaxError(message);
  const caret = `${blank(' '.repeat(column - 1))}^`;
  found.stack = [`${name}:${line}`, source.split('\n')[line - 1], caret, '', `${found}`, hint]
    .join('\n')
    .trimEnd();
  return found;
}

function placeOfError(source) {
  try {
    parse(source);
  } catch (error) {
    return error.pos;
  }
}

module.exports = { Cells };
