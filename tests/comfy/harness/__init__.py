"""Start a real ComfyUI server and talk to it, with the standard library alone."""
