// Templates: which there are, and those that are built through the SDK, which is off until the server builds them: name it to play it.

import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { e2b, raises, scenario, unique } from './scenario.mjs'

const { Template } = e2b
const off = { off: true }

scenario('templates_that_are_there', async () => {
  for (const method of ['exists', 'aliasExists']) {
    if (!Template[method]) continue
    assert.equal(await Template[method]('base'), true)
    assert.equal(await Template[method](`none-${unique().slice(0, 8)}`), false)
  }
})

scenario('templates_build_and_run', off, async (stage) => {
  const alias = `compat-${unique().slice(0, 8)}`
  const directory = await mkdtemp(join(tmpdir(), 'compat-'))
  await writeFile(join(directory, 'greeting.txt'), 'hello from the outside\n')
  const template = Template({ fileContextPath: directory })
    .fromPythonImage('3')
    .runCmd('echo built > /home/user/built.txt')
    .copy('greeting.txt', '/home/user/greeting.txt')
    .setEnvs({ COLOUR: 'green' })
    .setStartCmd('python3 -m http.server 8000', e2b.waitForPort(8000))
  const built = await Template.build(template, { alias })
  await rm(directory, { recursive: true })
  assert.ok(built.templateId && built.buildId, JSON.stringify(built))
  assert.equal(await Template.aliasExists(alias), true)
  const sandbox = await stage.sandbox({}, alias)
  const seen = await sandbox.commands.run('cat built.txt greeting.txt; echo $COLOUR')
  assert.equal(seen.stdout, 'built\nhello from the outside\ngreen\n')
})

scenario('templates_that_fail_say_where', off, async () => {
  const wrong = Template().fromPythonImage('3').runCmd('echo before; exit 3')
  await raises(e2b.BuildError, () => Template.build(wrong, { alias: `compat-${unique().slice(0, 8)}` }))
  assert.equal(await Template.aliasExists('compat-never-built'), false)
})
