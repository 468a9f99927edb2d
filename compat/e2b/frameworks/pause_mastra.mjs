// A sandbox of Mastra that is paused at its timeout. The packages are those of the directory that it is started in.
//
// Tells what a counter inside says before and after it; in between it waits to be told to go on.

import { createRequire } from 'node:module'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

// It has to be enough for what is done before the pause, on a machine under load.
const TIMEOUT_MS = 20_000
const PROGRAM = 'count.sh'

const { E2BSandbox } = createRequire(join(process.cwd(), 'package.json'))('@mastra/e2b')
const told = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

async function tell(seen) {
  process.stdout.write(JSON.stringify(seen) + '\n')
  await told.next()
}

// What the counter has written, as soon as it has.
async function count() {
  return (await sandbox.executeCommand('until [ -e count ]; do sleep 0.2; done; cat count')).stdout
}

// Its own default is a template that is built with packages for cloud storage.
const sandbox = new E2BSandbox({ template: 'base', timeout: TIMEOUT_MS })
await sandbox.start()
try {
  await sandbox.writeFiles([{ path: PROGRAM, content: process.argv[2] }])
  // Without this the SDK gives a command one minute.
  await sandbox.processes.spawn(`sh ${PROGRAM}`, { timeout: 0 })
  await tell({ count: await count() })
  const resumed = await count()
  await sleep(2000)
  const later = await count()
  await tell({ count: resumed, later, program: await sandbox.e2b.files.read(PROGRAM) })
} finally {
  await sandbox.destroy()
}
// A stream that is still open must not keep the program from ending.
process.exit(0)
