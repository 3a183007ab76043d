/**
 * Waiting for what is about to happen: some turns of the event loop, within a bound.
 */
'use strict';

const now = performance.now.bind(performance);
const later = setImmediate;

const GRACE_MILLISECONDS = 10;
const MOST_TURNS = 16;

/** Waits as long as `_hasTurns`, which is told whether immediates count, says that something is about to happen. */
class Turns {
  /** Call a function when nothing is about to happen any more, within a bound of some milliseconds; before it waits, another. */
  wait(begin, done) {
    const deadline = now() + GRACE_MILLISECONDS;
    let turns = 0;
    let isLast = false;
    const look = () => {
      turns += 1;
      if (isLast || !this._hasTurns(turns < MOST_TURNS)) {
        done();
        return;
      }
      // On a busy machine the time may be over before what was due had its turn.
      isLast = now() > deadline;
      later(look);
    };
    if (this._hasTurns(true)) begin();
    later(look);
  }
}

module.exports = { GRACE_MILLISECONDS, Turns };
