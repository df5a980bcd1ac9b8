"""What the schedulers on AWS share: sessions, validation of requests, logs."""
