/**
 * Errors as people want to read them: their place in the cell first, and no frame of the kernel's or of inner parts of Node or Deno.
 */
'use strict';

const util = require('util');
const { columnBefore } = require('./edits.js');
const { INNER_FRAMES, OWN_FRAMES, isOfRuntime } = require('./internals.js');

const { inspect } = util;
const { isNativeError } = util.types;
const CellsError = scope.Error;
const errorText = CellsError.prototype.toString;

const OWN_FRAME = new RegExp(`^\\s+at .*(?:${OWN_FRAMES})`);
const INNER_FRAME = new RegExp(`^\\s+at .*(?:${INNER_FRAMES})`);
const CELL_PLACE = /(<cell(?: \d+)?>):(\d+):(\d+)/g;
const FRAME = /^\s+at /;
const MOST_LINES = 200;
const MOST_LINE = 400;
const UNREADABLE = '(it fails when it is looked at)';
const TABS_KEPT = /[^\t]/g;

/** The end of a cell that called `process.exit`. */
class ProcessExit extends CellsError {
  get name() {
    return 'ProcessExit';
  }
}

/** The end of a cell that was interrupted. */
class Interrupted extends CellsError {
  get name() {
    return 'Interrupted';
  }
}

/** Return name, text and traceback of whatever was thrown. */
function describe(error, cells) {
  if (!isError(error)) return describeOther(error);
  const name = attempt(() => nameOf(error), 'Error');
  const value = attempt(() => String(error.message), UNREADABLE);
  const traceback = attempt(() => trace(error, cells), [`${name}: ${value}`]);
  return { name, value, traceback };
}

function describeOther(value) {
  const text = attempt(() => inspect(value), UNREADABLE);
  return { name: 'Uncaught', value: text, traceback: [`Uncaught ${text}`] };
}

/** Return what a function gives, or something else where it fails: a value may fail when it is looked at. */
function attempt(look, otherwise) {
  try {
    return look();
  } catch {
    return otherwise;
  }
}

function isError(value) {
  return isNativeError(value) || attempt(() => value instanceof CellsError, false);
}

function nameOf(error) {
  const own = typeof error.name === 'string' && error.name ? error.name : 'Error';
  const { constructor } = error;
  return own === 'Error' && typeof constructor?.name === 'string' && constructor.name
    ? constructor.name
    : own;
}

/** Return an error's `stack`, as cells find it: without the kernel's part, and with places as they were written. */
function stackOf(error, frames, cells) {
  const lines = [attempt(() => headOf(error), 'Error')];
  for (let index = 0; index < frames.length; index++) {
    const line = `    at ${frames[index]}`;
    if (!OWN_FRAME.test(line) && !isBehindCell(line, cells)) lines.push(rightPlaces(line, cells));
  }
  return lines.join('\n');
}

function headOf(error) {
  return isOfRuntime(error)
    ? `${error.name} [${error.code}]: ${error.message}`
    : errorText.call(error);
}

/** Whether a place is behind the end of a cell, in what was put around it. */
function isBehindCell(line, cells) {
  const [place] = line.matchAll(CELL_PLACE);
  const source = place && cells.find(place[1])?.source;
  return source !== undefined && Number(place[2]) > source.split('\n').length;
}

function trace(error, cells) {
  const text = inspect(error);
  // Around what has no frames to show.
  const isBracketed = text.startsWith('[') && text.endsWith(']');
  const lines = clean((isBracketed ? text.slice(1, -1) : text).split('\n'));
  const shown = lines.length > MOST_LINES ? [...lines.slice(0, MOST_LINES), '    …'] : lines;
  return error instanceof Interrupted ? [shown[0]] : [...quote(shown, cells), ...shown];
}

function clean(lines) {
  const kept = [];
  for (const line of lines) {
    if (!INNER_FRAME.test(line) && !OWN_FRAME.test(line)) kept.push(line);
    // Here what else an error holds begins.
    else if (line.endsWith(' {') && kept.length) kept[kept.length - 1] += ' {';
  }
  return kept;
}

function rightPlaces(line, cells) {
  return line.replace(CELL_PLACE, (_all, name, row, column) => {
    const moves = cells.find(name)?.moves ?? [];
    return `${name}:${row}:${columnBefore(moves, Number(row), Number(column))}`;
  });
}

/** Return the line of a cell in which it happened, with a mark below. */
function quote(lines, cells) {
  const frame = lines.find((line) => FRAME.test(line) && line.includes('<cell'));
  const [place] = frame?.matchAll(CELL_PLACE) ?? [];
  const [, name, row, column] = place ?? [];
  const line = cells.find(name)?.source.split('\n')[row - 1];
  if (line === undefined || line.length > MOST_LINE) return [];
  return [`${name}:${row}`, line, `${line.slice(0, column - 1).replace(TABS_KEPT, ' ')}^`, ''];
}

module.exports = { Interrupted, ProcessExit, describe, stackOf };
