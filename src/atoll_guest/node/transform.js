/**
 * Makes a script of a cell: what it declares stays for later cells, which may declare it again.
 *
 * Only declarations at the top of a cell are changed, and only as a parser understands them: `let`, `const`, `class` and
 * `import` there become assignments to properties of the global object, as `var` and `function` are by themselves. So all cells
 * and all functions in them see one variable of a name. Only what Node itself calls something already, such as `URL`, is kept apart and
 * found by cells alone, for Node needs its own. A name has no value before its declaration has run (the kernel takes an
 * earlier one away before the cell begins), and a cell cannot assign to its own constants. A cell that waits at its top becomes
 * the body of an async function; its functions become a script of their own that runs before, for they are hoisted.
 *
 * Changes never move a line, and those that move a column are told, so that errors name the place that people know.
 */
'use strict';

const { declares, namesIn } = require('./names.js');
const { Edits } = require('./edits.js');
const { parse } = require('./parser.js');

// What changed code calls, see `cells.js`.
const OURS = '__atoll__';
const FUNCTIONS = new Set(['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression']);
const LEXICAL = new Set(['let', 'const', 'ClassDeclaration', 'ImportDeclaration']);
const LISTS = new Set(['Program', 'BlockStatement', 'SwitchCase']);
// Without one of these words there is nothing to change, and nothing but expressions: that need not be parsed to know it.
const NEEDS_A_LOOK =
  /\b(?:await|class|const|do|export|for|function|if|import|let|switch|try|using|var|while|with)\b/;
const FOR_A_SHELL = /^#!.*/;
const EXPORT_DEFAULT = /^export\s+default/;
const keysOf = Object.keys;

/**
 * Return a cell as scripts, with what it declares; throw a `SyntaxError` of the parser's.
 *
 * `taken` are the names that Node has, `apart` those of them that earlier cells have declared.
 */
function transform(source, taken, apart) {
  if (apart.size === 0 && !NEEDS_A_LOOK.test(source)) return asItIs(source);
  const program = parse(source);
  const cell = new Transformed(source, program, taken, apart);
  cell.look(program, []);
  cell.change();
  return cell.scripts();
}

/** Return a cell that is a script already. */
function asItIs(code) {
  const main = { code, moves: [] };
  return {
    isAsync: false,
    isShown: true,
    names: [],
    variables: [],
    apart: null,
    functions: null,
    main,
  };
}

class Transformed {
  constructor(source, program, taken, apart) {
    this._source = source;
    this._body = program.body;
    this._apart = namesApart(program.body, taken, apart);
    this._references = []; // to those
    this._edits = new Edits(source);
    this._isAsync = false;
    this._constants = new Set();
    this._names = []; // without a value until their declaration has run
    this._variables = []; // `var`, wherever it is, with what it is in
    this._assigned = [];
    this._meta = [];
  }

  // --- what is there --------------------------------------------------------------------------------------------

  look(node, above) {
    this._note(node, above);
    above.push(node);
    for (const key of keysOf(node)) {
      const child = node[key];
      if (Array.isArray(child)) {
        for (const each of child) if (isNode(each)) this.look(each, above);
      } else if (isNode(child)) {
        this.look(child, above);
      }
    }
    above.pop();
  }

  _note(node, above) {
    switch (node.type) {
      case 'AwaitExpression':
      case 'ForOfStatement':
        if ((node.type === 'AwaitExpression' || node.await) && !isInFunction(above))
          this._isAsync = true;
        if (node.type === 'ForOfStatement') this._noteTargets(node.left, above);
        break;
      case 'ImportDeclaration':
        this._isAsync = true;
        break;
      case 'MetaProperty':
        if (node.meta.name === 'import') this._meta.push(node);
        break;
      case 'VariableDeclaration':
        if (node.kind === 'var' && !isInFunction(above))
          this._variables.push({ node, parent: above.at(-1) });
        break;
      case 'AssignmentExpression':
      case 'ForInStatement':
        this._noteTargets(node.left, above);
        break;
      case 'UpdateExpression':
        this._noteTargets(node.argument, above);
        break;
      case 'Identifier':
        if (this._apart.has(node.name) && isReference(node, above))
          this._references.push({ node, above: [...above] });
        break;
    }
  }

  _noteTargets(pattern, above) {
    for (const target of namesIn(pattern)) this._assigned.push({ ...target, above: [...above] });
  }

  // --- what changes ---------------------------------------------------------------------------------------------

