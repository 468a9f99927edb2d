// Sandboxes: made, found, counted, paused, ended.

import assert from 'node:assert/strict'

import { code, e2b, raises, scenario, unique, until } from './scenario.mjs'

const { Sandbox } = e2b
// What a filter has to carry unharmed: it is encoded three times on its way.
const ODD = { who: 'Ann & Ben', größe: 'a b/c=d%20' }
// Which of the two it is depends on the release.
const GONE = [e2b.NotFoundError, e2b.TimeoutError]
const COUNT = 'n=0; while true; do n=$((n+1)); echo $n > count; sleep 0.1; done'

scenario('create_uses_the_default_template', async (stage) => {
  const sandbox = stage.keep(await Sandbox.create())
  const info = await sandbox.getInfo()
  if (![info.name, info.templateId].includes('base')) {
    assert.deepEqual([info.name, info.templateId], ['workstation', 'workstation'])
    stage.differs('Sandbox.getInfo', 'templates are shown under their name on this server: `base` is shown as `workstation`')
  }
  const seen = await sandbox.commands.run('whoami; pwd; echo $HOME')
  assert.deepEqual(seen.stdout.trim().split('\n'), ['user', '/home/user', '/home/user'])
})

scenario('create_takes_metadata_envs_and_timeout', async (stage) => {
  const sandbox = await stage.sandbox({ metadata: ODD, envs: { COLOUR: 'green  blue' }, timeoutMs: 120_000 })
  const info = await sandbox.getInfo()
  assert.deepEqual({ ...info.metadata }, ODD)
  const left = info.endAt - Date.now()
  assert.ok(left > 60_000 && left < 125_000, String(left))
  assert.equal((await sandbox.commands.run('echo "$COLOUR" $E2B_SANDBOX')).stdout, 'green  blue true\n')
})

scenario('create_has_an_old_name', async (stage) => {
  if (!Sandbox.betaCreate) return
  const sandbox = stage.keep(await Sandbox.betaCreate('base', { metadata: { by: 'beta' } }))
  assert.deepEqual({ ...(await sandbox.getInfo()).metadata }, { by: 'beta' })
})

// Whether the policy of a sandbox refuses a host. Where it is allowed and there is no network, the answer is another error.
async function refused(sandbox, host) {
  const program = `import urllib.request; urllib.request.urlopen('https://${host}', timeout=20)`
  try {
    await sandbox.commands.run(`python3 -c "${program}"`)
  } catch (error) {
    if (error instanceof e2b.CommandExitError) return error.stderr.includes('Forbidden by the policy')
    throw error
  }
  return false
}

scenario('create_without_internet_has_none', async (stage) => {
  const sandbox = await stage.sandbox({ allowInternetAccess: false })
  // The control is in `network_can_be_changed`: a host that is allowed is not refused.
  assert.ok(await refused(sandbox, 'example.com'))
})

scenario('network_can_be_changed', async (stage) => {
  const sandbox = await stage.sandbox()
  if (!sandbox.updateNetwork) return
  await sandbox.updateNetwork({ allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] })
  assert.ok(await refused(sandbox, 'example.org'))
  assert.ok(!(await refused(sandbox, 'example.com')))
})

scenario('create_refuses_a_template_that_is_not_there', async (stage) => {
  const error = await raises(e2b.SandboxError, async () => stage.keep(await Sandbox.create('no-such-template')))
  assert.match(error.message, /no-such-template/)
})

scenario('create_refuses_a_wrong_key', async (stage) => {
  const wrong = { apiKey: 'e2b_' + '0'.repeat(64) }
  await raises(e2b.AuthenticationError, async () => stage.keep(await Sandbox.create(wrong)))
})

scenario('connect_finds_a_sandbox_again', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.write('note', 'from the first')
  const other = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(other.sandboxId, sandbox.sandboxId)
  assert.equal(await other.files.read('note'), 'from the first')
  assert.equal((await (await other.connect()).commands.run('cat note')).stdout, 'from the first')
  await raises(e2b.NotFoundError, () => Sandbox.connect('inosuchsandboxisthere'))
})

