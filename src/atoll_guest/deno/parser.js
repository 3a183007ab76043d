/**
 * Parses cells, as far as `transform.js` needs to know them: Deno carries no parser that a program can reach.
 *
 * It gives a tree of the usual kind (ESTree) that says what is declared, assigned, awaited and named where. Operators are not
 * sorted by precedence, for nothing hangs on that. It takes all that is JavaScript, and some that is not: what comes of a cell
 * is compiled by V8, which refuses the rest.
 */
'use strict';

const { Tokens } = require('./tokens.js');
const { namesIn } = require('./names.js');

const FOR_A_SHELL = /^#!.*/;
const ASSIGNMENTS = new Set('= += -= *= /= %= **= <<= >>= >>>= &= |= ^= &&= ||= ??='.split(' '));
const BINARY = new Set('+ - * / % ** == != === !== < > <= >= << >> >>> & | ^ && || ??'.split(' '));
const UNARY = new Set('+ - ~ !'.split(' '));
const UNARY_WORDS = new Set(['delete', 'void', 'typeof']);
const UPDATES = new Set(['++', '--']);
const KEYWORDS = new Set(
  (
    'break case catch class const continue debugger default delete do else export extends finally for function if import in' +
    ' instanceof new return super switch this throw try typeof var void while with null true false enum'
  ).split(' '),
);
const VALUES = new Set(['this', 'super', 'null', 'true', 'false']);
// What cannot stand where a value begins.
const ENDS = new Set([')', ']', '}', ',', ';', ':', 'in', 'of']);
const MODIFIERS = new Set(['get', 'set', 'async', 'accessor']);
const AFTER_A_KEY = new Set(['(', ',', ':', '}', '=', ';']);

/** Return the tree of a cell; throw a `SyntaxError` with the place as `pos`. */
function parse(source) {
  try {
    return new Parser(source, true).program();
  } catch (error) {
    // As a name, `await` is allowed outside of modules.
    try {
      return new Parser(source, false).program();
    } catch {
      throw error;
    }
  }
}

class Parser {
  constructor(source, mayAwait) {
    const [first] = source.match(FOR_A_SHELL) ?? [''];
    this._tokens = new Tokens(source.replace(first, (text) => ' '.repeat(text.length)));
    this._source = source;
    this._mayAwait = mayAwait;
    this._mayYield = false;
    this._isInFunction = false;
    this._mayBeIn = true; // whether `in` is an operator here
    this._variables = [];
  }

  program() {
    const body = [];
    while (this._tokens.kind !== 'end') body.push(this._statement());
    for (const each of body) {
      if (each.expression?.type !== 'Literal' || !each.expression.isText) break;
      each.directive = each.expression.raw.slice(1, -1);
    }
    checkNames(body, this._variables, this._tokens);
    return { type: 'Program', start: 0, end: this._source.length, body };
  }

  // --- words ------------------------------------------------------------------------------------------------------

  _is(text) {
    return this._tokens.is(text);
  }

  _accept(text) {
    const isThere = this._tokens.is(text);
    if (isThere) this._tokens.next();
    return isThere;
  }

  _expect(text) {
    if (!this._accept(text)) this._tokens.fail();
  }

  _node(type, start, fields) {
    return { type, start, end: this._tokens.lastEnd, ...fields };
  }

  /** Whether what comes after the next word fulfils a condition. */
  _follows(condition) {
    const { place } = this._tokens;
    this._tokens.next();
    const isSo = condition(this._tokens);
    this._tokens.goBack(place);
    return isSo;
  }

  _endStatement() {
    const tokens = this._tokens;
    if (!this._accept(';') && !this._is('}') && tokens.kind !== 'end' && !tokens.isAfterLine)
      tokens.fail();
  }

  _isName() {
    return this._tokens.kind === 'name' && !KEYWORDS.has(this._tokens.text);
  }

  _identifier(mayBeKeyword = false) {
    const { kind, start, name } = this._tokens;
    if (kind !== 'name' || (!mayBeKeyword && !this._isName())) this._tokens.fail();
    this._tokens.next();
    return this._node('Identifier', start, { name });
  }

