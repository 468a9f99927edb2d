// What is not offered: the server says so, and the SDK raises something that can be read.

import assert from 'node:assert/strict'

import { e2b, raises, scenario } from './scenario.mjs'

const { Sandbox } = e2b
const KINDS = [e2b.SandboxError, e2b.VolumeError, e2b.SecretError].filter(Boolean)

// A call ends with an error that names what is not there.
async function refused(stage, method, why, call) {
  const error = await raises(KINDS, call)
  assert.match(error.message, /not offered|not supported|has no/i, method)
  stage.notOffered(method, why)
}

// A call that names a thing may also say that this thing is not there.
async function missing(stage, method, why, call) {
  let found = false
  try {
    found = await call()
  } catch (error) {
    assert.ok([...KINDS, e2b.NotFoundError].some((kind) => error instanceof kind), error?.stack)
  }
  assert.equal(found, false, `${method} found what nobody has made`)
  stage.notOffered(method, why)
}

scenario('refused_snapshots', async (stage) => {
  const sandbox = await stage.sandbox()
  const why = 'a sandbox can be paused, but not copied'
  await refused(stage, 'Sandbox.createSnapshot', why, () => sandbox.createSnapshot())
  await refused(stage, 'Sandbox.listSnapshots', why, () => Sandbox.listSnapshots().nextItems())
  await missing(stage, 'Sandbox.deleteSnapshot', why, () => Sandbox.deleteSnapshot('snapshot'))
  stage.notOffered('SnapshotPaginator.*', why)
  if (sandbox.fork) await refused(stage, 'Sandbox.fork', why, () => sandbox.fork())
  assert.equal(await sandbox.isRunning(), true)
})

scenario('refused_volumes', async (stage) => {
  const { Volume } = e2b
  if (!Volume) return
  const why = 'there are no volumes: copy files in and out instead'
  await refused(stage, 'Volume.create', why, () => Volume.create('things'))
  await refused(stage, 'Volume.list', why, () => Volume.list())
  for (const method of ['connect', 'getInfo', 'destroy']) await missing(stage, `Volume.${method}`, why, () => Volume[method]('things'))
  // The rest are methods of a volume, which nobody can have.
  stage.notOffered('Volume.*', why)
})

scenario('refused_secrets', async (stage) => {
  const { Secret } = e2b
  if (!Secret?.list) return
  const why = "use Bellglass's own API for secrets instead"
  await refused(stage, 'Secret.create', why, () => Secret.create('name', 'value'))
  await refused(stage, 'Secret.list', why, () => Secret.list().nextItems())
  for (const method of ['getInfo', 'exists', 'update', 'destroy']) {
    await missing(stage, `Secret.${method}`, why, () => Secret[method]('name', ...(method === 'update' ? ['value'] : [])))
  }
  stage.notOffered('SecretPaginator.*', why)
})

scenario('refused_options_of_create', async (stage) => {
  const create = (options) => raises(KINDS, async () => stage.keep(await Sandbox.create(options)))
  assert.match((await create({ mcp: { time: {} } })).message, /mcp/i)
  assert.match((await create({ volumeMounts: { '/mnt/things': 'things' } })).message, /volume/i)
  stage.differs('Sandbox.create', '`mcp`, `volumeMounts` and `iam` are refused')
  for (const method of ['Sandbox.getMcpUrl', 'Sandbox.getMcpToken']) {
    stage.notOffered(method, "use the server's own MCP endpoint, `/mcp`")
  }
})
