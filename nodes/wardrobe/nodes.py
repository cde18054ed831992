"""The wardrobe's nodes, in the order of the menu."""

from . import cache_nodes, check_nodes, crop_nodes, latent_nodes, loop_nodes, mask_nodes, paint_nodes

NODES = [
    *crop_nodes.NODES,
    *cache_nodes.NODES,
    *mask_nodes.NODES,
    *latent_nodes.NODES,
    *loop_nodes.NODES,
    *paint_nodes.NODES,
    *check_nodes.NODES,
]
