// Files: written, read, listed, watched, and fetched by address.

import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'

import { e2b, pause, raises, scenario, until } from './scenario.mjs'

const LARGE_BYTES = 20 << 20
const ODD = 'a b/größe & "co"/日本 #1?.txt'

const sha256 = (data) => createHash('sha256').update(data).digest('hex')
const buffer = (bytes) => bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)

scenario('files_text', async (stage) => {
  const sandbox = await stage.sandbox()
  const info = await sandbox.files.write('deep/er/note.txt', 'Grüße\n')
  assert.deepEqual([info.path, info.name, info.type], ['/home/user/deep/er/note.txt', 'note.txt', 'file'])
  assert.equal(await sandbox.files.read('/home/user/deep/er/note.txt'), 'Grüße\n')
  await sandbox.files.write('deep/er/note.txt', 'less')
  const seen = await sandbox.commands.run('cat deep/er/note.txt; stat -c %U deep/er/note.txt')
  assert.equal(seen.stdout, 'lessuser\n')
  await sandbox.files.write('empty', '')
  assert.equal(await sandbox.files.read('empty'), '')
})

scenario('files_bytes_and_streams', async (stage) => {
  const sandbox = await stage.sandbox()
  const data = Uint8Array.from({ length: 1280 }, (_, index) => index % 256)
  await sandbox.files.write('data', buffer(data))
  assert.deepEqual(Buffer.from(await sandbox.files.read('data', { format: 'bytes' })), Buffer.from(data))
  const blob = await sandbox.files.read('data', { format: 'blob' })
  assert.deepEqual(Buffer.from(await blob.arrayBuffer()), Buffer.from(data))
  await sandbox.files.write('stream', new Blob([data]).stream())
  const parts = []
  for await (const part of await sandbox.files.read('stream', { format: 'stream' })) parts.push(Buffer.from(part))
  assert.deepEqual(Buffer.concat(parts), Buffer.from(data))
})

scenario('files_large_ones_stay_whole', async (stage) => {
  const sandbox = await stage.sandbox()
  const data = randomBytes(LARGE_BYTES)
  await sandbox.files.write('large', buffer(data), { requestTimeoutMs: 120_000 })
  assert.equal((await sandbox.commands.run('sha256sum < large')).stdout.split(' ')[0], sha256(data))
  const read = await sandbox.files.read('large', { format: 'bytes', requestTimeoutMs: 120_000 })
  assert.equal(sha256(Buffer.from(read)), sha256(data))
})

scenario('files_in_one_go', async (stage) => {
  const sandbox = await stage.sandbox()
  const entries = [{ path: 'one', data: '1' }, { path: '/tmp/two/2', data: new Blob([Uint8Array.of(0, 255)]) }]
  const written = await sandbox.files.writeFiles(entries)
  assert.deepEqual(written.map((one) => one.path), ['/home/user/one', '/tmp/two/2'])
  const again = await sandbox.files.write([{ path: 'three', data: '3' }, { path: 'four', data: '4' }])
  assert.deepEqual(again.map((one) => one.name), ['three', 'four'])
  assert.equal(await sandbox.files.read('one'), '1')
  assert.deepEqual([...(await sandbox.files.read('/tmp/two/2', { format: 'bytes' }))], [0, 255])
})

scenario('files_names_may_be_odd', async (stage) => {
  const sandbox = await stage.sandbox()
  assert.equal((await sandbox.files.write(ODD, 'odd')).path, `/home/user/${ODD}`)
  assert.equal(await sandbox.files.read(ODD), 'odd')
  const cut = ODD.lastIndexOf('/')
  assert.deepEqual((await sandbox.files.list(ODD.slice(0, cut))).map((one) => one.name), [ODD.slice(cut + 1)])
  await sandbox.files.rename(ODD, 'b c')
  assert.deepEqual([await sandbox.files.exists('b c'), await sandbox.files.exists(ODD)], [true, false])
})

scenario('files_list_to_a_depth', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.write(['t/a', 't/b/c', 't/b/d/e'].map((path) => ({ path, data: 'x' })))
  const listed = async (options) =>
    (await sandbox.files.list('t', options)).map((one) => `${one.path.replace('/home/user/t/', '')} ${one.type}`).sort()
  assert.deepEqual(await listed(), ['a file', 'b dir'])
  assert.deepEqual(await listed({ depth: 2 }), ['a file', 'b dir', 'b/c file', 'b/d dir'])
  assert.equal((await listed({ depth: 3 })).length, 5)
  await raises(e2b.InvalidArgumentError, () => sandbox.files.list('t/a'))
})

scenario('files_get_info_tells_all', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.write('note', '12345')
  await sandbox.commands.run('chmod 640 note; ln -s note link; mkdir dir')
  const info = await sandbox.files.getInfo('note')
  assert.deepEqual([info.name, info.path, info.type, Number(info.size)], ['note', '/home/user/note', 'file', 5])
  assert.deepEqual([info.mode & 0o777, info.permissions, info.owner, info.group], [0o640, '-rw-r-----', 'user', 'user'])
  assert.ok(Math.abs(info.modifiedTime - Date.now()) < 300_000, String(info.modifiedTime))
  assert.match((await sandbox.files.getInfo('link')).symlinkTarget, /note$/)
  assert.equal((await sandbox.files.getInfo('dir')).type, 'dir')
})

