"""What the schedulers on AWS have in common."""