  _literal() {
    const { kind, start, text: raw } = this._tokens;
    this._tokens.next();
    return this._node('Literal', start, {
      raw,
      value: kind === 'text' ? raw.slice(1, -1) : undefined,
      isText: kind === 'text',
    });
  }

  /** Parse with other rules for a while. */
  _with(rules, parseIt) {
    const before = {};
    for (const name of Object.keys(rules)) before[name] = this[name];
    Object.assign(this, rules);
    const found = parseIt();
    Object.assign(this, before);
    return found;
  }

  _list(end, parseOne) {
    const found = [];
    while (!this._is(end)) {
      found.push(parseOne());
      if (!this._is(end)) this._expect(',');
    }
    this._tokens.next();
    return found;
  }

  // --- statements -------------------------------------------------------------------------------------------------

  _statement() {
    const { kind, start, text } = this._tokens;
    if (kind === 'sign') {
      if (text === '{') return this._block();
      if (text === ';') {
        this._tokens.next();
        return this._node('EmptyStatement', start);
      }
    }
    if (kind === 'name') {
      const statement = this._keywordStatement(text, start) ?? this._declaration(text);
      if (statement) return statement;
      if (this._isName() && this._follows((tokens) => tokens.is(':'))) return this._labeled(start);
    }
    const expression = this._expression();
    this._endStatement();
    return this._node('ExpressionStatement', start, { expression });
  }

  _keywordStatement(word, start) {
    switch (word) {
      case 'if':
        return this._if(start);
      case 'for':
        return this._for(start);
      case 'while':
      case 'with':
        return this._loop(word, start);
      case 'do':
        return this._do(start);
      case 'switch':
        return this._switch(start);
      case 'try':
        return this._try(start);
      case 'return':
        if (!this._isInFunction) this._tokens.fail(start, "'return' outside of function");
        return this._leave('ReturnStatement', start);
      case 'throw':
        return this._leave('ThrowStatement', start);
      case 'break':
      case 'continue':
        return this._jump(word, start);
      case 'debugger':
        this._tokens.next();
        this._endStatement();
        return this._node('DebuggerStatement', start);
    }
    return null;
  }

  _declaration(word) {
    const { start } = this._tokens;
    switch (word) {
      case 'function':
        return this._function(start, true);
      case 'class':
        return this._class(true);
      case 'import':
        return this._follows((tokens) => tokens.is('(') || tokens.is('.')) ? null : this._import();
      case 'export':
        return this._export();
      case 'async':
        return this._follows((tokens) => tokens.is('function') && !tokens.isAfterLine)
          ? this._function(start, true)
          : null;
    }
    const kind = this._kindOfVariables();
    if (kind === null) return null;
    const found = this._variablesOf(kind);
    // V8 would not see it: a constant becomes an assignment.
    if (kind === 'const' && found.declarations.some(({ init }) => !init))
      this._tokens.fail(this._tokens.start, 'Missing initializer in const declaration');
    this._endStatement();
    return { ...found, end: this._tokens.lastEnd };
  }

  _block() {
    const { start } = this._tokens;
    return this._node('BlockStatement', start, { body: this._statements() });
  }

  _statements() {
    const body = [];
    this._expect('{');
    while (!this._is('}')) body.push(this._statement());
    this._tokens.next();
    return body;
  }

  _labeled(start) {
    const label = this._identifier();
    this._expect(':');
    const body = this._statement();
    return this._node('LabeledStatement', start, { label, body });
  }

  _inParentheses() {
    this._expect('(');
    const found = this._with({ _mayBeIn: true }, () => this._expression());
    this._expect(')');
    return found;
  }

  _if(start) {
    this._tokens.next();
    const test = this._inParentheses();
    const consequent = this._statement();
    const alternate = this._accept('else') ? this._statement() : null;
    return this._node('IfStatement', start, { test, consequent, alternate });
  }

  _loop(word, start) {
    this._tokens.next();
    const test = this._inParentheses();
    const body = this._statement();
    return this._node(word === 'with' ? 'WithStatement' : 'WhileStatement', start, { test, body });
  }

