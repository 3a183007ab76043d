/**
 * A kernel's standard streams: written at once and in order with displays, whatever becomes of descriptors 1 and 2.
 */
'use strict';

const fs = require('fs');
const { Writable } = require('stream');
const { writeAll } = require('./channel.js');

const toBuffer = Buffer.from;
const { isView } = ArrayBuffer;
const defineProperty = Object.defineProperty;

/** A standard stream that has written everything when `write` returns, and cannot be closed. */
class Output extends Writable {
  constructor(number, descriptor) {
    super({ decodeStrings: false });
    this.fd = number;
    this._isStdio = true;
    this._descriptor = descriptor;
  }

  // Without the notes of what is being written that `Writable` takes: an interrupt in the middle would leave them so for ever,
  // and nothing would be written after it.
  write(chunk, encoding, done) {
    if (typeof chunk !== 'string' && !isView(chunk)) return super.write(chunk, encoding, done); // says what is wrong with it
    const told = typeof encoding === 'function' ? encoding : done;
    writeAll(this._descriptor, bytesOf(chunk, encoding === told ? undefined : encoding));
    if (told) process.nextTick(told);
    return true;
  }

  end(chunk, encoding, done) {
    const told = [chunk, encoding, done].find((each) => typeof each === 'function');
    if (chunk !== undefined && chunk !== null && chunk !== told)
      this.write(chunk, encoding === told ? undefined : encoding);
    if (told) process.nextTick(told);
    return this;
  }

  _destroy(error, done) {
    done(error);
    this._undestroy();
  }
}

/** Return what a text or any view of bytes is made of. */
function bytesOf(chunk, encoding) {
  if (typeof chunk === 'string') return toBuffer(chunk, encoding);
  return toBuffer(chunk.buffer, chunk.byteOffset, chunk.byteLength);
}

/** Standard output and error of this process. */
class Streams {
  constructor() {
    this._descriptors = { 1: openAgain(1), 2: openAgain(2) };
    this._install('stdout', 1);
    this._install('stderr', 2);
  }

  /** Write to the output that the host reads. */
  writeOut(data) {
    writeAll(this._descriptors[1], data);
  }

  /** Write to the error output that the host reads. */
  writeError(text) {
    writeAll(this._descriptors[2], toBuffer(text));
  }

  _install(name, number) {
    const value = new Output(number, this._descriptors[number]);
    defineProperty(process, name, { configurable: true, enumerable: true, writable: true, value });
  }
}

/** Return a descriptor of one's own for the same output: a program that is started may let the given one never wait. */
function openAgain(number) {
  try {
    return fs.openSync(`/proc/self/fd/${number}`, 'a');
  } catch {
    return number;
  }
}

module.exports = { Streams };
