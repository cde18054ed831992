"""ComfyUI-TalkingHead: speech in, a talking presenter out.

Importing this package does nothing: ComfyUI asks `comfy_entrypoint` for the nodes, everything else is
imported where it is used.
"""

WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    """Return the extension object that lists the pack's nodes (ComfyUI V3 entry point)."""
    from .nodes.extension import TalkingHeadExtension

    return TalkingHeadExtension()
