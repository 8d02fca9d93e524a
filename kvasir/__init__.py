"""Kvasir serves large language models."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Loads the offline engine on first use (PEP 562): importing kvasir stays cheap."""
    if name == "LLM":
        from kvasir.offline.llm import LLM

        return LLM
    if name == "BeamSearchParams":
        from kvasir.text.beam import BeamSearchParams

        return BeamSearchParams
    if name == "KvCacheConfig":
        from kvasir.offline.arguments import KvCacheConfig

        return KvCacheConfig
    if name == "SamplingParams":
        from kvasir.validation.sampling import SamplingParams

        return SamplingParams
    if name == "StructuredOutputs":
        from kvasir.validation.sampling import StructuredOutputs

        return StructuredOutputs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
