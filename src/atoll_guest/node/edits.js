/**
 * Changes to a piece of code that keep its lines: put together, and undone again for positions in it.
 */
'use strict';

const ALL_BUT_LINE_ENDS = /[^\n\r\u2028\u2029]/g;

/** What is to be changed in one piece of code. */
class Edits {
  constructor(source) {
    this._source = source;
    this._all = [];
  }

  /** Put a text in the place of a part. */
  replace(start, end, text) {
    this._all.push({ start, end, text });
  }

  /** Put a text before what is at a place; of several, the first comes first. */
  insert(at, text) {
    this.replace(at, at, text);
  }

  /** Put a text of the same length in the place of a part: nothing is moved by it. */
  overwrite(start, end, text) {
    this.replace(start, end, text + blank(this._source.slice(start + text.length, end)));
  }

  /** Return the code with all changes, and how it moved; only what is within some ranges, or only what is not. */
  render(ranges, isWithin) {
    const blanks = isWithin ? between(ranges, this._source.length) : ranges;
    const wanted = this._all.filter((edit) => isIn(edit, ranges) === isWithin);
    for (const [start, end] of blanks)
      wanted.push({ start, end, text: blank(this._source.slice(start, end)) });
    wanted.sort((one, other) => one.start - other.start);
    return put(this._source, wanted);
  }
}

function put(source, edits) {
  const parts = [];
  const moves = [];
  let at = 0;
  for (const { start, end, text } of edits) {
    parts.push(source.slice(at, start), text);
    const removed = end - start;
    if (text.length !== removed)
      moves.push({ ...placeAt(source, start), inserted: text.length, removed });
    at = end;
  }
  parts.push(source.slice(at));
  return { code: parts.join(''), moves };
}

/** Return the column, counted from 1, that something had before the changes. */
function columnBefore(moves, line, column) {
  let shift = 0;
  for (const move of moves) {
    if (move.line !== line) continue;
    const at = move.column + shift;
    if (column < at) break;
    if (column < at + move.inserted) return move.column;
    shift += move.inserted - move.removed;
  }
  return column - shift;
}

/** Return line and column, counted from 1, of a place in a text. */
function placeAt(source, offset) {
  const before = source.slice(0, offset);
  const start = before.lastIndexOf('\n') + 1;
  return { line: before.split('\n').length, column: offset - start + 1 };
}

function blank(text) {
  return text.replace(ALL_BUT_LINE_ENDS, ' ');
}

function between(ranges, length) {
  const found = [];
  let at = 0;
  for (const [start, end] of ranges) {
    found.push([at, start]);
    at = end;
  }
  found.push([at, length]);
  return found;
}

function isIn(edit, ranges) {
  // What is put right before a range is not in it.
  return ranges.some(
    ([start, end]) =>
      (edit.start > start || edit.end > start) && edit.start >= start && edit.end <= end,
  );
}

module.exports = { Edits, blank, columnBefore, placeAt };
