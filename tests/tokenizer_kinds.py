"""Small tokenizers of many kinds, with and without names for their special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.from_gguf import spec_from_gguf
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import open_model
from tests.gguf_writer import write_safetensors
from tests.tiny_vocab import byte_level, sentence_piece

START, END, PAD = "<|turn|>", "<|end|>", "|||PAD|||"
OVERLAPPING = "|||EOT|||"
"""Can share three characters with ``PAD``."""
NAMES = (START, END, PAD, OVERLAPPING)
TOOL = "[tool]"
"""Added, but not special: it is a token in any text."""
TEMPLATE = (
    f"{{% for m in messages %}}{START}{{{{ m.role }}}}\n {{{{ m.content }}}}{END} \n{{% endfor %}}"
)


def rendered(contents: list[str], start: str = START, end: str = END) -> str:
    """What ``TEMPLATE`` makes of user messages."""
    return "".join(f"{start}user\n {content}{end} \n" for content in contents)


def _metaspace(scheme: str, split: bool) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(spec_from_gguf(sentence_piece()).backend.model)
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split)
    made.decoder = decoders.Metaspace("▁", scheme, split)
    return made


def _byte_level(prefix: bool) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(spec_from_gguf(byte_level()).backend.model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    return made


def _lowercase() -> tokenizers.Tokenizer:
    made = _byte_level(False)
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return made


def _gguf(metadata: dict[str, object], decoder: decoders.Decoder) -> tokenizers.Tokenizer:
    made = spec_from_gguf(metadata).backend
    made.decoder = decoder
    return made


def _words() -> tokenizers.Tokenizer:
    """Whole words are tokens, so that the model itself can make the special name ``word``."""
    vocab = [*pre_tokenizers.ByteLevel.alphabet(), "word"]
    made = tokenizers.Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(vocab)}, [], ignore_merges=True)
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\w+"), "isolated"), pre_tokenizers.ByteLevel(False, False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["word"])
    return made


KINDS: Mapping[str, Callable[[], tokenizers.Tokenizer]] = {
    "metaspace_first": lambda: _metaspace("first", False),
    "metaspace_first_split": lambda: _metaspace("first", True),
    "metaspace_always": lambda: _metaspace("always", True),
    "metaspace_never": lambda: _metaspace("never", False),
    "byte_level": lambda: _byte_level(False),
    "byte_level_prefix": lambda: _byte_level(True),
    "lowercase": _lowercase,
    "gguf_gpt2": lambda: _gguf(byte_level(), decoders.ByteLevel()),
    "gguf_llama": lambda: _gguf(sentence_piece(), decoders.Metaspace("▁", "first", False)),
    "words": _words,
}
STRIPS = {"plain": (False, False), "lstrip": (True, False), "rstrip": (False, True)}


def tokenizer(kind: str, strips: str = "plain") -> tokenizers.Tokenizer:
    """With ``NAMES`` as special tokens, and ``TOOL``."""
    made, (left, right) = KINDS[kind](), STRIPS[strips]
    is_late = kind == "lowercase"
    made.add_special_tokens(
        [AddedToken(name, lstrip=left, rstrip=right, normalized=is_late) for name in NAMES]
    )
    made.add_tokens([AddedToken(TOOL, normalized=False)])
    return made


def nameless(made: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, Callable[[str], str]]:
    """The same tokenizer after its special tokens changed their names, to names that nobody writes;
    and the new name of an old one."""
    data = json.loads(made.to_str())
    new = {
        token["content"]: f"\ue000{chr(0xE100 + token['id'])}\ue001"
        for token in data["added_tokens"]
        if token["special"]
    }
    for token in data["added_tokens"]:
        token["content"] = new.get(token["content"], token["content"])
    vocab = data["model"]["vocab"]
    data["model"]["vocab"] = {new.get(piece, piece): i for piece, i in vocab.items()}
    if data["model"].get("unk_token"):
        data["model"]["unk_token"] = new.get(data["model"]["unk_token"], data["model"]["unk_token"])
    data["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(data)), new.__getitem__


def write(made: tokenizers.Tokenizer, folder: Path, template: str = TEMPLATE) -> ChatTemplate:
    """A Hugging Face folder around ``made``, and the template of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text(made.to_str())
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)
    write_safetensors(folder / "model.safetensors", {})
    source = open_model(folder)
    return ChatTemplate(source, load_tokenizer(source))
