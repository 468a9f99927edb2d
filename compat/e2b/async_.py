"""The scenarios with the asynchronous kind of the Python SDK; otherwise as `sync.py`."""

import scenario

if __name__ == "__main__":
    scenario.run(asynchronous=True)