  _do(start) {
    this._tokens.next();
    const body = this._statement();
    this._expect('while');
    const test = this._inParentheses();
    this._accept(';');
    return this._node('DoWhileStatement', start, { body, test });
  }

  _for(start) {
    this._tokens.next();
    const isAwaited = this._accept('await');
    this._expect('(');
    const first = this._with({ _mayBeIn: false }, () => this._forHead());
    const isOf = this._is('of');
    if (first && (isOf || this._is('in'))) {
      this._tokens.next();
      const right = isOf ? this._assignment() : this._expression();
      this._expect(')');
      const left = first.type === 'VariableDeclaration' ? first : toPattern(first);
      const body = this._statement();
      const fields = isOf ? { await: isAwaited } : {};
      return this._node(isOf ? 'ForOfStatement' : 'ForInStatement', start, {
        left,
        right,
        body,
        ...fields,
      });
    }
    this._expect(';');
    const test = this._is(';') ? null : this._expression();
    this._expect(';');
    const update = this._is(')') ? null : this._expression();
    this._expect(')');
    const body = this._statement();
    return this._node('ForStatement', start, { init: first, test, update, body });
  }

  _forHead() {
    if (this._is(';')) return null;
    const kind = this._kindOfVariables();
    if (kind !== null) return this._variablesOf(kind);
    // Here `async of` begins no function.
    if (this._is('async') && this._follows((tokens) => tokens.is('of'))) return this._identifier();
    return this._expression();
  }

  _switch(start) {
    this._tokens.next();
    const discriminant = this._inParentheses();
    const cases = [];
    this._expect('{');
    while (!this._accept('}')) cases.push(this._case());
    return this._node('SwitchStatement', start, { discriminant, cases });
  }

  _case() {
    const { start } = this._tokens;
    const isDefault = this._accept('default');
    if (!isDefault) this._expect('case');
    const test = isDefault ? null : this._expression();
    this._expect(':');
    const consequent = [];
    while (!this._is('case') && !this._is('default') && !this._is('}'))
      consequent.push(this._statement());
    return this._node('SwitchCase', start, { test, consequent });
  }

  _try(start) {
    this._tokens.next();
    const block = this._block();
    const handler = this._is('catch') ? this._catch() : null;
    const finalizer = this._accept('finally') ? this._block() : null;
    return this._node('TryStatement', start, { block, handler, finalizer });
  }

  _catch() {
    const { start } = this._tokens;
    this._tokens.next();
    let param = null;
    if (this._accept('(')) {
      param = this._pattern();
      this._expect(')');
    }
    const body = this._block();
    return this._node('CatchClause', start, { param, body });
  }

  _leave(type, start) {
    const tokens = this._tokens;
    tokens.next();
    const isAlone = this._is(';') || this._is('}') || tokens.kind === 'end' || tokens.isAfterLine;
    const argument = isAlone ? null : this._expression();
    this._endStatement();
    return this._node(type, start, { argument });
  }

  _jump(word, start) {
    this._tokens.next();
    const label = this._isName() && !this._tokens.isAfterLine ? this._identifier() : null;
    this._endStatement();
    const type = word === 'break' ? 'BreakStatement' : 'ContinueStatement';
    return this._node(type, start, { label });
  }

  // --- declarations -----------------------------------------------------------------------------------------------

  /** Return which kind of variables is declared next, null if none is. */
  _kindOfVariables() {
    const { text } = this._tokens;
    if (this._tokens.kind !== 'name') return null;
    if (text === 'var' || text === 'const') return text;
    if (text === 'let') return this._follows(beginsPattern) ? text : null;
    if (text === 'using') return this._follows(beginsResource) ? text : null;
    if (text !== 'await') return null;
    return this._follows(
      (tokens) => tokens.is('using') && !tokens.isAfterLine && this._follows(beginsResource),
    )
      ? 'await using'
      : null;
  }

