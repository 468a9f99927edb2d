"""A `CodeAgent` of smolagents whose code runs in a sandbox: its own executor for E2B, told by one word."""

import os
import sys

from smolagents import CodeAgent, OpenAIModel

model = OpenAIModel("scripted", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
with CodeAgent(tools=[], model=model, executor_type="e2b", max_steps=5) as agent:
    print("the answer:", agent.run(sys.argv[1]))
