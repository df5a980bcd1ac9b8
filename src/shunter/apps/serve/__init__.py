"""Programs that the components of `shunter.components.serve` start."""
