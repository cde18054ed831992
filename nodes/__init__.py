"""The pack's nodes. Importing this package imports nothing of ComfyUI: `node_classes` does."""


def node_classes() -> list:
    """Return every node class, in the order of the menu."""
    from . import cadence_nodes, engine_nodes, shared_nodes, video_nodes
    from .avatars import inspect_nodes, options_nodes
    from .avatars import nodes as avatar_nodes
    from .ditto import nodes as ditto_nodes
    from .musetalk import nodes as musetalk_nodes
    from .tts import nodes as tts_nodes
    from .wardrobe import nodes as wardrobe_nodes
    from .wardrobe import sample_nodes

    modules = (
        tts_nodes,
        shared_nodes,
        avatar_nodes,
        options_nodes,
        inspect_nodes,
        cadence_nodes,
        musetalk_nodes,
        ditto_nodes,
        sample_nodes,
        wardrobe_nodes,
        engine_nodes,
        video_nodes,
    )
    return [node for module in modules for node in module.NODES]