  _variablesOf(kind) {
    const { start } = this._tokens;
    for (const _word of kind.split(' ')) this._tokens.next();
    const declarations = [];
    do declarations.push(this._declarator());
    while (this._accept(','));
    const found = this._node('VariableDeclaration', start, { kind, declarations });
    if (kind === 'var' && !this._isInFunction) this._variables.push(found);
    return found;
  }

  _declarator() {
    const { start } = this._tokens;
    const id = this._pattern();
    const init = this._accept('=') ? this._assignment() : null;
    return this._node('VariableDeclarator', start, { id, init });
  }

  /** Parse what is bound: a name, or what is taken apart. */
  _pattern() {
    if (this._is('[') || this._is('{'))
      return toPattern(this._with({ _mayBeIn: true }, () => this._primary()));
    return this._identifier();
  }

  _parameter() {
    const { start } = this._tokens;
    if (this._accept('...')) {
      const argument = this._pattern();
      return this._node('RestElement', start, { argument });
    }
    const left = this._pattern();
    if (!this._accept('=')) return left;
    const right = this._assignment();
    return this._node('AssignmentPattern', start, { left, right });
  }

  _function(start, isDeclaration) {
    const isAsync = this._accept('async');
    this._expect('function');
    const isGenerator = this._accept('*');
    const id = this._is('(') ? null : this._identifier();
    const rest = this._functionRest(isAsync, isGenerator);
    return this._node(isDeclaration ? 'FunctionDeclaration' : 'FunctionExpression', start, {
      id,
      async: isAsync,
      generator: isGenerator,
      ...rest,
    });
  }

  _functionRest(isAsync, isGenerator) {
    const rules = {
      _mayAwait: isAsync,
      _mayYield: isGenerator,
      _isInFunction: true,
      _mayBeIn: true,
    };
    return this._with(rules, () => {
      this._expect('(');
      const params = this._list(')', () => this._parameter());
      return { params, body: this._block() };
    });
  }

  _arrow(start, params, isAsync) {
    this._expect('=>');
    const rules = { _mayAwait: isAsync, _mayYield: false, _isInFunction: true };
    const body = this._is('{')
      ? this._with({ ...rules, _mayBeIn: true }, () => this._block())
      : this._with(rules, () => this._assignment());
    return this._node('ArrowFunctionExpression', start, { params, body, async: isAsync });
  }

  _class(isDeclaration) {
    const { start } = this._tokens;
    this._expect('class');
    const isNamed = this._isName();
    const id = isNamed ? this._identifier() : null;
    const superClass = this._accept('extends') ? this._subscripts(this._primary(), true) : null;
    const bodyStart = this._tokens.start;
    const members = [];
    this._expect('{');
    while (!this._accept('}')) if (!this._accept(';')) members.push(this._member());
    const body = this._node('ClassBody', bodyStart, { body: members });
    const type = isDeclaration ? 'ClassDeclaration' : 'ClassExpression';
    return this._node(type, start, { id, superClass, body });
  }

  _member() {
    const { start } = this._tokens;
    const isStatic = this._is('static') && this._follows((tokens) => !endsKey(tokens));
    if (isStatic) this._tokens.next();
    if (isStatic && this._is('{')) return this._staticBlock(start);
    const { isAsync, isGenerator } = this._modifiers();
    const key = this._key();
    if (this._is('(')) return this._method('MethodDefinition', start, key, isAsync, isGenerator);
    const rules = { _mayAwait: false, _mayYield: false, _isInFunction: true, _mayBeIn: true };
    const value = this._accept('=') ? this._with(rules, () => this._assignment()) : null;
    this._endStatement();
    return this._node('PropertyDefinition', start, { ...key, value });
  }

  _staticBlock(start) {
    const rules = { _mayAwait: false, _mayYield: false, _isInFunction: true };
    const body = this._with(rules, () => this._statements());
    return this._node('StaticBlock', start, { body });
  }

  _modifiers() {
    let isAsync = false;
    const isModifier = (tokens) => !endsKey(tokens);
    while (MODIFIERS.has(this._tokens.text) && this._follows(isModifier)) {
      isAsync ||= this._is('async');
      // On a line of its own it is a field.
      if (this._is('async') && this._follows((tokens) => tokens.isAfterLine)) break;
      this._tokens.next();
    }
    return { isAsync, isGenerator: this._accept('*') };
  }

