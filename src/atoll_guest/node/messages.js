/**
 * Messages to and from the host, as `atoll_guest/messages.py` describes them: out, numbered and kept; in, put together.
 *
 * What is called here was looked up before any cell ran.
 */
'use strict';

const fs = require('fs');

const { writeSync } = fs;
const { allocUnsafe, byteLength, concat, from: toBuffer } = Buffer;
const uncurry = (method) => Function.prototype.call.bind(method);
const part = uncurry(Buffer.prototype.subarray);
const readLength = uncurry(Buffer.prototype.readUInt32LE);
const writeLength = uncurry(Buffer.prototype.writeUInt32LE);
const writeText = uncurry(Buffer.prototype.write);
const toText = uncurry(Buffer.prototype.toString);

const VERSIONS = [1, 1];
const LENGTH_BYTES = 4;
const MAX_FRAME_BYTES = 8 << 20;
// What may wait for the host's word that it took note.
const MOST_KEPT_BYTES = 32 << 20;
// Room for the rest of a message around its longest part.
const MOST_TEXT = Math.floor((MAX_FRAME_BYTES - 65536) / 8);
// What the host takes, with room for the message around it.
const MOST_DEPTH = 60;
const OPENING = /[[{]/;
const NOT_NOW = new Set(['EAGAIN', 'EINTR']);
const nothing = new Int32Array(new SharedArrayBuffer(4));

/** Write all of a buffer to a descriptor, which may be one that never waits by itself. */
function writeAll(descriptor, data) {
  let written = 0;
  while (written < data.length) {
    try {
      written += writeSync(descriptor, data, written, data.length - written);
    } catch (error) {
      if (!NOT_NOW.has(error.code)) throw error;
      Atomics.wait(nothing, 0, 0, 1);
    }
  }
}

/** Messages in answer to one `request` after the other; how they travel is a channel's business. */
class Messages {
  constructor() {
    this.acks = false;
    this.request = '';
    this._seq = 0;
    this._kept = [];
    this._keptBytes = 0;
    this._pending = null;
    this._arrived = [];
  }

  /** Whether so much is kept that the host has to take note before more is sent. */
  get hasToWait() {
    return this.acks && this._keptBytes > MOST_KEPT_BYTES;
  }

  /** Wait for the host, also if whoever did has been ended in the midst of it; in Node nobody is. */
  listen() {}

  /** Pass on the messages that are there. */
  deliver(take) {
    while (this._arrived.length) take(this._arrived.shift());
  }

  /** Wait, in the midst of a cell, for a message of a kind, and leave others for later. */
  receive(kind) {
    for (;;) {
      const index = this._arrived.findIndex((message) => message.type === kind);
      if (index >= 0) return this._arrived.splice(index, 1)[0];
      this.read();
    }
  }

  /** Number a message, announce the number, and send it; false if no request is there to belong to. */
  send(message, announce) {
    if (!this.request) return false;
    const frame = this._encode(message, 1);
    if (announce) announce(message.id, message.seq);
    this._commit(message.seq, frame, this._prepare(), frame);
    this._forgetTooMuch();
    return true;
  }

  /** Send the last messages of a request, all at once: the host is woken only for the last. */
  sendLast(messages) {
    const frames = [];
    for (const message of messages) {
      const frame = this._encode(message, frames.length + 1);
      frames.push(frame);
      if (frames.length < messages.length) this._keep(message.seq, frame);
    }
    this._commit(this._seq + frames.length, frames.at(-1), this._prepare(), concat(frames));
    this.request = '';
    this._forgetTooMuch();
  }

  _encode(message, after) {
    message.id = this.request;
    message.seq = this._seq + after;
    return encodeBounded(message);
  }

  _keep(seq, frame) {
    this._kept.push({ seq, frame });
    this._keptBytes += frame.length;
  }

  _forgetTooMuch() {
    while (this._keptBytes > MOST_KEPT_BYTES && !this.acks) this._forgetOldest();
  }

  _feed(data) {
    let pending = this._pending === null ? data : concat([this._pending, data]);
    while (pending.length >= LENGTH_BYTES) {
      const length = readLength(pending, 0);
      if (length === 0 || length > MAX_FRAME_BYTES) throw new Error(`a frame of ${length} bytes`);
      const end = LENGTH_BYTES + length;
      if (pending.length < end) break;
      this._take(JSON.parse(toText(pending, 'utf8', LENGTH_BYTES, end)));
      pending = part(pending, end);
    }
    // What came lies in a buffer that is used again.
    this._pending = pending.length ? concat([pending]) : null;
  }

  _take(message) {
    const seen = message.seq ?? message.ack;
    if (typeof seen === 'number') {
      while (this._kept.length && this._kept[0].seq <= seen) this._forgetOldest();
    }
    if (message.type === 'resume') {
      for (const { frame } of this._kept) this._sendAgain(frame);
    } else if (message.type !== 'ack') {
      this._arrived.push(message);
    }
  }

  _forgetOldest() {
    this._keptBytes -= this._kept.shift().frame.length;
  }
}

/** Return the frame that a kernel begins with. */
function helloFrom(language) {
  return encode({ type: 'hello', versions: VERSIONS, language });
}

/** Return the bytes that stand in the output where message `seq` belongs. */
function mark(request, seq) {
  return toBuffer(`\x1e${request}:${seq}\x1f`);
}

/** Return the frame; what is too large, or no JSON, is cut or becomes a note that says so. */
function encodeBounded(message) {
  try {
    return encode(message);
  } catch (error) {
    return encode(
      shorten(message, `(left out: ${error.name}: ${String(error.message).slice(0, 200)})`),
    );
  }
}

function encode(message) {
  let text = JSON.stringify(message);
  // After that, which tells what contains itself.
  if (message.data && mayBeDeep(text)) checkDepth(message.data, MOST_DEPTH);
  // Half of a pair of surrogates is no text to anybody else.
  if (text.includes('\\ud')) text = JSON.stringify(message, wellFormed);
  const length = byteLength(text);
  if (length > MAX_FRAME_BYTES) {
    throw new RangeError(`a frame of ${length} bytes; the most is ${MAX_FRAME_BYTES}`);
  }
  const frame = allocUnsafe(LENGTH_BYTES + length);
  writeLength(frame, length, 0);
  writeText(frame, text, LENGTH_BYTES, 'utf8');
  return frame;
}

function wellFormed(_key, value) {
  return typeof value === 'string' ? value.toWellFormed() : value;
}

function shorten(message, note) {
  const short = { ...message };
  if (message.data) {
    short.data = { 'text/plain': cutText(message.data['text/plain'], note) };
    short.metadata = {};
  } else if (message.traceback) {
    short.value = message.value.slice(0, MOST_TEXT);
    short.traceback = [note];
  } else {
    short.content = { error: note };
  }
  return short;
}

function cutText(text, note) {
  if (typeof text !== 'string') return note;
  if (text.length <= MOST_TEXT) return text;
  return `${text.slice(0, MOST_TEXT)}\n(cut: ${text.length} characters in all)`;
}

function mayBeDeep(text) {
  return text.split(OPENING, MOST_DEPTH + 1).length > MOST_DEPTH;
}

/** Throw for what is nested so deeply that the host would not take it. */
function checkDepth(value, depth) {
  if (value === null || typeof value !== 'object') return;
  if (depth === 0) throw new RangeError(`nested more than ${MOST_DEPTH} deep`);
  for (const each of Object.values(value)) checkDepth(each, depth - 1);
}

module.exports = { Messages, NOT_NOW, helloFrom, mark, nothing, writeAll };
