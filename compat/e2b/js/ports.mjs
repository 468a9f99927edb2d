// What listens inside, spoken to from outside.
//
// Names below `localhost` do not resolve everywhere. Requests are therefore sent to the server's own address, with the name that
// the SDK gives as their `Host`.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { request } from 'node:http'

import { scenario, until } from './scenario.mjs'

const ECHO = new URL('../inside/echo.py', import.meta.url)
const REFUSED = [401, 403]
const TOKEN = 'e2b-traffic-access-token'

// The answer to a request; `fetch` would write a `Host` of its own.
function get(url, path, headers) {
  return new Promise((resolve, reject) => {
    const asked = request(new URL(path, url), { headers }, (answer) => {
      let text = ''
      answer.on('data', (data) => { text += data })
      answer.on('end', () => resolve({ status: answer.statusCode, text }))
    })
    asked.on('error', reject).end()
  })
}

// Waits until something listens.
async function open(sandbox, port) {
  const look = `(exec 3<>/dev/tcp/127.0.0.1/${port}) 2>/dev/null && echo open || true`
  await until(async () => (await sandbox.commands.run(look)).stdout === 'open\n')
}

// The headers that reach what listens: the name, and the sandbox's token where that is asked for.
async function listening(stage, sandbox, port) {
  await open(sandbox, port)
  const host = sandbox.getHost(port)
  if (!REFUSED.includes((await get(stage.url, '/', { host })).status) || !sandbox.trafficAccessToken) return { host }
  stage.differs('Sandbox.getHost', `requests to a port need the header \`${TOKEN}\``)
  return { host, [TOKEN]: sandbox.trafficAccessToken }
}

scenario('ports_http', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.write('www/a b.txt', 'served')
  const serving = await sandbox.commands.run('python3 -m http.server 8000 --directory www', { background: true, timeoutMs: 0 })
  serving.wait().catch(() => {})
  const host = sandbox.getHost(8000)
  assert.ok(host.startsWith(`8000-${sandbox.sandboxId}.`), host)
  const known = await listening(stage, sandbox, 8000)
  assert.deepEqual(await get(stage.url, '/a%20b.txt', known), { status: 200, text: 'served' })
  assert.equal((await get(stage.url, '/nothing', known)).status, 404)
  // Belongs to nobody, or to a port where nothing listens.
  for (const name of [host.replace('8000', '8001'), host.replace(sandbox.sandboxId, 'inosuchsandboxisthere')]) {
    assert.ok((await get(stage.url, '/', { ...known, host: name })).status >= 400, name)
  }
})

scenario('ports_that_are_not_public', async (stage) => {
  const sandbox = await stage.sandbox({ network: { allowPublicTraffic: false } })
  await sandbox.files.write('www/note', 'served')
  const serving = await sandbox.commands.run('python3 -m http.server 8000 --directory www', { background: true, timeoutMs: 0 })
  serving.wait().catch(() => {})
  await open(sandbox, 8000)
  const host = sandbox.getHost(8000)
  assert.ok(REFUSED.includes((await get(stage.url, '/note', { host })).status))
  assert.ok(REFUSED.includes((await get(stage.url, '/note', { host, [TOKEN]: 'wrong' })).status))
  assert.equal((await get(stage.url, '/note', { host, [TOKEN]: sandbox.trafficAccessToken })).text, 'served')
})

scenario('ports_websocket', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.write('echo.py', await readFile(ECHO, 'utf8'))
  const serving = await sandbox.commands.run('python3 echo.py 8765', { background: true, timeoutMs: 0 })
  serving.wait().catch(() => {})
  const known = await listening(stage, sandbox, 8765)
  const socket = await upgraded(stage.url, known)
  for (const text of ['hello', 'Grüße '.repeat(10)]) assert.equal(await ask(socket, text), text)
  socket.destroy()
})

// A WebSocket that is just enough for an echo: short texts, each in one frame.
function upgraded(url, known) {
  const key = randomBytes(16).toString('base64')
  const headers = { ...known, connection: 'Upgrade', upgrade: 'websocket', 'sec-websocket-version': '13', 'sec-websocket-key': key }
  return new Promise((resolve, reject) => {
    const asked = request(new URL('/echo', url), { headers })
    asked.on('upgrade', (_, socket) => resolve(socket))
    asked.on('response', (answer) => reject(new Error(`${answer.statusCode} instead of 101`)))
    asked.on('error', reject).end()
  })
}

function ask(socket, text) {
  const data = Buffer.from(text)
  const mask = randomBytes(4)
  socket.write(Buffer.concat([Buffer.of(0x81, 0x80 | data.length), mask, data.map((byte, index) => byte ^ mask[index % 4])]))
  return new Promise((resolve, reject) => {
    let heard = Buffer.alloc(0)
    const hear = (part) => {
      heard = Buffer.concat([heard, part])
      if (heard.length < 2 || heard.length < 2 + heard[1]) return
      socket.off('data', hear)
      resolve(heard.subarray(2, 2 + heard[1]).toString())
    }
    socket.on('data', hear).on('error', reject).on('close', () => reject(new Error('the socket was closed')))
  })
}
