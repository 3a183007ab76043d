/**
 * Ctrl-C for a kernel: SIGINT ends the cell that runs, and nothing else.
 *
 * Node itself listens for the signal in a thread of its own and can end whatever JavaScript runs within a `vm` script. That does for
 * a cell up to where it has to wait. What runs later is called by Node's event loop, out of reach of that; so the first cell that
 * waits starts a worker (`watcher.js`), which looks for signals while one does, tells the kernel, and if that is too busy to listen
 * has the inspector end what it is busy with.
 */
'use strict';

const vm = require('vm');
const path = require('path');
const { Worker } = require('worker_threads');
const { internalBinding } = require('internal/test/binding');
const { clearAsyncIdStack } = require('internal/async_hooks');

const { startSigintWatchdog, stopSigintWatchdog } = internalBinding('contextify');
const hooks = internalBinding('async_wrap');
const { notify, store } = Atomics;
const runScript = Function.prototype.call.bind(vm.Script.prototype.runInThisContext);

const CODE = 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
const WORK = '__atoll_work__';
// What the kernel and its watcher share: whether a cell waits, and whether the kernel has heard.
const IS_WAITING = 0;
const HAS_HEARD = 1;

/** Decides what becomes of SIGINT. */
class Interrupts {
  constructor(onInterrupt) {
    this._onInterrupt = onInterrupt;
    this._shared = new Int32Array(new SharedArrayBuffer(8));
    this._worker = null;
    this._work = null;
    // Code that is ended in the middle leaves Node's notes of who called whom as they are; it would end itself over that.
    hooks.async_hook_fields[hooks.constants.kCheck] = 0;
    // From here on the signal ends nothing by itself.
    startSigintWatchdog();
    keepSignal();
    const value = () => this._work();
    Object.defineProperty(scope, WORK, { value });
    this._gate = new vm.Script(`${WORK}()`, { filename: 'node:internal/atoll' });
  }

  /** Drop a signal that came when no cell ran. */
  forget() {
    startSigintWatchdog();
    stopSigintWatchdog();
  }

  /** Call a function that Ctrl-C may end; return what it does, or throw what ended it. */
  allow(work) {
    const outer = this._work;
    this._work = work;
    try {
      return runScript(this._gate, { breakOnSigint: true, displayErrors: false });
    } catch (error) {
      if (isInterrupt(error)) clearAsyncIdStack();
      throw error;
    } finally {
      this._work = outer;
    }
  }

  /** Have `onInterrupt` called for a signal from here on: a cell waits. The first time takes a moment. */
  attend() {
    this._worker ??= this._startWatcher();
    store(this._shared, IS_WAITING, 1);
    notify(this._shared, IS_WAITING);
  }

  /** Have signals dropped again. */
  release() {
    store(this._shared, IS_WAITING, 0);
  }

  _startWatcher() {
    const worker = new Worker(path.join(__dirname, 'watcher.js'), {
      workerData: { shared: this._shared, IS_WAITING, HAS_HEARD },
      stdin: false,
      env: {},
    });
    worker.on('message', () => this._hear());
    // Without it, what is busy cannot be ended; the host ends the kernel then.
    worker.on('error', () => {});
    worker.unref();
    return worker;
  }

  _hear() {
    store(this._shared, HAS_HEARD, 1);
    notify(this._shared, HAS_HEARD);
    if (this._shared[IS_WAITING]) {
      clearAsyncIdStack();
      this._onInterrupt();
    }
  }
}

/** Have listeners of cells for the signal never called: Node would listen for them in a way that keeps it from the kernel. */
function keepSignal() {
  for (const name of ['on', 'addListener', 'once', 'prependListener', 'prependOnceListener']) {
    const listen = process[name];
    process[name] = function (event, listener) {
      return event === 'SIGINT' ? this : listen.call(this, event, listener);
    };
  }
}

/** Whether an error is the end that an interrupt put to a script. */
function isInterrupt(error) {
  return error !== null && typeof error === 'object' && error.code === CODE;
}

module.exports = { Interrupts, isInterrupt };