  change() {
    // Only the first line of a script may be one for a shell.
    const [first] = this._source.match(FOR_A_SHELL) ?? [''];
    this._edits.overwrite(0, first.length, '');
    // Where two come before the same, that of the larger part has to be first.
    for (const statement of this._body) this._changeTop(statement);
    if (this._isAsync) {
      for (const { node, parent } of this._variables) this._changeVariables(node, parent);
      this._return(this._lastStatement());
    }
    for (const node of this._meta) this._edits.replace(node.start, node.end, `${OURS}.meta`);
    const isProtected = new Set(
      this._assigned.filter((each) => this._protect(each)).map(({ node }) => node),
    );
    for (const { node, above } of this._references) {
      if (!isProtected.has(node) && !above.some((each) => declares(each, node.name)))
        this._setApart(node, above);
    }
  }

  /** Let a name that Node has mean what cells have declared. */
  _setApart(node, above) {
    const isShort = above.findLast(({ type }) => type !== 'AssignmentPattern')?.shorthand === true;
    this._edits.insert(node.start, `${isShort ? `${node.name}:` : ''}${OURS}.apart.`);
  }

  /** Return what a declared name is assigned by. */
  _target(name) {
    if (this._apart.has(name)) return `${OURS}.apart.${name}`;
    this._names.push(name);
    return name;
  }

  _changeTop(statement) {
    const edits = this._edits;
    switch (statement.type) {
      case 'ImportDeclaration':
        this._changeImport(statement);
        break;
      case 'ExportAllDeclaration':
      case 'ExportNamedDeclaration':
      case 'ExportDefaultDeclaration':
        this._changeExport(statement);
        break;
      case 'VariableDeclaration':
        if (statement.kind === 'let' || statement.kind === 'const') this._changeLexical(statement);
        break;
      case 'ClassDeclaration':
        edits.insert(statement.start, `;${this._target(statement.id.name)}=`);
        edits.insert(statement.end, ';');
        break;
    }
  }

  _changeLexical(statement) {
    for (const declarator of statement.declarations) {
      for (const { node } of namesIn(declarator.id)) {
        this._target(node.name);
        if (statement.kind === 'const') this._constants.add(node.name);
      }
      if (!declarator.init) this._edits.insert(declarator.id.end, '=void 0');
    }
    this._assign(statement, ';');
  }

  _changeVariables(statement, parent) {
    if (isHead(statement, parent)) {
      this._edits.overwrite(statement.start, statement.start + 'var'.length, '');
    } else {
      this._assign(statement, LISTS.has(parent.type) ? ';' : '');
    }
  }

  /** Let a declaration be an assignment. */
  _assign(statement, before) {
    const edits = this._edits;
    // At the beginning of a statement a brace would open a block.
    const isObject = statement.declarations[0].id.type === 'ObjectPattern';
    edits.overwrite(
      statement.start,
      statement.start + statement.kind.length,
      isObject ? `${before}(` : before,
    );
    if (isObject) edits.insert(statement.declarations.at(-1).end, ')');
    // What was the end of a declaration need not be that of an expression.
    if (this._source[statement.end - 1] !== ';') edits.insert(statement.end, ';');
  }

  _changeImport(statement) {
    const from = statement.source.raw;
    const options = statement.attributes?.length
      ? `,${this._attributes(statement.attributes)}`
      : '';
    const loaded = `await import(${from}${options})`;
    let whole;
    const exported = [];
    const parts = statement.specifiers.map(({ type, imported, local }) => {
      const target = this._target(local.name);
      this._constants.add(local.name);
      if (type === 'ImportNamespaceSpecifier') {
        whole = target;
        return '';
      }
      const name =
        type === 'ImportDefaultSpecifier' ? 'default' : (imported.name ?? imported.value);
      exported.push(name);
      return `${JSON.stringify(name)}:${target}`;
    });
    const value = exported.length
      ? `${OURS}.exported(${loaded},${from},${JSON.stringify(exported)})`
      : loaded;
    const space = whole ? `${whole}=${value}` : value;
    const text = exported.length ? `;({${parts.filter(Boolean)}}=${space});` : `;${space};`;
    const lines = this._source.slice(statement.start, statement.end).split('\n').length - 1;
    this._edits.replace(statement.start, statement.end, text + '\n'.repeat(lines));
  }

  _attributes(attributes) {
    const given = attributes.map(
      ({ key, value }) => `${JSON.stringify(key.name ?? key.value)}:${value.raw}`,
    );
    return `{with:{${given}}}`;
  }

  /** Nobody imports from a cell: what it would export it only declares. */
  _changeExport(statement) {
    const { declaration } = statement;
    if (!declaration) {
      this._edits.overwrite(statement.start, statement.end, '');
    } else if (declaration.id || declaration.type === 'VariableDeclaration') {
      this._edits.overwrite(statement.start, declaration.start, '');
      this._changeTop(declaration);
    } else {
      const [keywords] = this._source.slice(statement.start).match(EXPORT_DEFAULT);
      this._edits.overwrite(statement.start, statement.start + keywords.length, ';(');
      this._edits.insert(this._endOf(statement), ')');
    }
  }

