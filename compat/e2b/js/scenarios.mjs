// The scenarios with the JavaScript SDK. The packages are those of the directory that it is started in.
//
//     cd "$BELLGLASS_TEST_DATA/e2b-js-2.51.0" && node …/compat/e2b/js/scenarios.mjs                       all of them
//     cd "$BELLGLASS_TEST_DATA/e2b-js-2.51.0" && node …/compat/e2b/js/scenarios.mjs commands_foreground   one
//
// `E2B_API_KEY`, `E2B_API_URL` and `E2B_SANDBOX_URL` say where the server is.

import './sandboxes.mjs'
import './commands.mjs'
import './files.mjs'
import './pty.mjs'
import './ports.mjs'
import './git.mjs'
import './code.mjs'
import './charts.mjs'
import './refused.mjs'
import './templates.mjs'
import { run } from './scenario.mjs'

await run()
