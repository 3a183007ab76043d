/**
 * What can be told of names without running anything: completions, and what a value is.
 */
'use strict';

const Module = require('module');
const util = require('util');
const { OURS } = require('./transform.js');

const { inspect } = util;
const { getOwnPropertyDescriptor, getOwnPropertyNames, getPrototypeOf } = Object;
const { isProxy } = util.types;

const BUILT_IN = new Set(getOwnPropertyNames(scope));
const HIDDEN = /^__atoll_/;
const NAME = /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u;
const CHAIN =
  /([\p{ID_Start}$_][\p{ID_Continue}$]*(?:\??\.[\p{ID_Start}$_][\p{ID_Continue}$]*)*)(\??\.)([\p{ID_Continue}$]*)$/u;
const WORD = /[\p{ID_Start}$_][\p{ID_Continue}$]*$/u;
const REST = /^[\p{ID_Continue}$]*/u;
const MODULE = /\b(?:require|import)\s*\(\s*['"]([^'"]*)$|\bfrom\s+['"]([^'"]*)$/;
const SPLIT = /\??\./;
const KEYWORDS = (
  'async await break case catch class const continue debugger default delete do else export extends false finally for function' +
  ' if import in instanceof let new null of return static super switch this throw true try typeof var void while with yield'
).split(' ');
const MODULES = Module.builtinModules.filter((name) => !name.startsWith('internal/'));
const MOST_MATCHES = 1000;
const MOST_TEXT = 10_000;

/** Return completions at a place, counted in characters as the host does. */
function complete(code, cursor) {
  const before = [...code].slice(0, cursor).join('');
  const { matches, typed } = matchesFor(before);
  const found = [...new Set(matches)]
    .filter((name) => name.startsWith(typed) && !HIDDEN.test(name))
    .sort();
  return { matches: found.slice(0, MOST_MATCHES), start: cursor - [...typed].length, end: cursor };
}

function matchesFor(before) {
  const module = MODULE.exec(before);
  if (module) return { matches: MODULES, typed: module[1] ?? module[2] };
  const chain = CHAIN.exec(before);
  if (chain) {
    const found = valueOf(chain[1]);
    return { matches: found ? propertiesOf(found.value) : [], typed: chain[3] };
  }
  const typed = WORD.exec(before)?.[0] ?? '';
  const names = before.endsWith('.') ? [] : [...propertiesOf(scope), ...KEYWORDS];
  return { matches: names, typed };
}

function propertiesOf(value) {
  const names = [];
  for (let holder = asObject(value); holder && !isProxy(holder); holder = getPrototypeOf(holder)) {
    names.push(...getOwnPropertyNames(holder).filter((name) => NAME.test(name)));
  }
  return names;
}

function asObject(value) {
  return value === null || value === undefined ? null : Object(value);
}

/** Return the value of a name with dots, as far as no getter has to be run for it; null if there is none. */
function valueOf(chain) {
  const [first, ...rest] = chain.split(SPLIT);
  let found = dataOf(scope[OURS].apart, first);
  found ??= BUILT_IN.has(first) ? { value: scope[first] } : dataOf(scope, first);
  for (const name of rest) found = found && dataOf(asObject(found.value), name);
  return found;
}

function dataOf(object, name) {
  for (let holder = object; holder && !isProxy(holder); holder = getPrototypeOf(holder)) {
    const found = getOwnPropertyDescriptor(holder, name);
    if (found) return 'value' in found ? found : null;
  }
  return null;
}

/** Return what the name at a place stands for. */
function look(code, cursor) {
  const characters = [...code];
  const word =
    characters.slice(0, cursor).join('') + REST.exec(characters.slice(cursor).join(''))[0];
  const chain = CHAIN.exec(word)?.[0] ?? WORD.exec(word)?.[0] ?? '';
  const found = chain && valueOf(chain);
  return found
    ? { found: true, data: { 'text/plain': tell(chain, found.value) } }
    : { found: false, data: {} };
}

function tell(name, value) {
  if (typeof value === 'function') return tellFunction(name, value);
  const kind = value === null ? 'null' : typeof value === 'object' ? classOf(value) : typeof value;
  const text = isProxy(value)
    ? 'a Proxy'
    : inspect(value, { depth: 1, getters: false, customInspect: false });
  return `${name}: ${kind}\n\n${text.slice(0, MOST_TEXT)}`;
}

function tellFunction(name, value) {
  const source = Function.prototype.toString.call(value);
  if (source.includes('[native code]'))
    return `${name}: function of ${value.length} arguments, built in`;
  if (source.startsWith('class')) return `${name}: class\n\n${source.slice(0, MOST_TEXT)}`;
  return `${name}: function\n\n${source.slice(0, MOST_TEXT)}`;
}

function classOf(value) {
  return dataOf(value, 'constructor')?.value?.name || 'object';
}

module.exports = { complete, look };
