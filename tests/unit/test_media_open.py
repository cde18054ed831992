"""The fence around one media file: lists of other files are not followed, whatever they are called."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import av
import pytest
from media import Clip, sine, write_sound

from talkinghead.nodes.core.media_open import open_media
from talkinghead.nodes.core.video_read import probe_video

_HLS = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"
_MPD = (
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    'mediaPresentationDuration="PT1S" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011"><Period>'
    '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{}</BaseURL>'
    '<SegmentBase indexRange="0-1"/></Representation></AdaptationSet></Period></MPD>'
)
_SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n{}\n"
_CONCAT = "ffconcat version 1.0\nfile {}\n"


@pytest.mark.parametrize("name", ["a.m3u8", "a.mp4", "a.ffconcat", "a.mpd", "a.sdp", "a.txt"])
@pytest.mark.parametrize(
    ("text", "kind"), [(_HLS, "HLS"), (_CONCAT, "ffconcat"), (_MPD, "DASH"), (_SDP, "SDP")]
)
def test_lists_of_other_files_are_not_followed(tmp_path, name, text, kind):
    other = Clip(n_frames=5).write(tmp_path / "other.mp4")
    folder = tmp_path / "input"
    folder.mkdir()
    for target in (other.as_uri(), "../other.mp4", "other.mp4", str(other)):
        path = folder / name
        path.write_text(text.format(target))
        with pytest.raises(
            ValueError, match=rf"{re.escape(name)} is a .*\({kind}|{kind}\), which is not followed"
        ):
            probe_video(path)
        with pytest.raises(ValueError, match="which is not followed"):
            open_media(path)
    path.write_bytes(b"\xef\xbb\xbf\n" + path.read_bytes())
    with pytest.raises(ValueError, match="which is not followed|cannot be read"):
        probe_video(path)


def test_ffmpeg_itself_would_follow_them(tmp_path):
    """What the fence is for; if this fails, FFmpeg has changed."""
    Clip(n_frames=5).write(tmp_path / "other.mp4")
    for name, text in (("a.m3u8", _HLS), ("a.ffconcat", _CONCAT)):
        (tmp_path / name).write_text(text.format("other.mp4"))
        with av.open(str(tmp_path / name)) as box:
            assert box.streams.video


def test_a_playlist_never_reaches_the_network(tmp_path):
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, text in (("a.m3u8", _HLS), ("a.mp4", _HLS), ("a.mpd", _MPD), ("a.ffconcat", _CONCAT)):
            path = tmp_path / name
            path.write_text(text.format(f"http://127.0.0.1:{server.server_port}/clip.mp4"))
            with pytest.raises(ValueError, match="not followed"):
                probe_video(path)
        server.shutdown()
    assert asked == []


def test_every_usual_container_is_opened(tmp_path):
    for suffix in ("mp4", "mov", "mkv", "avi", "ts", "flv", "m4v", "h264"):
        path = Clip(n_frames=3).write(tmp_path / f"a.{suffix}")
        with open_media(path) as box:
            assert box.streams.video, suffix
    wav = write_sound(tmp_path / "a.wav", sine(0.2), 16000)
    with open_media(wav) as box:
        assert box.streams.audio
    with pytest.raises(ValueError, match="no file"):
        open_media(tmp_path / "none.mp4")
