/**
 * Loaded into every Node of a sandbox that has a way out: `fetch`, `https` and `http` of one that knows no proxies by
 * itself go through that which the environment names.
 */
'use strict';

const [major, minor] = process.versions.node.split('.').map(Number);
const address = process.env.HTTPS_PROXY;

if (address && !knowsProxies()) {
  const proxy = new URL(address);
  for (const scheme of ['http', 'https']) lead(require(scheme), `${scheme}:`, proxy);
  if (globalThis.fetch) leadFetch(proxy);
}

function knowsProxies() {
  return major > 24 || (major === 24 && minor >= 5) || (major === 22 && minor >= 21);
}

/** Give a module's usual agent a way through the proxy. */
function lead(module, protocol, proxy) {
  const direct = module.globalAgent.createConnection;
  module.globalAgent.createConnection = function (options, done) {
    if (options.socketPath || isHere(options.host)) return direct.call(this, options, done);
    connect({ ...options, protocol, hostname: options.host }, proxy, done);
  };
}

/** Give `fetch` a dispatcher of its own; undici, which it is made of, is loaded with the first use. */
function leadFetch(proxy) {
  const key = Symbol.for('undici.globalDispatcher.1');
  const original = globalThis.fetch;
  let isLed = false;
  globalThis.fetch = function fetch(...args) {
    if (!isLed) {
      isLed = true;
      void globalThis.Headers; // loads it
      const Agent = globalThis[key]?.constructor;
      if (Agent) globalThis[key] = new Agent({ connect: (options, done) => connect(options, proxy, done) });
    }
    return original.apply(this, args);
  };
}

/** Connect to a host: by the proxy, or at once if it is in here. */
function connect(options, proxy, done) {
  const isSecure = options.protocol === 'https:';
  const port = Number(options.port) || (isSecure ? 443 : 80);
  if (isHere(options.hostname)) return reach(options, require('net').connect(port, plain(options.hostname)), done);
  const target = `${options.hostname}:${port}`;
  const asked = require('http').request({
    host: proxy.hostname,
    port: proxy.port,
    method: 'CONNECT',
    path: target,
    headers: { Host: target },
    agent: false,
  });
  asked.on('connect', (answer, socket) => {
    if (answer.statusCode === 200) return reach(options, socket, done);
    socket.destroy();
    done(new Error(`the proxy does not let ${target} through: ${answer.statusCode}`));
  });
  asked.on('response', (answer) => {
    answer.resume();
    done(new Error(`the proxy does not let ${target} through: ${answer.statusCode}`));
  });
  asked.on('error', done).end();
}

/** Hand a connection over, with TLS on it if that is wanted. */
function reach(options, socket, done) {
  if (options.protocol !== 'https:') return done(null, socket);
  const servername = options.servername || plain(options.hostname);
  const secured = require('tls').connect({ ...options, path: undefined, socket, servername, ALPNProtocols: ['http/1.1'] });
  secured.once('error', done);
  secured.once('secureConnect', () => {
    secured.removeListener('error', done);
    done(null, secured);
  });
}

function isHere(host) {
  return !host || host === 'localhost' || plain(host) === '::1' || /^127(\.\d+){3}$/.test(host);
}

function plain(host) {
  return host.replace(/^\[|\]$/g, '');
}
