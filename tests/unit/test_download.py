"""Downloads against a real server on loopback: through huggingface_hub and through plain addresses."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections import namedtuple
from dataclasses import replace

import pytest
from hub_server import COMMIT, HubServer, Served

from talkinghead.nodes.core import download_sources
from talkinghead.nodes.core.download import (
    DownloadError,
    Expected,
    download,
    fault_of,
    is_offline,
    place_of,
    state_of,
)
from talkinghead.nodes.core.model_catalog import ModelFile

BODY = bytes(range(256)) * 9000  # 2.3 MB: several blocks
HUB_PATH = f"/some/repo/resolve/{COMMIT}/sub/w.bin"
HUB_FILE = ModelFile(
    "musetalk/x/w.bin", "MIT", len(BODY), hashlib.sha256(BODY).hexdigest(), "some/repo", COMMIT, "sub/w.bin"
)


@pytest.fixture
def server(monkeypatch, tmp_path):
    hub = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    pytest.importorskip("huggingface_hub")
    import huggingface_hub.constants as constants

    # The library's own stores lie elsewhere than the user's, and its wait between tries is not waited.
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "no-cache"))
    monkeypatch.setattr(download_sources, "_PAUSE_S", 0)
    yield hub
    hub.close()


@pytest.fixture(params=["hub", "plain"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def file(kind, server) -> ModelFile:
    """The same bytes, from the hub or from a plain address."""
    if kind == "hub":
        server.files[HUB_PATH] = Served(BODY)
        return HUB_FILE
    server.files["/w.bin"] = Served(BODY)
    return ModelFile(
        HUB_FILE.destination, "MIT", len(BODY), HUB_FILE.sha256, url=f"{server.url}/w.bin?generation=1"
    )


@pytest.fixture
def served(file, server) -> Served:
    return next(iter(server.files.values()))


def names(root) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


@pytest.fixture
def root(tmp_path):
    return tmp_path / "models"


def test_fetched_checked_and_not_fetched_again(file, root, server):
    seen = []
    first = download(file, root, lambda done, total: seen.append((done, total)))
    assert first == type(first)(root / file.destination, True, "SHA-256 of the catalogue")
    assert first.path.read_bytes() == BODY
    assert names(root) == [file.destination]  # nothing else is left
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)
    server.log.clear()
    assert download(file, root) == replace(first, fetched=False)
    assert server.log == []


def test_cut_line_is_resumed(file, served, root, server, kind):
    served.cut_at = [1_500_000]
    assert download(file, root).path.read_bytes() == BODY
    ranges = server.gets()
    assert ranges == [None, "bytes=1500000-"]


def test_resumed_by_the_next_call(file, served, root, server, kind, monkeypatch):
    def stop(done, total):
        if done > 1_200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(file, root, stop)
    assert names(root) == [file.destination + ".part"]
    kept = (root / (file.destination + ".part")).stat().st_size
    assert kept >= 1_000_000
    seen = []
    download(file, root, lambda done, total: seen.append(done))
    assert server.gets()[-1] == f"bytes={kept}-"
    assert seen[0] == kept
    assert names(root) == [file.destination]


def test_server_without_ranges_starts_again(file, served, root):
    served.ranges = False
    served.cut_at = [1_000_000]
    assert download(file, root).path.read_bytes() == BODY


def test_a_part_as_long_as_or_longer_than_the_file(server, root):
    server.files["/w.bin"] = Served(BODY)
    file = ModelFile("a/w.bin", "MIT", len(BODY), HUB_FILE.sha256, url=f"{server.url}/w.bin")
    part = root / "a/w.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY)
    download(file, root)
    assert server.gets() == []  # all there: only checked
    (root / "a/w.bin").unlink()
    part.write_bytes(BODY + b"more")
    assert download(file, root).path.read_bytes() == BODY
    (root / "a/w.bin").unlink()
    part.write_bytes(BODY)
    assert download(replace(file, size=None), root).path.read_bytes() == BODY  # the server answers 416


def test_wrong_bytes_of_the_right_size_are_removed_and_named(file, served, root, kind):
    served.record, served.body = (BODY if kind == "hub" else None), bytes(len(BODY))
    with pytest.raises(DownloadError, match=r"w\.bin.* has SHA-256 .* instead of .*removed"):
        download(file, root)
    assert names(root) == []
    served.body = BODY
    assert download(file, root).path.read_bytes() == BODY


def test_another_size_or_hash_is_refused_before_fetching(file, served, root, server, kind):
    served.body = BODY[:-5]
    with pytest.raises(DownloadError, match="the source changed, nothing was fetched"):
        download(file, root)
    assert names(root) == []
    if kind == "hub":
        served.body = bytes(len(BODY))
        with pytest.raises(DownloadError, match="the source changed, nothing was fetched"):
            download(file, root)
        assert server.gets() == []


def test_404_is_named(file, root, server):
    server.files.clear()
    with pytest.raises(DownloadError, match=r"w\.bin.* is not there \(404\)"):
        download(file, root)
    assert not (root / file.destination).exists()


@pytest.mark.parametrize("status", [500, 503])
def test_a_failing_server_is_named(status, file, served, root, monkeypatch):
    served.status = status
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda s: None)
    with pytest.raises(DownloadError, match=f"answered {status}"):
        download(file, root)


def test_gated_files_want_a_token(server, root, monkeypatch):
    server.files[HUB_PATH] = Served(BODY, token="hf_good")
    with pytest.raises(
        DownloadError, match=r"needs a login \(401\).*https://huggingface.co/some/repo.*HF_TOKEN"
    ):
        download(HUB_FILE, root)
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(DownloadError, match=r"token has no access \(403\)") as caught:
        download(HUB_FILE, root)
    assert "hf_bad" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert download(HUB_FILE, root).path.read_bytes() == BODY


def test_no_token_goes_to_plain_addresses(server, root, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.files["/w.bin"] = Served(BODY, token="hf_secret")
    file = ModelFile("w.bin", "MIT", len(BODY), HUB_FILE.sha256, url=f"{server.url}/w.bin")
    with pytest.raises(DownloadError, match="needs a login"):
        download(file, root)


def test_mirror_from_the_environment_and_by_argument(server, root, monkeypatch):
    server.files[HUB_PATH] = Served(BODY)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(
        DownloadError, match=r"cannot be reached at http://127\.0\.0\.1:9 .*HF_ENDPOINT sets a mirror"
    ):
        download(HUB_FILE, root)
    assert download(HUB_FILE, root, endpoint=f"{server.url}/").fetched


def test_nobody_listens_at_a_plain_address(root, monkeypatch):
    monkeypatch.setattr(download_sources, "_PAUSE_S", 0)
    with pytest.raises(DownloadError, match=r"broke off at 0 B.*run the same command again"):
        download(ModelFile("w.bin", "MIT", 5, url="http://127.0.0.1:9/w.bin"), root)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_offline_says_what_to_put_where(how, file, root, server, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert is_offline()
    with pytest.raises(DownloadError, match=r"offline.*w\.bin.* \(2\.3 MB\).*put it there") as caught:
        download(file, root, offline=True if how == "argument" else None)
    assert str(root / file.destination) in str(caught.value)
    assert server.log == []
    place = place_of(file, root)
    place.parent.mkdir(parents=True)
    place.write_bytes(BODY)  # put there by hand
    assert not download(file, root, offline=True).fetched


def test_a_wrong_file_is_not_overwritten_unasked(file, root, server):
    place = place_of(file, root)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"a fine-tune of mine")
    with pytest.raises(DownloadError, match=r"has 19 bytes instead of 2304000.*--overwrite"):
        download(file, root)
    assert place.read_bytes() == b"a fine-tune of mine"
    assert download(file, root, overwrite=True).fetched
    assert place.read_bytes() == BODY


def test_a_failed_overwrite_leaves_the_old_file(file, served, root, kind):
    served.record, served.body = (BODY if kind == "hub" else None), bytes(len(BODY))
    place = place_of(file, root)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"old")
    with pytest.raises(DownloadError, match="removed"):
        download(file, root, overwrite=True)
    assert place.read_bytes() == b"old"


@pytest.mark.parametrize("small", [False, True])
def test_unknown_hashes_are_checked_by_the_hubs_record(small, server, root):
    file = replace(HUB_FILE, size=None, sha256=None)
    server.files[HUB_PATH] = Served(BODY, small=small)
    fetched = download(file, root)
    assert fetched.check == f"{'git hash' if small else 'SHA-256'} of the hub's own record"
    assert not download(file, root).fetched
    fetched.path.write_bytes(bytes(len(BODY)))
    with pytest.raises(DownloadError, match="it is not the file of the hub's own record"):
        download(file, root)
    # wrong bytes on the way are seen as well
    server.files[HUB_PATH].record, server.files[HUB_PATH].body = BODY, bytes(len(BODY))
    with pytest.raises(DownloadError, match=r"hub's own record\): what was fetched is removed"):
        download(file, root, overwrite=True)


@pytest.mark.parametrize(
    "destination", ["../w.bin", "/etc/w.bin", "a/../../w.bin", "C:/w.bin", "a\\..\\w.bin", ""]
)
def test_unsafe_destinations_are_refused(destination, root, server):
    server.files[HUB_PATH] = Served(BODY)
    with pytest.raises(ValueError, match="below the models folder"):
        download(replace(HUB_FILE, destination=destination), root)
    assert server.log == []


def test_disk_room_is_checked_before(file, root, server, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 50_000_000))
    with pytest.raises(DownloadError, match=r"has 50 MB free, w\.bin needs 102 MB: make room"):
        download(file, root)
    assert server.gets() == []


def test_without_huggingface_hub_the_install_line_is_named(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        download(HUB_FILE, root)


def test_older_hub_clients_take_no_endpoint(server, root, monkeypatch):
    import huggingface_hub

    server.files[HUB_PATH] = Served(BODY)
    real = huggingface_hub.get_hf_file_metadata
    monkeypatch.setattr(
        huggingface_hub, "get_hf_file_metadata", lambda url, token=None, timeout=10: real(url, token, timeout)
    )
    assert download(HUB_FILE, root).path.read_bytes() == BODY


def test_the_token_stays_with_the_hub(server, root, monkeypatch):
    """Large files lie on another host, to which the hub redirects with a signed address."""
    storage = HubServer()
    try:
        storage.files["/signed"] = Served(BODY)
        server.files[HUB_PATH] = Served(BODY, token="hf_good", location=f"{storage.url}/signed?sig=1")
        monkeypatch.setenv("HF_TOKEN", "hf_good")
        assert download(HUB_FILE, root).path.read_bytes() == BODY
        assert storage.gets() == [None]
        assert storage.tokens == [None]
        assert set(server.tokens) == {"Bearer hf_good"}
    finally:
        storage.close()


def test_a_redirect_takes_no_token_along(server, root, monkeypatch):
    """As above, where the address the hub names turns out to lead elsewhere only when it is read."""
    storage = HubServer()
    try:
        storage.files["/signed"] = Served(BODY)
        server.files[HUB_PATH] = Served(BODY, token="hf_good", moves_get=f"{storage.url}/signed")
        monkeypatch.setenv("HF_TOKEN", "hf_good")
        assert download(HUB_FILE, root).path.read_bytes() == BODY
        assert storage.tokens == [None]
    finally:
        storage.close()


def test_a_line_that_breaks_often_is_taken_up_as_long_as_it_brings_something(file, served, root, server):
    served.cut_at = list(range(300_000, len(BODY), 300_000))
    assert download(file, root).path.read_bytes() == BODY
    assert len(server.gets()) == len(range(300_000, len(BODY), 300_000)) + 1


def test_a_line_that_brings_nothing_is_given_up(file, served, root, server):
    served.cut_at = [700_000, *[0] * 20]
    with pytest.raises(DownloadError, match=r"broke off at 700 kB of 2\.3 MB.*run the same command again"):
        download(file, root)
    assert len(server.gets()) == 4
    assert names(root) == [file.destination + ".part"]


def test_an_unwritable_folder_is_named(file, root, monkeypatch):
    def denied(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", denied)
    with pytest.raises(DownloadError, match="cannot write .*Permission denied.*--models"):
        download(file, root)


def test_states_and_faults(root):
    place = place_of(HUB_FILE, root)
    assert state_of(HUB_FILE, root) == "missing"
    place.parent.mkdir(parents=True)
    place.write_bytes(BODY[1:])
    assert state_of(HUB_FILE, root) == "wrong size"
    assert state_of(replace(HUB_FILE, size=None), root) == "present"
    place.write_bytes(BODY)
    assert state_of(HUB_FILE, root) == "present"
    git = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()
    assert fault_of(place, Expected(len(BODY), HUB_FILE.sha256, git)) is None
    assert fault_of(place, Expected(None)) is None
    assert "instead of 5" in fault_of(place, Expected(5))
    assert "SHA-256" in fault_of(place, Expected(None, "0" * 64))
    assert "git hash" in fault_of(place, Expected(None, None, "0" * 40))
    assert Expected(None).check == "nothing of the catalogue"