scenario('files_make_rename_remove', async (stage) => {
  const { files } = await stage.sandbox()
  assert.equal(await files.makeDir('one/two'), true)
  assert.equal(await files.makeDir('one/two'), false)
  await files.write('one/two/note', 'x')
  const moved = await files.rename('one/two', 'three/four')
  assert.deepEqual([moved.path, moved.type], ['/home/user/three/four', 'dir'])
  assert.deepEqual([await files.exists('three/four/note'), await files.exists('one/two')], [true, false])
  await files.remove('three')
  assert.equal(await files.exists('three'), false)
})

scenario('files_that_are_not_there', async (stage) => {
  const { files } = await stage.sandbox()
  const calls = [
    () => files.read('nothing'),
    () => files.getInfo('nothing'),
    () => files.list('nothing'),
    () => files.rename('nothing', 'else'),
  ]
  for (const call of calls) assert.match((await raises(e2b.FileNotFoundError, call)).message, /nothing/)
  await raises(e2b.InvalidArgumentError, () => files.read('/tmp'))
})

scenario('files_carry_metadata_or_say_that_they_do_not', async (stage) => {
  const { files } = await stage.sandbox()
  let info
  try {
    info = await files.write('note', 'x', { metadata: { author: 'ann' } })
  } catch (refused) {
    assert.match(refused.message, /metadata/)
    for (const method of ['files.write', 'files.writeFiles']) stage.differs(method, '`metadata` is refused')
    return
  }
  // Old releases do not know the option.
  if (info.metadata) assert.deepEqual({ ...(await files.getInfo('note')).metadata }, { author: 'ann' })
})

// The events of what a command does in a directory, until all that are wanted have come.
async function watched(sandbox, path, act, wanted, options) {
  const seen = []
  const handle = await sandbox.files.watchDir(path, (event) => { seen.push(`${event.type} ${event.name}`) }, options)
  await sandbox.commands.run(act)
  try {
    await until(() => wanted.every((one) => seen.includes(one)))
  } catch (late) {
    assert.fail(`${late.message}; of ${wanted} there came ${seen}`)
  }
  await handle.stop()
  return seen
}

scenario('files_watch', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.makeDir('w/sub')
  const act = 'cd w && echo x > a && chmod 600 a && mv a b && rm b && echo y > sub/deep'
  const seen = await watched(sandbox, 'w', act, ['create a', 'write a', 'create b', 'remove b'])
  if (!seen.includes('rename a')) {
    assert.ok(seen.includes('remove a'), String(seen))
    stage.differs('files.watchDir', 'a rename is reported as a removal and a creation, a permission change as a write')
  }
  assert.ok(!seen.some((one) => one.includes('sub/')), String(seen))
  await raises(e2b.FileNotFoundError, () => watched(sandbox, 'nothing', 'true', []))
})

scenario('files_watch_below', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.makeDir('w/sub')
  // The directory is new: what is written there at once may come before anybody watches it.
  const act = 'cd w && echo x > sub/a && mkdir sub/new && sleep 1 && echo y > sub/new/b'
  const wanted = ['create sub/a', 'write sub/a', 'create sub/new', 'write sub/new/b']
  await watched(sandbox, 'w', act, wanted, { recursive: true })
})

scenario('files_by_signed_address', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.write('a b.txt', 'by address')
  const down = [await sandbox.downloadUrl('a b.txt'), await sandbox.downloadUrl('/home/user/a b.txt', { useSignatureExpiration: 60 })]
  for (const url of down) {
    const got = await fetch(url)
    assert.deepEqual([got.status, await got.text()], [200, 'by address'], url)
  }
  const up = [
    [await sandbox.uploadUrl('up/one.txt'), 'ignored'],
    [await sandbox.uploadUrl('up/two.txt', { user: 'user', useSignatureExpiration: 60 }), 'ignored'],
    // Without a path it is the part's own name that says where.
    [await sandbox.uploadUrl(), 'three.txt'],
  ]
  for (const [url, name] of up) {
    const form = new FormData()
    form.append('file', new Blob(['uploaded']), name)
    const put = await fetch(url, { method: 'POST', body: form })
    assert.equal(put.status, 200, `${url}: ${await put.text()}`)
  }
  for (const path of ['up/one.txt', 'up/two.txt', 'three.txt']) assert.equal(await sandbox.files.read(path), 'uploaded')
})

scenario('files_by_address_need_the_signature', async (stage) => {
  const sandbox = await stage.sandbox()
  await sandbox.files.write('note', 'secret')
  const signed = await sandbox.downloadUrl('note')
  const unsigned = new URL(signed)
  unsigned.searchParams.delete('signature')
  const other = new URL(signed)
  other.searchParams.set('path', 'other')
  for (const url of [unsigned, other]) {
    const refused = await fetch(url)
    assert.ok(refused.status >= 400 && refused.status < 500, `${url}: ${refused.status}`)
    assert.doesNotMatch(await refused.text(), /secret/)
  }
  // An upload needs a signature of its own.
  const form = new FormData()
  form.append('file', new Blob(['x']), 'note')
  const put = await fetch(signed, { method: 'POST', body: form })
  assert.ok(put.status >= 400 && put.status < 500, String(put.status))
  const late = await sandbox.downloadUrl('note', { useSignatureExpiration: 1 })
  await pause(2500)
  assert.ok([401, 403].includes((await fetch(late)).status))
})
