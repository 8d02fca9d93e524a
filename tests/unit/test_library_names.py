"""Names of models, which quantization is taken, and what a Modelfile says."""

from __future__ import annotations

import pytest

from kvasir.core.errors import ModelError
from kvasir.library.modelfile import read_modelfile, read_parameters
from kvasir.library.names import HubName, hub_name, own_name
from kvasir.library.quants import Fit, HubFile, Quant, chosen, quants, tagged


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("org/repo", HubName("org/repo")),
        ("org/repo:Q4_K_M", HubName("org/repo", "Q4_K_M")),
        ("org/repo:latest", HubName("org/repo")),
        ("hf.co/org/repo:Q4_K_M@main", HubName("org/repo", "Q4_K_M", "main")),
        ("https://huggingface.co/org/repo", HubName("org/repo")),
        ("org/repo@refs/pr/1", HubName("org/repo", "", "refs/pr/1")),
        ("org/repo:folder/x.gguf", HubName("org/repo", "folder/x.gguf")),
        ("https://huggingface.co/a/b/blob/main/x.Q8_0.gguf", HubName("a/b", "x.Q8_0.gguf")),
        (
            "https://huggingface.co/a/b/resolve/v2/d/x.gguf?download=true",
            HubName("a/b", "d/x.gguf", "v2"),
        ),
        ("https://huggingface.co/a/b/tree/main", HubName("a/b")),
        ("models/x.gguf", None),
        ("./org/repo", None),
        ("/org/repo", None),
        ("~/repo", None),
        ("repo", None),
        ("org/../repo", None),
        ("org/repo/more", None),
        ("a b/c", None),
    ],
)
def test_names_of_a_hub(said: str, name: HubName | None) -> None:
    assert hub_name(said) == name


@pytest.mark.parametrize("said", ["", "a b", "../x", "x/", "-x", "a" * 201, "\x1b[2J"])
def test_names_that_are_none(said: str) -> None:
    with pytest.raises(ModelError, match="is no name of a model"):
        own_name(said)


def quant(tag: str, n_bytes: int, n_files: int = 1) -> Quant:
    return Quant(tag, HubFile(f"x.{tag}.gguf", n_bytes, ""), n_bytes, n_files)


def test_which_quantization_is_taken() -> None:
    found = [quant("Q2_K", 2), quant("Q4_K_M", 4), quant("Q8_0", 8), quant("F16", 16, 2)]
    none = Fit(refusal="too large")
    assert chosen(found, {}, "r").tag == "Q4_K_M"
    assert chosen([found[0], found[2]], {}, "r").tag == "Q8_0"
    assert chosen(found, {"Q4_K_M": none, "Q8_0": none}, "r").tag == "Q2_K"
    with pytest.raises(ModelError, match=r"smallest, Q2_K \(2 B\): too large.*--force"):
        chosen(found, {x.tag: none for x in found}, "r")
    assert tagged(found, "q8_0", "r").tag == tagged(found, "x.Q8_0.gguf", "r").tag == "Q8_0"
    with pytest.raises(ModelError, match=r"r has no Q3; it has Q2_K \(2 B\), Q4_K_M"):
        tagged(found, "Q3", "r")


@pytest.mark.parametrize(
    ("names", "tags"),
    [
        (["m-Q4_K_M.gguf", "m-UD-IQ1_S.gguf", "m.f16.gguf"], ["F16", "Q4_K_M", "UD-IQ1_S"]),
        (["Q8_0/m-Q8_0-00001-of-00003.gguf", "Q8_0/m-Q8_0-00002-of-00003.gguf"], ["Q8_0"]),
        (["BF16/model.gguf"], ["BF16"]),
        (["mxfp4.gguf", "gpt-oss-20b-mxfp4.gguf"], ["MXFP4", "MXFP4"]),
        (["model.gguf", "mmproj-model-f16.gguf", "x.imatrix.gguf"], ["model"]),
        (["a.safetensors", "config.json"], []),
    ],
)
def test_tags_of_files(names: list[str], tags: list[str]) -> None:
    assert sorted(x.tag for x in quants([HubFile(name, 1, "") for name in names])) == tags


MODELFILE = '''
# of a comment
FROM base
PARAMETER temperature 0.2
PARAMETER stop "<|end|>"
parameter stop AI:
PARAMETER num_ctx 128
PARAMETER num_predict -1
SYSTEM """You are brief.
Always."""
MESSAGE user Hello
MESSAGE assistant Hi
LICENSE "MIT"
'''


def test_a_modelfile_is_read() -> None:
    said = read_modelfile(MODELFILE)
    assert said.base == "base" and said.license == "MIT"
    assert said.defaults.parameters == {"temperature": 0.2, "stop": ["<|end|>", "AI:"]}
    assert said.defaults.system == "You are brief.\nAlways."
    assert said.defaults.messages == (("user", "Hello"), ("assistant", "Hi"))
    assert said.defaults.max_model_len == 128


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Modelfile:1: it has no FROM"),
        ("FROM a\nTEMPLATE x", "Modelfile:2: TEMPLATE: chat templates are those of the model"),
        ("FROM a\n\nADAPTER ./x", "Modelfile:3: ADAPTER: adapters are not supported"),
        ("FROM a\nFROM b", "Modelfile:2: FROM: FROM may stand once"),
        ("FROM a\nPARAMETER mirostat 1", "Modelfile:2: PARAMETER mirostat: use one of temp"),
        ("FROM a\nPARAMETER top_k many", "Modelfile:2: PARAMETER top_k: 'many' is no number"),
        ("FROM a\nPARAMETER temperature nan", "temperature: 'nan' is no number for it"),
        ("FROM a\nPARAMETER temperature 101", "temperature: '101' is no number for it"),
        ("FROM a\nPARAMETER num_ctx 0", "num_ctx: '0' is no number for it"),
        ("FROM a\nMESSAGE tool x", "Modelfile:2: MESSAGE tool: a role is"),
        ('FROM a\nSYSTEM """x', 'Modelfile:2: """ has no end'),
        ("FROM a\nnonsense", "Modelfile:2: 'nonsense' is no instruction"),
        ("FROM a\nCOLOR red", "Modelfile:2: COLOR: use FROM"),
    ],
)
def test_what_a_modelfile_cannot_say(text: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_modelfile(text)
    assert says in caught.value.message


def test_parameters_of_json_are_those_of_a_modelfile() -> None:
    said = {"num_ctx": 128, "num_predict": -1, "temperature": 1, "stop": "AI:", "top_k": 5}
    found = {"temperature": 1.0, "stop": ["AI:"], "top_k": 5}
    assert read_parameters(said) == (found, 128)
    assert read_parameters({"stop": ["a", "b"], "num_predict": 7}) == (
        {"stop": ["a", "b"], "max_tokens": 7},
        None,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_ctx", "abc"),
        ("num_ctx", -5),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_p", 0),
        ("seed", 1.5),
        ("top_k", True),
        ("stop", ["a", 1]),
        ("mirostat", 1),
    ],
)
def test_parameters_of_json_that_are_none(name: str, value: object) -> None:
    """What were kept of them would make the model unreadable."""
    with pytest.raises(ModelError, match=f"parameters: '?{name}"):
        read_parameters({"top_p": 0.5, name: value})
