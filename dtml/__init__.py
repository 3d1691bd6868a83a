"""Markets and tensors: from checked bars to scored probabilities; no Prefect, no SQL."""
