/**
 * The thread that looks for SIGINT while a cell waits; see `interrupts.js`.
 */
'use strict';

const inspector = require('inspector');
const { parentPort, workerData } = require('worker_threads');
const { internalBinding } = require('internal/test/binding');

const { startSigintWatchdog, stopSigintWatchdog, watchdogHasPendingSigint } =
  internalBinding('contextify');

const { shared, IS_WAITING, HAS_HEARD } = workerData;
const LOOK_MILLISECONDS = 20;
// A kernel that has not heard by then is busy with what a cell left to run.
const BUSY_MILLISECONDS = 50;

const session = new inspector.Session();
session.connectToMainThread();

function interrupt() {
  Atomics.store(shared, HAS_HEARD, 0);
  parentPort.postMessage('interrupt');
  if (Atomics.wait(shared, HAS_HEARD, 0, BUSY_MILLISECONDS) === 'timed-out') {
    session.post('Runtime.terminateExecution');
  }
}

for (;;) {
  Atomics.wait(shared, IS_WAITING, 0);
  while (Atomics.load(shared, IS_WAITING)) {
    if (watchdogHasPendingSigint()) {
      // So that it is seen only once.
      startSigintWatchdog();
      stopSigintWatchdog();
      interrupt();
    }
    Atomics.wait(shared, IS_WAITING, 1, LOOK_MILLISECONDS);
  }
}
