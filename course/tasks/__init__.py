"""The tasks that models are trained on."""
