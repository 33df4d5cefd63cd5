"""What a trained model's surroundings, inputs and features look like, beyond its scores."""
