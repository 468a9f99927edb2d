// Templates: which there are, and those that are built through the SDK.

import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import { e2b, raises, scenario, unique, until } from './scenario.mjs'

const { Template } = e2b
const IMAGES = ['Debian', 'Ubuntu', 'Fedora', 'Alpine', 'Arch', 'Python', 'Node', 'Bun']
const named = () => `compat-${unique().slice(0, 8)}`

// What templates copy.
async function files() {
  const directory = await mkdtemp(join(tmpdir(), 'compat-'))
  await writeFile(join(directory, 'greeting.txt'), 'hello from the outside\n')
  await mkdir(join(directory, 'app/sub'), { recursive: true })
  await writeFile(join(directory, 'app/main.py'), "print('main')\n")
  await writeFile(join(directory, 'app/sub/data.txt'), 'data\n')
  return directory
}

scenario('templates_that_are_there', async () => {
  for (const method of ['exists', 'aliasExists']) {
    if (!Template[method]) continue
    assert.equal(await Template[method]('base'), true)
    assert.equal(await Template[method](`none-${unique().slice(0, 8)}`), false)
  }
})

// Its first step was never built before: only then it says something.
scenario('templates_build_and_run', async (stage) => {
  const [alias, said, directory] = [named(), [], await files()]
  const template = Template({ fileContextPath: directory })
    .fromBaseImage()
    .runCmd(`echo built by $(id -un) in $(pwd) | tee built.txt # ${alias}`)
    .runCmd(['id -un > /opt/root', 'echo $HOME >> /opt/root'], { user: 'root' })
    .copy('greeting.txt', 'greeting.txt')
    .copy('app', '/opt/app', { mode: 0o755 })
    .copy('*.txt', '/opt/texts/')
    .copyItems([{ src: 'greeting.txt', dest: '/opt/', user: 'root' }])
    .makeDir('/home/user/made/deep')
    .makeSymlink('/home/user/built.txt', '/home/user/link')
    .rename('/home/user/made/deep', '/home/user/made/moved')
    .remove('/opt/app/main.py', { user: 'root' })
    .setUser('root')
    .runCmd('id -un > /opt/again')
    .setUser('user')
    .setEnvs({ COLOUR: 'green' })
    .setWorkdir('/srv/fresh')
    .runCmd('touch mine')
    .setWorkdir('/home/user/made')
    .setStartCmd('python3 -m http.server 8000', e2b.waitForPort(8000))
  const built = await Template.build(template, { alias, onBuildLogs: (one) => said.push(one.message) })
  await rm(directory, { recursive: true })
  assert.ok(built.templateId === alias && built.buildId, JSON.stringify(built))
  assert.ok(said.some((one) => one.includes('built by user in /home/user')), said.join('\n'))
  assert.equal(await Template.aliasExists(alias), true)
  const sandbox = await stage.sandbox({}, alias)
  const seen = async (command) => (await sandbox.commands.run(command)).stdout
  assert.equal(await seen('pwd; echo $COLOUR; id -un'), '/home/user/made\ngreen\nuser\n')
  assert.equal(await seen('cat ~/greeting.txt ~/link'), 'hello from the outside\nbuilt by user in /home/user\n')
  assert.equal(await seen('cat /opt/root /opt/again'), 'root\n/root\nroot\n')
  assert.equal(await seen('stat -c %U /srv/fresh /srv/fresh/mine'), 'user\nuser\n')
  assert.equal(await seen('cd /opt; ls app texts; cat app/sub/data.txt'), 'app:\nsub\n\ntexts:\ngreeting.txt\ndata\n')
  const stats = await seen("stat -c '%U %a' ~/greeting.txt /opt/app/sub/data.txt /opt/greeting.txt")
  assert.equal(stats, 'user 644\nuser 755\nroot 644\n')
  const look = `python3 -c "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000').status)"`
  assert.equal(await seen(look), '200\n')
})

