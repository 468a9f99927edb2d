// Which public methods of the SDK a scenario called, and how that ended: the counterpart of `methods.py`.
//
// The packages stay as they were installed. In this process alone their classes are given functions that hand on each call and
// note it. What the SDK calls by itself inside of such a call is not noted.

import { AsyncLocalStorage } from 'node:async_hooks'

// TypeScript's `private` and `protected` are gone at run time: these are what the declarations say of the classes below.
const PRIVATE = new Set([
  'constructor', 'length', 'name', 'prototype', 'arguments', 'caller',
  'resolveOpts', 'boundOpts', 'resolveApiOpts', 'fileUrl', 'getFullInfo', 'createSandbox', 'forkSandbox', 'connectSandbox',
  'start', 'updatePagination', 'getJupyterRequestUrl', 'handleRequestError', 'iterateEvents', 'handleEvents', 'flushDecoders',
  'collectStackTrace', 'instructionsWithHashes', 'serialize', 'runInNewStackTraceContext', 'runInStackTraceOverrideContext', 'disableStackTrace', 'enableStackTrace',
  'runGit', 'runShell', 'getRemoteUrl', 'resolveRemoteName', 'withRemoteCredentials', 'hasUpstream',
])
// They make a description on the client's side, and nothing of them reaches a server.
const LOCAL = new Set(['Template.toJSON', 'Template.toDockerfile', 'Secret.fill', 'Secret.iamToken'])
// Classes that are not exported: their objects are met as answers.
const MET = new Set(['CommandHandle', 'WatchHandle', 'SandboxPaginator', 'SnapshotPaginator', 'SecretPaginator'])

const inside = new AsyncLocalStorage()
const matches = (name, pattern) => new RegExp(`^${pattern.replaceAll('.', '\\.').replaceAll('*', '.*')}$`).test(name)

export class Record {
  #known = new Set()
  #worked = new Set()
  #said = []
  #called = new Set()
  #claims = []
  #watched = new WeakSet()

  // Notes calls of the public methods of an object, or of a class, from now on.
  watch(label, object) {
    const stop = typeof object === 'function' ? Function.prototype : Object.prototype
    for (let one = object; one && one !== stop; one = Object.getPrototypeOf(one)) {
      if (this.#watched.has(one)) continue
      this.#watched.add(one)
      for (const name of Object.getOwnPropertyNames(one)) {
        const { value, configurable, writable } = Object.getOwnPropertyDescriptor(one, name)
        const known = `${label}.${name}`
        if (typeof value !== 'function' || PRIVATE.has(name) || name.startsWith('_') || LOCAL.has(known)) continue
        if (!configurable && !writable) continue
        this.#known.add(known)
        Object.defineProperty(one, name, { value: this.#noting(known, value), configurable: true, writable: true })
      }
    }
  }

  differs(pattern, why) {
    this.#claims.push([pattern, 'differs', why])
  }

  notOffered(pattern, why) {
    this.#claims.push([pattern, 'not offered', why])
  }

  // A scenario has ended. What a failed one called proves nothing.
  settle(passed) {
    if (passed) {
      for (const name of this.#called) this.#worked.add(name)
      this.#said.push(...this.#claims)
    }
    this.#called = new Set()
    this.#claims = []
  }

  lines() {
    return [...this.#known].sort().map((method) => {
      const said = this.#said.find(([pattern]) => matches(method, pattern))
      if (said) return { method, result: said[1], note: said[2] }
      return { method, result: this.#worked.has(method) ? 'works' : 'not tried', note: '' }
    })
  }

  #noting(label, method) {
    const record = this
    return function (...args) {
      if (inside.getStore()) return method.apply(this, args)
      const answer = inside.run(true, () => method.apply(this, args))
      const done = (value) => {
        record.#called.add(label)
        for (const one of Array.isArray(value) ? value : [value]) record.#meet(one)
        return value
      }
      return answer instanceof Promise ? answer.then(done) : done(answer)
    }
  }

  #meet(value) {
    // A bundler may have put a digit behind the name, or a dash before it.
    const name = value?.constructor?.name?.replace(/^_+|\d+$/g, '')
    if (MET.has(name)) this.watch(name, Object.getPrototypeOf(value))
  }
}
