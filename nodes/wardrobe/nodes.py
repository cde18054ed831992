"""The wardrobe's nodes, in the order of the menu."""

from . import check_nodes, mask_nodes, paint_nodes

NODES = [*mask_nodes.NODES, *paint_nodes.NODES, *check_nodes.NODES]
