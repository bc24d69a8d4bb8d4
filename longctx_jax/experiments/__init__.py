"""What was done with it: demo, controls, the paper's data."""
