"""A hub of models: what a repository holds, and who asks. Its client library reads the metadata;
bytes are fetched by ``transfer``.

``HF_ENDPOINT`` names a mirror, ``HF_TOKEN`` (or what ``hf auth login`` keeps) who asks, and
``HF_HUB_OFFLINE=1`` forbids every question.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import msgspec

from kvasir.core.errors import ModelError
from kvasir.library.quants import HubFile
from kvasir.library.ranges import RangeSource

ENDPOINT = "https://huggingface.co"
SECONDS = 20.0
"""For an answer about a repository."""
MAX_FILE_BYTES = 1 << 50
MAX_PART = 200
"""Characters of a folder's or a file's name: what is put behind it finds room, too."""
_COMMIT = re.compile(r"[0-9A-Za-z]{1,64}")
"""It becomes part of a path here."""


class HubRepo(msgspec.Struct, frozen=True):
    repo: str
    commit: str
    files: tuple[HubFile, ...]


class Hub(msgspec.Struct, frozen=True):
    endpoint: str
    token: str | None = None

    def open(self, repo: str, revision: str) -> HubRepo:
        """What ``repo`` holds at ``revision`` (empty: the main one). Raises ModelError."""
        # Imported now: only who asks a hub pays for its client (0.4 s).
        from huggingface_hub import HfApi, errors

        api = HfApi(endpoint=self.endpoint, token=self.token or False)
        try:
            info = api.model_info(
                repo, revision=revision or None, files_metadata=True, timeout=SECONDS
            )
        except errors.GatedRepoError:
            raise self._refused(repo, "asks for consent to its licence") from None
        except errors.RevisionNotFoundError:
            raise ModelError(
                f"{repo} has no revision {revision}: leave @{revision} out, or see "
                f"{self.endpoint}/{repo}/commits",
                code="model_not_found",
            ) from None
        except errors.RepositoryNotFoundError:
            raise self._missing(repo) from None
        except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, OSError) as error:
            raise self._unreachable(repo, error) from None
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("httpx", "httpx2", "requests"):
                raise
            raise self._unreachable(repo, error) from None
        files = tuple(
            HubFile(x.rfilename, int(x.size), _digest(x.lfs, x.blob_id))
            for x in info.siblings or ()
            if x.size is not None and 0 <= x.size <= MAX_FILE_BYTES and _is_safe(x.rfilename)
        )
        if _COMMIT.fullmatch(str(info.sha)) is None:
            raise ModelError(
                f"{self.endpoint} says that {repo} is at {str(info.sha)[:80]!r}, which is no "
                "commit: check HF_ENDPOINT",
                code="hub_unreachable",
            )
        return HubRepo(repo, str(info.sha), files)

    def source(self, repo: HubRepo, file: HubFile) -> RangeSource:
        """Where ``file`` is fetched."""
        path = f"{repo.repo}/resolve/{quote(repo.commit, safe='')}/{quote(file.name)}"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return RangeSource(f"{self.endpoint}/{path}", headers, file.n_bytes)

    def _refused(self, repo: str, why: str) -> ModelError:
        cure = (
            f"open {self.endpoint}/{repo}, agree, and try again"
            if self.token
            else f"agree at {self.endpoint}/{repo}, then set HF_TOKEN to a token of yours, or run "
            "hf auth login"
        )
        return ModelError(f"{repo} {why}: {cure}", code="model_gated")

    def _missing(self, repo: str) -> ModelError:
        private = (
            "the token that was sent may not see it"
            if self.token
            else "a private one needs a token: set HF_TOKEN, or run hf auth login"
        )
        return ModelError(
            f"{self.endpoint} has no {repo}: check the name ({private})", code="model_not_found"
        )

    def _unreachable(self, repo: str, error: Exception) -> ModelError:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        return ModelError(
            f"{self.endpoint} did not say what {repo} holds: {said}. Check the network, "
            "HTTPS_PROXY and HF_ENDPOINT (kvasir doctor does); models that are here already "
            "need none of them: kvasir list",
            code="hub_unreachable",
        )


def open_hub(variables: Mapping[str, str] | None = None) -> Hub:
    """As the environment says. Raises ModelError where it forbids asking."""
    source = os.environ if variables is None else variables
    if source.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise ModelError(
            "HF_HUB_OFFLINE is set, so no hub is asked: unset it, or use a model that is here "
            "(kvasir list)",
            code="hub_offline",
        )
    endpoint = (source.get("HF_ENDPOINT") or ENDPOINT).strip().rstrip("/")
    if not _is_address(endpoint):
        raise ModelError(
            f"HF_ENDPOINT is {_shown(endpoint)!r}, which is no address of a hub: set it to one "
            f"that begins with https:// and has a host, as {ENDPOINT}, or unset it; models that "
            "are here already need none: kvasir list"
        )
    return Hub(endpoint, _token(source))


def _shown(endpoint: str) -> str:
    """Without a password."""
    return endpoint.rpartition("@")[2][:200]


def _is_address(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        is_hub = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
        return is_hub and not (parts.query or parts.fragment or re.search(r"\s", endpoint))
    except ValueError:  # a port or a bracket that is none
        return False


def _token(variables: Mapping[str, str]) -> str | None:
    """The user's, wherever the hub's own tools keep it."""
    said = variables.get("HF_TOKEN") or variables.get("HUGGING_FACE_HUB_TOKEN")
    if said is not None or variables is not os.environ:
        return said.strip() if said else None
    from huggingface_hub import get_token

    return get_token()


def _digest(lfs: object, blob: str | None) -> str:
    sha256 = getattr(lfs, "sha256", None)
    if sha256:
        return f"sha256:{sha256}"
    return f"git:{blob}" if blob else ""


def _is_safe(name: str) -> bool:
    """Stays in its folder, whoever lists it, and can be shown."""
    parts = name.split("/")
    is_plain = name.isprintable() and "\\" not in name
    return is_plain and all(x not in ("", ".", "..") and len(x) <= MAX_PART for x in parts)
