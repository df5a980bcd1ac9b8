"""Programs that the components of `trainyard.components.serve` start."""