  /** Return where a statement ends, but for its semicolon. */
  _endOf(statement) {
    return this._source[statement.end - 1] === ';' ? statement.end - 1 : statement.end;
  }

  /** Let an assignment to one of the cell's own constants fail when it is reached; return whether it is one. */
  _protect({ node, isShort, above }) {
    const { name } = node;
    if (!this._constants.has(name) || above.some((each) => declares(each, name))) return false;
    this._edits.insert(node.start, isShort ? `${name}:${OURS}.constants.` : `${OURS}.constants.`);
    return true;
  }

  _return(statement) {
    switch (statement?.type) {
      case 'ExpressionStatement':
        this._edits.insert(statement.start, 'return (');
        this._edits.insert(this._endOf(statement), ')');
        break;
      case 'BlockStatement':
        this._return(lastOf(statement.body));
        break;
      case 'LabeledStatement':
        this._return(statement.body);
        break;
      case 'IfStatement':
        this._return(statement.consequent);
        this._return(statement.alternate);
        break;
      case 'TryStatement':
        this._return(statement.block);
        this._return(statement.handler?.body);
        break;
    }
  }

  // --- what comes of it -----------------------------------------------------------------------------------------

  scripts() {
    const functions = this._isAsync ? this._body.map(functionIn).filter(Boolean) : [];
    const ranges = functions.map(({ start, end }) => [start, end]);
    return {
      isAsync: this._isAsync,
      isStrict: this._body[0]?.directive === 'use strict',
      isShown: isShown(this._lastStatement()),
      names: this._names,
      variables: this._variables.flatMap(({ node }) => declaredBy(node)),
      apart: this._apart,
      functions: functions.length ? this._edits.render(ranges, true) : null,
      main: this._edits.render(ranges, false),
    };
  }

  _lastStatement() {
    return lastOf(this._body);
  }
}

/** Return those of Node's names that cells have declared, this one included; `var` and `function` put them in Node's place. */
function namesApart(body, taken, apart) {
  const names = new Set(apart);
  for (const each of body) {
    const statement = each.declaration ?? each;
    const isOwn = LEXICAL.has(statement.kind ?? statement.type);
    for (const name of declaredBy(statement)) {
      if (isOwn && taken.has(name)) names.add(name);
      else if (!isOwn) names.delete(name);
    }
  }
  return names;
}

/** Whether an identifier stands for a variable, and not for a property or a label. */
function isReference(node, above) {
  const parent = above.at(-1);
  switch (parent.type) {
    case 'MemberExpression':
      return parent.object === node || parent.computed;
    case 'Property':
    case 'MethodDefinition':
    case 'PropertyDefinition':
      return parent.value === node || parent.computed;
    case 'LabeledStatement':
    case 'BreakStatement':
    case 'ContinueStatement':
    case 'MetaProperty':
      return false;
    default:
      return parent.id !== node || parent.type === 'VariableDeclarator'
        ? !parent.type.endsWith('Specifier')
        : false;
  }
}

function isNode(value) {
  return value !== null && typeof value === 'object' && typeof value.type === 'string';
}

function isInFunction(above) {
  return above.some(
    ({ type }) => FUNCTIONS.has(type) || type === 'StaticBlock' || type === 'PropertyDefinition',
  );
}

function isHead(statement, parent) {
  return parent.type.startsWith('For') && parent.body !== statement;
}

function functionIn(statement) {
  const found = statement.type.startsWith('Export') ? statement.declaration : statement;
  return found?.type === 'FunctionDeclaration' && found.id ? found : null;
}

function declaredBy(statement) {
  if (statement.specifiers) return statement.specifiers.map(({ local }) => local.name);
  const patterns = statement.declarations?.map(({ id }) => id) ?? [statement.id];
  return patterns.flatMap((pattern) => namesIn(pattern).map(({ node }) => node.name));
}

function lastOf(statements) {
  return statements.findLast(({ type }) => type !== 'EmptyStatement');
}

/** Whether the value of a statement is one that people want to see: not that of a loop's last turn. */
function isShown(statement) {
  switch (statement?.type) {
    case 'ExpressionStatement':
      return true;
    case 'ExportDefaultDeclaration':
      return !statement.declaration.id;
    case 'BlockStatement':
      return isShown(lastOf(statement.body));
    case 'LabeledStatement':
      return isShown(statement.body);
    case 'IfStatement':
      return isShown(statement.consequent) || isShown(statement.alternate);
    case 'TryStatement':
      return isShown(statement.block);
    default:
      return false;
  }
}

module.exports = { OURS, asItIs, transform };
