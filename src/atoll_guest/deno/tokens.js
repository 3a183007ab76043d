/**
 * The words of JavaScript: where the next one ends, told one at a time, for only who reads them knows whether `/` divides.
 */
'use strict';

const SPACE = /(?:[\s\uFEFF]+|\/\/[^\n\r\u2028\u2029]*|\/\*[^]*?\*\/)*/y;
const LINE_END = /[\n\r\u2028\u2029]/;
const NAME =
  /(?:[\p{ID_Start}$_]|\\u(?:[\da-fA-F]{4}|\{[\da-fA-F]+\}))(?:[\p{ID_Continue}$\u200c\u200d]|\\u(?:[\da-fA-F]{4}|\{[\da-fA-F]+\}))*/uy;
const NUMBER = /0[xXoObB][\da-fA-F_]+n?|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?[\d_]+)?n?/y;
const TEXT =
  /'[^'\\\n\r]*(?:\\(?:\r\n|[^])[^'\\\n\r]*)*'|"[^"\\\n\r]*(?:\\(?:\r\n|[^])[^"\\\n\r]*)*"/y;
const PATTERN = /\/(?:[^/\\[\n\r\u2028\u2029]|\\.|\[(?:[^\]\\\n\r\u2028\u2029]|\\.)*\])+\/[\p{ID_Continue}$]*/uy;
const TEMPLATE_PART = /[^`\\$]*(?:(?:\\[^]|\$(?!\{))[^`\\$]*)*/y;
// The longest first; `?.` before a digit is a question and a number.
const SIGN =
  />>>=|\.\.\.|===|!==|\*\*=|<<=|>>=|>>>|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?|\?\.(?!\d)|\+\+|--|\+=|-=|\*=|\/=|%=|&=|\|=|\^=|<<|>>|\*\*|[{}()[\];,<>+\-*/%&|^!~?:=.@]/y;
const ESCAPE = /\\u(?:\{([\da-fA-F]+)\}|([\da-fA-F]{4}))/g;

/** A piece of code, read word by word; `kind`, `text`, `start`, `end` and `isAfterLine` tell of the one that is next. */
class Tokens {
  constructor(source) {
    this.source = source;
    this.lastEnd = 0; // where the one before it ended
    this.end = 0;
    this.next();
  }

  /** Go on to the next word. A slash is taken for a division; see `asPattern`. */
  next() {
    this.lastEnd = this.end;
    this.start = this._match(SPACE, this.end);
    this.isAfterLine = LINE_END.test(this.source.slice(this.lastEnd, this.start));
    this._read();
  }

  /** Whether the next word is this sign or this name, written without escapes. */
  is(text) {
    return this.text === text && (this.kind === 'sign' || this.kind === 'name');
  }

  /** Take the slash that is next as the beginning of a regular expression. */
  asPattern() {
    this.kind = 'pattern';
    this._end(PATTERN);
  }

  /** Go on within a template: to its next brace or its end; return whether it ends there. */
  nextInTemplate(from) {
    const at = this._match(TEMPLATE_PART, from);
    if (at >= this.source.length) this.fail(this.source.length, 'Unterminated template');
    const isLast = this.source[at] === '`';
    this.end = at + (isLast ? 1 : 2);
    this.next();
    return isLast;
  }

  /** Return a place that can be gone back to. */
  get place() {
    const { lastEnd, start, end, kind, text, name, isAfterLine } = this;
    return { lastEnd, start, end, kind, text, name, isAfterLine };
  }

  goBack(place) {
    Object.assign(this, place);
  }

  /** Throw what a parser throws. */
  fail(at = this.start, message = 'Unexpected token') {
    throw Object.assign(new SyntaxError(message), { pos: at });
  }

  _read() {
    const { source, start } = this;
    if (start >= source.length) {
      this.kind = 'end';
      this.text = '';
      this.end = start;
      return;
    }
    const first = source[start];
    if (first === '"' || first === "'") return this._take('text', TEXT);
    if (first === '`') return this._takeTo('template', start + 1);
    if (isDigit(first) || (first === '.' && isDigit(source[start + 1])))
      return this._take('number', NUMBER);
    if (first === '#') {
      this._match(NAME, start + 1) === start + 1 && this.fail();
      return this._takeTo('private', this._match(NAME, start + 1));
    }
    const end = this._match(NAME, start);
    if (end === start) return this._take('sign', SIGN);
    this._takeTo('name', end);
    // What a name is called; a keyword is none if it is written with escapes.
    this.name = this.text.replace(ESCAPE, (_all, long, short) =>
      String.fromCodePoint(parseInt(long ?? short, 16)),
    );
  }

  _take(kind, pattern) {
    this.kind = kind;
    this._end(pattern);
  }

  _takeTo(kind, end) {
    this.kind = kind;
    this.end = end;
    this.text = this.source.slice(this.start, end);
  }

  _end(pattern) {
    this.end = this._match(pattern, this.start);
    if (this.end === this.start) this.fail(this.start, 'Invalid or unexpected token');
    this.text = this.source.slice(this.start, this.end);
  }

  /** Return where a match that begins at a place ends; that place itself if there is none. */
  _match(pattern, at) {
    pattern.lastIndex = at;
    return pattern.test(this.source) ? pattern.lastIndex : at;
  }
}

function isDigit(character) {
  return character >= '0' && character <= '9';
}

module.exports = { Tokens };
