"""Where model files come from: the Hugging Face hub or a plain address, read in a way that can be taken up again."""

from __future__ import annotations

import http.client
import inspect
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .model_catalog import ModelFile, size_text

Progress = Callable[[int, "int | None"], None]
"""Called with bytes done and bytes in all (None while unknown)."""
INSTALL_HUB = "pip install huggingface_hub"
HUB = "https://huggingface.co"
_BLOCK = 1 << 20
_TRIES = 3
_TIMEOUT_S = 30.0
_PAUSE_S = 1.0
"""Wait before a try that follows one without a byte, times the number of such tries."""


class DownloadError(RuntimeError):
    """A file could not be fetched; the message says which, why and what to do."""


@dataclass(frozen=True)
class Expected:
    """What a file's bytes must be, and who says so."""

    size: int | None
    sha256: str | None = None
    git_sha1: str | None = None
    said_by: str = "catalogue"

    @property
    def check(self) -> str:
        kind = (
            "SHA-256" if self.sha256 else "git hash" if self.git_sha1 else "size" if self.size else "nothing"
        )
        return f"{kind} of the {self.said_by}"


class Source:
    """A file somewhere, fetched into a `.part` that a later call goes on with."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file

    def expected(self) -> Expected:
        """What the file's bytes must be. DownloadError when the place says that it has another file now."""
        return Expected(self.file.size, self.file.sha256)

    def load(self, part: Path, expected: Expected, progress: Progress) -> None:
        """Fetch what `part` lacks. A broken line is taken up again as long as each try brings something.

        Raises:
            DownloadError: refused, another file, or broken off for good; `part` stays for the next call.
        """
        idle, error = 0, None
        while idle < _TRIES:
            before = _size_of(part)
            try:
                return self._load_rest(part, expected, progress)
            except urllib.error.HTTPError as failure:
                if failure.code == 416 and before:  # nothing lies behind what we have: start again
                    part.unlink()
                    continue
                raise DownloadError(self._refusal(failure.code)) from failure
            except (PermissionError, IsADirectoryError):
                raise
            except (OSError, http.client.HTTPException) as failure:
                error = failure
            idle = 0 if _size_of(part) > before else idle + 1
            time.sleep(_PAUSE_S * idle)
        raise DownloadError(
            f"{self.file.address} broke off at {size_text(_size_of(part))} of {size_text(expected.size)} ({error}): "
            f"check the network and run the same command again, it goes on from there"
        ) from error

    def _where(self) -> tuple[str, str | None]:
        """Address to read now, and the Authorization it wants."""
        return self.file.url, None

    def _load_rest(self, part: Path, expected: Expected, progress: Progress) -> None:
        have = _size_of(part)
        if have and have == expected.size:
            return
        if expected.size is not None and have > expected.size:
            part.unlink()
            have = 0
        url, authorization = self._where()
        request = urllib.request.Request(
            url, headers={"User-Agent": "talkinghead", "Accept-Encoding": "identity"}
        )
        if authorization:  # unredirected: a token must not travel on to another host
            request.add_unredirected_header("Authorization", authorization)
        if have:
            request.add_header("Range", f"bytes={have}-")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            have = have if answer.status == 206 else 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else expected.size
            if expected.size not in (None, total):
                raise DownloadError(
                    f"{self.file.address} has {total} bytes instead of {expected.size}: the source changed, nothing "
                    f"was fetched"
                )
            with open(part, "ab" if have else "wb") as out:
                progress(have, total)
                while block := answer.read(_BLOCK):
                    out.write(block)
                    have += len(block)
                    progress(have, total)
        if total is not None and have < total:
            raise OSError(f"{total - have} bytes are missing")

    def _refusal(self, status: int) -> str:
        return refusal(self.file, status)


class HubSource(Source):
    """A file of the Hugging Face hub or a mirror of it.

    huggingface_hub resolves the address, knows the login and the hub's record of the file. The bytes we read
    ourselves: since 2.x its client throws away what it has when a download breaks off, all of 3.4 GB.
    """

    def __init__(self, file: ModelFile, endpoint: str | None = None, token: str | None = None) -> None:
        super().__init__(file)
        # Both explicitly: huggingface_hub reads the environment once, when something first imports it.
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        self.token = token or os.environ.get("HF_TOKEN") or None

    def expected(self) -> Expected:
        record, known = self._record(), self.file
        etag = record.etag or ""
        sha256 = etag if len(etag) == 64 else None
        if known.sha256 is None:
            return Expected(record.size, sha256, etag if len(etag) == 40 else None, "hub's own record")
        if (sha256 or known.sha256) != known.sha256 or known.size not in (None, record.size or known.size):
            raise DownloadError(
                f"{known.address} is another file now ({size_text(record.size)}, {etag[:16]}...): the source changed, "
                f"nothing was fetched"
            )
        return super().expected()

    def _where(self) -> tuple[str, str | None]:
        place = self._record().location
        if urlsplit(place).netloc != urlsplit(self.endpoint).netloc:
            return place, None  # the hub's storage wants no token, the address is signed
        from huggingface_hub.utils import build_hf_headers

        return place, build_hf_headers(token=self.token).get("authorization")

    def _record(self) -> Any:
        hub, file = _import_hub(), self.file
        url = hub.hf_hub_url(file.repo, file.path, revision=file.revision, endpoint=self.endpoint)
        options = {"token": self.token, "timeout": _TIMEOUT_S}
        if "endpoint" in inspect.signature(hub.get_hf_file_metadata).parameters:  # not in every 0.x
            options["endpoint"] = self.endpoint
        try:
            return hub.get_hf_file_metadata(url, **options)
        except Exception as error:  # of whichever HTTP library this version of the hub uses
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status is not None:
                raise DownloadError(self._refusal(status)) from error
            reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
            raise DownloadError(
                f"{file.address} cannot be reached at {self.endpoint} ({reason}): check the network and run the same "
                f"command again, it goes on where it stopped. HF_ENDPOINT sets a mirror"
            ) from error

    def _refusal(self, status: int) -> str:
        return refusal(self.file, status, with_token=self.token is not None)


def refusal(file: ModelFile, status: int, with_token: bool = False) -> str:
    """What an HTTP status means for the user."""
    if status in (401, 403):
        page = file.address.split("/resolve/")[0]
        if with_token:
            return f"{file.address}: the token has no access ({status}). Accept the terms at {page}, or check HF_TOKEN"
        return f"{file.address} needs a login ({status}): accept the terms at {page} and set HF_TOKEN to your token"
    if status == 404:
        return f"{file.address} is not there (404): the source moved it. A newer version of the pack may know where"
    return f"{file.address}: the server answered {status}. Try again later, or set a mirror with HF_ENDPOINT"


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _import_hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"downloads from the hub need huggingface_hub, which is not installed: {INSTALL_HUB}"
        ) from error
    return huggingface_hub
