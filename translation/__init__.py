"""Text and tensors; `translation.transformer` is the attention that DTML shares."""
