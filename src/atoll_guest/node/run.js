/**
 * One cell on its way: run, waited for, shown, and over when what it has set going has happened.
 */
'use strict';

const util = require('util');
const { Display, bundleOf } = require('./display.js');
const { Interrupted } = require('./errors.js');
const { clearAsyncIdStack, runTicks } = require('./internals.js');
const { isInterrupt } = require('./interrupts.js');
const { Settling, recount } = require('./settling.js');

const { isPromise } = util.types;
const CellsPromise = scope.Promise;
const then = Function.prototype.call.bind(CellsPromise.prototype.then);
const nextTurn = setImmediate;

/** One cell that runs; `finish` is called once, when it is over. */
class Run {
  constructor(cells, interrupts, finish) {
    this.errors = [];
    this.isInterrupted = false;
    this.value = undefined;
    this.data = null;
    this._cells = cells;
    this._interrupts = interrupts;
    this._finish = finish;
    this._settling = new Settling();
    this._cell = null;
    this._hasTurn = false; // what happens meanwhile is only noted
    this._isSettled = false;
    this._isOver = false;
  }

  /** Begin, and run to where the cell has to wait. */
  start(code, name) {
    this._interrupts.forget();
    const begin = () => {
      this._cell = this._cells.compile(code, name);
      return this._cell.run();
    };
    const isAwaited = () => this._cell.isAsync || this._cell.isShown;
    this._do(begin, isAwaited, (value) => this._show(value));
  }

  /** End it for a reason, unless it is at its end: then that is one more thing to tell. */
  fail(error) {
    this.isInterrupted ||= isInterrupt(error);
    this.errors.push(isInterrupt(error) ? new Interrupted('the cell was interrupted') : error);
    if (!this._hasTurn) this._settle();
  }

  /** End it as Ctrl-C does; what it waits for by a timer does not come. */
  interrupt() {
    this._settling.stopTimers();
    recount();
    // In Deno, whatever ran has been ended, and the kernel's own part of it.
    this._hasTurn = false;
    this.isInterrupted = true;
    this.fail(new Interrupted('the cell was interrupted'));
    nextTurn(() => this._over());
  }

  /** Do something that Ctrl-C may end, and go on with what it gives, or with what that promises. */
  _do(work, isAwaited, goOn) {
    let came = null;
    const take = (outcome) => (this._hasTurn ? (came = outcome) : this._isSettled || outcome());
    this._hasTurn = true;
    try {
      this._interrupts.allow(() => {
        const value = work();
        const promise = isAwaited() ? promiseOf(value) : null;
        const keep = (found) => take(() => goOn(found));
        const refuse = (error) => take(() => this.fail(error));
        if (promise === null) keep(value);
        else then(promise, keep, refuse);
        this._drain();
      });
    } catch (error) {
      came = () => this.fail(error);
      // What it has put off may go on all the same.
      if (isInterrupt(error)) this._interrupts.attend();
    }
    this._hasTurn = false;
    if (came !== null) came();
    else if (this.errors.length) this._settle();
    else this._interrupts.attend();
  }

  /** Run what the cell has put off to the end of its turn, as Node does after it: here Ctrl-C reaches it. */
  _drain() {
    for (;;) {
      try {
        runTicks();
        return;
      } catch (error) {
        clearAsyncIdStack();
        this.errors.push(error);
      }
    }
  }

  _show(value) {
    if (!this._cell.isShown || value === undefined || value instanceof Display) {
      this._settle();
      return;
    }
    const keep = (data) => {
      this.value = value;
      this.data = data;
      this._settle();
    };
    this._do(
      () => bundleOf(value),
      () => true,
      keep,
    );
  }

  _settle() {
    if (this._isSettled) return;
    this._isSettled = true;
    this._cell?.end();
    this._settling.wait(
      () => this._interrupts.attend(),
      () => this._over(),
    );
  }

  _over() {
    if (this._isOver) return;
    this._isOver = true;
    this._interrupts.release();
    this._finish();
  }
}

/** Return a promise if a value is one, of whichever library; else null. */
function promiseOf(value) {
  if (isPromise(value)) return value;
  if (value === null || typeof value !== 'object') return null;
  try {
    if (typeof value.then !== 'function') return null;
  } catch {
    return null;
  }
  return new CellsPromise((resolve) => resolve(value));
}

module.exports = { Run };
