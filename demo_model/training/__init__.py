"""The recipe of the demo model: data, training, evaluation."""