  _method(type, start, key, isAsync, isGenerator) {
    const functionStart = this._tokens.start;
    const rest = this._functionRest(isAsync, isGenerator);
    const fields = { id: null, async: isAsync, generator: isGenerator, ...rest };
    const value = this._node('FunctionExpression', functionStart, fields);
    return this._node(type, start, { ...key, value });
  }

  _key() {
    const { kind, start, text } = this._tokens;
    if (this._accept('[')) {
      const key = this._with({ _mayBeIn: true }, () => this._assignment());
      this._expect(']');
      return { key, computed: true };
    }
    if (kind === 'text' || kind === 'number') return { key: this._literal(), computed: false };
    if (kind !== 'private') return { key: this._identifier(true), computed: false };
    this._tokens.next();
    const name = text.slice(1);
    return { key: this._node('PrivateIdentifier', start, { name }), computed: false };
  }

  // --- modules ----------------------------------------------------------------------------------------------------

  _import() {
    const { start } = this._tokens;
    this._tokens.next();
    const specifiers = [];
    if (this._tokens.kind !== 'text') {
      do this._importPart(specifiers);
      while (this._accept(','));
      this._expect('from');
    }
    const fields = this._from();
    this._endStatement();
    return this._node('ImportDeclaration', start, { specifiers, ...fields });
  }

  _importPart(specifiers) {
    const { start } = this._tokens;
    if (this._accept('{')) {
      specifiers.push(...this._list('}', () => this._importSpecifier()));
    } else if (this._accept('*')) {
      this._expect('as');
      const local = this._identifier();
      specifiers.push(this._node('ImportNamespaceSpecifier', start, { local }));
    } else {
      const local = this._identifier();
      specifiers.push(this._node('ImportDefaultSpecifier', start, { local }));
    }
  }

  _importSpecifier() {
    const { start } = this._tokens;
    const imported = this._nameOfExport();
    const local = this._accept('as') ? this._identifier() : imported;
    return this._node('ImportSpecifier', start, { imported, local });
  }

  _nameOfExport() {
    return this._tokens.kind === 'text' ? this._literal() : this._identifier(true);
  }

  _from() {
    if (this._tokens.kind !== 'text') this._tokens.fail();
    const source = this._literal();
    if (!this._is('with')) return { source };
    this._tokens.next();
    this._expect('{');
    const attributes = this._list('}', () => this._attribute());
    return { source, attributes };
  }

  _attribute() {
    const { start } = this._tokens;
    const key = this._nameOfExport();
    this._expect(':');
    const value = this._literal();
    return this._node('ImportAttribute', start, { key, value });
  }

  _export() {
    const { start } = this._tokens;
    this._tokens.next();
    if (this._accept('default')) return this._exportDefault(start);
    if (this._is('*') || this._is('{')) {
      const specifiers = this._exportParts();
      const fields = this._accept('from') ? this._from() : {};
      this._endStatement();
      const type = specifiers ? 'ExportNamedDeclaration' : 'ExportAllDeclaration';
      return this._node(type, start, { declaration: null, specifiers: specifiers ?? [], ...fields });
    }
    const declaration = this._declaration(this._tokens.text) ?? this._tokens.fail();
    return this._node('ExportNamedDeclaration', start, { declaration, specifiers: [] });
  }

  _exportParts() {
    if (this._accept('{')) {
      return this._list('}', () => {
        const { start } = this._tokens;
        const local = this._nameOfExport();
        const exported = this._accept('as') ? this._nameOfExport() : local;
        return this._node('ExportSpecifier', start, { local, exported });
      });
    }
    this._tokens.next();
    if (this._accept('as')) this._nameOfExport();
    return null;
  }

  _exportDefault(start) {
    const from = this._tokens.start;
    const isAsync = this._is('async') && this._follows((tokens) => tokens.is('function'));
    let declaration;
    if (this._is('function') || isAsync) declaration = this._function(from, true);
    else if (this._is('class')) declaration = this._class(true);
    else {
      declaration = this._assignment();
      this._endStatement();
    }
    return this._node('ExportDefaultDeclaration', start, { declaration });
  }

