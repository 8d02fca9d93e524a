from kvasir.offline.llm import LLM as LLM
from kvasir.validation.sampling import SamplingParams as SamplingParams

__version__: str