scenario('connect_only_lengthens_a_timeout', async (stage) => {
  const sandbox = await stage.sandbox({ timeoutMs: 200_000 })
  const before = (await sandbox.getInfo()).endAt
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  assert.ok(Math.abs((await sandbox.getInfo()).endAt - before) < 5000)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 400_000 })
  assert.ok((await sandbox.getInfo()).endAt - before > 150_000)
})

scenario('kill_is_true_then_false', async (stage) => {
  const sandbox = await stage.sandbox()
  assert.equal(await sandbox.isRunning(), true)
  const other = await stage.sandbox()
  assert.equal(await Sandbox.kill(other.sandboxId), true)
  // Old releases say nothing here.
  assert.ok([true, undefined].includes(await sandbox.kill()))
  assert.equal(await sandbox.isRunning(), false)
  assert.ok([false, undefined].includes(await sandbox.kill()))
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  await raises(e2b.NotFoundError, () => Sandbox.getInfo(sandbox.sandboxId))
  await raises(GONE, () => sandbox.commands.run('true'))
  await raises(GONE, () => sandbox.files.read('/etc/hostname'))
})

scenario('get_info_tells_what_it_is', async (stage) => {
  const sandbox = await stage.sandbox({ metadata: { for: 'info' } })
  const info = await Sandbox.getInfo(sandbox.sandboxId)
  assert.deepEqual([info.sandboxId, info.state, { ...info.metadata }], [sandbox.sandboxId, 'running', { for: 'info' }])
  assert.ok(info.startedAt < info.endAt && info.cpuCount > 0 && info.memoryMB > 0, JSON.stringify(info))
})

scenario('set_timeout_lengthens', async (stage) => {
  const sandbox = await stage.sandbox({ timeoutMs: 60_000 })
  const before = (await sandbox.getInfo()).endAt
  await sandbox.setTimeout(600_000)
  assert.ok((await sandbox.getInfo()).endAt - before > 400_000)
})

scenario('set_timeout_that_is_short_ends_it', async (stage) => {
  const sandbox = await stage.sandbox()
  await Sandbox.setTimeout(sandbox.sandboxId, 1000)
  await until(async () => !(await sandbox.isRunning()))
  await raises(e2b.NotFoundError, () => Sandbox.getInfo(sandbox.sandboxId))
  await raises(e2b.NotFoundError, () => Sandbox.connect(sandbox.sandboxId))
})

scenario('list_filters_by_metadata_and_state', async (stage) => {
  const mark = unique()
  const one = await stage.sandbox({ metadata: { mark, ...ODD } })
  await stage.sandbox({ metadata: { mark, who: 'Cleo' } })
  const found = async (metadata, state) =>
    (await Sandbox.list({ query: { metadata, state } }).nextItems()).map((info) => info.sandboxId)
  assert.equal((await found({ mark })).length, 2)
  assert.deepEqual(await found({ mark, ...ODD }), [one.sandboxId])
  assert.deepEqual(await found({ mark, who: 'nobody' }), [])
  assert.equal((await found({ mark }, ['running'])).length, 2)
  assert.equal((await found({ mark }, ['running', 'paused'])).length, 2)
  assert.deepEqual(await found({ mark }, ['paused']), [])
})

scenario('list_comes_in_pages', async (stage) => {
  const mark = unique()
  const made = []
  for (let n = 0; n < 3; n++) made.push((await stage.sandbox({ metadata: { mark } })).sandboxId)
  const pages = Sandbox.list({ query: { metadata: { mark } }, limit: 2 })
  assert.equal(pages.hasNext, true)
  const first = await pages.nextItems()
  assert.deepEqual([first.length, pages.hasNext], [2, true])
  const second = await pages.nextItems()
  assert.deepEqual([second.length, pages.hasNext], [1, false])
  // The newest comes first.
  assert.deepEqual([...first, ...second].map((info) => info.sandboxId), made.reverse())
  await raises(Error, () => pages.nextItems())
})

