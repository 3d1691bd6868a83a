"""The models and rules that DTML is compared with.

They are recurrent networks, StockNet, classifiers and naive rules.
"""
