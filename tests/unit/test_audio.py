"""Clips: exact lengths, whatever the source; 16 kHz mono, whatever the blocks. Rows 9, 11, 12, 13, 19, 23."""

import gc
import threading
import time
from fractions import Fraction

import av
import numpy as np
import psutil
import pytest
import soundfile as sf
import soxr
import torch

from talkinghead.nodes.core import audio, audio_file
from talkinghead.nodes.core.audio import (
    MemoryAudio,
    MissingPackage,
    from_comfy,
    mono_blocks,
    open_audio,
    pieces,
    rebatch,
    resampled_length,
)
from talkinghead.nodes.core.report import Report

RATES = (8000, 11025, 12345, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 192000)


def tone(seconds, rate=16000, channels=1, hz=440.0, level=0.5):
    """A float32 (channels, n) sine, each channel at its own level."""
    wave = np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)
    return (wave[None] * level / np.arange(1, channels + 1)[:, None]).astype(np.float32)


def noise(n, channels=1, seed=0, level=0.1):
    return (np.random.default_rng(seed).standard_normal((channels, n)) * level).astype(np.float32)


def whole(clip, size=audio.BLOCK):
    return np.concatenate(list(clip.blocks(size)), axis=1)


def mono(clip, rate=16000, report=None):
    return np.concatenate(list(mono_blocks(clip, rate, report)))


def write_av(path, codec, rate, layout, n, with_video=False, with_audio=True):
    """Encode n samples of a tone (and 10 black frames); return the float32 (channels, n) that went in."""
    with av.open(str(path), "w") as box:
        if with_video:
            video = box.add_stream("mpeg4", rate=25)
            video.width = video.height = 32
        if with_audio:
            track = box.add_stream(codec, rate=rate)
            track.layout = layout
        if with_video:
            black = np.zeros((32, 32, 3), np.uint8)
            for _ in range(10):
                box.mux(video.encode(av.VideoFrame.from_ndarray(black, "rgb24")))
            box.mux(video.encode())
        if not with_audio:
            return None
        data = tone(n / rate, rate, len(av.AudioLayout(layout).channels))[:, :n]
        to_codec = av.AudioResampler(track.codec_context.format.name, layout, rate)
        frame = av.AudioFrame.from_ndarray(data, "fltp", layout)
        frame.sample_rate, frame.pts = rate, 0
        for part in to_codec.resample(frame):
            box.mux(track.encode(part))
        box.mux(track.encode())
    return data


