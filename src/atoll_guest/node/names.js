/**
 * The names that parts of a program declare, told from its syntax tree.
 */
'use strict';

/** Return the identifiers in a pattern, and whether each stands for a property of its own name; none for other targets. */
function namesIn(pattern, isShort = false) {
  switch (pattern?.type) {
    case 'Identifier':
      return [{ node: pattern, isShort }];
    case 'ObjectPattern':
      return pattern.properties.flatMap((each) =>
        namesIn(each.value ?? each.argument, each.shorthand === true),
      );
    case 'ArrayPattern':
      return pattern.elements.flatMap((each) => namesIn(each));
    case 'AssignmentPattern':
      return namesIn(pattern.left, isShort);
    case 'RestElement':
      return namesIn(pattern.argument);
    default:
      return [];
  }
}

/** Whether a name means something of its own within a node of the tree. */
function declares(node, name) {
  switch (node.type) {
    case 'FunctionDeclaration':
    case 'FunctionExpression':
    case 'ArrowFunctionExpression':
      return (
        (node.type === 'FunctionExpression' && node.id?.name === name) ||
        node.params.some((each) => isIn(each, name)) ||
        hasVariable(node.body, name)
      );
    case 'ClassDeclaration':
    case 'ClassExpression':
      return node.id?.name === name;
    case 'BlockStatement':
      return node.body.some((each) => isLexical(each, name));
    case 'StaticBlock':
      return node.body.some((each) => isLexical(each, name) || hasVariable(each, name));
    case 'SwitchStatement':
      return node.cases.some(({ consequent }) => consequent.some((each) => isLexical(each, name)));
    case 'ForStatement':
      return isLexical(node.init, name);
    case 'ForInStatement':
    case 'ForOfStatement':
      return isLexical(node.left, name);
    case 'CatchClause':
      return isIn(node.param, name);
    default:
      return false;
  }
}

function isLexical(statement, name) {
  switch (statement?.type) {
    case 'VariableDeclaration':
      return statement.kind !== 'var' && statement.declarations.some(({ id }) => isIn(id, name));
    case 'ClassDeclaration':
    case 'FunctionDeclaration':
      return statement.id.name === name;
    default:
      return false;
  }
}

/** Whether a `var` of that name is anywhere in a node, but for functions in it. */
function hasVariable(node, name) {
  if (node === null || typeof node !== 'object' || isFunction(node)) return false;
  if (node.type === 'VariableDeclaration' && node.kind === 'var') {
    if (node.declarations.some(({ id }) => isIn(id, name))) return true;
  }
  return Object.values(node).some((child) =>
    Array.isArray(child) ? child.some((each) => hasVariable(each, name)) : hasVariable(child, name),
  );
}

function isFunction(node) {
  return typeof node.type === 'string' && node.type.includes('Function');
}

function isIn(pattern, name) {
  return namesIn(pattern).some(({ node }) => node.name === name);
}

module.exports = { declares, namesIn };
