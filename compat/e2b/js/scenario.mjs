// Scenarios, and the program that runs them one after another: the counterpart of `scenario.py`.
//
// The packages are those of the directory that it is started in. Each scenario that has ended is one JSON line on standard output;
// the last line tells which methods were called.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { inspect } from 'node:util'

import { Record } from './methods.mjs'

const SCENARIO_MS = 120_000
const SANDBOX_MS = 300_000
const POLL_MS = 100

const require = createRequire(join(process.cwd(), 'package.json'))
export const e2b = require('e2b')
export const code = optional('@e2b/code-interpreter')

const all = []

// Adds one. Its name says what it shows; those of the Python programs that show the same have the same name.
export function scenario(name, options, play) {
  all.push(play ? { name, ...options, play } : { name, play: options })
}

export const unique = () => randomUUID().replaceAll('-', '')
export const pause = sleep

// Asks until the answer is true, and hands it on.
export async function until(check, seconds = 30) {
  const end = Date.now() + seconds * 1000
  for (;;) {
    const answer = await check()
    if (answer) return answer
    assert.ok(Date.now() < end, `not within ${seconds} seconds: ${check}`)
    await sleep(POLL_MS)
  }
}

// The error that a call ends with, which is of these kinds.
export async function raises(kinds, call) {
  let answer
  try {
    answer = await call()
  } catch (error) {
    const wanted = [kinds].flat()
    if (!wanted.some((kind) => error instanceof kind)) {
      throw new assert.AssertionError({ message: `${error?.constructor?.name} instead of ${wanted.map((kind) => kind.name)}: ${error?.stack}` })
    }
    assert.ok(String(error.message).trim(), `${error.name} says nothing`)
    return error
  }
  assert.fail(`nothing was raised; the answer is ${JSON.stringify(answer)}`)
}

export class Stage {
  #toKill = []
  #interpreter
  #record

  constructor(record) {
    this.#record = record
    this.url = process.env.E2B_SANDBOX_URL
  }

  differs(pattern, why) {
    this.#record.differs(pattern, why)
  }

  notOffered(pattern, why) {
    this.#record.notOffered(pattern, why)
  }

  // A new one of the plain package, killed when the scenario has ended.
  async sandbox(options = {}, template = 'base') {
    return this.keep(await e2b.Sandbox.create(template, { timeoutMs: SANDBOX_MS, ...options }))
  }

  keep(sandbox) {
    this.#toKill.push(sandbox)
    return sandbox
  }

  // One for all scenarios that leave it as it was: it takes longer to start.
  async interpreter() {
    this.#interpreter ??= await code.Sandbox.create({ timeoutMs: SANDBOX_MS * 2 })
    return this.#interpreter
  }

  async clear() {
    while (this.#toKill.length) await this.#toKill.pop().kill().catch(() => {})
  }

  async close() {
    await this.#interpreter?.kill().catch(() => {})
  }
}

export async function run() {
  const record = new Record()
  watch(record)
  const names = process.argv.slice(2)
  const unknown = names.filter((name) => !all.some((one) => one.name === name))
  if (unknown.length) {
    console.error(`there is no scenario ${unknown.join(', ')}; there are ${all.map((one) => one.name).join(', ')}`)
    process.exit(2)
  }
  const chosen = all.filter((one) => (!names.length || names.includes(one.name)) && (code || !one.code))
  const stage = new Stage(record)
  let passed = true
  for (const one of chosen) passed = (await played(stage, record, one)) && passed
  await stage.close()
  say({ methods: record.lines(), scenarios: chosen.length })
  // A stream that is still open must not keep the program from ending.
  process.exit(passed ? 0 : 1)
}

async function played(stage, record, one) {
  const begun = Date.now()
  let error = null
  const late = new AbortController()
  const limit = sleep(SCENARIO_MS, null, { signal: late.signal }).then(
    () => Promise.reject(new Error(`it did not end within ${SCENARIO_MS / 1000} seconds`)),
    () => {},
  )
  try {
    await Promise.race([one.play(stage), limit])
  } catch (fault) {
    // With what caused it: a message of the SDK's often says no more than that a request failed.
    error = inspect(fault)
  }
  late.abort()
  await stage.clear()
  record.settle(error === null)
  say({ scenario: one.name, ok: error === null, seconds: (Date.now() - begun) / 1000, error })
  return error === null
}

function watch(record) {
  for (const owner of [e2b.Sandbox, code?.Sandbox].filter(Boolean)) {
    record.watch('Sandbox', owner)
    record.watch('Sandbox', owner.prototype)
  }
  // The classes behind `commands` and the others are not exported: an object that is never used shows them.
  const shown = new e2b.Sandbox({ sandboxId: 'shown', envdVersion: '0.6.13', sandboxUrl: process.env.E2B_SANDBOX_URL })
  for (const part of ['commands', 'files', 'pty', 'git']) if (shown[part]) record.watch(part, Object.getPrototypeOf(shown[part]))
  for (const name of ['Template', 'Volume', 'Secret']) if (e2b[name]) record.watch(name, e2b[name])
  if (e2b.Volume) record.watch('Volume', e2b.Volume.prototype)
  record.watch('Template', Object.getPrototypeOf(e2b.Template()))
}

function optional(name) {
  try {
    return require(name)
  } catch (error) {
    if (error.code === 'MODULE_NOT_FOUND') return null
    throw error
  }
}

function say(line) {
  process.stdout.write(JSON.stringify(line) + '\n')
}

// A stream of a scenario that has ended may fail after it: that is no fault of the next.
process.on('unhandledRejection', (fault) => console.error('unhandled', fault))
