"""The families that run, a file each."""

from kvasir.models.families.gemma3 import GEMMA3
from kvasir.models.families.llama import LLAMA, MISTRAL
from kvasir.models.families.mixtral import MIXTRAL
from kvasir.models.families.qwen2 import QWEN2
from kvasir.models.families.qwen3 import QWEN3

FAMILIES = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, GEMMA3)
