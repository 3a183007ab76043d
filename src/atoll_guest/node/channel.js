/**
 * The kernel's end of its channel to the host: a socket, of which Node's own handle takes all that it is given at once.
 */
'use strict';

const fs = require('fs');
const net = require('net');
const { internalBinding } = require('internal/test/binding');
const { Messages, NOT_NOW, helloFrom, mark, nothing, writeAll } = require('./messages.js');

const { readSync } = fs;
const { allocUnsafe } = Buffer;
const part = Function.prototype.call.bind(Buffer.prototype.subarray);
const { WriteWrap } = internalBinding('stream_wrap');

const READ_BYTES = 1 << 16;

/** Messages over a descriptor. */
class Channel extends Messages {
  constructor(descriptor) {
    super();
    this.descriptor = descriptor;
    this._handle = null;
  }

  /** Say which versions and which language this kernel speaks; then call `take` with each message, and `end` after the last. */
  open(language, take, end) {
    const buffer = allocUnsafe(READ_BYTES);
    const callback = (size) => {
      try {
        this._feed(part(buffer, 0, size));
      } catch (error) {
        end(error);
      }
      this.deliver(take);
      return true;
    };
    const socket = new net.Socket({ fd: this.descriptor, onread: { buffer, callback } });
    socket.on('end', () => end(null));
    socket.on('error', end);
    socket.resume();
    this._handle = socket._handle;
    this._handle.writeBuffer(new WriteWrap(), helloFrom(language));
  }

  /** Wait until the host says something, and take it in. */
  read() {
    const buffer = allocUnsafe(READ_BYTES);
    for (;;) {
      try {
        const size = readSync(this.descriptor, buffer, 0, READ_BYTES, null);
        if (size === 0) throw new Error('the channel has ended');
        this._feed(part(buffer, 0, size));
        return;
      } catch (error) {
        if (!NOT_NOW.has(error.code)) throw error;
        Atomics.wait(nothing, 0, 0, 1);
      }
    }
  }

  _prepare() {
    return new WriteWrap();
  }

  _sendAgain(frame) {
    this._handle.writeBuffer(new WriteWrap(), frame);
  }

  /** Note a message and hand it over: all or nothing, for an interrupt ends a script only where a function or a loop begins. */
  _commit(seq, frame, request, data) {
    this._kept[this._kept.length] = { seq, frame };
    this._keptBytes += frame.length;
    this._seq = seq;
    // Else what the host is too slow for would pile up here for as long as a cell does not wait.
    this._handle.setBlocking(true);
    this._handle.writeBuffer(request, data);
    this._handle.setBlocking(false);
  }
}

module.exports = { Channel, mark, writeAll };