  // --- expressions ------------------------------------------------------------------------------------------------

  _expression() {
    const { start } = this._tokens;
    const first = this._assignment();
    if (!this._is(',')) return first;
    const expressions = [first];
    while (this._accept(',')) expressions.push(this._assignment());
    return this._node('SequenceExpression', start, { expressions });
  }

  _assignment() {
    const { start } = this._tokens;
    if (this._mayYield && this._is('yield')) return this._yield(start);
    const left = this._operands(start);
    if (this._isArrowAt(left)) return left;
    if (this._accept('?')) {
      const consequent = this._with({ _mayBeIn: true }, () => this._assignment());
      this._expect(':');
      const alternate = this._assignment();
      return this._node('ConditionalExpression', start, { test: left, consequent, alternate });
    }
    const { kind, text: operator } = this._tokens;
    if (kind !== 'sign' || !ASSIGNMENTS.has(operator)) return left;
    this._tokens.next();
    const target = operator === '=' ? toPattern(left) : left;
    const right = this._assignment();
    return this._node('AssignmentExpression', start, { operator, left: target, right });
  }

  _yield(start) {
    this._tokens.next();
    const isAlone = ENDS.has(this._tokens.text) || this._tokens.kind === 'end';
    if (isAlone || this._tokens.isAfterLine) return this._node('YieldExpression', start);
    this._accept('*');
    const argument = this._assignment();
    return this._node('YieldExpression', start, { argument });
  }

  /** Parse what operators stand between. */
  _operands(start) {
    const first = this._unary();
    if (this._isArrowAt(first) || !this._isBinary()) return first;
    const operands = [first];
    while (this._isBinary()) {
      this._tokens.next();
      operands.push(this._unary());
    }
    return this._node('BinaryExpression', start, { operands });
  }

  _isBinary() {
    const { kind, text } = this._tokens;
    if (kind === 'sign') return BINARY.has(text);
    return this._is('instanceof') || (this._mayBeIn && this._is('in'));
  }

  /** Whether a node is a function that ends right here: nothing can be done with it. */
  _isArrowAt(node) {
    return node.type === 'ArrowFunctionExpression' && node.end === this._tokens.lastEnd;
  }

  _unary() {
    const { kind, start, text } = this._tokens;
    const isSign = kind === 'sign';
    if (isSign && UPDATES.has(text)) {
      this._tokens.next();
      const argument = this._unary();
      return this._node('UpdateExpression', start, { argument });
    }
    if ((isSign && UNARY.has(text)) || (kind === 'name' && UNARY_WORDS.has(text))) {
      this._tokens.next();
      const argument = this._unary();
      return this._node('UnaryExpression', start, { argument });
    }
    if (this._mayAwait && this._is('await')) {
      this._tokens.next();
      const argument = this._unary();
      return this._node('AwaitExpression', start, { argument });
    }
    return this._postfix(start);
  }

  _postfix(start) {
    const argument = this._subscripts(this._primary(), true);
    const { kind, text, isAfterLine } = this._tokens;
    if (kind !== 'sign' || !UPDATES.has(text) || isAfterLine) return argument;
    this._tokens.next();
    return this._node('UpdateExpression', start, { argument });
  }

  _subscripts(first, mayCall) {
    const { start } = first;
    let object = first;
    if (this._isArrowAt(object)) return object;
    for (;;) {
      if (this._accept('?.')) {
        if (!this._is('[') && !this._is('(') && this._tokens.kind !== 'template') {
          object = this._node('MemberExpression', start, { object, ...this._property() });
        }
      } else if (this._accept('.')) {
        object = this._node('MemberExpression', start, { object, ...this._property() });
      } else if (this._accept('[')) {
        const property = this._with({ _mayBeIn: true }, () => this._expression());
        this._expect(']');
        object = this._node('MemberExpression', start, { object, property, computed: true });
      } else if (mayCall && this._is('(')) {
        const parameters = this._arguments();
        object = this._node('CallExpression', start, { callee: object, arguments: parameters });
      } else if (this._tokens.kind === 'template') {
        const quasi = this._template();
        object = this._node('TaggedTemplateExpression', start, { tag: object, quasi });
      } else {
        return object;
      }
    }
  }

