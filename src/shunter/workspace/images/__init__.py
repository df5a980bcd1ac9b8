"""How code gets into an image: what a layer holds, and the ways in which a daemon or a registry takes it.

Not here: which code that is (`workspace`); clients of daemon and registries (`docker`, `image_registry`).
"""
