/**
 * Whether what a cell has set going is about to happen: what it prints shortly after its last value belongs to it.
 */
'use strict';

const { followTimers, now, stopTimer, timersSince } = require('./timers.js');
const { GRACE_MILLISECONDS, Turns } = require('./turns.js');

followTimers();

/** What one cell may still be waiting for. */
class Settling extends Turns {
  constructor() {
    super();
    this._begun = now();
  }

  /** Have what it has set going by a timer not happen any more. */
  stopTimers() {
    for (const timer of timersSince(this._begun, Infinity)) stopTimer(timer);
  }

  _hasTurns(withImmediates) {
    const found = timersSince(this._begun, GRACE_MILLISECONDS);
    return withImmediates ? found.length > 0 : found.some((each) => each._onImmediate === undefined);
  }
}

/** Deno keeps count of `setImmediate` itself. */
function recount() {}

module.exports = { Settling, recount };
