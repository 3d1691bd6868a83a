"""The models and rules that DTML is compared with: networks, classifiers and naive rules."""
