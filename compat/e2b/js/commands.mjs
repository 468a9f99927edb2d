// Commands: what they print, how they end, and how they are spoken to.

import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'

import { e2b, raises, scenario, until } from './scenario.mjs'

const LARGE_BYTES = 10_000_000

// How many processes have such a command line; `pattern` must not find itself: `[s]leep`.
async function processes(sandbox, pattern) {
  const look = `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '${pattern}' | wc -l`
  return Number((await sandbox.commands.run(look)).stdout)
}

scenario('commands_foreground', async (stage) => {
  const sandbox = await stage.sandbox()
  let out = ''
  let err = ''
  const ran = await sandbox.commands.run('echo one; echo two >&2; echo three', {
    onStdout: (text) => { out += text },
    onStderr: (text) => { err += text },
  })
  assert.deepEqual([ran.exitCode, ran.stdout, ran.stderr], [0, 'one\nthree\n', 'two\n'])
  assert.ok(!ran.error)
  assert.deepEqual([out, err], ['one\nthree\n', 'two\n'])
})

scenario('commands_output_comes_while_they_run', async (stage) => {
  const sandbox = await stage.sandbox()
  // The second line is printed only after the file is there, which is made when the first has been heard.
  const command = 'echo ready; until [ -e go ]; do sleep 0.05; done; echo gone'
  let seen = ''
  const handle = await sandbox.commands.run(command, { background: true, onStdout: (text) => { seen += text } })
  await until(() => seen === 'ready\n')
  await sandbox.files.write('go', '')
  assert.equal((await handle.wait()).stdout, 'ready\ngone\n')
})

scenario('commands_that_fail_raise', async (stage) => {
  const sandbox = await stage.sandbox()
  const error = await raises(e2b.CommandExitError, () => sandbox.commands.run('echo out; echo err >&2; exit 3'))
  assert.deepEqual([error.exitCode, error.stdout, error.stderr], [3, 'out\n', 'err\n'])
  const missing = await raises(e2b.CommandExitError, () => sandbox.commands.run('no-such-command'))
  assert.equal(missing.exitCode, 127)
  assert.match(missing.stderr, /not found/)
})

scenario('commands_background_and_wait', async (stage) => {
  const sandbox = await stage.sandbox()
  const handle = await sandbox.commands.run('for n in 1 2 3; do echo $n; sleep 0.1; done', { background: true })
  assert.ok(handle.pid > 0)
  const ran = await handle.wait()
  assert.deepEqual([ran.exitCode, ran.stdout], [0, '1\n2\n3\n'])
})

scenario('commands_stdin', async (stage) => {
  const sandbox = await stage.sandbox()
  const handle = await sandbox.commands.run('read line; echo got $line; cat', { background: true, stdin: true })
  await sandbox.commands.sendStdin(handle.pid, 'one\n')
  if (handle.sendStdin) {
    await handle.sendStdin('two ü\n')
    await handle.sendStdin(new TextEncoder().encode('three\n'))
    await handle.closeStdin()
  } else {
    await sandbox.commands.sendStdin(handle.pid, 'two ü\nthree\n')
    await sandbox.commands.closeStdin(handle.pid)
  }
  assert.equal((await handle.wait()).stdout, 'got one\ntwo ü\nthree\n')
})

scenario('commands_stdin_is_closed_by_pid', async (stage) => {
  const sandbox = await stage.sandbox()
  const handle = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
  await sandbox.commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'end\n')
  // Unless it is asked for there is none, and a reader sees its end.
  assert.equal((await sandbox.commands.run('cat; echo end')).stdout, 'end\n')
})

scenario('commands_kill', async (stage) => {
  const sandbox = await stage.sandbox()
  const handle = await sandbox.commands.run('sleep 71', { background: true })
  const ended = raises(e2b.CommandExitError, () => handle.wait())
  assert.equal(await handle.kill(), true)
  assert.notEqual((await ended).exitCode, 0)
  await until(async () => (await sandbox.commands.kill(handle.pid)) === false)
  const other = await sandbox.commands.run('sleep 72', { background: true })
  other.wait().catch(() => {})
  assert.equal(await sandbox.commands.kill(other.pid), true)
  assert.equal(await sandbox.commands.kill(1_000_000), false)
})

