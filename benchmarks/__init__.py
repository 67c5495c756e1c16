"""What is measured, and against what: `make bench` runs it all."""
