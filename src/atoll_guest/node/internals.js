/**
 * What a kernel needs of Node's inner parts; Deno's kernel has a file of this name of its own, and the rest in common.
 */
'use strict';

const vm = require('vm');
const { clearAsyncIdStack } = require('internal/async_hooks');
const { kIsNodeError } = require('internal/errors');
const { onWarning } = require('internal/process/warning');

const LANGUAGE = 'node';
// Frames that are no business of the cells: those of the kernel, and of what calls it.
const OWN_FRAMES = `node:internal/(?:atoll|stream_base_commons|async_hooks)|node:(?:vm|async_hooks):|${__dirname.replace(/[.*+?^\${}()|[\]\\]/g, '\\$&')}`;
const INNER_FRAMES = 'node:internal';
// Runs what is to be done before anything else: `process.nextTick`, and what promises have led to.
const runTicks = process._tickCallback;

const exitNow = process.reallyExit;

/** Return what cells use to load modules by `import()`. */
function makeImporter() {
  return vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;
}

function isOfRuntime(error) {
  return kIsNodeError in error;
}

/** Tell of a warning, as Node does. */
function tellWarning(warning) {
  if (warning.name !== 'ExperimentalWarning') onWarning(warning);
}

/** Put in the place of what would end the process what ends a cell; `end` is called with how it was called. */
function replaceExits(end) {
  process.exit = (code = '') => end(`process.exit(${code})`);
}

module.exports = {
  INNER_FRAMES,
  LANGUAGE,
  OWN_FRAMES,
  clearAsyncIdStack,
  exitNow,
  isOfRuntime,
  makeImporter,
  replaceExits,
  runTicks,
  tellWarning,
};
