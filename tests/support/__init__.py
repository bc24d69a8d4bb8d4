"""What tests and the processes that they start share."""
