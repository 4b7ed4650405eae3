"""The default model: a cascade of detector, recogniser, language model and voice that runs on two CPU cores."""
