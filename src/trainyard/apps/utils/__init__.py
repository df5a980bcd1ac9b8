"""Programs that the components of `trainyard.components.utils` and ``metrics`` start."""
