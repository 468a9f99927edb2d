"""Answers a question with OpenAI's chat completions. The model computes in a sandbox.

python openai_loop.py "What is the sum of the first 1000 primes?"
"""

import sys

from bellglass import Session
from openai import OpenAI

MODEL = "gpt-5.4"
TURNS_MAX = 20
"""A model that has not answered after this many turns is probably not making progress."""


def answer(question: str) -> str:
    model = OpenAI()
    with Session.create("python") as session:
        tools = session.openai_tools()
        messages = [
            {"role": "system", "content": session.prompt()},
            {"role": "user", "content": question},
        ]
        for _ in range(TURNS_MAX):
            completion = model.chat.completions.create(model=MODEL, messages=messages, tools=tools)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            # A failed script is not an exception but a normal result: the model reads `stderr` and calls the tool again.
            messages += session.handle_openai(message)
    raise SystemExit(f"no answer after {TURNS_MAX} turns")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: openai_loop.py QUESTION")
    print(answer(sys.argv[1]))
