/**
 * Parses cells with the parser that Node carries within itself.
 */
'use strict';

const acorn = require('internal/deps/acorn/acorn/dist/acorn');

const OPTIONS = {
  ecmaVersion: 'latest',
  sourceType: 'script',
  allowAwaitOutsideFunction: true,
  allowImportExportEverywhere: true,
  allowHashBang: true,
};

/** Return the tree of a cell; throw a `SyntaxError` with the place as `pos`. */
function parse(source) {
  try {
    return acorn.parse(source, OPTIONS);
  } catch (error) {
    // As a name, `await` is allowed outside of modules.
    try {
      return acorn.parse(source, { ...OPTIONS, allowAwaitOutsideFunction: false });
    } catch {
      throw error;
    }
  }
}

module.exports = { parse };