  _property() {
    const { key, computed } = this._is('[') ? this._tokens.fail() : this._key();
    return { property: key, computed };
  }

  _arguments() {
    this._expect('(');
    return this._with({ _mayBeIn: true }, () => this._list(')', () => this._element()));
  }

  _element() {
    const { start } = this._tokens;
    if (!this._accept('...')) return this._assignment();
    const argument = this._assignment();
    return this._node('SpreadElement', start, { argument });
  }

  _primary() {
    const { kind, start, text } = this._tokens;
    switch (kind) {
      case 'text':
      case 'number':
        return this._literal();
      case 'template':
        return this._template();
      case 'private':
        return this._key().key;
      case 'sign':
        return this._primarySign(text, start);
      case 'name':
        return this._primaryName(text, start);
    }
    return this._tokens.fail();
  }

  _primarySign(text, start) {
    switch (text) {
      case '(':
        return this._parenthesized(start);
      case '[':
        return this._array(start);
      case '{':
        return this._object(start);
      case '/':
      case '/=':
        this._tokens.asPattern();
        return this._literal();
    }
    return this._tokens.fail();
  }

  _primaryName(text, start) {
    switch (text) {
      case 'function':
        return this._function(start, false);
      case 'class':
        return this._class(false);
      case 'new':
        return this._new(start);
      case 'import':
        return this._importExpression(start);
      case 'async':
        return this._async(start);
    }
    if (VALUES.has(text)) {
      this._tokens.next();
      return this._node('Literal', start, { raw: text });
    }
    return this._nameOrArrow(start, false);
  }

  _nameOrArrow(start, isAsync) {
    const name = this._identifier();
    const isArrow = this._is('=>') && !this._tokens.isAfterLine;
    return isArrow ? this._arrow(start, [name], isAsync) : name;
  }

  _async(start) {
    if (this._follows((tokens) => tokens.is('function') && !tokens.isAfterLine))
      return this._function(start, false);
    const isOfOne = (tokens) =>
      tokens.kind === 'name' && !tokens.isAfterLine && !KEYWORDS.has(tokens.text);
    if (this._follows((tokens) => isOfOne(tokens) && this._follows((next) => next.is('=>')))) {
      this._tokens.next();
      return this._nameOrArrow(start, true);
    }
    const name = this._nameOrArrow(start, false);
    if (name.type !== 'Identifier' || !this._is('(') || this._tokens.isAfterLine) return name;
    const parameters = this._arguments();
    if (this._is('=>') && !this._tokens.isAfterLine)
      return this._arrow(start, parameters.map(toPattern), true);
    return this._node('CallExpression', start, { callee: name, arguments: parameters });
  }

  /** Parse an expression in parentheses, or what comes before an arrow. */
  _parenthesized(start) {
    this._tokens.next();
    const parts = this._with({ _mayBeIn: true }, () => this._list(')', () => this._element()));
    if (this._is('=>') && !this._tokens.isAfterLine)
      return this._arrow(start, parts.map(toPattern), false);
    if (!parts.length) this._tokens.fail();
    if (parts.length === 1) return parts[0];
    return this._node('SequenceExpression', start, { expressions: parts });
  }

  _array(start) {
    this._tokens.next();
    const elements = this._with({ _mayBeIn: true }, () =>
      this._list(']', () => (this._is(',') ? null : this._element())),
    );
    return this._node('ArrayExpression', start, { elements });
  }

  _object(start) {
    this._tokens.next();
    const properties = this._with({ _mayBeIn: true }, () =>
      this._list('}', () => this._objectProperty()),
    );
    return this._node('ObjectExpression', start, { properties });
  }