scenario('commands_connect', async (stage) => {
  const sandbox = await stage.sandbox()
  const loop = 'until [ -e go ]; do sleep 0.05; done; echo went; exit 5'
  const handle = await sandbox.commands.run(loop, { background: true })
  const other = await e2b.Sandbox.connect(sandbox.sandboxId)
  const again = await other.commands.connect(handle.pid)
  assert.equal(again.pid, handle.pid)
  const both = Promise.all([again, handle].map((one) => raises(e2b.CommandExitError, () => one.wait())))
  await other.files.write('go', '')
  for (const error of await both) assert.deepEqual([error.exitCode, error.stdout], [5, 'went\n'])
  await raises(e2b.NotFoundError, () => other.commands.connect(1_000_000))
})

scenario('commands_list', async (stage) => {
  const sandbox = await stage.sandbox()
  const handle = await sandbox.commands.run('sleep 73', { background: true, cwd: '/tmp', envs: { A: 'b' } })
  handle.wait().catch(() => {})
  const found = (await sandbox.commands.list()).find((one) => one.pid === handle.pid)
  assert.deepEqual([found.cmd, [...found.args]], ['/bin/bash', ['-l', '-c', 'sleep 73']])
  assert.deepEqual([found.cwd, { ...found.envs }], ['/tmp', { A: 'b' }])
  await handle.kill()
  await until(async () => !(await sandbox.commands.list()).some((one) => one.pid === handle.pid))
})

scenario('commands_timeout', async (stage) => {
  const sandbox = await stage.sandbox()
  await raises(e2b.TimeoutError, () => sandbox.commands.run('sleep 77; true', { timeoutMs: 2000 }))
  await until(async () => (await processes(sandbox, '[s]leep 77')) === 0)
  assert.equal(await sandbox.isRunning(), true)
})

scenario('commands_envs_and_cwd', async (stage) => {
  const sandbox = await stage.sandbox({ envs: { BOTH: 'sandbox', ONE: 'sandbox' } })
  const ran = await sandbox.commands.run('echo "$ONE $BOTH"; pwd', { envs: { BOTH: "a 'quoted' $value" }, cwd: '/tmp' })
  assert.equal(ran.stdout, "sandbox a 'quoted' $value\n/tmp\n")
  await sandbox.files.makeDir('below/it')
  assert.equal((await sandbox.commands.run('pwd', { cwd: 'below/it' })).stdout, '/home/user/below/it\n')
  const error = await raises(e2b.InvalidArgumentError, () => sandbox.commands.run('pwd', { cwd: '/no/such/place' }))
  assert.match(error.message, /\/no\/such\/place/)
})

scenario('commands_user', async (stage) => {
  const sandbox = await stage.sandbox()
  assert.equal((await sandbox.commands.run('whoami', { user: 'user' })).stdout, 'user\n')
  // An authentication error is of no other kind of the SDK's.
  const kinds = [e2b.SandboxError, e2b.AuthenticationError]
  const error = await raises(kinds, () => sandbox.commands.run('whoami', { user: 'root' }))
  assert.match(error.message, /root/)
  assert.match(error.message.replaceAll('root', ''), /user/)
  const rooted = await stage.sandbox({ apiKey: process.env.ROOT_KEY })
  const ran = await rooted.commands.run('id -un; echo $HOME; pwd; echo x > /etc/own && stat -c %U /etc/own', { user: 'root' })
  assert.equal(ran.stdout, 'root\n/root\n/root\nroot\n')
  assert.equal((await rooted.commands.run('id -un')).stdout, 'user\n')
  for (const name of ['commands.run', 'pty.create']) stage.differs(name, 'the user `root` is available only if the project is allowed root')
})

scenario('commands_large_output', async (stage) => {
  const sandbox = await stage.sandbox()
  let size = 0
  const ran = await sandbox.commands.run(`seq 1 2000000 | head -c ${LARGE_BYTES} | tee out`, {
    onStdout: (text) => { size += text.length },
  })
  assert.deepEqual([ran.stdout.length, size], [LARGE_BYTES, LARGE_BYTES])
  const inside = (await sandbox.commands.run('sha256sum < out')).stdout.split(' ')[0]
  assert.equal(createHash('sha256').update(ran.stdout).digest('hex'), inside)
})

scenario('commands_output_that_is_no_text', async (stage) => {
  const sandbox = await stage.sandbox()
  assert.equal((await sandbox.commands.run("printf 'a\\xff\\xfeb'")).stdout, 'a\ufffd\ufffdb')
})

scenario('commands_go_on_without_a_client', async (stage) => {
  const sandbox = await stage.sandbox()
  const handle = await sandbox.commands.run('sleep 2; echo late > done', { background: true })
  handle.wait().catch(() => {})
  await handle.disconnect()
  assert.ok((await sandbox.commands.list()).some((one) => one.pid === handle.pid))
  await until(() => sandbox.files.exists('done'))
})
