/**
 * Values in the forms that people can look at, by MIME type, and the `display` that cells call.
 */
'use strict';

const util = require('util');

const { inspect } = util;
const { isAnyArrayBuffer, isPromise, isProxy, isUint8Array } = util.types;
const CellsTypeError = scope.TypeError;
const toBuffer = Buffer.from;
const isBundle = (value) => value !== null && typeof value === 'object' && !isUint8Array(value);

// Deno's convention for what an object shows of itself.
const SHOWS_ITSELF = Symbol.for('Jupyter.display');
// Those of IJavascript.
const METHODS = {
  _toHtml: 'text/html',
  _toSvg: 'image/svg+xml',
  _toPng: 'image/png',
  _toJpeg: 'image/jpeg',
  _toMarkdown: 'text/markdown',
};
const FORMS = {
  html: 'text/html',
  svg: 'image/svg+xml',
  markdown: 'text/markdown',
  latex: 'text/latex',
  javascript: 'application/javascript',
  json: 'application/json',
  png: 'image/png',
  jpeg: 'image/jpeg',
  gif: 'image/gif',
  pdf: 'application/pdf',
  text: 'text/plain',
};
const SIGNATURES = [
  ['89504e47', 'image/png'],
  ['ffd8ff', 'image/jpeg'],
  ['47494638', 'image/gif'],
  ['25504446', 'application/pdf'],
  ['52494646', 'image/webp'],
];
// How much of a text is shown is the host's to decide.
const WHOLE_TEXTS = { maxStringLength: null };
const SVG = /^\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--[^]*?-->\s*)*<svg[\s/>]/;
const DATA_URL = /^data:([\w/+.-]+);base64,(.*)$/s;

/** What `display` gives back: a way to show something else in the same place. */
class Display {
  constructor(id, show) {
    this.id = id;
    this.update = (value) => show(value, { id, update: true });
  }
}

/** Return a value as data by MIME type; a promise of it if the value takes its time. */
function bundleOf(value) {
  const own = ownForms(value);
  if (isPromise(own)) return own.then((data) => complete(data, value));
  return complete(own, value);
}

function ownForms(value) {
  if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return null;
  if (isProxy(value)) return null;
  if (typeof value[SHOWS_ITSELF] === 'function') return value[SHOWS_ITSELF]();
  if (typeof value._toMime === 'function') return value._toMime();
  const found = {};
  for (const name of Object.keys(METHODS)) {
    if (typeof value[name] === 'function') found[METHODS[name]] = value[name]();
  }
  // What draws: a canvas of whichever package.
  if (typeof value.getContext === 'function' && typeof value.toBuffer === 'function') {
    found['image/png'] = value.toBuffer('image/png');
  }
  return found;
}

function complete(forms, value) {
  const data = { 'text/plain': '' };
  for (const [kind, form] of Object.entries(isBundle(forms) ? forms : {})) {
    if (form !== undefined && form !== null) data[kind] = encode(kind, form);
  }
  data['text/plain'] ||= inspect(value, WHOLE_TEXTS);
  return data;
}

/** Return a form as the host takes it: bytes in base64, else text, and JSON as it is. */
function encode(kind, form) {
  if (isUint8Array(form)) return isTextual(kind) ? textOf(form, 'utf8') : base64(form);
  if (isAnyArrayBuffer(form)) return encode(kind, new Uint8Array(form));
  if (typeof form === 'string' || isJson(kind)) return form;
  return String(form);
}

const readText = Function.prototype.call.bind(Buffer.prototype.toString);

function textOf(bytes, encoding) {
  return readText(toBuffer(bytes.buffer, bytes.byteOffset, bytes.byteLength), encoding);
}

function base64(bytes) {
  return textOf(bytes, 'base64');
}

function isTextual(kind) {
  return kind.startsWith('text/') || kind.endsWith('+xml') || kind.endsWith('javascript');
}

function isJson(kind) {
  return kind.endsWith('/json') || kind.endsWith('+json');
}

/** Return the function `display` for cells; `publish` sends data, `clear` asks for what was shown to go. */
function makeDisplay(publish, clear) {
  let count = 0;
  const show = (data, options) => {
    const id =
      options?.id === undefined ? `display-${process.pid}-${(count += 1)}` : String(options.id);
    publish(data, options?.metadata ?? {}, id, options?.update === true);
    return new Display(id, options?.as ?? display);
  };
  function display(value, options) {
    const data = options?.raw ? complete(value, '') : bundleOf(value);
    return isPromise(data) ? data.then((each) => show(each, options)) : show(data, options);
  }
  for (const [name, kind] of Object.entries(FORMS)) {
    display[name] = (value, ...rest) => {
      const [form, options] = isTemplate(value)
        ? [String.raw(value, ...rest), undefined]
        : [value, rest[0]];
      return show(
        { 'text/plain': plainOf(kind, form), [kind]: encode(kind, form) },
        { ...options, as: display[name] },
      );
    };
  }
  display.image = (value, options) => {
    const [kind, form] = imageOf(value, options?.type);
    return show(
      { 'text/plain': plainOf(kind, form), [kind]: form },
      { ...options, as: display.image },
    );
  };
  display.mime = (data, options) => display(data, { ...options, raw: true });
  display.update = (id, value) => display(value, { id, update: true });
  display.clear = (options) => clear(options === true || options?.wait === true);
  return display;
}

function isTemplate(value) {
  return Array.isArray(value) && Array.isArray(value.raw);
}

function plainOf(kind, form) {
  if (kind === 'text/plain') return typeof form === 'string' ? form : inspect(form);
  if (isJson(kind)) return inspect(form);
  return isTextual(kind) && typeof form === 'string' && !kind.endsWith('xml') ? form : `<${kind}>`;
}

/** Return the MIME type and the form of an image that is bytes, SVG, a data URL or base64. */
function imageOf(value, given) {
  if (isAnyArrayBuffer(value)) return imageOf(new Uint8Array(value), given);
  if (isUint8Array(value)) return [given ?? kindOf(value), base64(value)];
  const text = String(value);
  if (SVG.test(text)) return ['image/svg+xml', text];
  const url = DATA_URL.exec(text);
  if (url) return [url[1], url[2]];
  return [given ?? kindOf(toBuffer(text.slice(0, 64), 'base64')), text];
}

function kindOf(bytes) {
  const head = textOf(bytes, 'hex').slice(0, 16);
  const found = SIGNATURES.find(([start]) => head.startsWith(start));
  if (!found) {
    throw new CellsTypeError(
      "this is no PNG, JPEG, GIF, WebP or SVG; name its kind, as in display.image(bytes, { type: 'image/avif' })",
    );
  }
  return found[1];
}

module.exports = { Display, bundleOf, makeDisplay };
