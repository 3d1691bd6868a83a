"""Turn text into batches: corpora, subwords, language identification."""
