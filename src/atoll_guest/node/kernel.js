/**
 * Runs cells and keeps their state: a Node, or a Deno, that serves one channel.
 *
 * The channel is a socket to the host, which a shell has put at descriptor 9, so that standard input is an empty one. What cells
 * print goes to the process's own output; results, displays and errors go through the channel. A cell is interrupted by SIGINT, as on
 * a terminal. Between cells the event loop goes on: servers answer and timers run out.
 *
 * Cells share this process and may break anything in it. What they are likely to break by accident (global names, the methods of
 * arrays and strings, standard streams, listeners) does not end the kernel: it has a realm of its own, see `main.js`. What is called
 * `scope` here is the global object that cells have.
 */
'use strict';

const { Cells } = require('./cells.js');
const { Channel, mark } = require('./channel.js');
const { complete, look } = require('./completion.js');
const { makeDisplay } = require('./display.js');
const { ProcessExit, describe, stackOf } = require('./errors.js');
const { Interrupts } = require('./interrupts.js');
const { LANGUAGE, exitNow, replaceExits, tellWarning } = require('./internals.js');
const { Modules } = require('./modules.js');
const { Run } = require('./run.js');
const { Streams } = require('./streams.js');

const CHANNEL = 9;
const FAILED = 70;
const STACK_FRAMES = 30;
const { assign, defineProperty } = Object;
const { Error: CellsError, Promise: CellsPromise } = scope;
const { env } = process;
const toBuffer = Buffer.from;
const chdir = process.chdir.bind(process);
const listenersOf = process.listeners.bind(process);
const listenTo = process.on.bind(process);

/** One interpreter behind one channel. */
class Kernel {
  constructor() {
    this._streams = new Streams();
    this._channel = new Channel(CHANNEL);
    this._modules = new Modules();
    this._cells = new Cells(this._modules);
    this._interrupts = new Interrupts(() => this._interrupt());
    this._uncaught = {
      uncaughtException: (error) => this._report(error),
      unhandledRejection: (error) => this._report(error),
    };
    this._count = 1;
    this._run = null; // the cell that runs
    this._resume = null; // goes on with what an interrupt has ended, the kernel's own part included: in Deno it does
    this._described = null; // the error of which a text is being made
    this._asking = []; // who waits for a line of input
    this._last = undefined; // what `_` was given
    this._take = this._take.bind(this);
  }

  /** Say hello and serve until the end of the channel; this process has no other purpose. */
  serve() {
    this._give('display', makeDisplay(this._display.bind(this), this._clear.bind(this)));
    this._give('prompt', (text = '', preset = null) => this._prompt(String(text)) ?? preset);
    this._give('input', (text = '', options) =>
      this._input(String(text), options?.password === true),
    );
    this._give('_', undefined);
    replaceExits((call) => {
      throw new ProcessExit(`${call} ended this cell; its kernel lives on`);
    });
    process.argv = [process.argv[0]];
    process.execArgv = [];
    CellsError.stackTraceLimit = STACK_FRAMES;
    CellsError.prepareStackTrace = (error, frames) => stackOf(error, frames, this._cells);
    this._modules.follow();
    setImmediate(() => {
      // What Node says of how the kernel was started has been said by now.
      listenTo('warning', tellWarning);
      this._channel.open(LANGUAGE, this._take, (error) => this._end(error));
    });
  }

  _interrupt() {
    this._channel.listen();
    if (this._resume === null) {
      this._run?.interrupt();
    } else {
      this._interrupts.release();
      this._resume();
    }
  }

  _end(error) {
    if (error) this._streams.writeError(`the kernel cannot go on: ${error.message}\n`);
    exitNow(error ? FAILED : 0);
  }

  _give(name, value) {
    defineProperty(scope, name, { value, writable: true, configurable: true, enumerable: false });
  }

  _take(message) {
    switch (message.type) {
      case 'welcome':
        return this._welcome(message);
      case 'execute':
        return this._execute(message);
      case 'input':
        return this._takeInput(message);
      case 'complete':
        return this._answer(message, () => complete(message.code, message.cursor));
      case 'inspect':
        return this._answer(message, () => look(message.code, message.cursor));
      case 'ping':
        return this._answer(message, () => ({}));
    }
  }

  _welcome(message) {
    this._channel.acks = message.acks === true;
    assign(env, message.env);
    if (message.cwd) chdir(message.cwd);
    this._modules.follow();
  }

  // --- cells ----------------------------------------------------------------------------------------------------

  _execute({ id, code, silent }) {
    this._channel.request = id;
    this._listen();
    this._modules.follow();
    const count = this._count;
    if (!silent) this._count += 1;
    const run = new Run(this._cells, this._interrupts, () => this._finish(run, count, silent));
    this._run = run;
    run.start(code, silent ? '<cell>' : `<cell ${count}>`);
  }

