"""Turn text into batches: corpora, subwords."""
