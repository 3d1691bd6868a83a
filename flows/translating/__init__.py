"""Translation jobs: training, texts, files, the queue, a demonstration."""
