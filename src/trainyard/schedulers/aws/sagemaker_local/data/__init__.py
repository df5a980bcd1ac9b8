"""What jobs read and leave behind: channels, checkpoints, results, and where they lie."""