scenario('templates_build_in_the_background', async (stage) => {
  const alias = named()
  const plain = Template().fromTemplate('base').runCmd(`echo background # ${alias}`).setReadyCmd('true')
  const begun = await Template.buildInBackground(plain, { alias, cpuCount: 1, memoryMB: 512 })
  const status = async () => await Template.getBuildStatus(begun, { logsOffset: 0 })
  await until(async () => (await status()).status === 'ready', 90)
  assert.ok((await status()).logEntries.some((one) => one.message === 'background'))
  const sandbox = await stage.sandbox({}, alias)
  const info = await sandbox.getInfo()
  assert.deepEqual([info.cpuCount, info.memoryMB, info.templateId], [1, 512, alias])
})

scenario('templates_from_a_dockerfile_and_on_another', async (stage) => {
  const [first, second] = [named(), named()]
  const text = 'FROM e2bdev/base\nRUN echo one > /opt/one\nENV FORM=ro\nENV SHAPE=${FORM}und\nWORKDIR /opt\n'
  await Template.build(Template().fromDockerfile(text), { alias: first })
  await Template.build(Template().fromTemplate(first).runCmd('cat one | tee ~/two').skipCache(), { alias: second })
  const sandbox = await stage.sandbox({}, second)
  assert.equal((await sandbox.commands.run('cat ~/two; echo $SHAPE; pwd')).stdout, 'one\nround\n/opt\n')
})

scenario('templates_install_packages', async (stage) => {
  const alias = named()
  const tools = Template().fromBaseImage().pipInstall('six==1.17.0').aptInstall('tree', { noInstallRecommends: true })
  await Template.build(tools, { alias })
  const sandbox = await stage.sandbox({}, alias)
  const seen = await sandbox.commands.run("python3 -c 'import six; print(six.__version__)'; tree --version | cut -c1-4")
  assert.equal(seen.stdout, '1.17.0\ntree\n')
})

scenario('templates_that_fail_say_where', async (stage) => {
  const alias = named()
  const fails = async (template, ...texts) => {
    const { message } = await raises(e2b.BuildError, () => Template.build(template, { alias }))
    for (const text of texts) assert.ok(message.includes(text), message)
  }
  const base = () => Template().fromBaseImage()
  await fails(base().runCmd('echo fine').runCmd('echo before; exit 3'), 'step 2 of 2', 'before', 'status 3')
  await fails(base().npmInstall('left-pad'), 'npm: command not found')
  stage.differs('Template.npmInstall', '`base` does not contain npm: start from a template or an image that does')
  stage.differs('Template.bunInstall', '`base` does not contain bun: start from a template or an image that does')
  await fails(base().gitClone('https://example.invalid/a.git'), 'step 1 of 1')
  stage.differs('Template.gitClone', 'a build can reach package registries, and other hosts only if its project may be open')
  await fails(base().setUser('postgres').runCmd('id'), 'step 1', 'postgres')
  await fails(Template().fromTemplate('never-built'), 'never-built')
  await fails(Template().fromImage('127.0.0.1:9/none:1'), 'cannot pull')
  for (const kind of ['', ...IMAGES]) stage.differs(`Template.from${kind}Image`, 'the image is pulled from its public registry, and must contain bash')
  await fails(Template().fromImage('a/b:1', { username: 'u', password: 'p' }), 'password')
  stage.notOffered('Template.from*Registry', 'images that need a password are refused: use `bellglass template import`')
  assert.equal(await Template.aliasExists(alias), false)
})

scenario('templates_have_no_tags', async (stage) => {
  const { message } = await raises(e2b.BuildError, () => Template.build(Template().fromBaseImage(), { alias: `${named()}:v1` }))
  assert.ok(message.includes('tags'), message)
  for (const [method, args] of Object.entries({ assignTags: ['a:b', ['c']], removeTags: ['a', ['b']], getTags: ['a'] })) {
    if (!Template[method]) continue
    const error = await raises(e2b.TemplateError, () => Template[method](...args))
    assert.ok(error.message.includes('a separate name'), error.message)
  }
  stage.notOffered('Template.*Tags', 'templates have no tags: give each template its own name')
  stage.notOffered('Template.*DevContainer*', 'the template that this method requires does not exist')
  stage.notOffered('Template.addMcpServer', 'the template that this method requires does not exist')
})
