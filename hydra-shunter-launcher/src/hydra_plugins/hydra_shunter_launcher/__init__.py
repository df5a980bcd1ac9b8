"""The launcher `shunter` of Hydra."""
