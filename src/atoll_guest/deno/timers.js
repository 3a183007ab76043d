/**
 * The timers of cells: known, so that one can wait for them or stop them, and called where an interrupt can end them.
 */
'use strict';

const { apply } = Reflect;
const { defineProperties, defineProperty, getOwnPropertyDescriptors } = Object;
const soon = queueMicrotask;
const now = performance.now.bind(performance);
const stop = clearTimeout;

// What has been asked for and did not happen yet, by its handle.
const pending = new Map();

/** Put timers in the place of Deno's that tell of themselves. */
function followTimers() {
  for (const name of ['setTimeout', 'setInterval', 'setImmediate']) {
    const original = scope[name];
    const value = makeTimer(name, original);
    // Some say of themselves how they are promised.
    defineProperties(value, getOwnPropertyDescriptors(original));
    defineProperty(scope, name, { value, writable: true, configurable: true, enumerable: true });
  }
}

function makeTimer(name, original) {
  const isRepeated = name === 'setInterval';
  return (callback, ...rest) => {
    if (typeof callback !== 'function') return original(callback, ...rest);
    const timer = { begun: now(), delay: delayOf(name, rest[0]) };
    const handle = original(
      function (...given) {
        if (!isRepeated) pending.delete(handle);
        // An interrupt in the midst of a timer's own call would end Deno itself.
        soon(() => apply(callback, this, given));
      },
      ...rest,
    );
    if (!isRepeated) pending.set(handle, timer);
    return handle;
  };
}

function delayOf(name, given) {
  return name === 'setImmediate' ? 0 : Math.max(1, Number(given) || 0);
}

/** Return the handles of what was asked for since an instant and comes within some milliseconds of that. */
function timersSince(begun, delay) {
  const found = [];
  for (const [handle, timer] of pending) {
    if (handle._destroyed === true) pending.delete(handle);
    else if (timer.begun >= begun && timer.delay <= delay) found.push(handle);
  }
  return found;
}

/** Have something not happen any more. */
function stopTimer(handle) {
  pending.delete(handle);
  stop(handle);
}

module.exports = { followTimers, now, stopTimer, timersSince };
