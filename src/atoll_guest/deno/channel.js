/**
 * The kernel's end of its channel to the host: a socket at a descriptor that Deno knows nothing of, used by way of the C library.
 *
 * A thread of Deno's waits for the socket; whatever is read or written is so at once, in the kernel's own thread.
 */
'use strict';

const { Messages, helloFrom, mark, writeAll } = require('./messages.js');

const { symbols: library } = Deno.dlopen('libc.so.6', {
  fcntl: { parameters: ['i32', 'i32', 'i32'], result: 'i32' },
  poll: { parameters: ['buffer', 'usize', 'i32'], result: 'i32' },
  recv: { parameters: ['i32', 'buffer', 'usize', 'i32'], result: 'isize' },
  send: { parameters: ['i32', 'buffer', 'usize', 'i32'], result: 'isize' },
});
const { symbols: waiting } = Deno.dlopen('libc.so.6', {
  poll: { parameters: ['buffer', 'usize', 'i32'], result: 'i32', nonblocking: true },
});
const { fcntl, poll, recv, send } = library;
const waitFor = waiting.poll;
const later = setTimeout;
const { alloc } = Buffer;
const uncurry = (method) => Function.prototype.call.bind(method);
const part = uncurry(Buffer.prototype.subarray);
const writeNumber = uncurry(Buffer.prototype.writeInt32LE);
const then = uncurry(scope.Promise.prototype.then);

const READ_BYTES = 1 << 16;
const DONT_WAIT = 0x40;
const NO_SIGNAL = 0x4000;
const [SET_FLAGS, CLOSE_ON_EXEC] = [2, 1];
const FOREVER = -1;
// So long a cell that asks for input does not heed an interrupt.
const LOOK_MILLISECONDS = 20;
// What `poll` looks for and finds, and where in its entry.
const [READABLE, FAILED, HUNG_UP] = [1, 8, 16];
const FOUND_AT = 6;

/** Messages over a descriptor. */
class Channel extends Messages {
  constructor(descriptor) {
    super();
    this.descriptor = descriptor;
    // Programs that cells start have no part in it.
    fcntl(descriptor, SET_FLAGS, CLOSE_ON_EXEC);
    this._buffer = Buffer.allocUnsafe(READ_BYTES);
    this._waiting = null; // for the host to say something
    this._unsent = null;
    this._sent = 0;
    this._deliver = null;
    this._end = null;
  }

  /** Say which versions and which language this kernel speaks; then call `take` with each message, and `end` after the last. */
  open(language, take, end) {
    this._deliver = () => this.deliver(take);
    this._end = end;
    this._write(helloFrom(language));
    this.listen();
  }

  /** Wait for the host, also if whoever did has been ended in the midst of it. */
  listen() {
    const waited = (this._waiting ??= waitFor(pollOf(this.descriptor), 1, FOREVER));
    const hear = () => {
      if (this._waiting === waited) this._hear();
    };
    then(waited, hear, () => this._lookFor(hear));
  }

  /** Look for the host now and then: a cell has broken what Deno needs to wait for it. */
  _lookFor(hear) {
    const look = () => (this._isReadable(0) ? hear() : this._lookFor(hear));
    later(look, LOOK_MILLISECONDS);
  }

  _isReadable(milliseconds) {
    return poll(pollOf(this.descriptor), 1, milliseconds) > 0;
  }

  _hasEnded() {
    const entry = pollOf(this.descriptor);
    poll(entry, 1, 0);
    return (entry[FOUND_AT] & (FAILED | HUNG_UP)) !== 0;
  }

  _hear() {
    this._waiting = null;
    try {
      if (!this._readWhatIsThere()) return this._end(null);
    } catch (error) {
      return this._end(error);
    }
    // Before what it leads to: that may be ended in the middle.
    this.listen();
    this._deliver();
  }

  /** Take in what there is; false at the end. */
  _readWhatIsThere() {
    const size = Number(recv(this.descriptor, this._buffer, READ_BYTES, DONT_WAIT));
    if (size > 0) this._feed(part(this._buffer, 0, size));
    return size > 0 || (size < 0 && !this._hasEnded());
  }

  /** Wait until the host says something, and take it in. */
  read() {
    while (!this._isReadable(LOOK_MILLISECONDS));
    if (!this._readWhatIsThere()) throw new Error('the channel has ended');
  }

  _prepare() {
    this._finishWriting();
    return null;
  }

  _sendAgain(frame) {
    this._write(frame);
  }

  _write(data) {
    this._finishWriting();
    this._sent = 0;
    this._unsent = data;
    this._finishWriting();
  }

  /** Note a message and hand it over: all or nothing, for an interrupt ends a script only where a function or a loop begins. */
  _commit(seq, frame, _request, data) {
    this._kept[this._kept.length] = { seq, frame };
    this._keptBytes += frame.length;
    this._seq = seq;
    this._sent = 0;
    this._unsent = data;
    this._finishWriting();
  }

  /** Send the rest of what was begun: an interrupt may have come in between. */
  _finishWriting() {
    while (this._unsent !== null) {
      const rest = part(this._unsent, this._sent);
      const count = Number(send(this.descriptor, rest, rest.length, NO_SIGNAL));
      if (count > 0) this._sent += count;
      // Whoever listens will notice the end.
      if (this._sent >= this._unsent.length || (count < 0 && this._hasEnded())) this._unsent = null;
    }
  }
}

/** Return what `poll` looks at: whether something can be read from a descriptor. */
function pollOf(descriptor) {
  const entry = alloc(8);
  writeNumber(entry, descriptor, 0);
  writeNumber(entry, READABLE, 4);
  return entry;
}

module.exports = { Channel, mark, writeAll };
