"""The scenarios with the synchronous kind of the Python SDK.

    python sync.py                       all of them
    python sync.py commands_foreground   one

`python` is that of an environment which `test_e2b.py` has made: "$BELLGLASS_TEST_DATA/e2b-py-2.63.0/bin/python".
`E2B_API_KEY`, `E2B_API_URL` and `E2B_SANDBOX_URL` say where the server is.
"""

import scenario

if __name__ == "__main__":
    scenario.run(asynchronous=False)
