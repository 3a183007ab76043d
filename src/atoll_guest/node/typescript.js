/**
 * Takes the types out of a cell: with Node's own means where it has them, else with the workspace's `typescript`.
 *
 * There is no third way: where a type ends and an expression begins can only be told by a parser of TypeScript.
 */
'use strict';

const { stripTypeScriptTypes } = require('module');

// Only a hint for people hangs on it.
const LOOKS_TYPED =
  /\b(interface|enum|type|namespace|declare|abstract|implements|readonly|satisfies|as)\s+[\w{]|[\w)\]?]\s*:\s*[A-Za-z_{[(]|<[A-Z]\w*>/;

const LOOKS_CALLED = /[\w$]<[^;=]*>\s*\(/;

/** Return a cell as JavaScript, or null if it is no TypeScript or nothing here can tell. */
function stripTypes(source) {
  if (stripTypeScriptTypes) return stripByNode(source);
  const compiler = findCompiler();
  if (!compiler) return null;
  const { ModuleKind, ScriptTarget } = compiler;
  const compilerOptions = {
    target: ScriptTarget.ESNext,
    module: ModuleKind.ESNext,
    verbatimModuleSyntax: true,
    newLine: 1,
  };
  const done = compiler.transpileModule(source, { compilerOptions, reportDiagnostics: true });
  return done.diagnostics?.length ? null : done.outputText;
}

function stripByNode(source) {
  // The first keeps every place, and takes no enums.
  for (const mode of ['strip', 'transform']) {
    try {
      return stripTypeScriptTypes(source, { mode });
    } catch {
      continue;
    }
  }
  return null;
}

function findCompiler() {
  try {
    const found = scope.require('typescript');
    // Not every version has it.
    return typeof found.transpileModule === 'function' ? found : null;
  } catch {
    return null;
  }
}

/**
 * Return a cell without its types if it calls something with some, else null.
 *
 * `f<T>(x)` is JavaScript, too, but nobody compares what a comparison gives with something in parentheses.
 */
function stripCalls(source) {
  if (!LOOKS_CALLED.test(source)) return null;
  const stripped = stripTypes(source);
  return stripped?.length === source.length && stripped !== source ? stripped : null;
}

/** Return what to tell of a cell that looks like TypeScript and could not be read. */
function hintFor(source) {
  if (stripTypeScriptTypes || !LOOKS_TYPED.test(source) || findCompiler()) return '';
  return (
    `if this is TypeScript: to take out its types, Node 22.13 or newer is needed (this is ${process.version}),` +
    ` or a package 'typescript' in the workspace that has transpileModule`
  );
}

module.exports = { hintFor, stripCalls, stripTypes };
