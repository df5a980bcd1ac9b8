"""The launcher `trainyard` of Hydra."""
