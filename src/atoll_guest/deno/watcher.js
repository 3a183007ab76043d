/**
 * The thread that hears SIGINT while a cell runs; see `interrupts.js`.
 */

// A kernel that has not heard by then is busy with a cell, or with what one left to run.
const BUSY_MILLISECONDS = 50;

function watch({ data: { shared, url, IS_RUNNING, HAS_COME, HAS_HEARD, IS_WATCHED } }) {
  const socket = new WebSocket(url);
  const isOpen = new Promise((resolve) => {
    socket.onopen = resolve;
  });
  let count = 0;

  async function interrupt() {
    if (!Atomics.load(shared, IS_RUNNING)) return;
    Atomics.store(shared, HAS_HEARD, 0);
    Atomics.store(shared, HAS_COME, 1);
    if (Atomics.wait(shared, HAS_HEARD, 0, BUSY_MILLISECONDS) !== 'timed-out') return;
    await isOpen;
    count += 1;
    socket.send(JSON.stringify({ id: count, method: 'Runtime.terminateExecution' }));
  }

  Deno.addSignalListener('SIGINT', interrupt);
  Atomics.store(shared, IS_WATCHED, 1);
  Atomics.notify(shared, IS_WATCHED);
}

globalThis.onmessage = watch;
