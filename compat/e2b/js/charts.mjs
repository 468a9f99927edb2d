// What code draws: pictures, tables, and the data of charts.

import assert from 'node:assert/strict'

import { scenario } from './scenario.mjs'

const PNG = '89504e470d0a1a0a'
const PLOT = 'import matplotlib.pyplot as plt\n'
const needsCode = { code: true }

// The one result that code has.
async function drawn(stage, text) {
  const ran = await (await stage.interpreter()).runCode(PLOT + text)
  assert.equal(ran.error, undefined)
  assert.equal(ran.results.length, 1)
  return ran.results[0]
}

scenario('chart_is_a_picture', needsCode, async (stage) => {
  const result = await drawn(stage, 'plt.plot([1, 3, 2]); plt.show()')
  assert.equal(Buffer.from(result.png, 'base64').subarray(0, 8).toString('hex'), PNG)
  assert.ok(result.formats().includes('png'), String(result.formats()))
})

scenario('chart_line', needsCode, async (stage) => {
  const { chart } = await drawn(
    stage,
    "plt.plot([1, 2, 3], [4, 6, 5], label='way'); plt.title('T'); plt.xlabel('time (s)'); plt.ylabel('way (m)'); plt.show()",
  )
  assert.deepEqual([chart.type, chart.title, chart.x_label, chart.x_unit], ['line', 'T', 'time (s)', 's'])
  assert.deepEqual([chart.elements[0].label, chart.elements[0].points], ['way', [[1, 4], [2, 6], [3, 5]]])
})

scenario('chart_bar', needsCode, async (stage) => {
  const { chart } = await drawn(stage, "plt.bar(['a', 'b'], [3, 5]); plt.title('B'); plt.show()")
  assert.deepEqual([chart.type, chart.title], ['bar', 'B'])
  assert.deepEqual(chart.elements.map((one) => [one.label, Number(one.value)]), [['a', 3], ['b', 5]])
})

scenario('chart_pie', needsCode, async (stage) => {
  const { chart } = await drawn(stage, "plt.pie([1, 3], labels=['a', 'b']); plt.title('P'); plt.show()")
  assert.deepEqual([chart.type, chart.title], ['pie', 'P'])
  assert.deepEqual(chart.elements.map((one) => [one.label, Math.round(one.angle)]), [['a', 90], ['b', 270]])
})

scenario('chart_table', needsCode, async (stage) => {
  const ran = await (await stage.interpreter()).runCode("import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
  const [table] = ran.results
  assert.match(table.html, /<table[^]*<td>x<\/td>/)
  // What it holds is told as text and as HTML.
  assert.equal(table.data, undefined)
  stage.differs('Sandbox.runCode', 'results have no `data`: tables are returned as `text` and `html`')
})
