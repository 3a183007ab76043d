/**
 * Whether what a cell has set going is about to happen: what it prints shortly after its last value belongs to it.
 */
'use strict';

const { internalBinding } = require('internal/test/binding');
const { immediateInfoFields, immediateQueue, timerListMap } = require('internal/timers');
const { GRACE_MILLISECONDS, Turns } = require('./turns.js');

// Called as its method: the machine's quick way to it relies on that.
const timers = internalBinding('timers');
const { immediateInfo } = timers;
const { kCount, kRefCount } = immediateInfoFields;
const stop = clearTimeout;
const openRequests = process._getActiveRequests.bind(process);

/** What one cell may still be waiting for. */
class Settling extends Turns {
  constructor() {
    super();
    this._begun = timers.getLibuvNow();
    this._requests = openRequests().length;
  }

  /** Have what it has set going by a timer not happen any more. */
  stopTimers() {
    for (const timer of this._timers(Object.keys(timerListMap))) stop(timer);
  }

  _hasTurns(withImmediates) {
    if (withImmediates && immediateInfo[kCount] > 0) return true;
    return openRequests().length > this._requests || this._timers(SOON).length > 0;
  }

  /** Return the timers of its own, of those with one of these delays; what repeats has a life of its own. */
  _timers(delays) {
    const found = [];
    for (let index = 0; index < delays.length; index++) {
      const list = timerListMap[delays[index]];
      if (!list) continue;
      for (
        let timer = list._idleNext;
        timer !== list && timer._idleStart >= this._begun;
        timer = timer._idleNext
      ) {
        if (timer._repeat === null || timer._repeat === undefined) found[found.length] = timer;
      }
    }
    return found;
  }
}

/** Let Node know what is there of `setImmediate`: what is ended in the midst of it takes the rest of its turn along, uncounted. */
function recount() {
  let count = 0;
  for (let each = immediateQueue.head; each !== null; each = each._idleNext) count += 1;
  immediateInfo[kCount] = count;
  immediateInfo[kRefCount] = count;
  timers.toggleImmediateRef(count > 0);
}

const SOON = [];
for (let delay = 1; delay <= GRACE_MILLISECONDS; delay++) SOON[SOON.length] = delay;

module.exports = { Settling, recount };
