"""An agent of Agno with the tools that it has for E2B."""

import sys

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.tools.e2b import E2BTools

agent = Agent(model=OpenAIChat("scripted"), tools=[E2BTools(timeout=300)], telemetry=False)
print("the answer:", agent.run(sys.argv[1]).content)
