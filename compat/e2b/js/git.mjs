// The SDK's commands of git, on a repository that lives inside: they need git there, and no network.

import assert from 'node:assert/strict'

import { scenario } from './scenario.mjs'

scenario('git_commits_and_branches', async (stage) => {
  const { git, files } = await stage.sandbox()
  const path = '/home/user/r'
  await git.configureUser('Ann', 'ann@example.com')
  await git.setConfig('init.defaultBranch', 'main')
  assert.equal(await git.getConfig('user.name'), 'Ann')
  await git.init(path, { initialBranch: 'main' })
  await files.write('r/a', 'one\n')
  assert.deepEqual((await git.status(path)).fileStatus.map((one) => one.name), ['a'])
  await git.add(path)
  await git.commit(path, 'the first')
  await git.createBranch(path, 'side')
  await git.checkoutBranch(path, 'main')
  const branches = await git.branches(path)
  assert.deepEqual([branches.branches.sort(), branches.currentBranch], [['main', 'side'], 'main'])
  await git.deleteBranch(path, 'side', { force: true })
  await files.write('r/a', 'two\n')
  await git.restore(path, { paths: ['a'], worktree: true })
  assert.equal(await files.read('r/a'), 'one\n')
  await files.write('r/a', 'three\n')
  await git.reset(path, { mode: 'hard' })
  assert.equal(await files.read('r/a'), 'one\n')
})

scenario('git_talks_to_a_remote', async (stage) => {
  const { git, files } = await stage.sandbox()
  await git.configureUser('Ann', 'ann@example.com')
  await git.init('/home/user/far', { bare: true, initialBranch: 'main' })
  await git.init('/home/user/near', { initialBranch: 'main' })
  await git.remoteAdd('/home/user/near', 'origin', '/home/user/far')
  assert.equal(await git.remoteGet('/home/user/near', 'origin'), '/home/user/far')
  await files.write('near/a', 'one\n')
  await git.add('/home/user/near')
  await git.commit('/home/user/near', 'the first')
  await git.push('/home/user/near', { remote: 'origin', branch: 'main' })
  await git.clone('/home/user/far', { path: '/home/user/copy' })
  assert.equal(await files.read('copy/a'), 'one\n')
  await git.pull('/home/user/copy')
  await git.dangerouslyAuthenticate({ username: 'ann', password: 'no-secret', host: 'git.example.com' })
})