class TestMemory:
    @pytest.mark.parametrize("shape", [(700,), (1, 700), (6, 700), (1, 2, 700)])
    @pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
    def test_shapes(self, shape, kind):
        data = noise(700 * int(np.prod(shape[:-1]))).reshape(shape)
        clip = MemoryAudio(kind(data), 24000)
        assert (clip.channels, clip.n_samples) == ((1, *shape)[-2], 700)
        assert clip.seconds == Fraction(700, 24000)
        np.testing.assert_array_equal(whole(clip, 64), data.reshape(-1, 700))
        np.testing.assert_array_equal(clip.samples, data.reshape(-1, 700))

    @pytest.mark.parametrize(("dtype", "scale"), [("int16", 2**15), ("int32", 2**31)])
    def test_integers_are_scaled(self, dtype, scale):
        ends = np.array([-scale, -scale // 2, 0, scale // 2], dtype)
        np.testing.assert_array_equal(whole(MemoryAudio(ends, 8000)), [[-1, -0.5, 0, 0.5]])

    def test_floats_and_grad(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            assert whole(MemoryAudio(torch.full((4,), 0.25, dtype=dtype), 8000)).tolist() == [[0.25] * 4]
        assert whole(MemoryAudio(torch.ones(4, requires_grad=True), 8000)).tolist() == [[1.0] * 4]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (np.zeros((2, 1, 9), np.float32), "batch of 2"),
            (np.zeros((1, 0), np.float32), "no samples"),
            (np.zeros((0, 1, 9), np.float32), "batch of 0"),
            (np.zeros((1, 1, 1, 9), np.float32), "shaped"),
            (np.zeros((48000, 2), np.float32), "48000 channels"),
            (np.zeros(9, np.uint8), "uint8"),
        ],
    )
    def test_refusals(self, data, message):
        with pytest.raises(ValueError, match=message):
            MemoryAudio(data, 16000)

    @pytest.mark.parametrize("rate", [0, -1, 999, 10**6, 44100.5])
    def test_rate_refused(self, rate):
        with pytest.raises(ValueError, match="sample rate"):
            MemoryAudio(np.zeros(9, np.float32), rate)

    def test_never_copied_never_changed(self):
        data = noise(5000, 2)
        data[0, 7] = np.nan
        data[1, 8] = 9.0
        before = data.copy()
        clip = MemoryAudio(data, 44100)
        assert np.shares_memory(next(clip.blocks()), data)
        mono(clip)
        np.testing.assert_array_equal(data, before)

    def test_fingerprint(self):
        data = noise(70000, 2)
        print_of = MemoryAudio(data, 16000).fingerprint()
        assert print_of == MemoryAudio(torch.from_numpy(data.copy())[None], 16000).fingerprint()
        assert print_of == MemoryAudio(np.asfortranarray(data), 16000).fingerprint()
        changed = data.copy()
        changed[1, -1] += 0.001
        others = [(changed, 16000), (data, 16001), (data[:, :-1], 16000), (data.reshape(1, -1), 16000)]
        assert len({print_of, *(MemoryAudio(d, r).fingerprint() for d, r in others)}) == 5

    def test_from_comfy(self):
        assert from_comfy({"waveform": torch.zeros(1, 2, 5), "sample_rate": 44100}).channels == 2

        class Lazy(dict):
            def __getitem__(self, key):
                raise RuntimeError("no audio stream")

        bad = [
            (None, "no audio"),
            ({}, "waveform"),
            ({"waveform": torch.zeros(1, 1, 5)}, "sample_rate"),
            ({"waveform": torch.zeros(1, 1, 0), "sample_rate": 16000}, "no samples"),
            ({"waveform": torch.zeros(2, 1, 5), "sample_rate": 16000}, "batch of 2"),
            (Lazy(), "no audio stream"),
        ]
        for value, message in bad:
            with pytest.raises(ValueError, match=message):
                from_comfy(value)


class TestMono:
    @pytest.mark.parametrize("rate", RATES)
    def test_length_is_exact(self, rate):
        for n in (1, 2, 3, 777, rate // 20, round(0.3 * rate), rate + 1, round(13.94 * rate)):
            clip = MemoryAudio(np.zeros(n, np.float32), rate)
            got = sum(len(b) for b in mono_blocks(clip))
            assert got == resampled_length(n, rate) >= 1
            assert abs(Fraction(got, 16000) - clip.seconds) <= Fraction(1, 16000)  # row 12

    def test_length_rule(self):
        assert resampled_length(13 * 44100, 44100) == 13 * 16000
        assert [resampled_length(n, 32000) for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]  # half rounds up
        assert resampled_length(1, 192000) == 1

    @pytest.mark.parametrize("rate", [8000, 24000, 44100, 192000])
    def test_equals_one_shot_bit_for_bit(self, rate, monkeypatch):
        data = noise(rate + 123)
        want = soxr.resample(data[0], rate, 16000, quality="HQ")
        for block in (97, 4096, 65536, 10**7):
            monkeypatch.setattr(audio, "BLOCK", block)
            np.testing.assert_array_equal(mono(MemoryAudio(data, rate)), want)

    def test_resampled_tone_is_the_tone(self):
        got = mono(MemoryAudio(tone(1, 44100), 44100))
        assert np.abs(got - tone(1, 16000)[0])[200:-200].max() < 1e-4

    def test_aliases_are_gone(self):
        got = mono(MemoryAudio(tone(1, 44100, hz=9000), 44100))
        assert np.abs(got)[200:-200].max() < 1e-4

    @pytest.mark.parametrize("channels", [1, 2, 6])
    def test_downmix_is_the_mean(self, channels):
        data = noise(16000, channels)
        np.testing.assert_allclose(mono(MemoryAudio(data, 16000)), data.astype(np.float64).mean(0), atol=1e-7)

    def test_downmix_does_not_depend_on_layout(self):
        data = noise(16000, 12)
        got = [mono(MemoryAudio(d, 16000)) for d in (data, np.asfortranarray(data))]
        np.testing.assert_array_equal(*got)

    def test_same_rate_passes_unchanged(self):
        data = noise(100000)
        np.testing.assert_array_equal(mono(MemoryAudio(data, 16000)), data[0])

    def test_non_finite_becomes_zero_with_one_warning(self):  # row 13
        data = noise(200000, 2)
        data[1, 5000] = np.nan
        data[0, 150000] = -np.inf
        clean = np.nan_to_num(data, nan=0, neginf=0)
        report = Report()
        got = mono(MemoryAudio(data, 48000, "voice"), report=report)
        np.testing.assert_array_equal(got, mono(MemoryAudio(clean, 48000)))
        (line,) = report.warnings
        assert "voice: 2 NaN or Inf" in line
        assert "first at 5000 (0.104 s)" in line

    def test_first_bad_sample_is_found_in_any_block(self):
        data = noise(200000)
        data[0, [180000, 140001]] = np.inf
        report = Report()
        mono(MemoryAudio(data, 16000), report=report)
        assert "first at 140001 (8.750 s)" in report.text()

    def test_float64_beyond_float32(self):
        report = Report()
        assert np.isfinite(mono(MemoryAudio(np.full(9, 1e300), 16000), report=report)).all()
        assert "9 NaN or Inf" in next(iter(report.warnings))

    def test_above_full_scale_is_clipped_with_a_warning(self):
        data = np.array([0.5, -32768, 2, 1, -1], np.float32)
        report = Report()
        assert mono(MemoryAudio(data, 16000), report=report).tolist() == [0.5, -1, 1, 1, -1]
        (line,) = report.warnings
        assert "2 samples above full scale" in line
        assert "3.277e+04" in line

    def test_clean_sound_warns_of_nothing(self, caplog):
        report = Report()
        mono(MemoryAudio(tone(1, level=1.0), 16000), report=report)
        mono(MemoryAudio(tone(1, level=1.0), 16000))
        assert not report.warnings
        assert not caplog.records

    def test_without_a_report_it_is_logged(self, caplog):
        mono(MemoryAudio(np.full(9, np.nan, np.float32), 16000))
        assert "9 NaN" in caplog.text

    def test_pieces(self):
        data = noise(70001)
        clip = MemoryAudio(data, 16000)
        for size in (1000, 70001, 35000, 480000):
            got = list(pieces(clip, size))
            assert [len(p) for p in got[:-1]] == [size] * (len(got) - 1)
            np.testing.assert_array_equal(np.concatenate(got), data[0])
        assert [len(p) for p in pieces(MemoryAudio(np.zeros(61 * 24000, np.float32), 24000))] == [
            480000,
            480000,
            16000,
        ]
        with pytest.raises(ValueError, match="at least one sample"):
            pieces(clip, 0)

    def test_rebatch(self):
        data = np.arange(50)
        for cuts in ([50], [1] * 50, [20, 0, 29, 1], [7] * 7 + [1]):
            blocks = np.split(data, np.cumsum(cuts)[:-1])
            got = list(rebatch(iter(blocks), 8))
            assert [len(b) for b in got] == [8] * 6 + [2]
            np.testing.assert_array_equal(np.concatenate(got), data)


class TestFiles:
    @pytest.mark.parametrize(
        ("ext", "subtype", "error"),
        [
            ("wav", "PCM_U8", 2**-7),
            ("wav", "PCM_16", 2**-15),
            ("wav", "PCM_24", 2**-23),  # row 12
            ("wav", "PCM_32", 2**-23),
            ("wav", "FLOAT", 0),
            ("wav", "DOUBLE", 0),
            ("flac", "PCM_16", 2**-15),
            ("ogg", "VORBIS", 0.1),
            ("mp3", "MPEG_LAYER_III", 0.1),
        ],
    )
    @pytest.mark.parametrize("channels", [1, 2])
    def test_sound_files(self, tmp_path, ext, subtype, error, channels):
        path = tmp_path / f"caña 日本 😀.{ext}"  # row 23
        data = tone(1.37, 44100, channels)
        sf.write(path, data.T, 44100, subtype=subtype)
        clip = open_audio(path)
        assert (clip.sample_rate, clip.channels, clip.n_samples) == (44100, channels, data.shape[1])
        assert np.abs(whole(clip) - data).max() <= error
        np.testing.assert_array_equal(whole(clip, 1000), whole(clip))
        assert [b.shape[1] for b in clip.blocks(50000)] == [50000, 10417]
        assert len(mono(clip)) == resampled_length(data.shape[1], 44100)
        assert not clip.notes

    @pytest.mark.parametrize(
        ("name", "codec", "rate", "layout", "with_video"),
        [
            ("a.m4a", "aac", 44100, "stereo", False),
            ("a.mp4", "aac", 22050, "mono", True),
            ("a.mov", "pcm_s24le", 48000, "5.1", True),
            ("a.mkv", "libopus", 48000, "mono", True),
            ("a.mka", "alac", 44100, "stereo", False),
        ],
    )
    def test_containers(self, tmp_path, name, codec, rate, layout, with_video):
        path = tmp_path / f"vídeo {name}"
        data = write_av(path, codec, rate, layout, rate + 77, with_video)
        clip = open_audio(path)
        assert (clip.sample_rate, clip.channels, clip.n_samples) == (rate, *data.shape)
        got = whole(clip)
        assert got.shape == data.shape
        assert np.abs(got[0] - data[0])[2000:-2000].max() < 0.1  # in time: a shift would give about 1
        np.testing.assert_array_equal(whole(clip, 999), got)

    def test_soundfile_and_av_agree(self, tmp_path):
        path = tmp_path / "a.flac"
        sf.write(path, noise(100000, 2).T, 48000)
        one, two = open_audio(path), audio_file._open_av(path)
        assert one.n_samples == two.n_samples
        np.testing.assert_array_equal(whole(one), whole(two))

    def test_video_without_sound(self, tmp_path):  # row 19
        path = tmp_path / "silent.mp4"
        write_av(path, None, None, None, 0, with_video=True, with_audio=False)
        with pytest.raises(ValueError, match=r"silent\.mp4 has no sound track"):
            open_audio(path)

    def test_what_is_not_sound(self, tmp_path):
        (tmp_path / "empty.wav").write_bytes(b"")
        (tmp_path / "text.mp3").write_text("not sound at all\n" * 9)
        sf.write(tmp_path / "none.wav", np.zeros((0, 1)), 16000)
        for name, message in (
            ("empty.wav", "FFmpeg reads|decode"),
            ("text.mp3", "FFmpeg reads|decode"),
            ("none.wav", "decode"),
            ("gone.wav", "not a file"),
            (".", "not a file"),
        ):
            with pytest.raises(ValueError, match=message):
                open_audio(tmp_path / name)

    @pytest.mark.parametrize("ext", ["wav", "flac", "mp3", "ogg"])
    def test_cut_file_gives_what_is_there_and_says_so(self, tmp_path, ext):
        path, data = tmp_path / f"a.{ext}", noise(3 * 44100)
        sf.write(path, data.T, 44100)
        full = path.read_bytes()
        path.write_bytes(full[: len(full) * 6 // 10])
        clip, report = open_audio(path), Report()
        got = whole(clip)
        assert 0.3 * data.shape[1] < clip.n_samples < 0.8 * data.shape[1]
        assert got.shape[1] == clip.n_samples
        mono(clip, report=report)
        assert any("cut short" in w or "damaged" in w for w in report.warnings)

    def test_cut_video_is_refused(self, tmp_path):
        path = tmp_path / "a.mp4"
        write_av(path, "aac", 44100, "mono", 44100)
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(ValueError, match=r"a\.mp4"):
            open_audio(path)

    def test_damage_in_the_middle_keeps_the_rest_in_time(self, tmp_path):
        for name, make in (
            ("a.flac", lambda p: sf.write(p, tone(3, 44100).T, 44100)),
            ("a.m4a", lambda p: write_av(p, "aac", 44100, "mono", 3 * 44100)),
        ):
            path = tmp_path / name
            make(path)
            full, rng = bytearray(path.read_bytes()), np.random.default_rng(1)
            middle = len(full) // 2
            full[middle : middle + 200] = rng.integers(0, 256, 200, dtype=np.uint8).tobytes()
            path.write_bytes(full)
            clip = open_audio(path)
            got, want = whole(clip)[0], tone(3, 44100)[0]
            assert len(got) == clip.n_samples == len(want)
            assert np.abs(got - want)[-30000:-3000].max() < 0.1
            assert any("damaged" in line for line in clip.notes)

    def test_header_that_lies(self, tmp_path):
        path = tmp_path / "a.wav"
        sf.write(path, noise(5000).T, 16000)
        raw = bytearray(path.read_bytes())
        at = raw.index(b"data") + 4
        for size in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"):  # what recorders leave that cannot seek
            raw[at : at + 4] = size
            path.write_bytes(raw)
            clip = open_audio(path)
            assert abs(clip.n_samples - 5000) <= 1
            assert whole(clip).shape[1] == clip.n_samples

    def test_changed_file(self, tmp_path):
        path = tmp_path / "a.wav"
        sf.write(path, noise(5000).T, 16000)
        clip = open_audio(path)
        before = clip.fingerprint()
        assert before == open_audio(path).fingerprint()
        time.sleep(0.01)
        sf.write(path, noise(5000, seed=1).T, 16000)
        assert open_audio(path).fingerprint() != before
        with pytest.raises(ValueError, match="changed"):
            clip.blocks()

    def test_file_is_closed_when_the_reader_stops(self, tmp_path):
        sf.write(tmp_path / "a.wav", noise(200000).T, 16000)
        reader = mono_blocks(open_audio(tmp_path / "a.wav"))
        next(reader)
        reader.close()
        gc.collect()
        assert not [f for f in psutil.Process().open_files() if f.path.endswith("a.wav")]

    @pytest.mark.parametrize("kind", ["wav", "av"])
    def test_memory_is_flat(self, tmp_path, kind):
        path, seconds = tmp_path / "long.wav", 300  # 300 s of 48 kHz stereo: 115 MB as float32
        block = (noise(48000, 2).T * 2**15).astype(np.int16)
        with sf.SoundFile(path, "w", 48000, 2) as f:
            for _ in range(seconds):
                f.write(block)
        clip = open_audio(path) if kind == "wav" else audio_file._open_av(path)
        next(pieces(clip))
        gc.collect()
        process, done = psutil.Process(), threading.Event()
        start, peak = process.memory_info().rss, [0]

        def watch():
            while not done.wait(0.005):
                peak[0] = max(peak[0], process.memory_info().rss)

        watcher = threading.Thread(target=watch)
        watcher.start()
        n = sum(len(p) for p in pieces(clip))
        done.set()
        watcher.join()
        assert n == seconds * 16000
        assert peak[0] - start < 20e6

    def test_missing_packages_name_themselves(self, tmp_path, monkeypatch):
        path = tmp_path / "a.m4a"
        write_av(path, "aac", 44100, "mono", 44100)
        sf.write(tmp_path / "a.wav", noise(5000).T, 16000)
        monkeypatch.setitem(__import__("sys").modules, "av", None)
        with pytest.raises(MissingPackage, match="pip install av"):
            open_audio(path)
        assert open_audio(tmp_path / "a.wav").n_samples == 5000
        monkeypatch.setitem(__import__("sys").modules, "soxr", None)
        with pytest.raises(MissingPackage, match="pip install soxr"):
            mono(MemoryAudio(np.zeros(9, np.float32), 8000))

    def test_without_soundfile_av_reads_wav(self, tmp_path, monkeypatch):
        data = noise(5000)
        sf.write(tmp_path / "a.wav", data.T, 16000, subtype="FLOAT")
        monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
        np.testing.assert_array_equal(whole(open_audio(tmp_path / "a.wav")), data)


def test_an_interrupt_inside_a_lazy_audio_is_not_swallowed():
    class InterruptProcessingException(Exception):
        pass

    class Lazy(dict):
        def __getitem__(self, key):
            raise InterruptProcessingException

    with pytest.raises(InterruptProcessingException):
        from_comfy(Lazy())


def test_a_playlist_is_not_followed_to_another_file(tmp_path):
    outside = tmp_path / "outside.wav"
    sf.write(outside, np.zeros(3200, np.float32), 16000)
    inside = tmp_path / "input"
    inside.mkdir()
    for name in ("speech.m3u8", "speech.mp3"):
        text = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.2,\nfile://{outside}\n#EXT-X-ENDLIST\n"
        (inside / name).write_text(text)
        with pytest.raises(ValueError, match="playlist|points to other files"):
            audio.open_audio(inside / name)
