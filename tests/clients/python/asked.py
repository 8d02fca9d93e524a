"""What every client asks, and where."""

import os

URL = os.environ["KVASIR_URL"]
MODEL = os.environ["KVASIR_MODEL"]
KEY = os.environ.get("KVASIR_KEY", "none")
QUESTION = "The capital of France is"
TALK = [{"role": "user", "content": "Name three colours."}]
