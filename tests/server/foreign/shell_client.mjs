// A client of another making, which knows a few routes. Run with an address and a token, it plays the same scene as the
// Python ones and prints every request and its answer as one line of JSON.

const [address, token] = process.argv.slice(2)

class ShellServer {
  constructor(baseUrl, token) {
    this.baseUrl = baseUrl
    this.token = token
  }

  async create(image, label, interactive = false) {
    const made = await this.ask('POST', '/sandboxes', { image, label, interactive })
    return new ShellSandbox(this, made)
  }

  async fetch(method, path, body) {
    return await fetch(`${this.baseUrl}${path}`, {
      method,
      headers: { Authorization: `Bearer ${this.token}`, 'Content-Type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    })
  }

  async ask(method, path, body) {
    const answer = await this.fetch(method, path, body)
    const text = await answer.text()
    const told = { method, path, body: body ?? null, status: answer.status, answer: JSON.parse(text) }
    console.log(JSON.stringify(told))
    if (!answer.ok) throw new Error(`${answer.status}: ${text}`)
    return told.answer
  }
}

class ShellSandbox {
  constructor(server, { id, label }) {
    this.server = server
    this.id = id
    this.name = label
    this.path = `/sandboxes/${id}`
  }

  exec(code) {
    return this.server.ask('POST', `${this.path}/execute`, { code })
  }

  async fork(label) {
    return new ShellSandbox(this.server, await this.server.ask('POST', `${this.path}/fork`, { label }))
  }

  coalesce(final) {
    return this.server.ask('POST', `${this.path}/coalesce/${final.id}`)
  }

  label(label) {
    return this.server.ask('PATCH', this.path, { label })
  }

  tree() {
    return this.server.ask('GET', `${this.path}/tree`)
  }

  logs(limit = 1000) {
    return this.server.ask('GET', `${this.path}/execution-logs?limit=${limit}`)
  }

  async *streamLogs(limit = 1000) {
    const answer = await this.server.fetch('GET', `${this.path}/execution-logs?limit=${limit}`)
    const decoder = new TextDecoder()
    for await (const chunk of answer.body) yield decoder.decode(chunk, { stream: true })
  }

  terminate() {
    return this.server.ask('DELETE', this.path)
  }
}

async function refused(call) {
  try {
    await call()
  } catch {
    return
  }
  throw new Error('this should have been refused')
}

const server = new ShellServer(address, token)
const sandbox = await server.create('base', 'first')
await sandbox.exec('echo hello; echo oops >&2; exit 3')
await sandbox.label('second')
await sandbox.tree()
await sandbox.logs()
await refused(() => sandbox.fork('child'))
await refused(() => sandbox.coalesce(sandbox))
let streamed = ''
for await (const text of sandbox.streamLogs()) streamed += text
if (!streamed.includes('hello')) throw new Error(`the streamed logs hold no hello: ${streamed}`)
await sandbox.terminate()