  _finish(run, count, silent) {
    this._resume = () => this._finish(run, count, silent);
    this._run = null;
    this._asking = [];
    const messages = [];
    if (run.data !== null) {
      if (!silent) this._remember(run.value);
      messages.push({ type: 'result', data: run.data, metadata: {} });
    }
    const [first, ...others] = run.errors;
    if (run.errors.length) messages.push({ type: 'error', ...this._describe(first) });
    for (const error of others) this._report(error);
    const status = run.isInterrupted ? 'interrupted' : run.errors.length ? 'error' : 'ok';
    messages.push({ type: 'end', status, count });
    this._resume = null;
    this._channel.sendLast(messages);
    this._channel.deliver(this._take);
  }

  /** Let `_` be the last value, unless a cell uses that name for something else. */
  _remember(value) {
    try {
      if (Object.is(scope._, this._last)) scope._ = this._last = value;
    } catch {
      // It cannot be given one any more.
    }
  }

  _describe(error) {
    try {
      // It was begun before, and ended.
      if (this._described !== null) throw error;
      this._described = [error];
      return this._interrupts.allow(() => describe(error, this._cells));
    } catch {
      return {
        name: 'Interrupted',
        value: 'interrupted while the text of an error was made',
        traceback: [],
      };
    } finally {
      this._described = null;
    }
  }

  // --- what nobody waits for --------------------------------------------------------------------------------------

  /** Hear of what nobody catches, also if a cell has removed all listeners. */
  _listen() {
    for (const name of ['uncaughtException', 'unhandledRejection']) {
      if (!isAmong(this._uncaught[name], listenersOf(name))) listenTo(name, this._uncaught[name]);
    }
  }

  /** Tell what nobody caught: as the error of the cell that runs, else as text. */
  _report(error) {
    // One that a cell has installed is the one to act.
    if (listenersOf('uncaughtException').length > 1) return;
    if (this._run !== null) {
      this._run.fail(error);
      return;
    }
    const { traceback } = this._describe(error);
    this._streams.writeError(`Uncaught, after its cell had ended:\n${traceback.join('\n')}\n`);
  }

  // --- displays ---------------------------------------------------------------------------------------------------

  _display(data, metadata, id, update) {
    const message = { type: 'display', data, metadata, transient: { display_id: id } };
    if (update) message.update = true;
    if (!this._sendHere(message)) this._streams.writeOut(toBuffer(`${data['text/plain']}\n`));
  }

  _clear(wait) {
    this._sendHere({ type: 'clear', wait });
  }

  /** Send a message and mark its place in the output; false if no cell runs. */
  _sendHere(message) {
    const isSent = this._channel.send(message, (request, seq) =>
      this._streams.writeOut(mark(request, seq)),
    );
    while (this._channel.hasToWait) this._channel.read();
    return isSent;
  }

  // --- questions --------------------------------------------------------------------------------------------------

  _answer(message, find) {
    this._channel.request = message.id;
    this._resume = () => this._reply({ error: 'interrupted' });
    let content;
    try {
      content = this._interrupts.allow(find);
    } catch (error) {
      content = { error: String(error) };
    }
    this._reply(content);
  }

  _reply(content) {
    this._resume = null;
    this._channel.sendLast([{ type: 'reply', content }]);
  }

  /** Ask for a line of input and wait for it; null if nobody is there. */
  _prompt(text) {
    if (!this._askFor(text, false)) return null;
    for (;;) {
      const answer = this._channel.receive('input');
      if (answer.id === this._channel.request) return answer.eof === true ? null : answer.text;
    }
  }

  /** Return a promise of a line of input. */
  _input(text, password) {
    return new CellsPromise((resolve, reject) => {
      if (this._askFor(text, password)) this._asking.push({ resolve, reject });
      else reject(new CellsError('only a cell can ask for input, while it runs'));
    });
  }

  _askFor(prompt, password) {
    return this._channel.send({ type: 'input_request', prompt, password });
  }

  _takeInput(message) {
    if (message.id !== this._channel.request) return;
    const asked = this._asking.shift();
    if (message.eof === true)
      asked?.reject(
        new CellsError('nobody is there to answer; give input in the code or in a file'),
      );
    else asked?.resolve(message.text);
  }
}

function isAmong(wanted, listeners) {
  // Not an array of this realm: its methods are the cells'.
  for (let index = 0; index < listeners.length; index++)
    if (listeners[index] === wanted) return true;
  return false;
}

module.exports = { Kernel };
