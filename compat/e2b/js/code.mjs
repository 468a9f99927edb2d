// The interpreter: code that is run, what it shows, and the contexts it runs in.

import assert from 'node:assert/strict'

import { code, e2b, raises, scenario } from './scenario.mjs'

const IN_ORDER = `
import sys, time
print("out", flush=True)
time.sleep(0.3)
print("err", file=sys.stderr, flush=True)
time.sleep(0.3)
display("shown")
time.sleep(0.3)
raise ValueError("no good")
`

const needsCode = { code: true }
const printed = (execution) => execution.logs.stdout.join('')

scenario('code_uses_its_own_template', needsCode, async (stage) => {
  const sandbox = await stage.interpreter()
  const info = await sandbox.getInfo()
  assert.ok([info.name, info.templateId].includes('code-interpreter-v1'), JSON.stringify(info))
  const seen = await sandbox.runCode('import os, getpass; print(getpass.getuser(), os.getcwd())')
  assert.equal(printed(seen), 'user /home/user\n')
})

scenario('code_keeps_its_state', needsCode, async (stage) => {
  const sandbox = await stage.interpreter()
  const first = await sandbox.runCode('x = 20\ndef twice(n): return 2 * n')
  assert.deepEqual([first.error, first.results.length, first.text], [undefined, 0, undefined])
  const second = await sandbox.runCode("print('adding'); twice(x) + 2")
  assert.deepEqual([second.text, second.logs.stdout, second.logs.stderr], ['42', ['adding\n'], []])
  assert.deepEqual(second.results.map((one) => one.isMainResult), [true])
  assert.equal(second.executionCount, first.executionCount + 1)
})

scenario('code_unicode', needsCode, async (stage) => {
  const ran = await (await stage.interpreter()).runCode("größe = '日本 🎉'; print(größe * 2000); größe")
  assert.equal(ran.text, '日本 🎉')
  assert.equal(printed(ran), '日本 🎉'.repeat(2000) + '\n')
})

scenario('code_that_fails_tells_why', needsCode, async (stage) => {
  const sandbox = await stage.interpreter()
  const ran = await sandbox.runCode("def f(): return 1 / 0\nprint('before')\nf()")
  assert.deepEqual([ran.error.name, ran.error.value], ['ZeroDivisionError', 'division by zero'])
  assert.match(ran.error.traceback, /f\(\)/)
  assert.deepEqual(ran.logs.stdout, ['before\n'])
  assert.equal((await sandbox.runCode('if')).error.name, 'SyntaxError')
  assert.equal((await sandbox.runCode('1 + 1')).text, '2')
})

scenario('code_callbacks_come_in_order', needsCode, async (stage) => {
  const seen = []
  const ran = await (await stage.interpreter()).runCode(IN_ORDER, {
    onStdout: (message) => { seen.push(`stdout ${message.line}`) },
    onStderr: (message) => { seen.push(`stderr ${message.line}`) },
    onResult: (result) => { seen.push(`result ${result.text}`) },
    onError: (error) => { seen.push(`error ${error.name}`) },
  })
  assert.deepEqual(seen, ['stdout out\n', 'stderr err\n', 'result shown', 'error ValueError'])
  assert.deepEqual(ran.results.map((one) => one.isMainResult), [false])
})

scenario('code_envs', needsCode, async (stage) => {
  const look = "import os; os.environ.get('COLOUR')"
  const sandbox = await stage.interpreter()
  assert.equal((await sandbox.runCode(look, { envs: { COLOUR: 'green' } })).text, 'green')
  assert.equal((await sandbox.runCode(look)).text, undefined)
  const own = stage.keep(await code.Sandbox.create({ envs: { COLOUR: 'blue' }, timeoutMs: 300_000 }))
  assert.equal((await own.runCode(look)).text, 'blue')
})

scenario('code_bash', needsCode, async (stage) => {
  const sandbox = await stage.interpreter()
  const ran = await sandbox.runCode('cd /tmp; for n in 1 2; do echo $n; done', { language: 'bash' })
  assert.deepEqual([printed(ran), ran.error], ['1\n2\n', undefined])
  assert.equal(printed(await sandbox.runCode('pwd', { language: 'bash' })), '/tmp\n')
})

scenario('code_language_that_is_not_there', needsCode, async (stage) => {
  const sandbox = await stage.interpreter()
  await raises(e2b.SandboxError, () => sandbox.runCode('1', { language: 'cobol' }))
})

scenario('code_timeout', needsCode, async (stage) => {
  const sandbox = await stage.interpreter()
  await sandbox.runCode('kept = 7')
  await raises(e2b.TimeoutError, () => sandbox.runCode('import time\nwhile True: time.sleep(0.1)', { timeoutMs: 2000 }))
  // What ran is interrupted, and what was there before is there still.
  assert.equal((await sandbox.runCode('kept', { timeoutMs: 30_000 })).text, '7')
})

scenario('code_contexts', needsCode, async (stage) => {
  const sandbox = await stage.interpreter()
  await sandbox.runCode('mine = 1')
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
  const ids = async () => (await sandbox.listCodeContexts()).map((one) => one.id)
  assert.ok((await ids()).includes(context.id))
  assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  assert.equal((await sandbox.runCode('mine', { context })).error.name, 'NameError')
  await sandbox.runCode('theirs = 2', { context })
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('theirs', { context })).error.name, 'NameError')
  await sandbox.removeCodeContext(context)
  assert.ok(!(await ids()).includes(context.id))
  await raises(e2b.NotFoundError, () => sandbox.runCode('1', { context }))
  assert.equal((await sandbox.runCode('mine')).text, '1')
})

scenario('code_is_over_when_its_sandbox_is', needsCode, async (stage) => {
  const sandbox = stage.keep(await code.Sandbox.create({ timeoutMs: 300_000 }))
  await sandbox.kill()
  await raises([e2b.TimeoutError, e2b.NotFoundError], () => sandbox.runCode('1'))
})
