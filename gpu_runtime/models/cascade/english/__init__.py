"""English text to phonemes, from lexicons and rules, so that no word is silently dropped."""
