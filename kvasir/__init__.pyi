from kvasir.core.params import SamplingParams as SamplingParams
from kvasir.offline.llm import LLM as LLM

__version__: str
