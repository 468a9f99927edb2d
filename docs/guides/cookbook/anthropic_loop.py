"""Answers a question with Anthropic's messages API. The model sees the pictures that its code draws.

At the end, the pictures are saved in the current directory.

python anthropic_loop.py "Plot the first 50 Fibonacci numbers. What do you see?"
"""

import sys
from pathlib import Path

from anthropic import Anthropic
from bellglass import Session

MODEL = "claude-sonnet-5"
TOKENS_MAX = 8192
TURNS_MAX = 20
"""A model that has not answered after this many turns is probably not making progress."""


def answer(question: str) -> str:
    model = Anthropic()
    with Session.create("interpreter") as session:
        tools, prompt = session.anthropic_tools(), session.prompt()
        messages = [{"role": "user", "content": question}]
        for _ in range(TURNS_MAX):
            message = model.messages.create(
                model=MODEL, max_tokens=TOKENS_MAX, system=prompt, tools=tools, messages=messages
            )
            messages.append({"role": "assistant", "content": message.content})
            if message.stop_reason != "tool_use":
                for path in session.save_artifacts(Path.cwd()):
                    print(f"saved {path}", file=sys.stderr)
                return "".join(block.text for block in message.content if block.type == "text")
            # The reply is one message with a `tool_result` for each call. Pictures are blocks of type `image` in it.
            messages.append(session.handle_anthropic(message))
    raise SystemExit(f"no answer after {TURNS_MAX} turns")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: anthropic_loop.py QUESTION")
    print(answer(sys.argv[1]))
