"""A LangChain agent that uses the tools of a session.

python langchain_agent.py "Which weekday was 29 February 2000?"
"""

import json
import sys
from typing import Any

from bellglass import BellglassError, Session
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool, ToolException
from langchain_openai import ChatOpenAI

MODEL = "gpt-5.4"
STEPS_MAX = 40
"""LangGraph counts each response of the model and each round of tool calls as a step."""


def tool(session: Session, definition: dict[str, Any]) -> StructuredTool:
    """Converts one tool of a session to a LangChain tool, with its published schema."""

    def call(**parameters: Any) -> str:
        try:
            return json.dumps(session.call_tool(definition["name"], parameters))
        except BellglassError as error:
            # LangChain reports a `ToolException` to the model. Usually one of the model's arguments is wrong.
            raise ToolException(str(error)) from error

    return StructuredTool(
        name=definition["name"],
        description=definition["description"],
        args_schema=definition["inputSchema"],
        func=call,
        handle_tool_error=True,
    )


def answer(question: str) -> str:
    with Session.create("python") as session:
        tools = [tool(session, definition) for definition in session.tools("mcp")]
        agent = create_agent(ChatOpenAI(model=MODEL), tools, system_prompt=session.prompt())
        asked = {"messages": [{"role": "user", "content": question}]}
        said = agent.invoke(asked, {"recursion_limit": STEPS_MAX})
        return said["messages"][-1].text


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: langchain_agent.py QUESTION")
    print(answer(sys.argv[1]))
