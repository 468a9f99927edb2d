"""A deep agent of LangChain whose files and commands are those of a sandbox: the backend of `langchain-e2b`."""

import sys

import e2b
from deepagents import create_deep_agent
from langchain_e2b import E2BSandbox
from langchain_openai import ChatOpenAI

with e2b.Sandbox.create(timeout=300) as sandbox:
    agent = create_deep_agent(model=ChatOpenAI(model="scripted"), backend=E2BSandbox(sandbox=sandbox))
    ended = agent.invoke({"messages": [{"role": "user", "content": sys.argv[1]}]})
    print("the answer:", ended["messages"][-1].content)
