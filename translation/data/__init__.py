"""From text to batches: corpora, subwords, language identification."""
