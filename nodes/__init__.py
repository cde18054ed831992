"""The pack's nodes. Importing this package imports nothing of ComfyUI: `node_classes` does."""


def node_classes() -> list:
    """Return every node class, in the order of the menu."""
    from . import shared_nodes, video_nodes
    from .musetalk import nodes as musetalk_nodes
    from .tts import nodes as tts_nodes

    return [*tts_nodes.NODES, *shared_nodes.NODES, *musetalk_nodes.NODES, *video_nodes.NODES]
