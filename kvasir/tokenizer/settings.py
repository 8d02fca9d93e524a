"""What the files beside a folder's tokenizer say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvasir.core.errors import ModelError
from kvasir.formats.fields import get_bool
from kvasir.tokenizer.tokenizer import MAX_IDS
from kvasir.weights.source import ModelSource

_SETTINGS = "tokenizer_config.json"


class FolderSettings:
    """Ids that tokenizer_config.json, generation_config.json and config.json name. Every method
    raises ModelError, which names file and field."""

    def __init__(
        self, source: ModelSource, token_to_id: Callable[[str], int | None], file: str
    ) -> None:
        """``file``: the tokenizer's own, whose names ``token_to_id`` knows."""
        self._source = source
        self._token_to_id = token_to_id
        self._file = file
        self._settings = source.read_json(_SETTINGS)

    def adds(self, word: str, default: bool) -> bool:
        """``add_bos_token`` or ``add_eos_token``."""
        return get_bool(self._settings, f"add_{word}_token", default) is True

    def named_id(self, field: str) -> int | None:
        """A token is written as its name, or as an object with ``content``."""
        value = self._settings.get(field)
        if value is None:
            return None
        name = value.get("content") if isinstance(value, Mapping) else value
        where = f"{self._source.path / _SETTINGS}: {field}"
        if not isinstance(name, str):
            raise ModelError(f"{where} is {str(value)[:80]}, expected the name of a token")
        found = self._token_to_id(name)
        if found is None:
            raise ModelError(f"{where} is {name[:80]!r}, which {self._file} does not have")
        return self._checked(where, found)

    def bos_id(self) -> int | None:
        named = self.named_id("bos_token")
        listed = self._source.config.get("bos_token_id")
        if named is not None or listed is None:
            return named
        return self._checked(f"{self._source.path / 'config.json'}: bos_token_id", listed)

    def end_ids(self, own: int | None = None) -> tuple[int, ...]:
        """The tokenizer's own end token (``own`` where the settings name none), then
        generation_config.json's, or else config.json's."""
        named = self.named_id("eos_token")
        own = own if named is None else named
        file = "generation_config.json"
        listed = self._source.read_json(file).get("eos_token_id")
        if listed is None:
            file, listed = "config.json", self._source.config.get("eos_token_id")
        ids = [] if listed is None else listed if isinstance(listed, list) else [listed]
        where = f"{self._source.path / file}: eos_token_id"
        ends = [self._checked(where, i) for i in ids]
        return tuple(dict.fromkeys(([own] if own is not None else []) + ends))

    def _checked(self, where: str, token_id: object) -> int:
        n = self._source.n_embeddings or MAX_IDS
        if type(token_id) is not int or not 0 <= token_id < n:
            raise ModelError(f"{where} is {str(token_id)[:80]}, the model has the ids 0 to {n - 1}")
        return token_id