  _objectProperty() {
    const { start } = this._tokens;
    if (this._is('...')) return this._element();
    const { isAsync, isGenerator } = this._modifiers();
    const key = this._key();
    if (this._is('(')) {
      return { ...this._method('Property', start, key, isAsync, isGenerator), shorthand: false };
    }
    if (this._accept(':')) {
      const value = this._assignment();
      return this._node('Property', start, { ...key, value, shorthand: false });
    }
    if (key.computed || key.key.type !== 'Identifier') this._tokens.fail();
    let value = { ...key.key };
    if (this._accept('=')) {
      const right = this._assignment();
      value = this._node('AssignmentPattern', start, { left: value, right });
    }
    return this._node('Property', start, { ...key, value, shorthand: true });
  }

  _new(start) {
    this._tokens.next();
    if (this._accept('.')) return this._metaProperty(start, 'new');
    const callee = this._subscripts(this._primary(), false);
    const parameters = this._is('(') ? this._arguments() : [];
    return this._node('NewExpression', start, { callee, arguments: parameters });
  }

  _importExpression(start) {
    this._tokens.next();
    if (this._accept('.')) return this._metaProperty(start, 'import');
    if (!this._is('(')) this._tokens.fail();
    return this._node('ImportExpression', start, { arguments: this._arguments() });
  }

  _metaProperty(start, name) {
    const property = this._identifier();
    return this._node('MetaProperty', start, { meta: { name }, property });
  }

  _template() {
    const { start } = this._tokens;
    const expressions = [];
    let from = this._tokens.end;
    while (!this._tokens.nextInTemplate(from)) {
      expressions.push(this._with({ _mayBeIn: true }, () => this._expression()));
      if (!this._is('}')) this._tokens.fail();
      from = this._tokens.end;
    }
    return this._node('TemplateLiteral', start, { expressions });
  }
}

function beginsPattern(tokens) {
  if (tokens.is('[') || tokens.is('{')) return true;
  return tokens.kind === 'name' && !KEYWORDS.has(tokens.text);
}

function beginsResource(tokens) {
  return tokens.kind === 'name' && !tokens.isAfterLine && !KEYWORDS.has(tokens.text) && !tokens.is('of');
}

function endsKey(tokens) {
  return tokens.kind === 'sign' ? AFTER_A_KEY.has(tokens.text) : tokens.kind === 'end';
}

/** Return what is assigned to by what was parsed as a value. */
function toPattern(node) {
  switch (node?.type) {
    case 'ObjectExpression':
      return { ...node, type: 'ObjectPattern', properties: node.properties.map(toPattern) };
    case 'Property':
      return { ...node, value: toPattern(node.value) };
    case 'ArrayExpression':
      return { ...node, type: 'ArrayPattern', elements: node.elements.map(toPattern) };
    case 'SpreadElement':
      return { ...node, type: 'RestElement', argument: toPattern(node.argument) };
    case 'AssignmentExpression':
      return { ...node, type: 'AssignmentPattern' };
    default:
      return node;
  }
}

/** Throw for a name that the top of a cell declares twice; V8 would not see it, for it sees assignments. */
function checkNames(body, variables, tokens) {
  const declared = new Map();
  const declare = (node, isLexical) => {
    if (declared.has(node.name) && (isLexical || declared.get(node.name)))
      tokens.fail(node.start, `Identifier '${node.name}' has already been declared`);
    declared.set(node.name, isLexical);
  };
  for (const each of variables)
    for (const { id } of each.declarations)
      for (const { node } of namesIn(id)) declare(node, false);
  for (const each of body) {
    const statement = each.declaration ?? each;
    for (const node of lexicalNames(statement)) declare(node, true);
    if (statement.type === 'FunctionDeclaration' && statement.id) declare(statement.id, false);
  }
}

function lexicalNames(statement) {
  switch (statement.type) {
    case 'ImportDeclaration':
      return statement.specifiers.map(({ local }) => local);
    case 'ClassDeclaration':
      return statement.id ? [statement.id] : [];
    case 'VariableDeclaration':
      return statement.kind === 'var'
        ? []
        : statement.declarations.flatMap(({ id }) => namesIn(id).map(({ node }) => node));
    default:
      return [];
  }
}

module.exports = { parse };
