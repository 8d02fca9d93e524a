"""``kvasir plan memory``: what each remedy gives, in the planner's own numbers."""

from __future__ import annotations

from msgspec.structs import replace

from kvasir.cli.plan_text import advice_text
from kvasir.config.advice import advise
from kvasir.config.hardware import Hardware
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import ModelFacts
from tests.settings import cpu_settings

# 64 KiB a token in bfloat16, 512 vectors of 64
MODEL = ModelFacts("m", 1000, 4096, 32768, 1 << 30, "bfloat16", 512)
MACHINE = Hardware(4, 4, 2 << 30)


def test_remedies_are_compared_in_the_same_bytes() -> None:
    advice = advise(
        EngineOptions(kv_memory="512MiB", max_model_len=4096), MODEL, MACHINE, cpu_settings
    )
    assert advice.room is not None and not advice.refusal
    assert (advice.room.n_tokens, advice.room.concurrency) == (8192, 2.0)
    assert advice.room.token_bytes == 65536
    found = {each.change: each.room for each in advice.remedies}
    fp8, half = found["--kv-cache-dtype fp8_e4m3"], found["--max-model-len 2048"]
    assert fp8 is not None and half is not None
    # 2 bytes of scale a vector: 32768 + 1024 a token
    assert (fp8.n_tokens, fp8.max_model_len) == ((512 << 20) // (16 * 33792) * 16, 4096)
    assert fp8.concurrency > 3.8
    assert (half.n_tokens, half.concurrency) == (8192, 4.0)
    small = found["a 4-bit file of the model"]
    assert small is not None
    freed = (1 << 30) - int((1 << 30) * 4.5 / 16)
    assert small.kv_bytes == ((512 << 20) + freed) // (16 * 65536) * (16 * 65536)


def test_a_refused_start_is_told_with_what_helps() -> None:
    advice = advise(
        EngineOptions(kv_memory="200MiB", max_model_len=4096), MODEL, MACHINE, cpu_settings
    )
    assert advice.room is None
    assert "needs 256 blocks of 16 tokens, kv memory of 200 MiB holds 200" in advice.refusal
    starts = {each.change: each.room is not None for each in advice.remedies}
    assert starts == {
        "--kv-cache-dtype fp8_e4m3": True,
        "--kv-cache-dtype int8": True,
        "--max-model-len 2048": True,
        "a 4-bit file of the model": True,
    }
    text = advice_text(advice)
    assert "does not start: max_model_len 4096" in text
    assert "rounds the weights" in text


def test_what_is_done_already_is_not_advised() -> None:
    model = replace(MODEL, weight_dtype="quantized", windows=(256, 0))
    options = EngineOptions(kv_cache_dtype="int8", max_model_len=256, kv_memory="64MiB")
    changes = [each.change for each in advise(options, model, MACHINE, cpu_settings).remedies]
    assert changes == ["--no-enable-prefix-caching"]
