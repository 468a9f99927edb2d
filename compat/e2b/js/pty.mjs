// Terminals.

import assert from 'node:assert/strict'

import { e2b, scenario, until } from './scenario.mjs'

const bytes = (text) => new TextEncoder().encode(text)

// A terminal, and what it has shown.
async function open(sandbox, options = {}) {
  const screen = { shown: '' }
  const onData = (data) => { screen.shown += Buffer.from(data).toString() }
  screen.handle = await sandbox.pty.create({ rows: 24, cols: 80, onData, ...options })
  screen.ended = screen.handle.wait().then(
    (ended) => ended.exitCode,
    (error) => (error instanceof e2b.CommandExitError ? error.exitCode : Promise.reject(error)),
  )
  screen.shows = (text) => until(() => screen.shown.includes(text))
  return screen
}

scenario('pty_input_resize_and_exit', async (stage) => {
  const sandbox = await stage.sandbox()
  const { pty } = sandbox
  const screen = await open(sandbox, { cwd: '/tmp', envs: { COLOUR: 'green' } })
  const { pid } = screen.handle
  await pty.sendInput(pid, bytes('stty size; echo $((6 * 7)) $COLOUR $TERM $(whoami) $PWD\n'))
  await screen.shows('24 80')
  await screen.shows('42 green xterm-256color user /tmp')
  await pty.resize(pid, { rows: 30, cols: 100 })
  await pty.sendInput(pid, bytes('stty size\n'))
  await screen.shows('30 100')
  await pty.sendInput(pid, bytes('exit 7\n'))
  assert.equal(await screen.ended, 7)
})

scenario('pty_kill', async (stage) => {
  const sandbox = await stage.sandbox()
  const screen = await open(sandbox)
  const { pid } = screen.handle
  assert.ok((await sandbox.commands.list()).some((one) => one.pid === pid))
  assert.equal(await sandbox.pty.kill(pid), true)
  assert.notEqual(await screen.ended, 0)
  await until(async () => (await sandbox.pty.kill(pid)) === false)
})

scenario('pty_connect', async (stage) => {
  const sandbox = await stage.sandbox()
  const screen = await open(sandbox)
  screen.ended.catch(() => {})
  const { pid } = screen.handle
  await screen.handle.disconnect()
  let seen = ''
  const again = await sandbox.pty.connect(pid, { onData: (data) => { seen += Buffer.from(data).toString() } })
  await sandbox.pty.sendInput(pid, bytes('echo $((6 * 7)); exit\n'))
  await again.wait()
  assert.match(seen, /42/)
})
