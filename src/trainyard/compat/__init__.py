"""What was written for TorchX runs here: the table of its names, and its shapes where ours differ.

`trainyard.torchx_alias` answers `import torchx` by it. Nothing else of trainyard imports this folder.
"""
