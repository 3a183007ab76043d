/**
 * Ctrl-C for a kernel: SIGINT ends the cell that runs, and nothing else.
 *
 * A worker (`watcher.js`) hears the signal while a cell runs and leaves word. The kernel looks for that now and then. If it does not, it is
 * busy with a cell, and the worker has V8 end what runs: by way of the inspector, which listens at a port of the sandbox's own
 * loopback, for Deno has no other way to it. That ends the kernel's own part of what runs as well, and all that promises have led to; so
 * whatever the kernel waits for is taken up again.
 */
'use strict';

const inspector = require('inspector');

const { load, notify, store, wait } = Atomics;
const every = setInterval;
const soon = queueMicrotask;
const stop = clearInterval;

const LOOK_MILLISECONDS = 20;
const MOST_MILLISECONDS = 2000;
// What the kernel and its watcher share: whether a cell runs, whether a signal came, whether the kernel has heard, whether
// somebody watches.
const IS_RUNNING = 0;
const HAS_COME = 1;
const HAS_HEARD = 2;
const IS_WATCHED = 3;

/** Decides what becomes of SIGINT. */
class Interrupts {
  constructor(onInterrupt) {
    this._onInterrupt = onInterrupt;
    this._shared = new Int32Array(new SharedArrayBuffer(16));
    this._looking = null;
    // From here on the signal ends nothing by itself.
    Deno.addSignalListener('SIGINT', () => {});
    inspector.open(0, '127.0.0.1');
    const worker = new Worker(`file://${__dirname}/watcher.js`, { type: 'module' });
    // Without it, what is busy cannot be ended; the host ends the kernel then.
    worker.onerror = (event) => event.preventDefault();
    worker.postMessage({
      shared: this._shared,
      url: inspector.url(),
      IS_RUNNING,
      HAS_COME,
      HAS_HEARD,
      IS_WATCHED,
    });
  }

  /** Drop a signal that came when no cell ran; one does now. */
  forget() {
    // The first cell may be there before the watcher is: a signal for it would be lost.
    wait(this._shared, IS_WATCHED, 0, MOST_MILLISECONDS);
    store(this._shared, HAS_COME, 0);
    store(this._shared, IS_RUNNING, 1);
    this._looking ??= every(() => this._look(), LOOK_MILLISECONDS);
  }

  /** Call a function that Ctrl-C may end, and whoever called this along with it; return what it does. */
  allow(work) {
    if (this._looking !== null) return work();
    this.forget();
    try {
      return work();
    } finally {
      this.release();
    }
  }

  /** Signals are attended to as long as a cell runs. */
  attend() {}

  /** Have signals dropped again. */
  release() {
    store(this._shared, IS_RUNNING, 0);
    stop(this._looking);
    this._looking = null;
  }

  _look() {
    if (load(this._shared, HAS_COME) === 0) return;
    store(this._shared, HAS_COME, 0);
    store(this._shared, HAS_HEARD, 1);
    notify(this._shared, HAS_HEARD);
    // Not within a timer's own call: another interrupt in the midst of that would end Deno itself.
    soon(this._onInterrupt);
  }
}

/** What ends a cell here is no error that anybody could catch. */
function isInterrupt() {
  return false;
}

module.exports = { Interrupts, isInterrupt };
