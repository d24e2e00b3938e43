"""What a model thought before it answered: one splitter a choice, by the model's style."""