scenario('get_metrics_measures', async (stage) => {
  const sandbox = await stage.sandbox()
  const measured = await until(async () => (await sandbox.getMetrics()).at(-1))
  if (!measured.diskUsed) stage.differs('Sandbox.getMetrics', 'returns one current measurement; disk usage is reported as 0')
  assert.ok(measured.cpuCount > 0 && measured.cpuUsedPct >= 0, JSON.stringify(measured))
  assert.ok(measured.memUsed > 0 && measured.memUsed < measured.memTotal, JSON.stringify(measured))
  assert.ok(measured.diskUsed < measured.diskTotal, JSON.stringify(measured))
  assert.ok((await Sandbox.getMetrics(sandbox.sandboxId)).length)
})

scenario('pause_keeps_a_process_and_its_memory', async (stage) => {
  const mark = unique()
  const sandbox = await stage.sandbox({ metadata: { mark } })
  const handle = await sandbox.commands.run(COUNT, { background: true, timeoutMs: 0 })
  handle.wait().catch(() => {})
  await until(() => sandbox.files.exists('count'))
  await sandbox.pause()
  assert.equal((await sandbox.getInfo()).state, 'paused')
  const paused = await Sandbox.list({ query: { metadata: { mark }, state: ['paused'] } }).nextItems()
  assert.deepEqual(paused.map((info) => info.sandboxId), [sandbox.sandboxId])
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await Sandbox.pause(sandbox.sandboxId), false)
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 120_000 })
  assert.equal((await again.getInfo()).state, 'running')
  assert.ok((await again.commands.list()).some((one) => one.pid === handle.pid))
  const counted = async () => Number((await again.files.read('count')).trim())
  const before = await counted()
  // The number is kept in the memory of the shell: a loop that had begun anew would be behind.
  await until(async () => (await counted()) > before)
  assert.equal(await again.commands.kill(handle.pid), true)
})

scenario('pause_keeps_a_variable', { code: true }, async (stage) => {
  const sandbox = stage.keep(await code.Sandbox.create({ timeoutMs: 300_000 }))
  await sandbox.runCode('x = 41')
  await sandbox.betaPause()
  assert.equal((await sandbox.getInfo()).state, 'paused')
  const again = await sandbox.connect({ timeoutMs: 120_000 })
  assert.equal((await again.runCode('x + 1')).text, '42')
})

scenario('pause_at_the_timeout', async (stage) => {
  const sandbox = await stage.sandbox({ timeoutMs: 4_000, lifecycle: { onTimeout: 'pause' } })
  const handle = await sandbox.commands.run(COUNT, { background: true, timeoutMs: 0 })
  handle.wait().catch(() => {})
  await until(() => sandbox.files.exists('count'))
  const counted = async (from) => Number((await from.files.read('count')).trim())
  const before = await counted(sandbox)
  const paused = async () => (await sandbox.getInfo()).state === 'paused'
  await until(paused)
  // Without `autoResume` only `connect` resumes it.
  await assert.rejects(sandbox.files.read('count'))
  assert.ok(await paused())
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 120_000 })
  assert.ok((await again.commands.list()).some((one) => one.pid === handle.pid))
  await until(async () => (await counted(again)) > before)
})

scenario('auto_resume', async (stage) => {
  const sandbox = await stage.sandbox({ timeoutMs: 4_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  await sandbox.files.write('note', 'kept')
  await until(async () => (await sandbox.getInfo()).state === 'paused')
  assert.equal(await sandbox.files.read('note'), 'kept')
  assert.equal((await sandbox.getInfo()).state, 'running')
})

scenario('pause_and_kill', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.betaPause()
  assert.equal(await Sandbox.kill(sandbox.sandboxId), true)
  await raises(e2b.NotFoundError, () => Sandbox.connect(sandbox.sandboxId))
})
