"""How code gets into an image: layers, and the ways in which a daemon or a registry takes them."""
