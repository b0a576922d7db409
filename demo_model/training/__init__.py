"""Recipe of the demo model: data, training, evaluation."""
