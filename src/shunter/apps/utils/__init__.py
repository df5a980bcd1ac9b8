"""Programs that the components of `shunter.components.utils` and ``metrics`` start."""
